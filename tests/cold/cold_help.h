/* SPDX-License-Identifier: MIT
 *
 * cold_help.h: what the tests of the cold tier share: a folder of their own, conversations whose KV
 * rows follow from token and position (so that any page can be made and checked anywhere), and jobs
 * that are waited for.
 */
#ifndef MX_COLD_HELP_H
#define MX_COLD_HELP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "cold/cold.h"
#include "cold/cold_format.h"

#define HELP __attribute__((unused)) static

/* A test that defines this has conversations with a recurrent state: with a boundary after every
 * TALK_SPACING tokens and at the end. What is restored then ends at one of them. */
#ifndef HELP_STATE_BYTES
#define HELP_STATE_BYTES 0
#endif

/* A test that defines this (zstd) has pages whose rows can be compressed, and compresses them. */
#ifndef HELP_COMPRESS
#define HELP_COMPRESS MX_COLD_COMPRESS_OFF
#endif

/* A test that defines this as 1 has a folder that others can write, and a key. */
#ifndef HELP_AUTH
#define HELP_AUTH 0
#endif

/* Pages of 4 KiB. */
static const mx_kv_shape tiny = {.n_layers = 2,
                                 .n_kv_heads = 1,
                                 .head_dim = 8,
                                 .type = MX_KV_F16,
                                 .state_bytes = HELP_STATE_BYTES};
enum { TINY_BYTES = 4096, MAX_PAGES = 64, TALK_SPACING = 100 };

HELP uint64_t help_random(uint64_t *state)
{
    *state += 0x9E3779B97F4A7C15u;
    uint64_t z = *state;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* ---- folders --------------------------------------------------------------------------------- */

/* A fresh folder; in memory where possible, since fsync on a real disk would make the tests
 * slow. */
HELP void help_make_folder(char path[256])
{
    const char *where = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(path, 256, "%s/mtplx-cold-XXXXXX", where);
    assert_non_null(mkdtemp(path));
    if (HELP_AUTH) {
        assert_int_equal(chmod(path, 0777), 0);
    }
}

HELP void help_remove_tree(const char *path)
{
    char command[400];
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    assert_int_equal(system(command), 0);
}

typedef void help_file_fn(const char *path, void *arg);

/* Calls fn for each file below path whose name ends in suffix; returns how many. */
HELP size_t help_each_file(const char *path, const char *suffix, help_file_fn *fn, void *arg)
{
    size_t n_files = 0;
    struct dirent **names;
    int n = scandir(path, &names, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char sub[1024];
        struct stat st;
        const char *name = names[i]->d_name;
        snprintf(sub, sizeof sub, "%s/%s", path, name);
        size_t len = strlen(name), tail = strlen(suffix);
        if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && lstat(sub, &st) == 0) {
            if (S_ISDIR(st.st_mode)) {
                n_files += help_each_file(sub, suffix, fn, arg);
            } else if (len >= tail && strcmp(name + len - tail, suffix) == 0) {
                n_files++;
                if (fn != NULL) {
                    fn(sub, arg);
                }
            }
        }
        free(names[i]);
    }
    if (n >= 0) {
        free(names);
    }
    return n_files;
}

HELP size_t help_count(const char *path, const char *suffix)
{
    return help_each_file(path, suffix, NULL, NULL);
}

HELP size_t help_slurp(const char *path, uint8_t *bytes, size_t cap)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(bytes, 1, cap, f);
    fclose(f);
    return n;
}

HELP void help_spill(const char *path, const uint8_t *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

/* Ages for help_each_file: arg = how many seconds ago it was last used. */
HELP void help_age(const char *path, void *age_s)
{
    time_t then = time(NULL) - *(const int64_t *)age_s;
    struct timespec times[2] = {{then, 0}, {then, 0}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW), 0);
}

/* ---- conversations --------------------------------------------------------------------------- */

typedef struct talk {
    mx_hash256 root;
    size_t n;                             /* tokens */
    int32_t tokens[MAX_PAGES * MX_PAGE_TOKENS];
    mx_hash256 ids[MAX_PAGES];            /* of the full pages, then of the tail */
    size_t n_ids;
} talk;

HELP mx_hash256 help_root(int n)
{
    char text[32];
    snprintf(text, sizeof text, "root %d", n);
    return mx_sha256_of(text, strlen(text));
}

HELP size_t talk_full(const talk *t)
{
    return t->n / MX_PAGE_TOKENS;
}

HELP mx_hash256 talk_parent(const talk *t, size_t page)
{
    return page == 0 ? t->root : t->ids[page - 1];
}

