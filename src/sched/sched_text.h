/* SPDX-License-Identifier: MIT
 *
 * sched_text.h: from token pieces to text that may be sent: never half a character, never the
 * beginning of a stop string.
 *
 * Belongs to one request, used by the engine thread only.
 */
#ifndef MX_SCHED_TEXT_H
#define MX_SCHED_TEXT_H

#include "base/buf.h"

typedef struct mx_text {
    const mx_str *stops;  /* [n_stops] not empty, borrowed for the life of this struct */
    size_t n_stops;
    size_t max_stop_len;
    mx_buf raw;           /* bytes of an unfinished UTF-8 sequence, at most 3 */
    mx_buf held;          /* clean text that could still become a stop string */
    uint64_t n_clean;     /* clean bytes produced so far, held ones included */
    uint64_t n_released;  /* of which were handed out */
    mx_str stop;          /* the stop string that was found; empty = none */
} mx_text;

void mx_text_init(mx_text *t, const mx_str *stops, size_t n_stops);
void mx_text_free(mx_text *t);

/* Takes a token's bytes; appends to *out what may be sent now. True when a stop string was found:
 * what came before it has been appended, the rest is dropped and the text is at its end. */
bool mx_text_push(mx_text *t, mx_str piece, mx_buf *out);
/* The generation ended without a stop string: appends what was held back (an unfinished character
 * as U+FFFD). True when a stop string shows up in it after all. */
bool mx_text_finish(mx_text *t, mx_buf *out);
/* An allocation failed somewhere: the text is not whole. */
bool mx_text_failed(const mx_text *t);

#endif
