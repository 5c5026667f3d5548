/* SPDX-License-Identifier: MIT
 *
 * cold_turns.h: which answers the manifests of one folder tell of, in RAM: where each is, by the
 * name of its prompt. A hint only: the manifest and its pages decide.
 *
 * Bounded: of more than MX_COLD_TURNS_MAX answers those go that were learned first. Thread-safe,
 * one lock of its own, held for table operations only; no other lock is taken inside.
 */
#ifndef MX_COLD_TURNS_H
#define MX_COLD_TURNS_H

#include "base/err.h"
#include "cold/cold_turn.h"

/* 32,768 answers: 6 MB, and a new prompt asks for all of them in less than a millisecond. */
enum { MX_COLD_TURNS_MAX = 1 << 15 };

typedef struct mx_cold_turns mx_cold_turns;

mx_cold_turns *mx_cold_turns_create(void); /* NULL = no memory */
void mx_cold_turns_destroy(mx_cold_turns *t); /* NULL is allowed */

/* The manifest `session` of that root, of n_tokens, tells of it. Of several that tell of the same
 * answer the longest counts, of equal ones the last: it outlives the others when superfluous ones are
 * deleted, and whoever reads it learns of what came later, too. Without memory it is not known. */
void mx_cold_turns_add(mx_cold_turns *t, const mx_hash256 *root, const mx_hash256 *session,
                       uint64_t n_tokens, const mx_turn *turn);
/* The manifest is of no use: it is gone, or its pages are. */
void mx_cold_turns_drop(mx_cold_turns *t, const mx_hash256 *root, const mx_hash256 *session);

/* Those of root whose prompt has more than min_bytes and at most max_bytes; with a nonce, only
 * the one that has it, whatever its prompt. *turns and *sessions [n] are the caller's to
 * mx_free. MX_E_NOMEM: none. */
mx_err mx_cold_turns_list(mx_cold_turns *t, const mx_hash256 *root, uint64_t min_bytes,
                          uint64_t max_bytes, const uint8_t *nonce, mx_turn **turns,
                          mx_hash256 **sessions, size_t *n);
size_t mx_cold_turns_count(mx_cold_turns *t);

#endif
