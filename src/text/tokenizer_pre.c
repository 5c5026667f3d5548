/* SPDX-License-Identifier: MIT
 *
 * Splits text into words before any merging, with the patterns that models were trained with.
 *
 * A pre-tokeniser is one to six patterns (passes): pass n splits every piece that pass n-1 left
 * into its matches and the gaps between them. The patterns are facts about the models; they are
 * written here with explicit classes in three places:
 *
 *   - white space: PCRE2's \s under UCP also matches U+180E, which no model's own tokeniser does;
 *   - letters, marks, numbers: PCRE2 10.42 knows Unicode 14; what Unicode 15 added is spelt out;
 *   - contractions: (?i) would also match the long s (U+017F) for s and the Kelvin sign for k.
 *
 * Every pattern is linear on hostile text: no match looks further than its own run, and a run that
 * fails one alternative is taken whole by a later one. (`\s+$` alone would be quadratic: it is
 * tried at the beginning of a run only.)
 *
 * PCRE2 is used without its UTF check: the caller has replaced ill-formed sequences.
 */
#include "text/tokenizer_impl.h"

#include "base/buf.h"
#include "base/mem.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#define WS                                                                                         \
    "\\x{09}-\\x{0D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}"  \
    "\\x{205F}\\x{3000}"

/* Unicode 15.0 and 15.1 minus Unicode 14, computed from UnicodeData.txt (2026-11-29: 4,348 + 622
 * letters, 42 marks, 40 numbers, 23 punctuation characters). */
#define L "\\p{L}" L15
#define L15                                                                                        \
    "\\x{1123F}-\\x{11240}\\x{11F02}\\x{11F04}-\\x{11F10}\\x{11F12}-\\x{11F33}\\x{1342F}"          \
    "\\x{13441}-\\x{13446}\\x{1B132}\\x{1B155}\\x{1DF25}-\\x{1DF2A}\\x{1E030}-\\x{1E06D}"          \
    "\\x{1E4D0}-\\x{1E4EB}\\x{2B739}\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}"
#define M                                                                                          \
    "\\p{M}\\x{0CF3}\\x{0ECE}\\x{10EFD}-\\x{10EFF}\\x{11241}\\x{11F00}-\\x{11F01}\\x{11F03}"       \
    "\\x{11F34}-\\x{11F3A}\\x{11F3E}-\\x{11F42}\\x{13440}\\x{13447}-\\x{13455}\\x{1E08F}"          \
    "\\x{1E4EC}-\\x{1E4EF}"
#define N "\\p{N}\\x{11F50}-\\x{11F59}\\x{1D2C0}-\\x{1D2D3}\\x{1E4F0}-\\x{1E4F9}"
#define P "\\p{P}\\x{11B00}-\\x{11B09}\\x{11F43}-\\x{11F4F}"

#define ANY_CASE_CONTRACTION "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
/* Runs of white space: up to the last line break; all but the last; what is left. */
#define SPACES "[" WS "]*[\\r\\n]+|[" WS "]+(?![^" WS "])|[" WS "]+"
#define CJK_LLM "[\\x{4E00}-\\x{9FA5}\\x{0800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+"

/* The shape shared by the Llama 3 and Qwen families: `letter` is the class of word characters. */
#define LLAMA_LIKE(letter, numbers)                                                                \
    ANY_CASE_CONTRACTION "|[^\\r\\n" L N "]?[" letter "]+|" numbers                                \
                         "| ?[^" WS letter N "]+[\\r\\n]*|" SPACES

#define GPT2                                                                                       \
    "'s|'t|'re|'ve|'m|'ll|'d| ?[" L "]+| ?[" N "]+| ?[^" WS L N "]+|[" WS "]+(?![^" WS "])|[" WS   \
    "]+"

/* Words whose case changes once: capitals, then small letters, either of which may be missing.
 * Letters without case are in both classes, and nearly all of Unicode 15's new ones are such. */
#define UPPER "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}" L15 M
#define LOWER "\\p{Ll}\\p{Lm}\\p{Lo}" L15 M
#define CASED(suffix)                                                                              \
    "[^\\r\\n" L N "]?[" UPPER "]*[" LOWER "]+" suffix                                             \
    "|[^\\r\\n" L N "]?[" UPPER "]+[" LOWER "]*" suffix

