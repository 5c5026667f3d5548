/* SPDX-License-Identifier: MIT
 *
 * The merge loop of both models: of all neighbours that may merge, the pair of the lowest rank
 * does, leftmost first, until none may.
 *
 * Symbols live in arrays indexed by the byte at which they start:
 *
 *   word   h  e  l  l  o          id[0] = "he", len[0] = 2, and len[1] = 2 to step back from "l"
 *   rank[0] = rank of ("he","l"); TOK_NONE at bytes where no symbol starts or none may merge
 *
 * Most words have a few bytes: the lowest rank is found by scanning. A long one (a text of one
 * letter, a page without blanks) must not cost its length squared: it gets a tree of minima over
 * blocks of 16 ranks, and each merge repairs one or two blocks and their paths. A priority queue
 * would do as well, but takes several times the memory (12.5 bytes per byte here) and keeps stale
 * entries.
 *
 * An SPM fragment is a whole text. Where two bytes meet that stand side by side in no token,
 * nothing can ever merge across, so the text is cut there: in practice, in front of every blank.
 */
#include "text/tokenizer_impl.h"

#include "base/mem.h"
#include "base/utf8.h"

enum { BLOCK = TOK_BLOCK };

void tok_scratch_init(tok_scratch *s)
{
    s->heap_memory = NULL;
    s->cap = TOK_INLINE_WORD;
    s->id = s->inline_memory;
    s->len = s->id + TOK_INLINE_WORD;
    s->rank = s->len + TOK_INLINE_WORD;
    s->tree = s->rank + TOK_INLINE_WORD;
}

void tok_scratch_free(tok_scratch *s)
{
    mx_free(s->heap_memory);
}

/* Leaves of the tree for a word of n bytes: a power of two. */
static size_t n_leaves(size_t n)
{
    size_t leaves = 1;
    while (leaves * BLOCK < n) {
        leaves *= 2;
    }
    return leaves;
}

static mx_err reserve(tok_scratch *s, size_t n)
{
    size_t cap = n_leaves(n) * BLOCK;
    size_t bytes;
    if (n <= s->cap) {
        return MX_OK;
    }
    if (!mx_mul_ok(cap, 3 * sizeof(uint32_t), &bytes) ||
        !mx_add_ok(bytes, 2 * (cap / BLOCK) * sizeof(uint32_t), &bytes))
    {
        return MX_E_NOMEM;
    }
    uint32_t *p = mx_alloc(bytes);
    if (p == NULL) {
        return MX_E_NOMEM;
    }
    mx_free(s->heap_memory);
    s->heap_memory = p;
    s->cap = cap;
    s->id = p;
    s->len = p + cap;
    s->rank = p + 2 * cap;
    s->tree = p + 3 * cap;
    return MX_OK;
}

/* ---- what may merge -------------------------------------------------------------------------- */

static uint32_t find_pair(const mx_tokenizer *t, uint32_t left, uint32_t right)
{
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15u;
    for (uint32_t at = (uint32_t)(h >> 32) & t->pair_mask;; at = (at + 1) & t->pair_mask) {
        const tok_pair *p = &t->pairs[at];
        if (p->rank == TOK_NONE || (p->left == left && p->right == right)) {
            return p->rank;
        }
    }
}

/* The rank of merging the symbol at `at` with the one behind it. */
static uint32_t rank_at(const mx_tokenizer *t, const tok_scratch *s, const char *word, size_t n,
                        size_t at)
{
    size_t next = at + s->len[at];
    if (next >= n) {
        return TOK_NONE;
    }
    if (t->model == TOK_BPE) {
        bool both = s->id[at] != TOK_NONE && s->id[next] != TOK_NONE;
        return both ? find_pair(t, s->id[at], s->id[next]) : TOK_NONE;
    }
    uint32_t id = tok_find_word(t, word + at, (size_t)s->len[at] + s->len[next]);
    return id != TOK_NONE ? t->priority[id] : TOK_NONE;
}

static uint32_t merge_result(const mx_tokenizer *t, const char *word, size_t at, size_t len,
                             uint32_t rank)
{
    return t->model == TOK_BPE ? t->merged[rank] : tok_find_word(t, word + at, len);
}

/* ---- the lowest rank ------------------------------------------------------------------------- */

static uint32_t block_minimum(const uint32_t *rank)
{
    uint32_t low = TOK_NONE;
    for (size_t i = 0; i < BLOCK; i++) {
        low = rank[i] < low ? rank[i] : low;
    }
    return low;
}

static void tree_build(tok_scratch *s, size_t leaves)
{
    for (size_t i = 0; i < leaves; i++) {
        s->tree[leaves + i] = block_minimum(s->rank + i * BLOCK);
    }
    for (size_t i = leaves - 1; i > 0; i--) {
        uint32_t a = s->tree[2 * i], b = s->tree[2 * i + 1];
        s->tree[i] = a <= b ? a : b;
    }
}

