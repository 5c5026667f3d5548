/* SPDX-License-Identifier: MIT
 *
 * engine.h: the engine: one thread that owns the model's forward pass, the KV pages, the sequences,
 * the SessionBank and the schedule.
 *
 * A request is declarative: it brings the whole token list it wants; the engine decides what to
 * reuse. Requests are created and read by other threads: fields above the line in mx_request are
 * set before submit and constant afterwards; everything that changes is behind functions.
 *
 * Continuous batching: the decode rows of all running sequences ride in the same pass as a prefill
 * chunk. What else is running never changes a sequence's bits.
 */
#ifndef MX_ENGINE_H
#define MX_ENGINE_H

#include <stdatomic.h>

#include "bank/bank.h"
#include "base/buf.h"
#include "cold/cold_tools.h"
#include "model/model.h"
#include "model/sampler.h"

typedef struct mx_engine mx_engine;
typedef struct mx_request mx_request;

typedef enum mx_ssd_restore { MX_SSD_RESTORE_AUTO, MX_SSD_RESTORE_ALWAYS } mx_ssd_restore;

typedef struct mx_engine_config {
    mx_model *model;          /* borrowed */
    size_t kv_budget_bytes;   /* pages in use and in the bank together */
    size_t max_running;       /* sequences decoded together; 0 = 16 */
    size_t max_queued;        /* requests waiting; beyond: MX_E_FULL; 0 = 256 */
    uint32_t prefill_chunk;   /* tokens per prefill pass; 0 = 512 */
    mx_bank_config bank;      /* max_bytes 0 = all of the budget but what requests need */
    const char *cold_dir;     /* used when cold_mode is not OFF */
    mx_cold_mode cold_mode;
    const mx_hash256 *cold_auth_key; /* as in mx_cold_config; as long as the engine */
    mx_cold_compress cold_compress; /* --ssd-session-cache-compress */
    uint64_t cold_max_bytes;
    uint32_t cold_min_tokens; /* --ssd-session-cache-min-tokens */
    uint64_t cold_min_us;     /* --ssd-session-cache-min-ms; 0 = no such rule */
    uint64_t cold_ttl_s;      /* --ssd-session-cache-ttl; 0 = never */
    uint64_t cold_write_budget; /* --ssd-write-budget; 0 = no limit */
    mx_ssd_restore ssd_restore;
    bool verify_restore;        /* --verify-restore: compute again what is restored, and compare */
    atomic_bool *spoil_restore; /* of tests: true = the next restored page gets a wrong bit, once */
    mx_cold_tuning cold_tuning; /* of tests; {0} = the defaults */
} mx_engine_config;

/* Starts the engine thread. */
mx_err mx_engine_start(mx_engine **out, const mx_engine_config *cfg, mx_errbuf *eb);
/* Stops taking requests, gives running ones drain_us to end, cancels the rest, flushes the cold
 * tier for at most flush_us (logs "shutdown: SSD session cache flushed" when that succeeded),
 * joins. Requests may still be read, cancelled and released until mx_engine_destroy. */
void mx_engine_stop(mx_engine *e, uint64_t drain_us, uint64_t flush_us);
/* After stop, when no request is left in anybody's hands. NULL is allowed. */
void mx_engine_destroy(mx_engine *e);

/* ---- requests
 * --------------------------------------------------------------------------------- */

typedef enum mx_cache_policy {
    MX_CACHE_USE,      /* read and store */
    MX_CACHE_NO_STORE, /* read, store nothing */
    MX_CACHE_OFF       /* neither */
} mx_cache_policy;

typedef enum mx_finish {
    MX_FINISH_NONE, MX_FINISH_STOP, MX_FINISH_LENGTH, MX_FINISH_CANCELLED, MX_FINISH_ERROR
} mx_finish;

typedef enum mx_cache_mode { MX_MODE_COLD, MX_MODE_WARM_PREFIX, MX_MODE_SSD } mx_cache_mode;

typedef struct mx_request_params {
    const int32_t *prompt;     /* copied; at least one token */
    size_t n_prompt;
    uint32_t max_tokens;       /* generated at most; UINT32_MAX = rest of the context; 0 = prefill only */
    mx_sampling sampling;      /* bias copied */
    const mx_str *stops;       /* copied; empty ones are ignored */
    size_t n_stops;
    bool ignore_eos;           /* tokens that end a generation are never chosen */
    mx_cache_policy cache;
    const mx_hash256 *salt;    /* isolation, or NULL; copied */
    /* Nobody waits for it: the prompt is computed into the cache while the engine has nothing
     * else to do, gives way at once to whoever comes and goes on later. It drops nothing that is
     * worth more, and is given up where there is no room, or for newer ones. max_tokens must be
     * 0. */
    bool is_idle;
    /* Positions in the prompt that later prompts are likely to leave it at, ascending: models
     * with a recurrent state keep a boundary there. Copied; a hint, whatever stands in it. */
    const uint32_t *marks;     /* [n_marks] */
    size_t n_marks;
    /* The answers in the prompt, and the one to come: kept with the session on disk. Copied; at
     * most MX_TURNS_MAX, a hint, whatever stands in it. */
    const mx_turn *turns;      /* [n_turns] */
    size_t n_turns;
    mx_str session;            /* name of the session it belongs to, a hint; {0} = none. Copied */
    char id[48];               /* for log lines */
    /* Called by the engine thread when output became available or the request ended. Must not block
     * and must not call back into the engine. */
    void (*wake)(void *arg);
    void *wake_arg;
} mx_request_params;

