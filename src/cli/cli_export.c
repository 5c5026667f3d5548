/* SPDX-License-Identifier: MIT
 *
 * Both directions need the model: the folder's name is a hash of everything that changes its
 * numbers, so only who has the model knows which folder is its own. --recompute computes the tokens
 * with it, too, and believes nothing but them.
 */
#include "cli/cli_export.h"

#include "api/api.h"
#include "base/mem.h"
#include "cli/cli_machine.h"
#include "cli/cli_start.h"
#include "cold/cold_export.h"
#include "cold/cold_format.h"
#include "model/model.h"

#include <stdio.h>

enum { CHUNK = 256, PATH_CAP = 1024 };

typedef struct loaded {
    mx_pool *pool;
    mx_model *model;
    mx_export_model id;
    mx_hash256 root; /* names the folder */
} loaded;

static void unload(loaded *l)
{
    mx_model_destroy(l->model);
    mx_pool_destroy(l->pool);
}

static mx_err load(const mx_cli_transfer *t, loaded *l, mx_errbuf *eb)
{
    char path[PATH_CAP], prints[PATH_CAP];
    const char *home = mx_machine_home();
    *l = (loaded){0};
    MX_TRY(mx_cli_find_model(t->model, path, sizeof path, eb));
    if (home != NULL) {
        mx_cli_fingerprint_dir(prints, sizeof prints, home);
    }
    unsigned threads = t->threads != 0 ? (unsigned)t->threads : (unsigned)mx_machine_cores();
    MX_TRY(mx_pool_create(&l->pool, threads, eb));
    mx_model_options o = {
        .path = path,
        .kv_type = (mx_kv_type)t->kv_type,
        .act_type = (mx_act_type)t->act_type,
        .max_batch_rows = CHUNK,
        .max_logit_rows = 1,
        .cpu_level = mx_cpu_best(),
        .root_key = t->auth->is_on ? &t->auth->root_key : NULL,
        .fingerprint_cache_dir = home != NULL ? prints : NULL,
    };
    MX_TRY(mx_model_load(&l->model, &o, l->pool, eb));
    l->root = mx_model_root(l->model, NULL);
    l->id = (mx_export_model){*mx_model_fingerprint(l->model), *mx_model_numerics_id(l->model),
                              mx_model_bare_root(l->model), *mx_model_kv_shape(l->model)};
    return MX_OK;
}

static const mx_hash256 *object_key(const mx_cli_transfer *t)
{
    return t->auth->is_on ? &t->auth->object_key : NULL;
}

static int ended(loaded *l, mx_err err, const mx_errbuf *eb)
{
    unload(l);
    if (err != MX_OK) {
        fprintf(stderr, "mtplx: %s\n", eb->text);
    }
    return err == MX_OK ? 0 : 1;
}

/* ---- export ---------------------------------------------------------------------------------- */

int mx_cli_export(const mx_cli_transfer *t, const mx_cold_entry *e, const char *file)
{
    loaded l;
    mx_errbuf eb = {{0}};
    mx_export_counts n;
    char hex[65], size[32];
    mx_err err = load(t, &l, &eb);
    if (err == MX_OK) {
        mx_hash256_hex(&l.root, hex);
        err = strcmp(hex, e->folder) == 0
                  ? mx_cold_export(t->dir, object_key(t), &l.root, &e->id, &l.id, file, &n, &eb)
                  : mx_fail(&eb, MX_E_UNSUPPORTED, "this entry was stored for another model, or for other "
                            "settings of it: %s/v1/%.12s.../model.json says which; name them with "
                            "--model, --kv-type and --activations", t->dir, e->folder);
    }
    if (err == MX_OK) {
        mx_print_size(size, sizeof size, n.n_bytes);
        printf("exported %llu tokens (%u pages, %u states, %s) to %s: who has the file can read the "
               "conversation\n", (unsigned long long)n.n_tokens, n.n_pages, n.n_states, size, file);
    }
    return ended(&l, err, &eb);
}

