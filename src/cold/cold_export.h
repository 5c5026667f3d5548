/* SPDX-License-Identifier: MIT
 *
 * cold_export.h: a stored conversation as one file that another machine can take in
 * (docs/file-format.md, section 13).
 *
 * The file holds tokens and payloads, but no identity of any page: who takes it in computes the
 * chain under its own root. What the two sides have to agree in is the model and all that changes
 * its numbers.
 *
 * The first part is pure: bytes in, fields out, any thread. The second reads a cache folder, the
 * third writes one; both block for as long as the folder does. An export file is somebody else's
 * bytes: MX_E_CORRUPT = damaged or forged, MX_E_UNSUPPORTED = of another version or model.
 */
#ifndef MX_COLD_EXPORT_H
#define MX_COLD_EXPORT_H

#include "base/buf.h"
#include "cold/cold.h"
#include "kv/kv.h"

enum { MX_EXPORT_HEADER_BYTES = 256 };

typedef struct mx_export_model {
    mx_hash256 fingerprint; /* every byte of the model file */
    mx_hash256 numerics_id;
    mx_hash256 bare_root;   /* mx_model_bare_root: these and all else that changes numbers */
    mx_kv_shape shape;
} mx_export_model;

typedef struct mx_export_state {
    uint64_t position;
    mx_hash128 sum;
} mx_export_state;

typedef struct mx_export {
    mx_export_model model;
    bool is_turn;           /* end of a turn, else of a prompt */
    uint64_t n_tokens;
    uint32_t n_pages, n_states, n_turns;
    uint64_t body_at;       /* payloads of pages, then of states, from the header up to here */
    size_t body_bytes;
    mx_hash128 body_sum;
    const uint8_t *body;    /* [body_bytes] tokens, sums, states, turns; borrowed */
} mx_export;

/* The header in front of a file of so many bytes: fields, limits, and that their sum is exactly the
 * length. Afterwards all sizes can be relied on; body is NULL. */
mx_err mx_export_decode_header(mx_export *x, const uint8_t header[MX_EXPORT_HEADER_BYTES],
                               uint64_t file_bytes, mx_errbuf *eb);
/* What is behind the payloads; x borrows it. */
mx_err mx_export_decode_body(mx_export *x, const uint8_t *body, mx_errbuf *eb);

/* Fills in the sizes of x from its counts and model. */
void mx_export_lay_out(mx_export *x);
/* x->body (and so everything) has to be there. */
void mx_export_encode_header(const mx_export *x, uint8_t out[MX_EXPORT_HEADER_BYTES]);
void mx_export_put_state(mx_buf *body, const mx_export_state *s);

/* Tokens of a page, 64 or the rest; returns how many. */
uint32_t mx_export_tokens(const mx_export *x, uint32_t page, int32_t out[MX_PAGE_TOKENS]);
mx_export_state mx_export_state_at(const mx_export *x, uint32_t i);
mx_hash128 mx_export_page_sum(const mx_export *x, uint32_t page);
const uint8_t *mx_export_turns(const mx_export *x); /* [n_turns][MX_TURN_BYTES] */

/* MX_E_UNSUPPORTED: the file is of another model, or of other settings; the text says which. */
mx_err mx_export_check_model(const mx_export *x, const mx_export_model *m, mx_errbuf *eb);

/* ---- out of a folder ------------------------------------------------------------------------- */

typedef struct mx_export_counts {
    uint64_t n_bytes, n_tokens;
    uint32_t n_pages, n_states;
} mx_export_counts;

/* Writes the entry `id` of the folder dir/v1/<root> into a new file (mode 0600, never over
 * another), everything checked as for a restore. key: as for the tools. MX_E_NOT_FOUND: a page is not there
 * any more; MX_E_CORRUPT: one is damaged. A file that could not be written whole is removed. */
mx_err mx_cold_export(const char *dir, const mx_hash256 *key, const mx_hash256 *root,
                      const mx_hash256 *id, const mx_export_model *model, const char *file,
                      mx_export_counts *out, mx_errbuf *eb);

/* ---- into a folder --------------------------------------------------------------------------- */

typedef struct mx_import mx_import;

/* Opens an export file and checks all of it against the model. Writes nothing. */
mx_err mx_import_open(mx_import **out, const char *file, const mx_export_model *model,
                      uint32_t n_vocab, mx_errbuf *eb);
void mx_import_close(mx_import *im); /* NULL is allowed */
const mx_export *mx_import_head(const mx_import *im);
/* A payload as it is in the file (of a page with fewer than 64 tokens: rows packed), checked again;
 * good until the next call. i: pages, then states. */
mx_err mx_import_payload(mx_import *im, uint32_t i, const uint8_t **payload, size_t *n,
                         mx_errbuf *eb);

/* Writes the conversation into cfg->dir under `root` (cfg->root is that without the salt), through
 * the writer of a cold tier that is opened for it: files that are there are kept, the rest is
 * durable at MX_OK. with_turns: also which tokens are an answer to which text. cfg->wake is not
 * used. MX_E_FULL: over cfg->max_bytes, or the disk is full; MX_E_LIMIT: over cfg->write_budget.
 * What was written stays, and is not written again by another attempt. */
mx_err mx_import_write(mx_import *im, const mx_cold_config *cfg, const mx_hash256 *root,
                       bool with_turns, mx_hash256 *id, mx_errbuf *eb);

#endif
