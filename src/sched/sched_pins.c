/* SPDX-License-Identifier: MIT
 *
 * Pins in RAM follow those in the folder: a session that is pinned has its newest point pinned, and a
 * point that is pinned under its own name is so whenever it comes to RAM.
 */
#include "sched/sched_internal.h"

#include "base/log.h"

static void pin(mx_engine *e, const mx_request *r, const mx_hash256 *id)
{
    size_t most = mx_kv_pool_max(e->pool) / 2;
    if (mx_bank_pin(e->bank, id, true, most) == MX_E_FULL) {
        mx_log(MX_LOG_WARN, "bank: request=%s is of a pinned session, but more than half of the KV pages "
               "would be pinned: it is pinned on disk only (--kv-budget)", r->params.id);
    }
}

void mx_pin_point(mx_engine *e, const mx_request *r, bool is_turn)
{
    if (e->cold == NULL || r->seq.n_tokens == 0 || !mx_cold_has_pins(e->cold)) {
        return;
    }
    size_t last = (r->seq.n_tokens - 1) / MX_PAGE_TOKENS;
    const mx_page *page = r->seq.pages[last];
    uint32_t n_rows = (uint32_t)(r->seq.n_tokens - last * MX_PAGE_TOKENS);
    const mx_hash256 *parent = page->parent != NULL ? &page->parent->id : &r->root;
    mx_hash256 id = mx_page_identity(&r->root, parent, page->tokens, n_rows), old;
    if (is_turn && r->session_name[0] != '\0'
        && mx_cold_move_pin(e->cold, &r->session, &id, &old))
    {
        pin(e, r, &id);
        if (!mx_hash256_eq(&old, &id) && !mx_cold_is_pinned(e->cold, &old)) {
            (void)mx_bank_pin(e->bank, &old, false, 0); /* gone already: just as well */
        }
    } else if (mx_cold_is_pinned(e->cold, &id)) {
        pin(e, r, &id);
    }
}

bool mx_pin_forget_expired(mx_engine *e)
{
    mx_hash256 entry;
    bool any = false;
    while (e->cold != NULL && mx_cold_take_expired(e->cold, &entry)) {
        any |= mx_bank_forget_chain(e->bank, &entry) == MX_OK;
    }
    return any;
}
