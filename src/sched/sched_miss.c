/* SPDX-License-Identifier: MIT
 *
 * Why less than the whole prompt was reused, said as exactly as can be known at no cost.
 *
 * What is looked at: the stored text that goes on differently behind the longest common prefix (in
 * RAM, or in the cold index), the memory of what was evicted, damaged files that were met, and the
 * folders of other models. What a stored text says is only told to a request of the same root: the
 * isolation salt is part of it, so nobody learns anything about another key's prefixes.
 */
#include "sched/sched_internal.h"

const char *const mx_miss_reasons[MX_N_MISS_REASONS] = {
    "no_entry", "diverged_at", "evicted", "other_model", "other_isolation", "boundary_only",
    "not_worth_reading", "quarantined", "cache_off",
};

static size_t reason_index(const char *reason)
{
    size_t i = 0;
    while (i < MX_N_MISS_REASONS && strcmp(mx_miss_reasons[i], reason) != 0) {
        i++;
    }
    return i;
}

void mx_miss_look_ram(const mx_engine *e, const mx_hash256 *root, const int32_t *tokens, size_t n,
                      mx_miss_look *look)
{
    *look = (mx_miss_look){.n_condemned = look->n_condemned}; /* of a first attempt */
    look->n_common = mx_bank_continuation(e->bank, root, tokens, n, look->stored,
                                          MX_SNIPPET_TOKENS, &look->n_stored);
}

void mx_miss_look_cold(mx_miss_look *look, const mx_cold_job *job)
{
    size_t n_common = (size_t)job->n_shared;
    look->n_condemned += job->n_condemned;
    look->is_under_other_model = look->is_under_other_model || job->is_under_other_model;
    if (n_common > look->n_common || (n_common == look->n_common && look->n_stored == 0)) {
        look->n_common = n_common;
        look->n_stored = job->n_next;
        memcpy(look->stored, job->next_tokens, job->n_next * sizeof *look->stored);
    }
}

/* Was the page that follows the reused ones stored once? It had all 64 tokens of the prompt, or it
 * was the end of something and had fewer. */
static bool was_evicted(const mx_engine *e, const mx_miss_case *m)
{
    size_t at = m->n_reused / MX_PAGE_TOKENS * MX_PAGE_TOKENS;
    mx_hash256 parent = m->root;
    if (m->parent != NULL) {
        parent = *m->parent;
    } else {
        for (size_t i = 0; i < at; i += MX_PAGE_TOKENS) {
            parent = mx_page_identity(&m->root, &parent, m->tokens + i, MX_PAGE_TOKENS);
        }
    }
    size_t n_max = mx_min_size(m->n_prompt - at, MX_PAGE_TOKENS);
    for (size_t n = n_max; n > m->n_reused - at; n--) {
        mx_hash256 id = mx_page_identity(&m->root, &parent, m->tokens + at, (uint32_t)n);
        if (mx_gone_has(e->gone, &id)) {
            return true;
        }
    }
    return false;
}

static const char *reason_of(const mx_engine *e, const mx_miss_case *m, const mx_miss_look *look,
                             bool diverged)
{
    if (m->is_cache_off) {
        return "cache_off";
    }
    if (m->n_reused + 1 >= m->n_prompt) {
        return NULL;
    }
    if (m->is_not_worth) {
        return "not_worth_reading";
    }
    if (look->n_condemned > 0) {
        return "quarantined";
    }
    if ((e->spacing > 0 || e->window_spacing > 0) && look->n_common > m->n_reused) {
        return "boundary_only"; /* more of it is known, but neither state nor window to go on with */
    }
    if (was_evicted(e, m)) {
        return "evicted";
    }
    if (look->is_under_other_model && m->n_reused < MX_PAGE_TOKENS) {
        return "other_model";
    }
    return diverged ? "diverged_at" : "no_entry";
}

void mx_miss_explain(const mx_engine *e, const mx_miss_case *m, const mx_miss_look *look,
                     mx_request_stats *out)
{
    bool diverged = !m->is_cache_off && look->n_stored > 0 && look->n_common >= m->n_reused
                    && look->n_common + 1 < m->n_prompt;
    const char *reason = reason_of(e, m, look, diverged);
    out->diverged = diverged && reason != NULL;
    out->diverged_at = look->n_common;
    out->miss_reason = reason;
    out->miss = (mx_miss_text){.token_index = m->n_reused};
    if (reason == NULL || m->is_cache_off) {
        out->miss.token_index = m->is_cache_off ? 0 : m->n_reused;
        return;
    }
    mx_miss_text *t = &out->miss;
    t->token_index = out->diverged ? look->n_common : m->n_reused;
    t->n_common = (uint32_t)mx_min_size(t->token_index, MX_SNIPPET_TOKENS / 2);
    memcpy(t->common, m->tokens + t->token_index - t->n_common, t->n_common * sizeof *t->common);
    t->n_asked = (uint32_t)mx_min_size(m->n_prompt - t->token_index, MX_SNIPPET_TOKENS);
    memcpy(t->asked, m->tokens + t->token_index, t->n_asked * sizeof *t->asked);
    if (out->diverged) {
        t->n_stored = look->n_stored;
        memcpy(t->stored, look->stored, t->n_stored * sizeof *t->stored);
    }
}

void mx_miss_count(mx_engine *e, const mx_request_stats *s)
{
    mx_engine_stats *live = &e->live;
    live->n_restores[s->restore]++;
    if (s->miss_reason != NULL) {
        size_t i = reason_index(s->miss_reason);
        live->n_misses[i < MX_N_MISS_REASONS ? i : 0]++;
    }
    live->n_computed_tokens += s->n_computed;
    live->restore_us[s->cache_mode] += s->restore_us;
    live->saved_us += e->us_per_token * (double)(s->n_ram + s->n_ssd);
}