/* Sets the identities for the first n tokens. */
HELP void talk_cut(talk *t, size_t n)
{
    t->n = n;
    t->n_ids = (n + MX_PAGE_TOKENS - 1) / MX_PAGE_TOKENS;
    for (size_t i = 0; i < t->n_ids; i++) {
        size_t rows = n - i * MX_PAGE_TOKENS;
        rows = rows < MX_PAGE_TOKENS ? rows : MX_PAGE_TOKENS;
        mx_hash256 parent = talk_parent(t, i);
        t->ids[i] = mx_page_identity(&t->root, &parent, t->tokens + i * MX_PAGE_TOKENS,
                                     (uint32_t)rows);
    }
}

/* Tokens from `common` on follow from the seed; call with a larger n to go on. */
HELP void talk_make(talk *t, const mx_hash256 *root, uint64_t seed, size_t common, size_t n)
{
    t->root = *root;
    for (size_t i = common; i < MAX_PAGES * MX_PAGE_TOKENS; i++) {
        uint64_t state = seed * 1000003 + i;
        t->tokens[i] = (int32_t)(help_random(&state) % 49152);
    }
    talk_cut(t, n);
}

HELP uint16_t talk_value(const talk *t, size_t position, uint32_t layer, uint32_t dim,
                         uint32_t is_v)
{
    uint64_t state = (uint64_t)(uint32_t)t->tokens[position] * 31 + position * 131071
                     + layer * 977 + dim * 13 + is_v;
    /* Of the upper byte six bits are always the same. */
    uint16_t mask = HELP_COMPRESS != MX_COLD_COMPRESS_OFF ? 0x30FF : 0xFFFF;
    return (uint16_t)(help_random(&state) & mask);
}

static void put_row(uint8_t *payload, const talk *t, size_t position, uint32_t row)
{
    for (uint32_t layer = 0; layer < tiny.n_layers; layer++) {
        uint8_t *k = mx_page_k_tile(&tiny, payload, layer, 0);
        uint8_t *v = mx_page_v_tile(&tiny, payload, layer, 0);
        for (uint32_t d = 0; d < tiny.head_dim; d++) {
            mx_put_le16(k + 2 * (d * MX_PAGE_TOKENS + row), talk_value(t, position, layer, d, 0));
            mx_put_le16(v + 2 * (row * tiny.head_dim + d), talk_value(t, position, layer, d, 1));
        }
    }
}

/* The page in RAM with its first n_rows rows, the rest zero. */
HELP void talk_payload(const talk *t, size_t page, uint32_t n_rows, uint8_t payload[TINY_BYTES])
{
    memset(payload, 0, TINY_BYTES);
    for (uint32_t row = 0; row < n_rows; row++) {
        put_row(payload, t, page * MX_PAGE_TOKENS + row, row);
    }
}

/* The state after the first n tokens: a function of all of them. */
HELP void talk_state(const talk *t, size_t n, uint8_t state[HELP_STATE_BYTES + 1])
{
    mx_hash256 h = mx_sha256_of(t->tokens, n * sizeof t->tokens[0]);
    uint64_t seed = mx_get_le64(h.b);
    for (size_t i = 0; i + 1 < HELP_STATE_BYTES + 1; i++) {
        state[i] = (uint8_t)help_random(&seed);
    }
}

HELP mx_hash256 talk_state_id(const talk *t, size_t n)
{
    size_t page = (n - 1) / MX_PAGE_TOKENS;
    mx_hash256 parent = talk_parent(t, page);
    return mx_cold_state_identity(&t->root, &parent, page, t->tokens + page * MX_PAGE_TOKENS,
                                  (uint32_t)(n - page * MX_PAGE_TOKENS));
}

