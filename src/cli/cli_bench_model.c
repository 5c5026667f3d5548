/* SPDX-License-Identifier: MIT
 *
 * The forward pass as the engine runs it, timed: a prompt read in chunks; one token after the other
 * at some depth; several sequences that generate together. What comes out is compared with what the
 * machine can do at most: a prompt with the multiply-accumulates of the instructions that the level
 * uses, a token with the time it takes to read the weights and its keys and values from memory once.
 *
 * The work per token comes from the file: every matrix takes part, the embedding only where it is the
 * LM head, too, of a mixture's experts only those that are chosen. Attention is not in the sum.
 */
#include "cli/cli_bench.h"

#include "api/api.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "cli/cli_options.h"
#include "cli/cli_roof.h"
#include "gguf/gguf.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef struct work {
    double macs;      /* per prompt token, without the LM head */
    double head_macs;
    double bytes;     /* of weights, read once per pass of a few rows */
} work;

enum { MAX_REPEAT = 64 };

/* Tokens per second, and per second of CPU time: with one thread the latter is what a quiet machine
 * would reach, also on a busy one. */
typedef struct series {
    double rates[MAX_REPEAT], cpu_rates[MAX_REPEAT];
    uint64_t begin_us;
    double begin_cpu_s;
} series;

typedef struct bench {
    const mx_bench_settings *s;
    mx_pool *pool;
    mx_model *model;
    const mx_model_config *mc;
    mx_kv_pool *kv;
    mx_hash256 root;
    mx_seq *base;         /* [batch] sequences of `depth` tokens */
    mx_seq *seqs;         /* [batch] */
    size_t n_seqs;
    mx_batch_row *rows;   /* [max rows] */
    int32_t *tokens;      /* [chunk] */
    float *hidden, *logits;
    series prompt, decode;
    work w;
    const mx_roof_family *roof_family; /* what the matrices are multiplied with */
} bench;

/* ---- one pass ------------------------------------------------------------------------------- */

static int32_t token_at(const bench *b, size_t seq, size_t pos)
{
    /* Spread over the vocabulary, different in each sequence. */
    return (int32_t)((pos * 7919u + seq * 104729u + 17u) % b->mc->n_vocab);
}

static mx_err run_pass(bench *b, uint32_t n_rows, uint32_t n_hidden, mx_errbuf *eb)
{
    uint32_t bad_row;
    mx_batch batch = {.rows = b->rows, .n_rows = n_rows, .hidden = b->hidden,
                      .n_hidden_rows = n_hidden};
    MX_TRY(mx_model_forward(b->model, &batch, &bad_row, eb));
    if (n_hidden > 0 && !mx_model_logits(b->model, b->hidden, n_hidden, b->logits)) {
        return mx_fail(eb, MX_E_NONFINITE, "the logits are not finite");
    }
    return MX_OK;
}

/* Reads a prompt of n tokens into an empty sequence. */
static mx_err read_prompt(bench *b, mx_seq *seq, size_t index, size_t n, mx_errbuf *eb)
{
    for (size_t at = 0; at < n;) {
        size_t k = mx_min_size(b->s->chunk, n - at);
        if (mx_seq_reserve(seq, k) != MX_OK) {
            return mx_fail(eb, MX_E_NOMEM, "no memory for %zu tokens of keys and values", n);
        }
        for (size_t i = 0; i < k; i++) {
            b->tokens[i] = token_at(b, index, at + i);
            b->rows[i] = (mx_batch_row){.seq = seq,
                                        .pos = (uint32_t)(at + i),
                                        .token = b->tokens[i],
                                        .hidden_to = at + i + 1 == n ? 0 : -1};
        }
        MX_TRY(run_pass(b, (uint32_t)k, at + k == n ? 1 : 0, eb));
        mx_seq_commit(seq, b->tokens, k);
        at += k;
    }
    return MX_OK;
}

/* One token for each sequence. */
static mx_err next_tokens(bench *b, mx_errbuf *eb)
{
    for (size_t i = 0; i < b->n_seqs; i++) {
        mx_seq *seq = &b->seqs[i];
        if (mx_seq_reserve(seq, 1) != MX_OK) {
            return mx_fail(eb, MX_E_NOMEM, "no memory for the keys and values");
        }
        b->rows[i] = (mx_batch_row){.seq = seq,
                                    .pos = (uint32_t)seq->n_tokens,
                                    .token = token_at(b, i, seq->n_tokens),
                                    .hidden_to = (int32_t)i};
    }
    MX_TRY(run_pass(b, (uint32_t)b->n_seqs, (uint32_t)b->n_seqs, eb));
    for (size_t i = 0; i < b->n_seqs; i++) {
        mx_seq_commit(&b->seqs[i], &b->rows[i].token, 1);
    }
    return MX_OK;
}

