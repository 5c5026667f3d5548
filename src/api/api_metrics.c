/* SPDX-License-Identifier: MIT
 *
 * GET /metrics in the Prometheus text format (version 0.0.4): base units, counters end in _total,
 * nothing in it that tells keys, texts or paths. Everything comes from the engine's snapshot and
 * never waits for it. docs/cache.md says what the reasons mean.
 */
#include "api/api_state.h"

#include <stdio.h>

/* One family: HELP and TYPE, then its samples. */
static void family(mx_buf *b, const char *name, const char *type, const char *help)
{
    mx_buf_printf(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void sample_u(mx_buf *b, const char *name, const char *labels, uint64_t value)
{
    mx_buf_printf(b, "%s%s %llu\n", name, labels, (unsigned long long)value);
}

static void sample_s(mx_buf *b, const char *name, const char *labels, double us)
{
    mx_buf_printf(b, "%s%s %.6f\n", name, labels, us / 1e6);
}

static void one(mx_buf *b, const char *name, const char *type, const char *help, uint64_t value)
{
    family(b, name, type, help);
    sample_u(b, name, "", value);
}

static void requests(mx_buf *b, const mx_engine_stats *s)
{
    one(b, "mtplx_requests_running", "gauge", "Requests that are being computed.", s->n_running);
    one(b, "mtplx_requests_queued", "gauge", "Requests that wait to be admitted.", s->n_queued);
    one(b, "mtplx_requests_admitted_total", "counter", "Requests whose prompt was looked up.",
        s->n_requests);
    one(b, "mtplx_requests_requeued_total", "counter",
        "Running requests that gave way for want of pages.", s->n_requeued);
    one(b, "mtplx_generated_tokens_total", "counter", "Tokens that were sampled.",
        s->n_generated_tokens);
}

static void reuse(mx_buf *b, const mx_engine_stats *s)
{
    char labels[64];
    static const char hits[] = "mtplx_cache_hits_total";
    family(b, hits, "counter", "Requests of which a beginning was reused, by kind of restore.");
    for (size_t k = MX_RESTORE_EXACT_PREFIX; k < MX_COUNT(s->n_restores); k++) {
        snprintf(labels, sizeof labels, "{restore=\"%s\"}",
                 mx_restore_kind_name((mx_restore_kind)k));
        sample_u(b, hits, labels, s->n_restores[k]);
    }
    static const char misses[] = "mtplx_cache_misses_total";
    family(b, misses, "counter", "Requests that had less than their whole prompt reused, by reason; "
           "a hit may be among them.");
    for (size_t i = 0; i < MX_N_MISS_REASONS; i++) {
        snprintf(labels, sizeof labels, "{reason=\"%s\"}", mx_miss_reasons[i]);
        sample_u(b, misses, labels, s->n_misses[i]);
    }
    static const char tokens[] = "mtplx_prompt_tokens_total";
    family(b, tokens, "counter", "Prompt tokens by where they came from.");
    sample_u(b, tokens, "{source=\"ram\"}", s->n_ram_tokens);
    sample_u(b, tokens, "{source=\"ssd\"}", s->n_ssd_tokens);
    sample_u(b, tokens, "{source=\"computed\"}", s->n_computed_tokens);
    static const char restore[] = "mtplx_restore_seconds_total";
    family(b, restore, "counter", "Time from admission to the end of the restore.");
    sample_s(b, restore, "{tier=\"none\"}", (double)s->restore_us[MX_MODE_COLD]);
    sample_s(b, restore, "{tier=\"ram\"}", (double)s->restore_us[MX_MODE_WARM_PREFIX]);
    sample_s(b, restore, "{tier=\"ssd\"}", (double)s->restore_us[MX_MODE_SSD]);
    family(b, "mtplx_prefill_seconds_total", "counter", "Time in which prompts were computed.");
    sample_s(b, "mtplx_prefill_seconds_total", "", (double)s->prefill_us);
    family(b, "mtplx_prefill_saved_seconds_total", "counter",
           "What computing the reused tokens would have taken, at the speed measured then.");
    sample_s(b, "mtplx_prefill_saved_seconds_total", "", s->saved_us);
}

static void ram(mx_buf *b, const mx_engine_stats *s)
{
    one(b, "mtplx_ram_budget_bytes", "gauge", "Memory for KV pages (--kv-budget).",
        (uint64_t)s->kv_pages_max * s->kv_page_bytes);
    one(b, "mtplx_ram_used_bytes", "gauge", "Of it: pages of requests and of the session bank.",
        s->kv_used_bytes);
    one(b, "mtplx_bank_bytes", "gauge", "Of it: held by the session bank, its index included.",
        s->bank.bytes);
    one(b, "mtplx_bank_entries", "gauge", "Entries of the session bank.", s->bank.n_entries);
    one(b, "mtplx_bank_refused_entries_total", "counter", "Entries that did not fit the budget.",
        s->bank.refused_entries);
}

static void verified(mx_buf *b, const mx_engine_stats *s)
{
    static const char name[] = "mtplx_restores_verified_total";
    family(b, name, "counter", "With --verify-restore: restores that were computed again.");
    sample_u(b, name, "{result=\"equal\"}", s->n_verified);
    sample_u(b, name, "{result=\"different\"}", s->n_verify_failed);
}

static void idle(mx_buf *b, const mx_engine_stats *s)
{
    static const char name[] = "mtplx_idle_prompts_total";
    family(b, name, "counter", "With --post-commit: replayed answers that were computed while idle.");
    sample_u(b, name, "{result=\"done\"}", s->n_idle_done);
    sample_u(b, name, "{result=\"gave_way\"}", s->n_idle_gave_way);
    sample_u(b, name, "{result=\"dropped\"}", s->n_idle_dropped);
    one(b, "mtplx_idle_tokens_total", "counter", "Tokens of them that were computed.",
        s->n_idle_tokens);
    family(b, "mtplx_idle_seconds_total", "counter", "Time in which they were computed.");
    sample_s(b, "mtplx_idle_seconds_total", "", (double)s->idle_us);
}

static void evictions(mx_buf *b, const mx_engine_stats *s)
{
    static const char name[] = "mtplx_evictions_total";
    family(b, name, "counter", "What had to go: pages in RAM, files on disk.");
    sample_u(b, name, "{tier=\"ram\",cause=\"request\"}", s->bank.evicted_for_pages);
    sample_u(b, name, "{tier=\"ram\",cause=\"budget\"}",
             s->bank.evicted_pages - s->bank.evicted_for_pages);
    if (s->has_cold) {
        sample_u(b, name, "{tier=\"ssd\",cause=\"limit\"}", s->cold.files_over_limit);
        sample_u(b, name, "{tier=\"ssd\",cause=\"superfluous\"}",
                 s->cold.files_swept - s->cold.files_over_limit - s->cold.files_expired);
        sample_u(b, name, "{tier=\"ssd\",cause=\"ttl\"}", s->cold.files_expired);
    }
}

static void disk(mx_buf *b, const mx_engine_stats *s)
{
    const mx_cold_stats *c = &s->cold;
    one(b, "mtplx_disk_budget_bytes", "gauge", "Limit of the cache folder; 0 = not known yet.",
        c->max_bytes);
    one(b, "mtplx_disk_used_bytes", "gauge", "Files in the cache folder, of all models.", c->bytes);
    one(b, "mtplx_disk_files", "gauge", "Their number.", c->files);
    one(b, "mtplx_disk_degraded", "gauge", "1 = the folder cannot be used now.", c->is_degraded);
    one(b, "mtplx_disk_queue_jobs", "gauge", "Pages and manifests that wait to be written.",
        c->queued_jobs);
    one(b, "mtplx_disk_queue_bytes", "gauge", "Their bytes.", c->queued_bytes);
    one(b, "mtplx_disk_written_bytes_total", "counter", "Bytes of pages that were written.",
        c->bytes_written);
    one(b, "mtplx_disk_saved_bytes_total", "counter",
        "Bytes of pages that were not written, because the same page was there.",
        s->disk_bytes_saved + c->bytes_skipped);
    one(b, "mtplx_disk_read_bytes_total", "counter", "Bytes of pages that restores have read.",
        c->bytes_read);
    one(b, "mtplx_disk_sessions_written_total", "counter", "Manifests that became durable.",
        c->sessions_written);
    one(b, "mtplx_disk_write_failures_total", "counter", "Writes that failed.", c->write_failures);
    one(b, "mtplx_disk_dropped_total", "counter", "Pages that found the write queue full.",
        c->dropped_full);
    one(b, "mtplx_disk_written_today_bytes", "gauge",
        "With --ssd-write-budget: bytes written since midnight UTC.", c->bytes_today);
    one(b, "mtplx_disk_over_write_budget_total", "counter",
        "Pages that were not written, because the day's budget was used up.", c->dropped_budget);
    one(b, "mtplx_disk_quarantined_total", "counter", "Damaged files that were moved aside.",
        c->quarantined);
}

static void responses(const mx_http_exchange *x, mx_buf *b)
{
    static const char name[] = "mtplx_http_responses_total";
    uint64_t counts[MX_HTTP_STATUS_MAX];
    char labels[32];
    mx_http_count_statuses(x, counts);
    family(b, name, "counter", "Answers that were begun, by HTTP status.");
    for (size_t i = 0; i < MX_HTTP_STATUS_MAX; i++) {
        if (counts[i] > 0 || i == 200) {
            snprintf(labels, sizeof labels, "{status=\"%zu\"}", i);
            sample_u(b, name, labels, counts[i]);
        }
    }
}

void mx_api_get_metrics(mx_api *a, mx_http_exchange *x)
{
    mx_buf b = {0};
    family(&b, "mtplx_build_info", "gauge", "Always 1; the labels say what runs.");
    mx_buf_printf(&b, "mtplx_build_info{version=\"" MX_VERSION "\",numerics=\"%.16s\"} 1\n",
                  a->numerics_id);
    one(&b, "mtplx_start_time_seconds", "gauge", "When the server started, since 1970.",
        (uint64_t)a->started_s);
    one(&b, "mtplx_ready", "gauge", "1 = requests are served.", a->phase == MX_API_READY);
    responses(x, &b);
    if (a->phase == MX_API_READY) {
        mx_engine_stats s;
        mx_api_get_stats(a, &s);
        requests(&b, &s);
        reuse(&b, &s);
        ram(&b, &s);
        evictions(&b, &s);
        verified(&b, &s);
        idle(&b, &s);
        if (s.has_cold) {
            disk(&b, &s);
        }
    }
    if (b.failed) {
        mx_api_reply_json(x, 500, &b); /* says that there is no memory */
        return;
    }
    mx_http_reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", mx_buf_view(&b), NULL, 0);
    mx_buf_free(&b);
}