static const struct {
    const char *name;
    bool ignore_merges, adds_bos;
    const char *passes[TOK_MAX_PASSES];
} kinds[] = {
    {"gpt-2", false, false, {GPT2}},
    {"smollm", false, false, {"[" N "]", GPT2}},
    {"llama-bpe", true, true, {LLAMA_LIKE(L, "[" N "]{1,3}")}},
    {"qwen2", false, false, {LLAMA_LIKE(L, "[" N "]")}},
    {"qwen35", false, false, {LLAMA_LIKE(L M, "[" N "]")}},
    {"dbrx", false, false, {LLAMA_LIKE(L, "[" N "]{1,3}")}},
    {"deepseek-llm", false, false,
     {"[\\r\\n]", "[" WS "]?\\p{L&}+",
      "[" WS "]?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}"
      "\\x{3000}-\\x{3002}]+",
      "(?<![" WS "])[" WS "]++\\z", CJK_LLM, "[" N "]+"}},
    {"deepseek-coder", false, false,
     {"[\\r\\n]", "[" WS "]?[" L "]+", "[" WS "]?[" P "]+", CJK_LLM, "[" N "]"}},
    {"deepseek-v3", false, false,
     {"[" N "]{1,3}", "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+",
      "[!-/:-@\\[-`{-~][A-Za-z]+|[^\\r\\n" L P "\\p{S}]?[" L M "]+| ?[" P "\\p{S}]+[\\r\\n]*|"
      SPACES}},
    {"tekken", true, true,
     {CASED("") "|[" N "]| ?[^" WS L N "]+[\\r\\n/]*|" SPACES}},
    {"gpt-4o", false, false,
     {CASED("(?:" ANY_CASE_CONTRACTION ")?") "|[" N "]{1,3}| ?[^" WS L N "]+[\\r\\n/]*|" SPACES}},
    {"default", false, false, {"[" P "$+<=>^~|]+", GPT2, "[" N "]+", "[0-9][0-9][0-9]"}},
};

/* Other names that files use for the same rules. */
static const struct {
    const char *name;
    const char *same_as;
} aliases[] = {
    {"mpt", "gpt-2"},          {"olmo", "gpt-2"},       {"jais", "gpt-2"},
    {"exaone4", "gpt-2"},      {"phi-2", "gpt-2"},      {"llama3", "llama-bpe"},
    {"llama-v3", "llama-bpe"}, {"falcon3", "llama-bpe"}, {"pixtral", "llama-bpe"},
    {"lfm2", "llama-bpe"},     {"smaug-bpe", "dbrx"},   {"deepseek-r1-qwen", "qwen2"},
    {"stablelm2", "qwen2"},    {"hunyuan", "qwen2"},    {"megrez", "qwen2"},
    {"starcoder", "smollm"},   {"refact", "smollm"},    {"command-r", "smollm"},
    {"codeshell", "smollm"},   {"exaone", "smollm"},
};

/* ---- PCRE2 ----------------------------------------------------------------------------------- */

static void *pcre_alloc(size_t n, void *unused)
{
    (void)unused;
    return mx_alloc(n);
}

static void pcre_free(void *p, void *unused)
{
    (void)unused;
    mx_free(p);
}

static mx_err compile(const char *pattern, void **code, bool *has_jit, mx_errbuf *eb)
{
    int error;
    PCRE2_SIZE at;
    pcre2_general_context *g = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    pcre2_compile_context *c = g != NULL ? pcre2_compile_context_create(g) : NULL;
    *code = NULL;
    if (c == NULL) {
        pcre2_general_context_free(g);
        return mx_fail(eb, MX_E_NOMEM, "not enough memory for a pre-tokeniser");
    }
    *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error,
                          &at, c);
    pcre2_compile_context_free(c);
    pcre2_general_context_free(g);
    if (*code == NULL) {
        /* The patterns are constant: only memory can be missing, or PCRE2 was built without UTF. */
        return mx_fail(eb, error == PCRE2_ERROR_HEAP_FAILED ? MX_E_NOMEM : MX_E_UNSUPPORTED,
                       "a pre-tokeniser pattern cannot be compiled (PCRE2 error %d at %zu)", error,
                       at);
    }
    /* Where memory may not be executable there is no JIT: the interpreter finds the same. */
    *has_jit = pcre2_jit_compile(*code, PCRE2_JIT_COMPLETE) == 0;
    return MX_OK;
}

