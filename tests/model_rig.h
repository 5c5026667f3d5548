/* SPDX-License-Identifier: MIT
 *
 * model_rig.h: a loaded model with pages and a pool, and the few calls that tests of the forward
 * pass make all the time. Everything here stops the program with a message when it fails: a test
 * that wants to see a failure calls the library itself.
 */
#ifndef MX_MODEL_RIG_H
#define MX_MODEL_RIG_H

#include "base/mem.h"
#include "model/model.h"
#include "tiny_gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct rig {
    mx_pool *pool;
    mx_model *model;
    mx_kv_pool *kv;
    mx_hash256 root;
    uint32_t n_embd, n_vocab;
    uint32_t max_rows;
} rig;

typedef struct rig_options {
    unsigned n_threads;
    mx_cpu_level level;
    mx_kv_type kv_type;
    mx_act_type act_type;
    uint32_t n_ctx;
    uint32_t max_rows;
    size_t max_pages;
} rig_options;

MX_UNUSED static void rig_check(mx_err e, const mx_errbuf *eb, const char *what)
{
    if (e != MX_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, mx_err_name(e), eb->text);
        abort();
    }
}

MX_UNUSED static rig_options rig_default(void)
{
    return (rig_options){.n_threads = 2,
                         .level = mx_cpu_best(),
                         .kv_type = MX_KV_F16,
                         .max_rows = 512,
                         .max_pages = 256};
}

MX_UNUSED static rig rig_open(const char *path, rig_options o)
{
    rig r = {.max_rows = o.max_rows};
    mx_errbuf eb = {{0}};
    rig_check(mx_pool_create(&r.pool, o.n_threads, &eb), &eb, "pool");
    mx_model_options mo = {.path = path,
                           .kv_type = o.kv_type,
                           .act_type = o.act_type,
                           .max_batch_rows = o.max_rows,
                           .max_logit_rows = o.max_rows,
                           .n_ctx = o.n_ctx,
                           .cpu_level = o.level};
    rig_check(mx_model_load(&r.model, &mo, r.pool, &eb), &eb, path);
    rig_check(mx_kv_pool_create(&r.kv, mx_model_kv_shape(r.model), o.max_pages, &eb), &eb, "pages");
    r.root = mx_model_root(r.model, NULL);
    r.n_embd = mx_model_get_config(r.model)->n_embd;
    r.n_vocab = mx_model_get_config(r.model)->n_vocab;
    return r;
}

MX_UNUSED static void rig_close(rig *r)
{
    mx_kv_pool_check(r->kv);
    mx_kv_pool_destroy(r->kv);
    mx_model_destroy(r->model);
    mx_pool_destroy(r->pool);
}

/* A private file name for a tiny model; removed by rig_forget. */
MX_UNUSED static void rig_write(char path[64], const mx_tiny_spec *spec)
{
    snprintf(path, 64, "/tmp/mtplx-test-XXXXXX");
    int fd = mkstemp(path);
    if (fd < 0) {
        fprintf(stderr, "cannot make a temporary file\n");
        abort();
    }
    close(fd);
    mx_tiny_write(path, spec);
}

MX_UNUSED static rig rig_open_tiny(const mx_tiny_spec *spec, rig_options o)
{
    char path[64];
    rig_write(path, spec);
    rig r = rig_open(path, o);
    unlink(path);
    return r;
}

/* Feeds n tokens behind what s has, in one pass, and commits them. hidden: [n][n_embd], or NULL
 * when no result is wanted. */
MX_UNUSED static void rig_feed(rig *r, mx_seq *s, const int32_t *tokens, uint32_t n, float *hidden)
{
    mx_batch_row *rows = mx_calloc(n, sizeof *rows);
    mx_errbuf eb = {{0}};
    uint32_t bad = 0;
    rig_check(mx_seq_reserve(s, n), &eb, "reserve");
    for (uint32_t i = 0; i < n; i++) {
        rows[i] = (mx_batch_row){.seq = s,
                                 .pos = (uint32_t)s->n_tokens + i,
                                 .token = tokens[i],
                                 .hidden_to = hidden != NULL ? (int32_t)i : -1};
    }
    mx_batch b = {.rows = rows,
                  .n_rows = n,
                  .hidden = hidden,
                  .n_hidden_rows = hidden != NULL ? n : 0};
    rig_check(mx_model_forward(r->model, &b, &bad, &eb), &eb, "forward");
    mx_seq_commit(s, tokens, n);
    mx_free(rows);
}

/* The same in chunks of at most `chunk`. */
MX_UNUSED static void rig_feed_chunks(rig *r, mx_seq *s, const int32_t *tokens, uint32_t n,
                                      uint32_t chunk, float *hidden)
{
    for (uint32_t i = 0; i < n; i += chunk) {
        uint32_t k = n - i < chunk ? n - i : chunk;
        rig_feed(r, s, tokens + i, k, hidden != NULL ? hidden + (size_t)i * r->n_embd : NULL);
    }
}

/* logits[n][n_vocab] of hidden[n][n_embd] */
MX_UNUSED static void rig_logits(rig *r, const float *hidden, uint32_t n, float *logits)
{
    for (uint32_t i = 0; i < n; i += 16) {
        uint32_t k = n - i < 16 ? n - i : 16;
        if (!mx_model_logits(r->model, hidden + (size_t)i * r->n_embd, k,
                             logits + (size_t)i * r->n_vocab))
        {
            fprintf(stderr, "logits of rows %u to %u are not finite\n", i, i + k - 1);
            abort();
        }
    }
}

#endif