static void tree_repair(tok_scratch *s, size_t leaves, size_t at)
{
    size_t i = leaves + at / BLOCK;
    uint32_t low = block_minimum(s->rank + at / BLOCK * BLOCK);
    while (s->tree[i] != low) {
        s->tree[i] = low;
        if (i == 1) {
            return;
        }
        uint32_t other = s->tree[i ^ 1];
        low = low <= other ? low : other;
        i /= 2;
    }
}

/* The leftmost byte with the lowest rank, or n when nothing may merge. */
static size_t find_lowest(const tok_scratch *s, size_t leaves, size_t n)
{
    size_t begin = 0, end = n;
    if (leaves > 1) {
        size_t i = 1;
        while (i < leaves) {
            i = s->tree[2 * i] <= s->tree[2 * i + 1] ? 2 * i : 2 * i + 1;
        }
        begin = (i - leaves) * BLOCK;
        end = mx_min_size(begin + BLOCK, n);
    }
    size_t best = n;
    uint32_t low = TOK_NONE;
    for (size_t i = begin; i < end; i++) {
        if (s->rank[i] < low) {
            low = s->rank[i];
            best = i;
        }
    }
    return best;
}

/* ---- the loop -------------------------------------------------------------------------------- */

static void first_symbols(const mx_tokenizer *t, tok_scratch *s, const char *word, size_t n)
{
    for (size_t at = 0; at < n;) {
        uint32_t cp;
        size_t len = t->model == TOK_BPE ? 1 : mx_utf8_decode(word + at, n - at, &cp);
        for (size_t i = 0; i < len; i++) {
            s->rank[at + i] = TOK_NONE;
        }
        s->len[at] = s->len[at + len - 1] = (uint32_t)len;
        s->id[at] = len == 1 && t->model == TOK_BPE ? t->byte_id[(uint8_t)word[at]]
                                                    : tok_find_word(t, word + at, len);
        at += len;
    }
    for (size_t at = 0; at < n; at += s->len[at]) {
        s->rank[at] = rank_at(t, s, word, n, at);
    }
}

static void merge_at(const mx_tokenizer *t, tok_scratch *s, const char *word, size_t n, size_t at,
                     size_t leaves)
{
    size_t next = at + s->len[at];
    size_t len = (size_t)s->len[at] + s->len[next];
    s->id[at] = merge_result(t, word, at, len, s->rank[at]);
    s->rank[next] = TOK_NONE;
    s->len[at] = s->len[at + len - 1] = (uint32_t)len;
    s->rank[at] = rank_at(t, s, word, n, at);
    size_t left = at;
    if (at > 0) {
        left = at - s->len[at - 1];
        s->rank[left] = rank_at(t, s, word, n, left);
    }
    if (leaves > 1) {
        tree_repair(s, leaves, at);
        if (left / BLOCK != at / BLOCK) {
            tree_repair(s, leaves, left);
        }
        if (next / BLOCK != at / BLOCK) {
            tree_repair(s, leaves, next);
        }
    }
}

/* A symbol that is no token: its bytes, each if there is a token for it. */
static mx_err push_bytes(const mx_tokenizer *t, const char *p, size_t n, mx_tokens *out)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t id = t->byte_id[(uint8_t)p[i]];
        if (id != TOK_NONE) {
            MX_TRY(mx_tokens_push(out, (int32_t)id));
        } else if (t->model == TOK_SPM && t->unk_id >= 0) {
            MX_TRY(mx_tokens_push(out, t->unk_id));
        }
    }
    return MX_OK;
}

static mx_err merge_word(const mx_tokenizer *t, tok_scratch *s, const char *word, size_t n,
                         mx_tokens *out)
{
    size_t leaves = n_leaves(n);
    MX_TRY(reserve(s, n));
    first_symbols(t, s, word, n);
    if (leaves > 1) {
        for (size_t i = n; i < leaves * BLOCK; i++) {
            s->rank[i] = TOK_NONE;
        }
        tree_build(s, leaves);
    }
    for (size_t at; (at = find_lowest(s, leaves, n)) < n;) {
        merge_at(t, s, word, n, at, leaves);
    }
    for (size_t at = 0; at < n; at += s->len[at]) {
        if (s->id[at] != TOK_NONE) {
            MX_TRY(mx_tokens_push(out, (int32_t)s->id[at]));
        } else {
            MX_TRY(push_bytes(t, word + at, s->len[at], out));
        }
    }
    return MX_OK;
}

mx_err tok_merge(const mx_tokenizer *t, tok_scratch *s, const char *word, size_t n, mx_tokens *out)
{
    if (n >= UINT32_MAX / 2) {
        return MX_E_LIMIT;
    }
    size_t begin = 0;
    /* SPM symbols are characters: a cut must not be inside one. */
    for (size_t i = 1; i < n; i++) {
        if (((uint8_t)word[i] & 0xC0) != 0x80 && !tok_are_neighbours(t, word[i - 1], word[i])) {
            MX_TRY(merge_word(t, s, word + begin, i - begin, out));
            begin = i;
        }
    }
    return begin < n ? merge_word(t, s, word + begin, n - begin, out) : MX_OK;
}