/* The greatest boundary within the first n tokens of a conversation that was written as it is. */
HELP size_t talk_boundary(const talk *t, size_t n)
{
    return n >= t->n ? t->n : n / TALK_SPACING * TALK_SPACING;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static const mx_hash256 help_key = {{7, 7, 7}};
static sem_t help_sem;

HELP void help_wake(void *arg)
{
    (void)arg;
    sem_post(&help_sem);
}

HELP mx_cold_config help_config(const char *dir, const mx_hash256 *root)
{
    static bool is_ready;
    if (!is_ready) {
        sem_init(&help_sem, 0, 0);
        is_ready = true;
    }
    return (mx_cold_config){.mode = MX_COLD_ON,
                            .dir = dir,
                            .compress = HELP_COMPRESS,
                            .auth_key = HELP_AUTH ? &help_key : NULL,
                            .max_bytes = (uint64_t)1 << 40,
                            .root = *root,
                            .model_json = "{\"model\": \"test\"}\n",
                            .wake = help_wake,
                            .tuning = {.min_free_bytes = -1}};
}

HELP mx_cold *help_open(const mx_cold_config *cfg)
{
    mx_cold *c;
    mx_errbuf eb;
    mx_err err = mx_cold_open(&c, &tiny, cfg, &eb);
    if (err != MX_OK) {
        print_message("open: %s\n", eb.text);
    }
    assert_int_equal(err, MX_OK);
    return c;
}

/* The scan after start must not meet the files that a test makes behind its back. */
HELP mx_cold *help_open_settled(const mx_cold_config *cfg)
{
    mx_cold *c = help_open(cfg);
    mx_cold_stats stats = {0};
    for (int i = 0; i < 10000 && !stats.is_loaded; i++) {
        usleep(1000);
        mx_cold_get_stats(c, &stats);
    }
    assert_true(stats.is_loaded);
    return c;
}

/* The next finished job; fails after 20 s. */
HELP mx_cold_job *help_wait(mx_cold *c)
{
    for (;;) {
        mx_cold_job *job = mx_cold_poll(c);
        if (job != NULL) {
            return job;
        }
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 20;
        while (sem_timedwait(&help_sem, &until) != 0) {
            assert_int_equal(errno, EINTR);
        }
    }
}

HELP mx_err help_run(mx_cold *c, mx_cold_job *job)
{
    mx_err err = mx_cold_submit(c, job);
    if (err != MX_OK) {
        return err;
    }
    assert_ptr_equal(help_wait(c), job);
    return job->status;
}

/* What writes one page (the last may be partial) of t, whose bytes are made in payload. */
HELP mx_cold_job help_page_job(const talk *t, size_t page, uint8_t payload[TINY_BYTES])
{
    size_t rows = t->n - page * MX_PAGE_TOKENS;
    rows = rows < MX_PAGE_TOKENS ? rows : MX_PAGE_TOKENS;
    talk_payload(t, page, (uint32_t)rows, payload);
    return (mx_cold_job){.kind = MX_COLD_WRITE_PAGE,
                         .root = t->root,
                         .parent_id = talk_parent(t, page),
                         .first_page = page,
                         .tokens = t->tokens + page * MX_PAGE_TOKENS,
                         .n_tokens = rows,
                         .payload = payload,
                         .page_id = t->ids[page]};
}

HELP mx_err help_write_page(mx_cold *c, const talk *t, size_t page)
{
    uint8_t payload[TINY_BYTES] __attribute__((aligned(64)));
    mx_cold_job job = help_page_job(t, page, payload);
    return help_run(c, &job);
}

/* Writes the state after the first n tokens. */
HELP mx_err help_write_state(mx_cold *c, const talk *t, size_t n)
{
    uint8_t state[HELP_STATE_BYTES + 1];
    size_t page = (n - 1) / MX_PAGE_TOKENS;
    talk_state(t, n, state);
    mx_cold_job job = {.kind = MX_COLD_WRITE_STATE,
                       .root = t->root,
                       .parent_id = talk_parent(t, page),
                       .first_page = page,
                       .tokens = t->tokens + page * MX_PAGE_TOKENS,
                       .n_tokens = n - page * MX_PAGE_TOKENS,
                       .payload = state,
                       .page_id = talk_state_id(t, n)};
    return help_run(c, &job);
}

/* What makes an entry of t, to be added to: no states, no answers. */
HELP mx_cold_job help_session_job(const talk *t)
{
    return (mx_cold_job){.kind = MX_COLD_WRITE_SESSION,
                         .root = t->root,
                         .parent_id = t->root,
                         .page_ids = t->ids,
                         .n_pages = t->n_ids,
                         .n_session_tokens = t->n,
                         .entry_kind = 1,
                         .session_id = t->ids[0]};
}

/* With all states that the conversation can have; those that are not there are left out. */
HELP mx_err help_write_answered(mx_cold *c, const talk *t, const mx_turn *turns, size_t n_turns)
{
    mx_hash256 states[MAX_PAGES];
    uint64_t positions[MAX_PAGES];
    size_t n_states = 0;
    for (size_t n = TALK_SPACING; HELP_STATE_BYTES > 0 && n < t->n; n += TALK_SPACING) {
        positions[n_states] = n;
        states[n_states++] = talk_state_id(t, n);
    }
    if (HELP_STATE_BYTES > 0) {
        positions[n_states] = t->n;
        states[n_states++] = talk_state_id(t, t->n);
    }
    mx_cold_job job = help_session_job(t);
    job.state_ids = states;
    job.state_positions = positions;
    job.n_states = n_states;
    job.turns = turns;
    job.n_turns = n_turns;
    return help_run(c, &job);
}

HELP mx_err help_write_session(mx_cold *c, const talk *t)
{
    return help_write_answered(c, t, NULL, 0);
}

/* Everything of t that is not known to be there, then the manifest. The first failure, or MX_OK. */
HELP mx_err help_write_talk(mx_cold *c, const talk *t)
{
    mx_err first = MX_OK;
    for (size_t i = 0; i < t->n_ids; i++) {
        if (!mx_cold_has_page(c, &t->ids[i])) {
            mx_err err = help_write_page(c, t, i);
            first = first == MX_OK ? err : first;
        }
    }
    for (size_t n = 0; HELP_STATE_BYTES > 0 && n < t->n;) {
        n = n + TALK_SPACING < t->n ? n + TALK_SPACING : t->n;
        mx_hash256 id = talk_state_id(t, n);
        if (!mx_cold_has_page(c, &id)) {
            mx_err err = help_write_state(c, t, n);
            first = first == MX_OK ? err : first;
        }
    }
    mx_err err = help_write_session(c, t);
    return first == MX_OK ? err : first;
}

/* Probes and reads what the folder has of the first n tokens of t; every row that comes back is
 * compared with what it has to be, and rows beyond must be untouched. Returns the tokens gained. */
HELP size_t help_read_talk(mx_cold *c, const talk *t, size_t n)
{
    mx_cold_job job = {.kind = MX_COLD_PROBE,
                       .root = t->root,
                       .parent_id = t->root,
                       .tokens = t->tokens,
                       .n_tokens = n,
                       .chain = HELP_STATE_BYTES > 0 ? t->tokens : NULL};
    if (help_run(c, &job) != MX_OK) {
        return 0;
    }
    uint8_t got_state[HELP_STATE_BYTES + 1], want_state[HELP_STATE_BYTES + 1];
    job.state_payload = got_state;
    size_t n_pages = job.n_full + (job.tail_rows > 0);
    assert_true(n_pages <= MAX_PAGES);
    assert_true(job.n_full * MX_PAGE_TOKENS + job.tail_rows <= n);
    uint8_t *memory = mx_alloc_aligned(4096, (n_pages + 1) * TINY_BYTES);
    uint8_t *payloads[MAX_PAGES];
    if (memory == NULL) {
        return 0; /* an injected failure hit the test itself */
    }
    for (size_t i = 0; i < n_pages; i++) {
        payloads[i] = memory + i * TINY_BYTES;
        memset(payloads[i], 0, TINY_BYTES);
    }
    job.kind = MX_COLD_READ;
    job.payloads = payloads;
    size_t gained = 0;
    if (help_run(c, &job) == MX_OK) {
        assert_true(job.n_read <= n_pages);
        for (size_t i = 0; i < job.n_read; i++) {
            uint32_t rows = i < job.n_full ? MX_PAGE_TOKENS : job.tail_rows;
            uint8_t want[TINY_BYTES] __attribute__((aligned(64)));
            talk_payload(t, i, rows, want);
            assert_memory_equal(payloads[i], want, TINY_BYTES);
            gained += rows;
        }
        if (HELP_STATE_BYTES > 0) {
            assert_true(job.state_at <= gained);
            gained = job.state_at;
            if (gained > 0) {
                talk_state(t, gained, want_state);
                assert_memory_equal(got_state, want_state, HELP_STATE_BYTES);
            }
        }
    }
    mx_free(memory);
    return gained;
}

/* ---- what most tests begin with -------------------------------------------------------------- */

/* A disk with as much room as the test says. */
MX_UNUSED static _Atomic uint64_t help_bytes_free;

HELP int help_statvfs(int fd, struct statvfs *out)
{
    int rc = fstatvfs(fd, out);
    out->f_frsize = 1;
    out->f_bavail = atomic_load(&help_bytes_free);
    return rc;
}

/* A folder and its settings; the folder of the root within it; conversations for the test to make. */
typedef struct help_bed {
    char dir[256], root_dir[400];
    mx_hash256 root;
    mx_cold_config cfg;
    talk talk, other;
} help_bed;

HELP int help_setup(void **arg)
{
    help_bed *s = calloc(1, sizeof *s);
    assert_non_null(s);
    help_make_folder(s->dir);
    s->root = help_root(1);
    s->cfg = help_config(s->dir, &s->root);
    char hex[65];
    mx_hash256_hex(&s->root, hex);
    snprintf(s->root_dir, sizeof s->root_dir, "%s/v1/%s", s->dir, hex);
    *arg = s;
    return 0;
}

/* The same where files may be deleted at any age. */
HELP int help_setup_ageless(void **arg)
{
    help_setup(arg);
    help_bed *s = *arg;
    s->cfg.tuning.delete_age_s = -1;
    return 0;
}

HELP int help_teardown(void **arg)
{
    help_bed *s = *arg;
    help_remove_tree(s->dir);
    free(s);
    return 0;
}

/* A conversation of n tokens in the folder, made by a server of its own; and how much of one another
 * server finds there. */
HELP void help_keep_talk(help_bed *s, talk *t, uint64_t seed, size_t n)
{
    mx_cold *c = help_open_settled(&s->cfg);
    talk_make(t, &s->root, seed, 0, n);
    assert_int_equal(help_write_talk(c, t), MX_OK);
    mx_cold_close(c);
}

HELP size_t help_find_talk(help_bed *s, const talk *t)
{
    mx_cold *c = help_open(&s->cfg);
    size_t n = help_read_talk(c, t, t->n);
    mx_cold_close(c);
    return n;
}

/* A file of one byte below the root's folder, as old as that; its folder is made. */
HELP void help_spill_aged(const help_bed *s, const char *name, int64_t age_s)
{
    char path[700];
    snprintf(path, sizeof path, "%s/%s", s->root_dir, name);
    *strrchr(path, '/') = '\0';
    (void)mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/%s", s->root_dir, name);
    help_spill(path, (const uint8_t *)"x", 1);
    help_age(path, &age_s);
}

HELP void help_age_all(const help_bed *s, const char *suffix, int64_t age_s)
{
    help_each_file(s->root_dir, suffix, help_age, &age_s);
}

/* The file of a page, and the manifest of an entry that ends with it. */
HELP void help_page_path(const help_bed *s, const mx_hash256 *id, char path[700])
{
    char hex[65];
    mx_hash256_hex(id, hex);
    snprintf(path, 700, "%s/pages/%.2s/%s.page", s->root_dir, hex, hex);
}

HELP void help_session_path(const help_bed *s, const mx_hash256 *id, char path[700])
{
    char hex[65];
    mx_hash256_hex(id, hex);
    snprintf(path, 700, "%s/sessions/%s.session", s->root_dir, hex);
}

typedef struct help_used {
    int64_t since_s;
    size_t n;
} help_used;

HELP void help_count_used(const char *path, void *arg)
{
    help_used *u = arg;
    struct stat st;
    u->n += lstat(path, &st) == 0 && st.st_mtim.tv_sec >= u->since_s;
}

/* The reader says behind its answer that it has used n pages, with the time that its clock shows: waits
 * for that. */
HELP void help_wait_used(const help_bed *s, size_t n, int64_t since_s)
{
    help_used u = {.since_s = since_s};
    for (int i = 0; i < 20000 && u.n < n; i++) {
        usleep(1000);
        u.n = 0;
        help_each_file(s->root_dir, ".page", help_count_used, &u);
    }
    assert_int_equal(u.n, n);
}

HELP bool help_is_there(const help_bed *s, const char *name)
{
    char path[700];
    snprintf(path, sizeof path, "%s/%s", s->root_dir, name);
    return access(path, F_OK) == 0;
}

/* ---- what is logged --------------------------------------------------------------------------- */

typedef struct help_log {
    int saved, file;
} help_log;

/* From here on, at level info. */
MX_UNUSED static help_log help_log_begin(void)
{
    help_log l = {dup(STDERR_FILENO), memfd_create("log", 0)};
    fflush(stderr);
    assert_true(l.saved >= 0 && l.file >= 0);
    dup2(l.file, STDERR_FILENO);
    mx_log_set_level(MX_LOG_INFO);
    return l;
}

MX_UNUSED static void help_log_end(const help_log *l, char *text, size_t cap)
{
    mx_log_set_level(MX_LOG_ERROR);
    dup2(l->saved, STDERR_FILENO);
    close(l->saved);
    const ssize_t n = pread(l->file, text, cap - 1, 0);
    close(l->file);
    text[n > 0 ? n : 0] = '\0';
}

MX_UNUSED static size_t help_count_text(const char *text, const char *what)
{
    size_t n = 0;
    for (const char *p = text; (p = strstr(p, what)) != NULL; p++) {
        n++;
    }
    return n;
}

#endif
