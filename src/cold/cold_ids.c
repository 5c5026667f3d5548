/* SPDX-License-Identifier: MIT
 *
 * The tokens of a stored chain. They stand in front of the payloads of its pages and are covered by
 * the pages' identities, so a manifest need not hold them a second time: four kilobytes are read
 * for each page, and a restore that follows finds them in the page cache.
 */
#include "cold/cold_state.h"

#include "base/mem.h"
#include "cold/cold_manifest.h"

/* Tokens of the pages in order, until one is missing or is not what the manifest says. */
static void read_chain(mx_cold *c, mx_cold_job *job, const mx_disk_manifest *m)
{
    const mx_hash256 *parent = &m->root;
    mx_cold_ids *out = &job->found;
    mx_disk_page page;
    for (uint32_t i = 0; i < m->n_pages && !atomic_load(&c->is_stopping); i++) {
        mx_cold_want want = {.object = MX_COLD_PAGE, .id = m->page_ids[i], .root = &m->root,
                             .parent = parent,
                             .first_position = (uint64_t)i * MX_PAGE_TOKENS};
        want.n_tokens = i + 1 < m->n_pages ? MX_PAGE_TOKENS
                                           : (uint32_t)(m->n_tokens - want.first_position);
        if (!mx_cold_claim(c, job, 0, SIZE_MAX) || mx_cold_index_is_bad(c->index, &want.id)
            || mx_cold_load_page(c, &c->reader_folder, &want, &c->reader_scratch, NULL, &page) != MX_OK
            || page.n_tokens != want.n_tokens) {
            return;
        }
        memcpy(out->ids + out->n, page.tokens, page.n_tokens * sizeof *out->ids);
        out->n += page.n_tokens;
        parent = &m->page_ids[i];
    }
}

static mx_err read_found(mx_cold *c, mx_cold_job *job, const mx_disk_manifest *m)
{
    mx_cold_ids *out = &job->found;
    out->ids = mx_alloc((size_t)m->n_tokens * sizeof *out->ids);
    out->turns = mx_alloc(m->n_turns * sizeof *out->turns);
    if (out->ids == NULL || out->turns == NULL) {
        return MX_E_NOMEM;
    }
    read_chain(c, job, m);
    for (uint32_t i = 0; i < m->n_turns; i++) {
        mx_turn *t = &out->turns[out->n_turns];
        out->n_turns += mx_turn_decode(t, m->turns + i * MX_DISK_TURN_BYTES)
                        && t->n_prompt < out->n;
    }
    return out->n_turns > 0 ? MX_OK : MX_E_NOT_FOUND;
}

void mx_cold_ids_free(mx_cold_ids *found)
{
    mx_free(found->ids);
    mx_free(found->turns);
    *found = (mx_cold_ids){0};
}

mx_err mx_cold_read_ids(mx_cold *c, mx_cold_job *job)
{
    mx_cold_folder *f = &c->reader_folder;
    char name[MX_COLD_NAME_CAP];
    mx_errbuf eb;
    mx_disk_manifest m;
    uint8_t *copy;
    mx_cold_session_name(&job->page_id, name);
    mx_err err = mx_cold_read_manifest(f->ops, f->sessions_fd, name, &job->page_id,
                                       mx_cold_auth_key(c), true, &m, &copy, &eb);
    if (err == MX_E_CORRUPT) {
        if (mx_cold_quarantine(f, f->sessions_fd, name, eb.text)) {
            mx_cold_quarantined(c);
        }
        mx_cold_index_unmark_manifest(c->index, &job->page_id);
        err = MX_E_NOT_FOUND;
    }
    if (err == MX_OK && !mx_hash256_eq(&m.root, &job->root)) {
        err = MX_E_NOT_FOUND;
    }
    if (err == MX_OK) {
        err = read_found(c, job, &m);
    }
    mx_free(copy);
    if (err != MX_OK) {
        mx_cold_ids_free(&job->found);
    }
    if (err == MX_E_NOT_FOUND) {
        mx_cold_turns_drop(c->turns, &job->root, &job->page_id);
    }
    return err;
}
