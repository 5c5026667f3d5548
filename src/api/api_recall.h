/* SPDX-License-Identifier: MIT
 *
 * api_recall.h: what the server remembers of its own answers: for the text of a prompt together
 * with its answer, the token ids that were fed and sampled.
 *
 * A client sends an answer back as text, and text tokenised again can give other ids than those
 * that were sampled: then the stored pages of the answer would not be found. So the longest text
 * that is remembered and that a new prompt begins with keeps its ids, and only what is behind it is
 * tokenised (mx_tokenizer_encode_rest).
 *
 * Bounded in entries and bytes; what was used longest ago goes first. Any thread may call anything
 * but create and destroy. It is a memory aid, not a store: what does not fit, or finds no memory,
 * is not remembered, and nobody fails for it.
 */
#ifndef MX_API_RECALL_H
#define MX_API_RECALL_H

#include "base/hash.h"
#include "text/tokenizer.h"

typedef struct mx_recall mx_recall;

typedef struct mx_recall_config {
    size_t max_entries; /* 0 = 4096 */
    size_t max_bytes;   /* texts, ids and all; 0 = 64 MiB */
    unsigned hash_bits; /* 0 = 64; a test sets few, so that different texts meet */
} mx_recall_config;

/* A text as far as tokenising it is concerned. */
typedef struct mx_recall_text {
    const mx_hash256 *scope;  /* model, settings, isolation salt: nothing is seen across scopes */
    bool is_chat;             /* the template decided about BOS, not the tokeniser */
    mx_str text;
    const mx_span *controls;  /* [n_controls] from mx_tokenizer_find_controls */
    size_t n_controls;
} mx_recall_text;

mx_err mx_recall_create(mx_recall **out, const mx_recall_config *cfg, mx_errbuf *eb);
void mx_recall_destroy(mx_recall *m); /* NULL is allowed */

/* Remembers that *t has these ids; they replace others of the same text. Copies. */
void mx_recall_store(mx_recall *m, const mx_recall_text *t, const int32_t *ids, size_t n_ids);

/* The longest remembered text of the same scope and kind that t begins with, byte for byte and with
 * control tokens at the same places: appends its ids to *ids and returns its length. 0 = none. */
size_t mx_recall_find(mx_recall *m, const mx_recall_text *t, mx_tokens *ids);

/* Forgets everything. NULL is allowed. */
void mx_recall_clear(mx_recall *m);

/* How many of the sampled ids have their text wholly in `seen`, the (well-formed) text that was
 * shown for them, up to the end of a character; *n_bytes: how much of it they are. A stop string, a
 * character that was replaced and a control token, which nobody sees, end it. */
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
