/* SPDX-License-Identifier: MIT
 *
 * log.h: one line per event on stderr, "[mtplx] <event>: key=value ...".
 *
 * Thread-safe: a line is written with one write(2) and never mixes with another. Text that comes
 * from outside must be passed through mx_log_safe first; keys, salts and prompts are never logged.
 */
#ifndef MX_LOG_H
#define MX_LOG_H

#include "base/base.h"

typedef enum mx_log_level { MX_LOG_ERROR, MX_LOG_WARN, MX_LOG_INFO, MX_LOG_DEBUG } mx_log_level;

void mx_log_set_level(mx_log_level max_level); /* default MX_LOG_INFO */
bool mx_log_enabled(mx_log_level level);

/* Writes "[mtplx] " + text + "\n"; errors and warnings carry "error: " / "warning: " in front. */
void mx_log(mx_log_level level, const char *fmt, ...) MX_PRINTF(2, 3);

/* Copies at most cap-1 bytes of s, control characters and non-ASCII bytes as '?'. Returns out. */
const char *mx_log_safe(char *out, size_t cap, const char *s, size_t len);

#endif
