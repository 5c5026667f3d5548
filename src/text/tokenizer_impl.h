/* SPDX-License-Identifier: MIT
 *
 * tokenizer_impl.h: the inside of a tokeniser, shared by the tokenizer_*.c files only.
 *
 *   text --clean--> text --cut at special tokens--> fragments --split--> words --merge--> ids
 *        encode              encode                            pre             merge
 *
 * A tokeniser is built by mx_tokenizer_create and never written afterwards. What one call needs to
 * work in is a tok_scratch on its own stack and heap.
 */
#ifndef MX_TOKENIZER_IMPL_H
#define MX_TOKENIZER_IMPL_H

#include "text/tokenizer.h"

#define TOK_NONE UINT32_MAX /* no symbol, no merge, no token */

typedef enum tok_model { TOK_BPE, TOK_SPM } tok_model;

/* ---- pre-tokeniser --------------------------------------------------------------------------- */

enum { TOK_MAX_PASSES = 6 };

typedef struct tok_pre {
    void *codes[TOK_MAX_PASSES]; /* pcre2_code */
    size_t n_passes;
    bool has_jit;
    bool ignore_merges; /* a word that is a token is taken whole */
    bool adds_bos;      /* unless the file says otherwise */
} tok_pre;

/* NULL means "default". MX_E_UNSUPPORTED lists the names that are known. */
mx_err tok_pre_create(tok_pre *p, const char *name, mx_errbuf *eb);
void tok_pre_destroy(tok_pre *p);

typedef mx_err (*tok_word_fn)(void *arg, const char *word, size_t n);
/* Calls fn for each word of well-formed UTF-8, left to right; together they are the text.
 * match_data comes from tok_pre_match_create. */
mx_err tok_pre_split(const tok_pre *p, void *match_data, const char *text, size_t n, tok_word_fn fn,
                     void *arg);
void *tok_pre_match_create(void); /* NULL = no memory */
void tok_pre_match_destroy(void *match_data);

/* ---- vocabulary ------------------------------------------------------------------------------ */

/* Byte strings to ids; slots hold id + 1. */
typedef struct tok_hash {
    uint32_t *slots;
    uint32_t mask;
} tok_hash;

/* (left, right) -> rank; rank TOK_NONE marks an empty slot. */
typedef struct tok_pair {
    uint32_t left, right, rank;
} tok_pair;

struct mx_tokenizer {
    tok_model model;
    tok_pre pre;                /* TOK_BPE only */
    uint32_t n_tokens;
    char *arena;                /* texts, then pieces */
    uint32_t *text_at;          /* [n_tokens + 1] into arena */
    uint32_t *piece_at;         /* [n_tokens + 1] into arena */
    uint8_t *types;             /* [n_tokens] mx_token_type, promotions included */
    uint8_t *is_eog;            /* [n_tokens] */
    uint8_t *is_said;           /* [n_tokens] a control token that is part of what an answer says */
    int32_t bos_id, eos_id, unk_id;
    bool adds_bos, adds_eos, adds_space;

    /* Pieces that plain text can become; control tokens are not among them. */
    tok_hash words;
    uint32_t max_word_bytes;
    uint32_t byte_id[256];      /* the token of one byte, TOK_NONE = none */
    uint8_t *neighbours;        /* bit x * 256 + y: some word has byte y behind byte x */

    /* TOK_BPE */
    tok_pair *pairs;
    uint32_t pair_mask;
    uint32_t *merged;           /* [n_merges] by rank: the token that a merge makes */
    uint32_t n_merges;
    /* TOK_SPM: 0 = highest score; equal scores have equal priority. */
    uint32_t *priority;         /* [n_tokens] */

    /* Ids of the tokens that are cut out of raw text, sorted by their text. */
    uint32_t *specials;
    uint32_t n_specials;
    uint32_t special_at[257];   /* first special that begins with byte b or a later one */
};

MX_INLINE mx_str tok_text(const mx_tokenizer *t, uint32_t id)
{
    return (mx_str){t->arena + t->text_at[id], t->text_at[id + 1] - t->text_at[id]};
}

MX_INLINE mx_str tok_piece(const mx_tokenizer *t, uint32_t id)
{
    return (mx_str){t->arena + t->piece_at[id], t->piece_at[id + 1] - t->piece_at[id]};
}

/* The text by which a special token is found in raw text. */
MX_INLINE mx_str tok_special_text(const mx_tokenizer *t, uint32_t id)
{
    /* In SPM vocabularies U+2581 is a blank in user-defined tokens, too: the piece has it. */
    bool by_piece = t->model == TOK_SPM && t->types[id] == MX_TOKEN_USER_DEFINED;
    return by_piece ? tok_piece(t, id) : tok_text(t, id);
}

/* Fill the parts of t; everything they allocate hangs on t. */
mx_err tok_vocab_fill(mx_tokenizer *t, const mx_vocab_desc *d, mx_errbuf *eb);
mx_err tok_merges_fill(mx_tokenizer *t, const mx_vocab_desc *d, mx_errbuf *eb);

MX_INLINE bool tok_are_neighbours(const mx_tokenizer *t, char left, char right)
{
    unsigned bit = (unsigned)(uint8_t)left << 8 | (uint8_t)right;
    return (t->neighbours[bit / 8] >> bit % 8 & 1) != 0;
}

/* The id of a piece that plain text can become, or TOK_NONE. */
uint32_t tok_find_word(const mx_tokenizer *t, const char *p, size_t n);

/* Decodes the printable alphabet of byte-level vocabularies: out has room for s.len bytes. Returns
 * the bytes written; *is_pure is false when a character stands for no byte (it is copied then). */
size_t tok_unprintable(mx_str s, char *out, bool *is_pure);

/* ---- merging --------------------------------------------------------------------------------- */

enum { TOK_BLOCK = 16, TOK_INLINE_WORD = 64 };

/* Working memory of one word; starts on the caller's stack and grows to the heap for long words. */
typedef struct tok_scratch {
    uint32_t *id;    /* [cap] symbol that starts at a byte */
    uint32_t *len;   /* [cap] bytes of the symbol, at its first and at its last byte */
    uint32_t *rank;  /* [cap] of merging the symbol with the next one; TOK_NONE elsewhere */
    uint32_t *tree;  /* [2 * cap / TOK_BLOCK] minima over blocks of ranks */
    uint32_t *heap_memory; /* NULL while the arrays are the inline ones */
    size_t cap;
    uint32_t inline_memory[3 * TOK_INLINE_WORD + 2 * TOK_INLINE_WORD / TOK_BLOCK];
} tok_scratch;

void tok_scratch_init(tok_scratch *s);
void tok_scratch_free(tok_scratch *s);

/* Appends the tokens of one word (BPE) or one fragment (SPM) of well-formed UTF-8. */
mx_err tok_merge(const mx_tokenizer *t, tok_scratch *s, const char *word, size_t n, mx_tokens *out);

#endif