/* One reference for the caller. MX_E_INVALID when the prompt can never fit (text has the
 * numbers). */
mx_err mx_request_create(mx_request **out, mx_engine *e, const mx_request_params *p, mx_errbuf *eb);
mx_request *mx_request_ref(mx_request *r);
void mx_request_unref(mx_request *r); /* any thread */

/* MX_E_FULL when the queue is full, MX_E_CANCELLED when the engine is stopping. */
mx_err mx_engine_submit(mx_engine *e, mx_request *r, mx_errbuf *eb);
/* Asks to stop: the work ends within 100 ms, finished chunks stay in the bank. Any thread. */
void mx_request_cancel(mx_request *r);

/* Output. Text events carry whole UTF-8 sequences that no stop string can still take back. */
typedef struct mx_token_event {
    mx_sample sample;
    uint32_t text_begin, text_end; /* this token's bytes within the event's `pieces` */
} mx_token_event;

typedef struct mx_output {
    mx_buf text;             /* new text since the last read (well-formed UTF-8) */
    mx_token_event *tokens;  /* new logprob items, when asked for; [n_tokens] */
    size_t n_tokens, tokens_cap;
    mx_buf pieces;           /* raw bytes of those tokens */
    /* Ids sampled since the last read, in order, whether logprobs are asked for or not; the token
     * that ended the generation is not among them. They may be ahead of the text, and those that a
     * stop string took from the text are among them. */
    int32_t *ids;            /* [n_ids] */
    size_t n_ids, ids_cap;
    mx_finish finish;        /* NONE while running; set once everything was read */
    mx_str stop;             /* the stop string that ended it, borrowed from the request; empty =
                                none */
    mx_err error;            /* when finish is ERROR: MX_E_NONFINITE, MX_E_NOMEM, ... */
    char error_text[256];
} mx_output;

/* Moves what is available into *out (its buffers are cleared first and reused). One reader. Reading
 * makes room: a sequence whose reader is slow is paused when 64 KiB wait, others go on. */
void mx_request_read(mx_request *r, mx_output *out);
void mx_output_free(mx_output *o);

/* Around the first token that was not reused; for people. */
enum { MX_SNIPPET_TOKENS = 8 };
typedef struct mx_miss_text {
    size_t token_index;
    int32_t common[MX_SNIPPET_TOKENS / 2]; /* [n_common] before it, in both */
    int32_t stored[MX_SNIPPET_TOKENS];     /* [n_stored] what is stored from there on; 0: not known */
    int32_t asked[MX_SNIPPET_TOKENS];      /* [n_asked] what the prompt says */
    uint32_t n_common, n_stored, n_asked;
} mx_miss_text;

enum { MX_N_MISS_REASONS = 9 };
/* "no_entry", "diverged_at", ...: docs/cache.md says what each means. */
extern const char *const mx_miss_reasons[MX_N_MISS_REASONS];

/* What happened to the prompt. Valid once has_started (prefill finished) is true. */
typedef struct mx_request_stats {
    bool has_started;
    mx_cache_mode cache_mode;
    mx_restore_kind restore;
    bool is_approximate;      /* resumed from the state of a later position: not the cold answer */
    size_t n_prompt, n_ram, n_ssd, n_computed; /* prompt tokens by source; sum = n_prompt */
    size_t n_generated;
    uint64_t queue_us, restore_us, prefill_us, decode_us;
    bool diverged;            /* something stored went on differently behind the match */
    size_t diverged_at;       /* the first differing token index */
    const char *miss_reason;  /* NULL, or one of mx_miss_reasons: why less than the whole prompt was
                                 reused */
    mx_miss_text miss;        /* when miss_reason is not NULL */
} mx_request_stats;
void mx_request_get_stats(mx_request *r, mx_request_stats *out); /* any thread */

/* ---- looking in
 * ------------------------------------------------------------------------------- */