/* ---- recompute ------------------------------------------------------------------------------- */

typedef struct recomputing {
    mx_import *im;
    mx_model *model;
    mx_kv_pool *kv;
    mx_seq seq;
    int32_t *tokens; /* [n_tokens] */
    uint8_t *packed; /* rows of the last page */
    uint8_t *whole;  /* likewise, in one piece */
} recomputing;

/* Computes up to n tokens. */
static mx_err compute_to(recomputing *r, size_t n, mx_errbuf *eb)
{
    mx_batch_row rows[CHUNK];
    while (r->seq.n_tokens < n) {
        size_t first = r->seq.n_tokens, count = mx_min_size(n - first, CHUNK);
        uint32_t bad_row;
        if (mx_seq_reserve(&r->seq, count) != MX_OK) {
            return mx_fail(eb, MX_E_NOMEM, "no memory for the keys and values of %zu tokens", n);
        }
        for (size_t i = 0; i < count; i++) {
            rows[i] = (mx_batch_row){.seq = &r->seq,
                                     .pos = (uint32_t)(first + i),
                                     .token = r->tokens[first + i],
                                     .hidden_to = -1};
        }
        mx_batch batch = {.rows = rows, .n_rows = (uint32_t)count};
        MX_TRY(mx_model_forward(r->model, &batch, &bad_row, eb));
        mx_seq_commit(&r->seq, r->tokens + first, count);
    }
    return MX_OK;
}

static mx_err compare_state(recomputing *r, uint32_t i, mx_errbuf *eb)
{
    const mx_export *x = mx_import_head(r->im);
    const uint8_t *payload;
    size_t n;
    MX_TRY(compute_to(r, (size_t)mx_export_state_at(x, i).position, eb));
    MX_TRY(mx_import_payload(r->im, x->n_pages + i, &payload, &n, eb));
    return memcmp(payload, r->seq.state->data, n) == 0
               ? MX_OK
               : mx_fail(eb, MX_E_CORRUPT, "the state behind token %zu is not what the model computes "
                         "from the tokens: nothing was imported", r->seq.n_tokens);
}

static mx_err compare_page(recomputing *r, uint32_t i, mx_errbuf *eb)
{
    const mx_export *x = mx_import_head(r->im);
    const mx_page *page = r->seq.pages[i];
    const uint8_t *payload, *own = r->whole;
    size_t n, rows = mx_min_size((size_t)x->n_tokens - (size_t)i * MX_PAGE_TOKENS, MX_PAGE_TOKENS);
    MX_TRY(mx_import_payload(r->im, i, &payload, &n, eb));
    mx_page_join(mx_kv_pool_shape(r->kv), r->whole, page->payload, page->local);
    if (rows < MX_PAGE_TOKENS) {
        mx_page_pack_rows(&x->model.shape, r->packed, own, (uint32_t)rows);
        own = r->packed;
    }
    return memcmp(payload, own, n) == 0
               ? MX_OK
               : mx_fail(eb, MX_E_CORRUPT, "page %u (tokens %u to %zu) is not what the model computes "
                         "from the tokens: nothing was imported", i + 1, i * MX_PAGE_TOKENS,
                         (size_t)i * MX_PAGE_TOKENS + rows - 1);
}

static mx_err compare_all(recomputing *r, mx_errbuf *eb)
{
    const mx_export *x = mx_import_head(r->im);
    for (uint32_t i = 0; i < x->n_pages; i++) {
        (void)mx_export_tokens(x, i, r->tokens + (size_t)i * MX_PAGE_TOKENS);
    }
    for (uint32_t i = 0; i < x->n_states; i++) {
        MX_TRY(compare_state(r, i, eb));
    }
    MX_TRY(compute_to(r, (size_t)x->n_tokens, eb));
    for (uint32_t i = 0; i < x->n_pages; i++) {
        MX_TRY(compare_page(r, i, eb));
    }
    return MX_OK;
}

