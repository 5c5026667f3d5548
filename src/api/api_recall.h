/* SPDX-License-Identifier: MIT
 *
 * api_recall.h: what the server remembers of its own answers: which ids were fed for the text of a
 * prompt, and which were sampled behind it.
 *
 * A client sends an answer back as text, and text tokenised again can give other ids than those
 * that were sampled: then the stored pages of the answer would not be found. So a new prompt that
 * begins with the text of a remembered one keeps its ids, and those of the answer as far as they
 * spell what follows; only what is behind that is tokenised (mx_tokenizer_encode_rest).
 *
 * Texts are not kept: their SHA-256 is their name. Bounded in entries and bytes; what was used
 * longest ago goes first. Any thread may call anything but create and destroy. It is a memory aid,
 * not a store: what does not fit, or finds no memory, is not remembered, and nobody fails for it.
 */
#ifndef MX_API_RECALL_H
#define MX_API_RECALL_H

#include "cold/cold_turn.h"
#include "base/buf.h"
#include "text/tokenizer.h"

typedef struct mx_recall mx_recall;

typedef struct mx_recall_config {
    size_t max_entries; /* 0 = 4096 */
    size_t max_bytes;   /* ids and all; 0 = 64 MiB */
    unsigned sum_bits;  /* 0 = 64; a test sets few, so that different texts meet */
} mx_recall_config;

/* A text as far as tokenising it is concerned. */
typedef struct mx_recall_text {
    const mx_hash256 *scope;  /* model, settings, isolation salt: nothing is seen across scopes */
    bool is_chat;             /* the template decided about BOS, not the tokeniser */
    mx_str text;
    const mx_span *controls;  /* [n_controls] from mx_tokenizer_find_controls */
    size_t n_controls;
} mx_recall_text;

/* The answers in a chain of ids, first to last. {0} to start. */
typedef struct mx_turns {
    mx_turn *list; /* [n] */
    size_t n, cap;
} mx_turns;
void mx_turns_free(mx_turns *t);
/* Of more than MX_TURNS_MAX the first goes. False: no memory. */
bool mx_turns_add(mx_turns *t, const mx_turn *turn) MX_MUST_CHECK;

mx_err mx_recall_create(mx_recall **out, const mx_recall_config *cfg, mx_errbuf *eb);
void mx_recall_destroy(mx_recall *m); /* NULL is allowed */

/* The turn that an answer to the whole of *t, which has n_prompt ids, would be; the nonce is left
 * zero. False: no memory. */
bool mx_recall_name(const mx_recall_text *t, size_t n_prompt, mx_turn *out) MX_MUST_CHECK;

/* Remembers the ids of a prompt and its answer, which is the last of the turns (at least one);
 * where they begin with what is remembered of the same prompt, they replace it. Where they are the
 * same ids, the answer is known by the nonces it had before, too (by the last seven). Copies. */
void mx_recall_store(mx_recall *m, const mx_hash256 *scope, const mx_turns *turns,
                     const int32_t *ids, size_t n_ids);

/* The longest remembered prompt of the same scope and kind that t begins with, byte for byte and
 * with control tokens at the same places, and that was answered with what follows; of several
 * answers the one that spells most of it. (Where no answer is in t, the longest prompt.) Appends
 * the ids and, when `turns` is given, the turns in them; returns the length of their text. 0 =
 * none. */
size_t mx_recall_find(mx_recall *m, const mx_tokenizer *tok, const mx_recall_text *t,
                      mx_tokens *ids, mx_turns *turns);

/* Appends what the answer that has this nonce says. False: it is not here. */
bool mx_recall_said(mx_recall *m, const mx_tokenizer *tok, const mx_hash256 *scope,
                    const uint8_t nonce[MX_TURN_NONCE], mx_buf *out);

/* Which turns could help with t, though their ids are not here: out of list[0..n-1] those that
 * name a beginning of t longer than n_known bytes, longest first. Fills order[] with their
 * indices; returns how many (0 without memory). */
size_t mx_recall_match(const mx_recall_text *t, const mx_turn *list, size_t n, size_t n_known,
                       uint32_t *order);

/* Forgets everything. NULL is allowed. */
void mx_recall_clear(mx_recall *m);

/* How many of the sampled ids have their text wholly at the beginning of `seen` (well-formed),
 * up to the end of a character; *n_bytes: how much of it they are. A character that was replaced
 * and a control token, which nobody sees, end it. */
size_t mx_recall_shown(const mx_tokenizer *t, const int32_t *ids, size_t n, mx_str seen,
                       size_t *n_bytes);

typedef struct mx_recall_stats {
    size_t n_entries, bytes, max_entries, max_bytes;
    uint64_t n_stored, n_found, n_evicted;
} mx_recall_stats;
void mx_recall_get_stats(mx_recall *m, mx_recall_stats *out);
/* Walks everything; false = an invariant is broken. For tests. */
bool mx_recall_check(mx_recall *m);

#endif
