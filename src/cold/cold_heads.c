/* SPDX-License-Identifier: MIT
 *
 * Heads of pages, read ahead of the look-ups that would need them.
 *
 * A manifest names pages but not their tokens. Which child of a page goes on most like a prompt is known
 * when their heads have been read, and a look-up reads those of a few by itself, when they are first asked
 * for. Of a page with many children, a system prompt, it would take many look-ups to know them all, each of
 * them slow; so those are read here, between the sweeps, while nobody reads anything else.
 */
#include "cold/cold_state.h"

#include "base/mem.h"

static bool must_end(mx_cold *c)
{
    pthread_mutex_lock(&c->lock);
    bool is_wanted = c->is_sweep_wanted;
    pthread_mutex_unlock(&c->lock);
    return is_wanted || atomic_load(&c->is_stopping);
}

bool mx_cold_read_heads(mx_cold *c)
{
    enum { MANY = 16, BATCH = 16 };
    mx_hash256 *ids;
    size_t n, i = 0;
    bool is_whole = mx_cold_index_crowds(c->index, MANY, &ids, &n) == MX_OK
                    && (n == 0 || mx_cold_folder_ready(&c->sweeper_folder, false, NULL) == MX_OK);
    for (; is_whole && i < n && !must_end(c); i++) {
        mx_cold_want want = {.id = ids[i]};
        mx_disk_page page;
        if (i % BATCH == 0) {
            mx_cold_yield_to_reader(c);
        }
        if (mx_cold_load_page(c, &c->sweeper_folder, &want, &c->sweeper_scratch, NULL, &page) == MX_OK) {
            mx_err err = mx_cold_index_link(c->index, &want.id, &page.parent, page.n_tokens, page.tokens);
            (void)err; /* without memory it stays to be read */
        }
    }
    mx_free(ids);
    return is_whole && i == n;
}