static mx_err recompute(const loaded *l, mx_import *im, mx_errbuf *eb)
{
    const mx_export *x = mx_import_head(im);
    const mx_kv_shape *shape = &l->id.shape;
    size_t page_bytes = mx_kv_page_bytes(shape);
    recomputing r = {.im = im, .model = l->model};
    if (x->n_tokens > mx_model_get_config(l->model)->n_ctx) {
        return mx_fail(eb, MX_E_LIMIT, "it has %llu tokens, and the model's context %u: it cannot be "
                       "computed", (unsigned long long)x->n_tokens,
                       mx_model_get_config(l->model)->n_ctx);
    }
    size_t n_state = shape->state_bytes == 0 ? 0 : shape->state_bytes / page_bytes + 1;
    size_t n_pages = x->n_pages + 4 + CHUNK / MX_PAGE_TOKENS + 4 * n_state;
    MX_TRY(mx_kv_pool_create(&r.kv, shape, n_pages, eb));
    mx_seq_init(&r.seq, r.kv, &l->root);
    r.tokens = mx_alloc((size_t)x->n_pages * MX_PAGE_TOKENS * sizeof *r.tokens);
    r.seq.keep_from = 0; /* all of it is compared in the end */
    r.packed = mx_alloc(page_bytes);
    r.whole = mx_alloc(page_bytes);
    mx_err err = r.tokens != NULL && r.packed != NULL && r.whole != NULL ? compare_all(&r, eb)
                                                      : mx_fail(eb, MX_E_NOMEM, "out of memory");
    mx_seq_rollback(&r.seq);
    mx_seq_free(&r.seq);
    mx_free(r.tokens);
    mx_free(r.packed);
    mx_free(r.whole);
    mx_kv_pool_destroy(r.kv);
    return err;
}

/* ---- import ---------------------------------------------------------------------------------- */

static mx_err take_in(const mx_cli_transfer *t, const loaded *l, mx_import *im, mx_hash256 *id,
                      mx_errbuf *eb)
{
    mx_hash256 cache_key, salt, root = l->root;
    if (t->recompute) {
        MX_TRY(recompute(l, im, eb));
    }
    if (t->api_key != NULL) {
        MX_TRY(mx_cold_cache_key(t->dir, t->key_file, &cache_key, eb));
        if (!mx_api_key_salt(&cache_key, t->api_key, &salt)) {
            return mx_fail(eb, MX_E_NOMEM, "out of memory");
        }
        root = mx_model_root(l->model, &salt);
    }
    mx_cold_config cfg = {.mode = MX_COLD_WRITE_ONLY,
                          .dir = t->dir,
                          .max_bytes = t->max_size != 0 ? t->max_size : UINT64_MAX,
                          .write_budget = t->write_budget,
                          .root = l->root,
                          .auth_key = object_key(t)};
    /* Which tokens answer which text cannot be computed again, so that is not believed either. */
    return mx_import_write(im, &cfg, &root, !t->recompute, id, eb);
}

int mx_cli_import(const mx_cli_transfer *t, const char *file)
{
    loaded l;
    mx_import *im = NULL;
    mx_hash256 id;
    mx_errbuf eb = {{0}};
    char hex[65];
    mx_err err = load(t, &l, &eb);
    if (err == MX_OK) {
        err = mx_import_open(&im, file, &l.id, mx_model_get_config(l.model)->n_vocab, &eb);
    }
    if (err == MX_OK) {
        err = take_in(t, &l, im, &id, &eb);
    }
    if (err == MX_OK) {
        const mx_export *x = mx_import_head(im);
        mx_hash256_hex(&id, hex);
        printf("imported %llu tokens (%u pages, %u states) as %.16s, %s%s\n",
               (unsigned long long)x->n_tokens, x->n_pages, x->n_states, hex,
               t->api_key != NULL ? "for requests with that API key" : "for requests without an API key",
               t->recompute ? "; all of it is what the model computes" : "");
    }
    mx_import_close(im);
    return ended(&l, err, &eb);
}
