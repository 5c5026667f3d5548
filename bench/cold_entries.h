/* SPDX-License-Identifier: MIT
 *
 * cold_entries.h: a cache folder with any number of conversations, made fast: without a tier, without
 * syncs. For bench_cold_many and for tests/cold/test_cold_entries.c. Header only; one thread.
 *
 * Each entry is a manifest of two pages: one of the stems (the prompts that an agent's conversations
 * begin with) and a partial page of its own. Payloads are holes, so the folder takes 4 KiB a file, and
 * all rows are zero.
 */
#ifndef MX_COLD_ENTRIES_H
#define MX_COLD_ENTRIES_H

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "cold/cold_format.h"
#include "cold_jobs.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PROMPT_TOKENS = 2 * MX_PAGE_TOKENS };

static const mx_kv_shape shape = {.n_layers = 2, .n_kv_heads = 1, .head_dim = 8, .type = MX_KV_F16};

typedef struct entry {
    int32_t tokens[PROMPT_TOKENS];
    size_t n_tokens;
    mx_hash256 ids[2];
} entry;

/* A prompt that goes on behind the entry: whatever is behind n_tokens. */
static void make_entry(entry *e, const mx_hash256 *root, size_t number, size_t n_stems)
{
    uint64_t stem = number % n_stems * 1000003, own = (number + 1) * 7919;
    for (size_t i = 0; i < MX_PAGE_TOKENS; i++) {
        e->tokens[i] = (int32_t)(next_random(&stem) % 49152);
        e->tokens[MX_PAGE_TOKENS + i] = (int32_t)(next_random(&own) % 49152);
    }
    uint32_t n_tail = (uint32_t)(8 + number % 56);
    e->n_tokens = MX_PAGE_TOKENS + n_tail;
    e->ids[0] = mx_page_identity(root, root, e->tokens, MX_PAGE_TOKENS);
    e->ids[1] = mx_page_identity(root, &e->ids[0], e->tokens + MX_PAGE_TOKENS, n_tail);
}

static void write_whole(const char *path, const void *bytes, size_t n, size_t size)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    must(fd >= 0 || errno == EEXIST, "cannot make a file");
    if (fd >= 0) { /* a stem is there already */
        must(write(fd, bytes, n) == (ssize_t)n && ftruncate(fd, (off_t)size) == 0, "cannot write");
        close(fd);
    }
}

static void write_page(const char *dir, const mx_hash256 *root, const entry *e, size_t i,
                       const uint8_t *zeros)
{
    uint8_t head[MX_DISK_PAYLOAD_AT];
    char hex[65], path[4400];
    uint32_t n = (uint32_t)(i == 0 ? MX_PAGE_TOKENS : e->n_tokens - MX_PAGE_TOKENS);
    size_t bytes = mx_disk_payload_bytes(&shape, n);
    mx_disk_page p = {.root = *root,
                      .own = e->ids[i],
                      .parent = i == 0 ? *root : e->ids[0],
                      .n_tokens = n,
                      .first_position = i * MX_PAGE_TOKENS,
                      .kv_type = mx_disk_kv_type(shape.type),
                      .payload_bytes = bytes,
                      .payload_sum = mx_xxh3_128(zeros, bytes),
                      .stored_bytes = bytes,
                      .stored_sum = mx_xxh3_128(zeros, bytes)};
    memcpy(p.tokens, e->tokens + i * MX_PAGE_TOKENS, n * sizeof p.tokens[0]);
    mx_disk_page_encode(&p, head);
    mx_hash256_hex(&e->ids[i], hex);
    snprintf(path, sizeof path, "%s/pages/%.2s/%s.page", dir, hex, hex);
    write_whole(path, head, sizeof head, sizeof head + bytes);
}

static void write_manifest(const char *dir, const mx_hash256 *root, const entry *e)
{
    mx_buf out = {0};
    char hex[65], path[4400];
    mx_disk_manifest m = {.root = *root,
                          .session_id = e->ids[0],
                          .entry_kind = MX_DISK_ENTRY_TURN,
                          .n_tokens = e->n_tokens,
                          .n_pages = 2,
                          .page_ids = e->ids,
                          .created_s = (uint64_t)mx_wall_s()};
    mx_disk_manifest_encode(&out, &m);
    must(!out.failed, "no memory");
    mx_hash256_hex(&e->ids[1], hex);
    snprintf(path, sizeof path, "%s/sessions/%s.session", dir, hex);
    write_whole(path, out.ptr, out.len, out.len);
    mx_buf_free(&out);
}

/* In an empty folder. */
static void make_folder(const char *top, const mx_hash256 *root, size_t n_entries, size_t n_stems)
{
    static const char *const folders[] = {"/v1", "/v1/%s", "/v1/%s/pages", "/v1/%s/sessions"};
    char hex[65], dir[4200], path[4400];
    uint8_t *zeros = mx_calloc(1, mx_kv_page_bytes(&shape));
    must(zeros != NULL, "no memory");
    mx_hash256_hex(root, hex);
    for (size_t i = 0; i < MX_COUNT(folders); i++) {
        char tail[200];
        snprintf(tail, sizeof tail, i < 1 ? "%s" : folders[i], i < 1 ? folders[i] : hex);
        snprintf(path, sizeof path, "%s%s", top, tail);
        must(mkdir(path, 0700) == 0, "cannot make the folder");
    }
    snprintf(dir, sizeof dir, "%s/v1/%s", top, hex);
    for (int i = 0; i < 256; i++) {
        snprintf(path, sizeof path, "%s/pages/%02x", dir, (unsigned)i);
        must(mkdir(path, 0700) == 0, "cannot make a folder");
    }
    for (size_t i = 0; i < n_entries; i++) {
        entry e;
        make_entry(&e, root, i, n_stems);
        if (i < n_stems) {
            write_page(dir, root, &e, 0, zeros);
        }
        write_page(dir, root, &e, 1, zeros);
        write_manifest(dir, root, &e);
    }
    mx_free(zeros);
}

#endif