static size_t find_kind(const char *name)
{
    for (size_t i = 0; i < MX_COUNT(aliases); i++) {
        if (strcmp(aliases[i].name, name) == 0) {
            name = aliases[i].same_as;
            break;
        }
    }
    size_t i = 0;
    while (i < MX_COUNT(kinds) && strcmp(kinds[i].name, name) != 0) {
        i++;
    }
    return i;
}

mx_err tok_pre_create(tok_pre *p, const char *name, mx_errbuf *eb)
{
    *p = (tok_pre){0};
    size_t kind = find_kind(name != NULL ? name : "default");
    if (kind == MX_COUNT(kinds)) {
        mx_buf list = {.max_bytes = 400};
        for (size_t i = 0; i < MX_COUNT(kinds); i++) {
            mx_buf_printf(&list, "%s%s", i ? ", " : "", kinds[i].name);
        }
        mx_err e = mx_fail(eb, MX_E_UNSUPPORTED, "the pre-tokeniser \"%.60s\" is not supported; "
                           "supported are %s", name, list.failed ? "others" : list.ptr);
        mx_buf_free(&list);
        return e;
    }
    p->ignore_merges = kinds[kind].ignore_merges;
    p->adds_bos = kinds[kind].adds_bos;
    p->has_jit = true;
    while (p->n_passes < TOK_MAX_PASSES && kinds[kind].passes[p->n_passes] != NULL) {
        bool has_jit = false;
        mx_err e = compile(kinds[kind].passes[p->n_passes], &p->codes[p->n_passes], &has_jit, eb);
        if (e != MX_OK) {
            tok_pre_destroy(p);
            return e;
        }
        p->has_jit = p->has_jit && has_jit;
        p->n_passes++;
    }
    return MX_OK;
}

void tok_pre_destroy(tok_pre *p)
{
    for (size_t i = 0; i < p->n_passes; i++) {
        pcre2_code_free(p->codes[i]);
    }
    *p = (tok_pre){0};
}

void *tok_pre_match_create(void)
{
    pcre2_general_context *g = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    pcre2_match_data *m = g != NULL ? pcre2_match_data_create(1, g) : NULL;
    pcre2_general_context_free(g);
    return m;
}

void tok_pre_match_destroy(void *match_data)
{
    pcre2_match_data_free(match_data);
}

/* ---- splitting ------------------------------------------------------------------------------- */

typedef struct split_job {
    const tok_pre *pre;
    pcre2_match_data *match;
    tok_word_fn fn;
    void *arg;
} split_job;

/* The next match at or after `at`; *begin = n when there is none. */
static mx_err next_match(const split_job *job, size_t pass, const char *text, size_t n, size_t at,
                         size_t *begin, size_t *end)
{
    const pcre2_code *code = job->pre->codes[pass];
    PCRE2_SPTR s = (PCRE2_SPTR)text;
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    if (job->pre->has_jit) {
        rc = pcre2_jit_match(code, s, n, at, 0, job->match, NULL);
    }
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
        rc = pcre2_match(code, s, n, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, job->match, NULL);
    }
    *begin = *end = n;
    if (rc == PCRE2_ERROR_NOMATCH) {
        return MX_OK;
    }
    if (rc < 0) {
        return rc == PCRE2_ERROR_NOMEMORY || rc == PCRE2_ERROR_HEAPLIMIT ? MX_E_NOMEM : MX_E_LIMIT;
    }
    const PCRE2_SIZE *found = pcre2_get_ovector_pointer(job->match);
    *begin = found[0];
    *end = found[1];
    return MX_OK;
}

/* Depth is at most TOK_MAX_PASSES. */
static mx_err split(const split_job *job, size_t pass, const char *text, size_t n)
{
    if (n == 0) {
        return MX_OK;
    }
    if (pass == job->pre->n_passes) {
        return job->fn(job->arg, text, n);
    }
    for (size_t at = 0; at < n;) {
        size_t begin, end;
        MX_TRY(next_match(job, pass, text, n, at, &begin, &end));
        MX_TRY(split(job, pass + 1, text + at, begin - at));
        MX_TRY(split(job, pass + 1, text + begin, end - begin));
        at = end; /* no pattern matches the empty string, so end > at */
    }
    return MX_OK;
}

mx_err tok_pre_split(const tok_pre *p, void *match_data, const char *text, size_t n, tok_word_fn fn,
                     void *arg)
{
    split_job job = {p, match_data, fn, arg};
    return split(&job, 0, text, n);
}