typedef struct mx_engine_stats {
    size_t n_running, n_queued;
    size_t kv_pages_used, kv_pages_max, kv_page_bytes;
    size_t kv_used_bytes;     /* kv_pages_used is this in whole pages, rounded up */
    mx_bank_stats bank;
    bool has_cold;
    mx_cold_stats cold;
    uint64_t n_requests, n_prompt_tokens, n_ram_tokens, n_ssd_tokens, n_generated_tokens;
    uint64_t n_verified, n_verify_failed; /* with verify_restore: restores that were as computed, or not */
    uint64_t n_requeued;      /* runs that gave way for want of pages */
    /* Since the start; a request counts when its prompt is admitted. */
    uint64_t n_restores[MX_RESTORE_STEM + 1]; /* by mx_restore_kind */
    uint64_t n_misses[MX_N_MISS_REASONS];
    uint64_t n_computed_tokens;
    uint64_t restore_us[MX_MODE_SSD + 1]; /* by mx_cache_mode */
    uint64_t prefill_us;      /* from the end of a restore to the first token, all requests */
    double saved_us;          /* what computing the reused tokens would have taken, as measured */
    double us_per_token;      /* what a prompt token costs now; 0 = not measured yet */
    /* Prompts that were computed while idle: to the end; how often one gave way; those given up. */
    uint64_t n_idle_done, n_idle_gave_way, n_idle_dropped, n_idle_tokens;
    uint64_t idle_us;         /* computing them */
    uint64_t disk_bytes_saved; /* of pages that were not written because they are there */
} mx_engine_stats;
void mx_engine_get_stats(mx_engine *e, mx_engine_stats *out); /* any thread; a recent snapshot */

/* What a prompt would find now, without running it and without touching anything. Blocks; at
 * most about timeout_us. salt: as in mx_request_params. MX_E_BUSY: the engine or the folder did
 * not answer in time. */
typedef struct mx_lookup {
    mx_request_stats stats;   /* n_*, cache_mode, restore, miss: as they would be */
    bool ssd_asked, ssd_answered;
    uint64_t ssd_bytes;       /* that a restore would read */
    double restore_us;        /* estimate for them; 0 = nothing to read, or no rate known */
    double us_per_token;      /* measured cost of a computed token; 0 = not yet */
} mx_lookup;
mx_err mx_engine_lookup(mx_engine *e, const mx_hash256 *salt, const int32_t *tokens, size_t n,
                        uint64_t timeout_us, mx_lookup *out);

/* The tokens and answers of a stored session (mx_cold_list_turns), from its files; the caller's to
 * mx_cold_ids_free. Blocks, at most about timeout_us. MX_E_NOT_FOUND: not there (any more), or not
 * under this root. MX_E_BUSY: the folder did not answer in time. */
mx_err mx_engine_session_ids(mx_engine *e, const mx_hash256 *root, const mx_hash256 *session,
                             uint64_t timeout_us, mx_cold_ids *out);

/* How many tokens of the prompt are in RAM under any of the salts: the most of them. One wait for the
 * engine however many salts there are; MX_E_BUSY: it did not answer in time. */
mx_err mx_engine_common(mx_engine *e, const mx_hash256 *salts, size_t n_salts, const int32_t *tokens,
                        size_t n, uint64_t timeout_us, size_t *n_common);

/* Runs fn on the engine thread between two passes and waits for its end. MX_E_CANCELLED: the engine
 * has ended, fn was not called. fn must be quick. */
typedef struct mx_engine_view {
    mx_bank *bank;
    mx_kv_pool *pool;
    const mx_hash256 *root;   /* without salt */
} mx_engine_view;
mx_err mx_engine_call(mx_engine *e, void (*fn)(void *arg, const mx_engine_view *view), void *arg);

/* Removes an entry from both tiers (mx_bank_forget, mx_cold_remove_entry), or, id NULL, everything
 * of this model. What waits to be written of it is not written; the writer, which may be at some of
 * it, is waited for at most timeout_us. Blocks, also for as long as the folder does. MX_E_NOT_FOUND: in
 * neither tier. MX_E_BUSY: the writer, or whoever holds gc.lock, is not done, the files are still
 * there; to be tried again. MX_E_CANCELLED: the engine has ended. Other errors: the folder's. *out
 * says what went, after an error, too. */
typedef struct mx_forgotten {
    bool from_ram;            /* it was there, and is not any more */
    mx_cold_counts files;     /* that went, and that are left */
} mx_forgotten;
mx_err mx_engine_forget(mx_engine *e, const mx_hash256 *id, uint64_t timeout_us,
                        mx_forgotten *out, mx_errbuf *eb);
/* The same of a session that ends there: with the points inside its chain. */
mx_err mx_engine_forget_session(mx_engine *e, const mx_hash256 *id, uint64_t timeout_us,
                                mx_forgotten *out, mx_errbuf *eb);

/* The cold tier, NULL = off. Valid until mx_engine_stop. */
mx_cold *mx_engine_cold(mx_engine *e);

/* Largest number of tokens one sequence may have (context and KV budget). */
size_t mx_engine_max_tokens(const mx_engine *e);

#endif
