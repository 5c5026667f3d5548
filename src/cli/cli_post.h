/* SPDX-License-Identifier: MIT
 *
 * cli_post.h: one request to a running server, for commands that ask it something.
 */
#ifndef MX_CLI_POST_H
#define MX_CLI_POST_H

#include "base/buf.h"
#include "base/err.h"

/* Can mx_cli_post use such a url? MX_E_INVALID: eb says what one is like. Asks nobody. */
mx_err mx_cli_check_url(const char *url, mx_errbuf *eb);

/* POSTs a JSON body to url ("http://HOST:PORT", nothing behind) + path and waits for the answer, at
 * most a minute. `headers`: whole lines with CRLF, or "". *status and *body are the answer's. */
mx_err mx_cli_post(const char *url, const char *path, const char *headers, mx_str json,
                   unsigned *status, mx_buf *body, mx_errbuf *eb);

#endif