/* ---- time ----------------------------------------------------------------------------------- */

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void series_begin(series *t)
{
    t->begin_cpu_s = cpu_s();
    t->begin_us = mx_now_us();
}

static void series_end(series *t, uint64_t i, uint64_t n_tokens)
{
    t->rates[i] = (double)n_tokens / (double)(mx_now_us() - t->begin_us) * 1e6;
    t->cpu_rates[i] = (double)n_tokens / (cpu_s() - t->begin_cpu_s);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(const double *rates, uint64_t n)
{
    double sorted[MAX_REPEAT];
    memcpy(sorted, rates, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_value);
    return sorted[n / 2];
}

static void show_rates(const double *rates, uint64_t n, bool json)
{
    for (uint64_t i = 0; i < n; i++) {
        printf(json ? "%s%.2f" : "%s%.1f", i == 0 ? "" : json ? "," : " ", rates[i]);
    }
}

static void show_series(const series *t, uint64_t n, bool json)
{
    if (json) {
        printf(",\"per_cpu_second\":%.2f,\"rates\":[", median(t->cpu_rates, n));
    } else {
        printf("; %.1f per CPU second  [", median(t->cpu_rates, n));
    }
    show_rates(t->rates, n, json);
    fputs(json ? "]" : "]\n", stdout);
}

/* ---- the measurements ----------------------------------------------------------------------- */

static void seq_reset(bench *b, mx_seq *seq)
{
    mx_seq_free(seq);
    mx_seq_init(seq, b->kv, &b->root);
}

static mx_err measure_prompts(bench *b, mx_errbuf *eb)
{
    for (uint64_t r = 0; b->s->prompt > 0 && r < b->s->repeat; r++) {
        seq_reset(b, &b->base[0]);
        series_begin(&b->prompt);
        MX_TRY(read_prompt(b, &b->base[0], 0, b->s->prompt, eb));
        series_end(&b->prompt, r, b->s->prompt);
    }
    return MX_OK;
}

static mx_err measure_decoding(bench *b, mx_errbuf *eb)
{
    if (b->s->gen == 0) {
        return MX_OK;
    }
    for (size_t i = 0; i < b->n_seqs; i++) {
        if (b->base[i].n_tokens != b->s->depth) { /* else the prompt just read will do */
            seq_reset(b, &b->base[i]);
            MX_TRY(read_prompt(b, &b->base[i], i, b->s->depth, eb));
        }
    }
    for (uint64_t r = 0; r < b->s->repeat; r++) {
        for (size_t i = 0; i < b->n_seqs; i++) {
            seq_reset(b, &b->seqs[i]);
            MX_TRY(mx_seq_fork(&b->seqs[i], &b->base[i], b->s->depth));
        }
        series_begin(&b->decode);
        for (uint64_t k = 0; k < b->s->gen; k++) {
            MX_TRY(next_tokens(b, eb));
        }
        series_end(&b->decode, r, b->s->gen * b->n_seqs);
    }
    return MX_OK;
}

/* ---- the work in a file --------------------------------------------------------------------- */

static bool has_suffix(mx_str name, const char *suffix)
{
    size_t n = strlen(suffix);
    return name.len >= n && memcmp(name.ptr + name.len - n, suffix, n) == 0;
}

static mx_err count_work(const char *path, const mx_model_config *mc, work *w, mx_errbuf *eb)
{
    mx_gguf *g;
    *w = (work){0};
    MX_TRY(mx_gguf_open(&g, path, eb));
    bool is_tied = mx_gguf_find_tensor(g, "output.weight") == NULL;
    for (size_t i = 0; i < mx_gguf_n_tensors(g); i++) {
        const mx_gguf_tensor *t = mx_gguf_tensor_at(g, i);
        double n = 1;
        for (uint32_t d = 0; d < t->n_dims; d++) {
            n *= (double)t->ne[d];
        }
        double part = 1;
        if (has_suffix(t->name, "_exps.weight") && mc->n_experts > 0) {
            part = (double)mc->n_experts_used / (double)mc->n_experts;
        }
        bool is_embd = mx_str_eq(t->name, mx_str_of("token_embd.weight"));
        if (is_embd && !is_tied) {
            continue; /* one row of it per token */
        }
        w->bytes += part * (double)t->n_bytes;
        if (is_embd || mx_str_eq(t->name, mx_str_of("output.weight"))) {
            w->head_macs += n;
        } else if (t->n_dims >= 2) {
            w->macs += part * n;
        }
    }
    mx_gguf_close(g);
    return MX_OK;
}

/* ---- what is shown -------------------------------------------------------------------------- */

/* A prompt: its multiply-accumulates against the roof of the level's instruction. */
static void show_prompt(bench *b, double roof)
{
    const mx_bench_settings *s = b->s;
    const mx_roof_family *f = b->roof_family;
    double rate = median(b->prompt.rates, s->repeat);
    double macs = rate * (b->w.macs + b->w.head_macs / (double)s->prompt);
    if (s->json) {
        printf(",\"prefill\":{\"tokens\":%llu,\"median\":%.2f,\"gmacs\":%.2f,\"roof\":\"%s\","
               "\"roof_gmacs\":%.2f", (unsigned long long)s->prompt, rate, macs / 1e9, f->name,
               roof / 1e9);
        show_series(&b->prompt, s->repeat, true);
        fputs("}", stdout);
        return;
    }
    printf("prefill %llu: %.1f tokens/s, %.1f GMAC/s in matrices", (unsigned long long)s->prompt,
           rate, macs / 1e9);
    if (roof > 0) {
        printf(" = %.0f %% of %.1f (%s)", 100 * macs / roof, roof / 1e9, f->name);
    }
    show_series(&b->prompt, s->repeat, false);
}

/* Tokens: the bytes that a pass has to read, against the rate of the memory. */
static void show_decoding(bench *b, double dram)
{
    const mx_bench_settings *s = b->s;
    double rate = median(b->decode.rates, s->repeat);
    const mx_kv_shape *shape = mx_model_kv_shape(b->model);
    double depth = (double)s->depth + (double)s->gen / 2;
    double kv = (double)mx_kv_page_bytes(shape) / MX_PAGE_TOKENS * depth +
                2.0 * (double)shape->state_bytes;
    double pass_bytes = b->w.bytes + kv * (double)b->n_seqs;
    double bytes = pass_bytes * rate / (double)b->n_seqs;
    if (s->json) {
        printf(",\"decode\":{\"tokens\":%llu,\"depth\":%llu,\"batch\":%zu,\"median\":%.2f,"
               "\"gbytes\":%.2f,\"dram_gbytes\":%.2f", (unsigned long long)s->gen,
               (unsigned long long)s->depth, b->n_seqs, rate, bytes / 1e9, dram / 1e9);
        show_series(&b->decode, s->repeat, true);
        fputs("}", stdout);
        return;
    }
    printf("decode %llu x %zu at %llu: %.1f tokens/s, %.1f GB/s of weights and KV",
           (unsigned long long)s->gen, b->n_seqs, (unsigned long long)s->depth, rate, bytes / 1e9);
    if (dram > 0) {
        printf(" = %.0f %% of %.1f", 100 * bytes / dram, dram / 1e9);
    }
    show_series(&b->decode, s->repeat, false);
}

static mx_err show(bench *b, const char *path, double load_s, mx_errbuf *eb)
{
    const mx_bench_settings *s = b->s;
    const mx_kern *k = mx_model_kern(b->model);
    double roof = 0, dram[2] = {0, 0};
    MX_TRY(count_work(path, b->mc, &b->w, eb));
    b->roof_family = mx_roof_of_level(k->level, (mx_act_type)s->act_type);
    if (!s->no_roof) {
        roof = mx_roof_macs(b->roof_family, (unsigned)s->threads, 0.3);
        MX_TRY(mx_roof_dram(dram, (unsigned)s->threads, mx_roof_dram_bytes(), 5, eb));
    }
    char name[128];
    mx_log_safe(name, sizeof name, b->mc->name, strlen(b->mc->name));
    for (char *c = name; *c != '\0'; c++) {
        *c = *c == '"' || *c == '\\' ? '_' : *c;
    }
    if (s->json) {
        printf("{\"version\":\"" MX_VERSION "\",\"model\":\"%s\",\"architecture\":\"%s\","
               "\"level\":\"%s\",\"threads\":%llu,\"load_s\":%.3f,\"weight_bytes\":%.0f,"
               "\"macs_per_token\":%.0f", name, b->mc->architecture, k->name,
               (unsigned long long)s->threads, load_s, b->w.bytes, b->w.macs);
    } else {
        printf("%s (%s), %s, %llu threads, loaded in %.2f s\n", name, b->mc->architecture, k->name,
               (unsigned long long)s->threads, load_s);
    }
    if (s->prompt > 0) {
        show_prompt(b, roof);
    }
    if (s->gen > 0) {
        show_decoding(b, dram[0]);
    }
    fputs(s->json ? "}\n" : "", stdout);
    return MX_OK;
}

/* ---- up and down ---------------------------------------------------------------------------- */

static size_t pages_needed(const bench *b)
{
    const mx_bench_settings *s = b->s;
    const mx_kv_shape *shape = mx_model_kv_shape(b->model);
    size_t per_seq = mx_max_size(s->prompt, s->depth + s->gen) / MX_PAGE_TOKENS + 3;
    size_t state = shape->state_bytes == 0 ? 0 : shape->state_bytes / mx_kv_page_bytes(shape) + 1;
    return 2 * b->n_seqs * (per_seq + 3 * state);
}

static mx_err load(bench *b, const char *path, mx_errbuf *eb)
{
    const mx_bench_settings *s = b->s;
    uint32_t n_rows = (uint32_t)mx_max_size(s->chunk, s->batch);
    mx_cpu_level level;
    MX_TRY(mx_cli_cpu_level(s->cpu_level, &level, eb));
    mx_model_options o = {
        .path = path,
        .kv_type = (mx_kv_type)s->kv_type,
        .act_type = (mx_act_type)s->act_type,
        .max_batch_rows = n_rows,
        .max_logit_rows = (uint32_t)s->batch,
        .n_ctx = 0,
        .cpu_level = level,
    };
    MX_TRY(mx_pool_create(&b->pool, (unsigned)s->threads, eb));
    MX_TRY(mx_model_load(&b->model, &o, b->pool, eb));
    b->mc = mx_model_get_config(b->model);
    if (mx_max_size(s->prompt, s->depth + s->gen) > b->mc->n_ctx) {
        return mx_fail(eb, MX_E_LIMIT, "the model's context has %u tokens only", b->mc->n_ctx);
    }
    b->root = mx_model_root(b->model, NULL);
    MX_TRY(mx_kv_pool_create(&b->kv, mx_model_kv_shape(b->model), pages_needed(b), eb));
    /* As the engine does, and then waits for work. */
    mx_kv_pool_set_workers(b->kv, b->pool);
    mx_kv_pool_keep_ahead(b->kv, mx_model_ahead_bytes(b->model, s->chunk));
    while (mx_kv_pool_idle(b->kv)) {
    }
    b->base = mx_calloc(b->n_seqs, sizeof *b->base);
    b->seqs = mx_calloc(b->n_seqs, sizeof *b->seqs);
    b->rows = mx_calloc(n_rows, sizeof *b->rows);
    b->tokens = mx_calloc(s->chunk, sizeof *b->tokens);
    b->hidden = mx_calloc(b->n_seqs * b->mc->n_embd, sizeof *b->hidden);
    b->logits = mx_calloc(b->n_seqs * b->mc->n_vocab, sizeof *b->logits);
    if (b->base == NULL || b->seqs == NULL || b->rows == NULL || b->tokens == NULL ||
        b->hidden == NULL || b->logits == NULL)
    {
        return mx_fail(eb, MX_E_NOMEM, "out of memory");
    }
    for (size_t i = 0; i < b->n_seqs; i++) {
        mx_seq_init(&b->base[i], b->kv, &b->root);
        mx_seq_init(&b->seqs[i], b->kv, &b->root);
    }
    return MX_OK;
}

static void unload(bench *b)
{
    for (size_t i = 0; i < b->n_seqs; i++) {
        if (b->base != NULL) {
            mx_seq_free(&b->base[i]);
        }
        if (b->seqs != NULL) {
            mx_seq_free(&b->seqs[i]);
        }
    }
    mx_free(b->base);
    mx_free(b->seqs);
    mx_free(b->rows);
    mx_free(b->tokens);
    mx_free(b->hidden);
    mx_free(b->logits);
    if (b->kv != NULL) {
        mx_kv_pool_destroy(b->kv);
    }
    mx_model_destroy(b->model);
    mx_pool_destroy(b->pool);
}

int mx_bench_model(const mx_bench_settings *s, const char *path)
{
    bench b = {.s = s, .n_seqs = s->batch};
    mx_errbuf eb = {{0}};
    mx_log_set_level(MX_LOG_WARN);
    mx_kern_thread_init();
    uint64_t begin = mx_now_us();
    mx_err err = load(&b, path, &eb);
    double load_s = (double)(mx_now_us() - begin) / 1e6;
    if (err == MX_OK) {
        err = measure_prompts(&b, &eb);
    }
    if (err == MX_OK) {
        err = measure_decoding(&b, &eb);
    }
    if (err == MX_OK) {
        err = show(&b, path, load_s, &eb);
    }
    if (err != MX_OK) {
        fprintf(stderr, "mtplx: %s\n", eb.text[0] != '\0' ? eb.text : mx_err_name(err));
    }
    unload(&b);
    return err == MX_OK ? 0 : 1;
}
