/* SPDX-License-Identifier: MIT
 *
 * cold_turn.h: where in a chain of tokens an answer stands, and which text the tokens before it
 * are.
 *
 * A client sends an answer back as text; the ids that were sampled are in the pages. So that they
 * are found, the name of the prompt's text is kept with them: its SHA-256. No text is stored, and
 * ids only in the pages. docs/file-format.md, section 4.1.
 *
 * Pure functions, any thread.
 */
#ifndef MX_COLD_TURN_H
#define MX_COLD_TURN_H

#include "base/hash.h"

enum { MX_TURN_NONCE = 16, MX_TURN_BYTES = 80, MX_TURNS_MAX = 256 };

typedef struct mx_turn {
    mx_hash256 text;      /* the identity of the prompt's text, */
    uint64_t n_bytes;     /* how long that is, */
    uint64_t sum;         /* and a quick sum of it: whom to compare with */
    uint32_t n_prompt;    /* its ids are the first n_prompt of the chain, */
    uint32_t n_end;       /* those of the answer follow, up to here; UINT32_MAX = all there are */
    uint8_t nonce[MX_TURN_NONCE]; /* random: names what was said in this answer (tool calls) */
} mx_turn;

void mx_turn_encode(const mx_turn *t, uint8_t out[MX_TURN_BYTES]);
/* False: it is not the description of a turn. */
bool mx_turn_decode(mx_turn *t, const uint8_t bytes[MX_TURN_BYTES]) MX_MUST_CHECK;

#endif
