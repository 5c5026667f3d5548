/* SPDX-License-Identifier: MIT
 *
 * cli_options.h: every setting of `mtplx start`, in one table (cli_table.h) that drives the parsing of
 * arguments and environment variables, --help and the options object of GET /info.
 *
 * A setting comes from the command line, else from its environment variable, else it has its
 * default. Belongs to the main thread; constant once parsed.
 */
#ifndef MX_CLI_OPTIONS_H
#define MX_CLI_OPTIONS_H

#include "base/buf.h"
#include "base/log.h"
#include "cli/cli_table.h"
#include "cold/cold.h"
#include "kernels/kern.h"
#include "sched/engine.h"

typedef struct mx_settings {
    char *model;           /* NULL = the default model */
    char *host;
    uint64_t port;
    mx_string_list api_keys, allowed_origins, allowed_hosts;
    char *api_key_file, *admin_key, *cache_key_file; /* NULL = none */
    bool strict_model, canonical_prompts, shared_prefixes;
    uint64_t threads;      /* 0 = as many as the process may use */
    uint64_t max_context;  /* 0 = the model's own */
    uint64_t kv_budget;    /* bytes; 0 = half of what is free */
    uint64_t max_batch, max_queued, prefill_chunk;
    uint64_t cpu_level;    /* mx_cpu_level, or MX_CPU_AUTO */
    uint64_t kv_type;      /* mx_kv_type */
    uint64_t act_type;     /* mx_act_type */
    uint64_t ssd_mode;     /* mx_cold_mode */
    char *ssd_dir;         /* NULL = ~/.mtplx/session_cache */
    uint64_t ssd_compress; /* mx_cold_compress */
    uint64_t ssd_max_size; /* 0 = the tier's own default */
    uint64_t ssd_min_tokens, ssd_min_ms;
    uint64_t ssd_ttl_s;         /* 0 = for ever */
    uint64_t ssd_write_budget;  /* bytes a day; 0 = no limit */
    bool verify_restore;
    uint64_t post_commit;  /* 0, 1 */
    uint64_t ssd_restore;  /* mx_ssd_restore */
    uint64_t log_level;    /* mx_log_level */
    uint64_t drain_s, flush_s;
    /* MTPLX_SESSION_*: environment only. */
    bool lazy_snapshot, snapshot_settle, boundary_true_restore;
    uint64_t near_prefix_gap;
} mx_settings;

enum { MX_CPU_AUTO = 100 };

/* The words of --cpu-level (the values are mx_cpu_level and MX_CPU_AUTO), --kv-type and --activations,
 * for all commands that have these options. */
extern const mx_option_word mx_cpu_words[], mx_kv_words[], mx_act_words[];

/* Defaults, then the environment, then argv[0..argc-1] (without program and command). MX_E_INVALID:
 * eb names the option or variable, what is wrong with it and what is possible. Free in every
 * case. */
mx_err mx_settings_parse(mx_settings *s, int argc, char **argv, mx_errbuf *eb);
void mx_settings_free(mx_settings *s);

/* What a value of --cpu-level means on this machine; a level that the CPU lacks is a limit that does
 * not bind. MX_E_INVALID: a level of another architecture. */
mx_err mx_cli_cpu_level(uint64_t value, mx_cpu_level *out, mx_errbuf *eb);

/* The option part of `mtplx help start`. */
void mx_settings_help(mx_buf *out);
/* {"port":8000,...}: all but secrets, of which it says how many there are. */
void mx_settings_json(const mx_settings *s, mx_buf *out);
/* {"MTPLX_SESSION_LAZY_SNAPSHOT":1,...} */
void mx_settings_session_json(const mx_settings *s, mx_buf *out);

#endif
