/* SPDX-License-Identifier: MIT
 *
 * tokenizer.h: text to token ids and back, as the model's own tokeniser does it.
 *
 * Control tokens (type 3) are recognised only in the parts of the text that are template markup;
 * user-defined ones (type 4) everywhere. Ill-formed UTF-8 is replaced by U+FFFD, sequence by
 * sequence; nothing a user types is an error.
 *
 * A tokeniser is immutable after creation: any thread may use it. It copies what it needs from the
 * description.
 */
#ifndef MX_TOKENIZER_H
#define MX_TOKENIZER_H

#include "base/err.h"

typedef enum mx_token_type {
    MX_TOKEN_NORMAL = 1,
    MX_TOKEN_UNKNOWN = 2,
    MX_TOKEN_CONTROL = 3,
    MX_TOKEN_USER_DEFINED = 4,
    MX_TOKEN_UNUSED = 5,
    MX_TOKEN_BYTE = 6
} mx_token_type;

/* What a model file says about its vocabulary. Borrowed during mx_tokenizer_create only. */
typedef struct mx_vocab_desc {
    const char *model;        /* tokenizer.ggml.model: "gpt2" = byte-level BPE, "llama" = SPM */
    const char *pre;          /* tokenizer.ggml.pre, or NULL */
    size_t n_tokens;
    const mx_str *tokens;     /* [n_tokens] */
    const int32_t *types;     /* [n_tokens] or NULL = all normal */
    const float *scores;      /* [n_tokens] or NULL */
    size_t n_merges;
    const mx_str *merges;     /* [n_merges] "left right" */
    int32_t bos_id, eos_id, eot_id, eom_id, unk_id, pad_id; /* -1 = absent */
    int add_bos, add_eos, add_space_prefix;                 /* -1 = absent, 0, 1 */
} mx_vocab_desc;

typedef struct mx_tokenizer mx_tokenizer;

/* MX_E_UNSUPPORTED names the model or pre-tokeniser and lists those that are supported. */
mx_err mx_tokenizer_create(mx_tokenizer **out, const mx_vocab_desc *desc, mx_errbuf *eb);
void mx_tokenizer_destroy(mx_tokenizer *t);

/* A growing list of token ids; {0} to start, mx_tokens_free to end. */
typedef struct mx_tokens {
    int32_t *ids;
    size_t n, cap;
} mx_tokens;
mx_err mx_tokens_push(mx_tokens *t, int32_t id);
void mx_tokens_free(mx_tokens *t);

/* A run of bytes [begin, end) of the text that is template markup. */
typedef struct mx_span {
    size_t begin, end;
} mx_span;

/* Appends the tokens of text[0..len-1] to *out. Control tokens match only where they lie wholly in
 * one of the markup spans (sorted, not overlapping); n_spans 0 = user text throughout. Where two
 * spans touch they count as one. The text between special tokens is tokenised as one piece, across
 * the borders of spans. add_special adds BOS / EOS as the model wants it (not twice). */
mx_err mx_tokenizer_encode(const mx_tokenizer *t, const char *text, size_t len,
                           const mx_span *markup, size_t n_spans, bool add_special, mx_tokens *out);

/* Appends the tokens of text[at..len-1] to *out, which ends with the tokens of text[..at): what is
 * encoded goes on there, so nothing is put in front of it, but no token reaches across `at`, where
 * a character begins. The spans are those of the whole text; no BOS, no EOS. */
mx_err mx_tokenizer_encode_rest(const mx_tokenizer *t, const char *text, size_t len,
                                const mx_span *markup, size_t n_spans, size_t at, mx_tokens *out);

/* Where control tokens are recognised in well-formed text: *out (free with mx_free; NULL when there
 * are none), left to right. Two markings of a text with the same control tokens have the same
 * tokens. */
mx_err mx_tokenizer_find_controls(const mx_tokenizer *t, mx_str text, const mx_span *markup,
                                  size_t n_spans, mx_span **out, size_t *n_out);

/* The bytes that a token stands for in a stream; control tokens give their own text only when
 * `show_control`, but for the marks of calls of tools, which are part of what an answer says. Borrowed from the tokeniser. A bad id gives an empty view. */
mx_str mx_tokenizer_piece(const mx_tokenizer *t, int32_t id, bool show_control);

size_t mx_tokenizer_size(const mx_tokenizer *t);
mx_token_type mx_tokenizer_type(const mx_tokenizer *t, int32_t id);
bool mx_tokenizer_is_eog(const mx_tokenizer *t, int32_t id); /* ends a generation */
int32_t mx_tokenizer_bos(const mx_tokenizer *t);             /* -1 = none */
int32_t mx_tokenizer_eos(const mx_tokenizer *t);
bool mx_tokenizer_adds_bos(const mx_tokenizer *t);
bool mx_tokenizer_adds_eos(const mx_tokenizer *t);
/* The raw text of the token as in the vocabulary, for templates (bos_token, eos_token). */
mx_str mx_tokenizer_text(const mx_tokenizer *t, int32_t id);

#endif
