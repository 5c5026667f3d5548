/* SPDX-License-Identifier: MIT
 *
 * cold.h: the cold tier, tier 2: the same pages as files, found again after a restart.
 *
 * The layout on disk is docs/file-format.md. Threads of its own: one writer (bounded queue in
 * bytes, order of durability pages -> states -> manifest), one reader with up to three that help it, one
 * that reads manifests after start and sweeps. The engine thread never waits for the folder: it hands over jobs and polls for
 * completions. Whatever goes wrong with the folder degrades the tier to "off for now" with one
 * warning and a counter, never the server; writing is tried again quietly every 30 s, reading goes
 * on.
 *
 * Ownership: a job struct belongs to the caller before submit and after it is polled back, to the
 * cold tier in between, together with the page payloads it names (the caller holds references on
 * the pages for that time and drops them on the engine thread after the poll).
 */
#ifndef MX_COLD_H
#define MX_COLD_H

#include "base/gone.h"
#include "cold/cold_turn.h"
#include "kv/kv.h"

#include <sys/types.h>

struct iovec;
struct statvfs;
struct timespec;

typedef struct mx_cold mx_cold;

typedef enum mx_cold_mode { MX_COLD_OFF, MX_COLD_ON, MX_COLD_WRITE_ONLY } mx_cold_mode;

/* Compressing pages as they are written. Whatever was chosen, all are read. */
typedef enum mx_cold_compress {
    MX_COLD_COMPRESS_OFF,
    MX_COLD_COMPRESS_LZ4,
    MX_COLD_COMPRESS_ZSTD
} mx_cold_compress;

/* The system calls on which a disk can fail. For tests; NULL in the configuration = the real ones.
 * Each returns what the call of that name returns and sets errno. */
typedef struct mx_cold_fileops {
    int (*open)(int dir, const char *name, int flags, unsigned mode);
    int (*mkdir)(int dir, const char *name, unsigned mode);
    ssize_t (*writev)(int fd, const struct iovec *iov, int n);
    ssize_t (*preadv)(int fd, const struct iovec *iov, int n, long at);
    int (*fsync)(int fd);
    int (*rename)(int old_dir, const char *old_name, int new_dir, const char *new_name);
    /* renameat2, not over another file. */
    int (*rename_new)(int old_dir, const char *old_name, int new_dir, const char *new_name);
    int (*unlink)(int dir, const char *name, int flags);
    int (*utimens)(int dir, const char *name, const struct timespec times[2]);
    int (*statvfs)(int fd, struct statvfs *out);
    bool accepts_others; /* folders that are not ours, or that others can write, are used, too: only
                            where every file is authenticated */
} mx_cold_fileops;

/* The clocks by which files age. For tests; NULL in the configuration = the system's. */
typedef struct mx_cold_clock {
    int64_t (*wall_ns)(void);  /* since 1970; may jump */
    uint64_t (*boot_us)(void); /* runs evenly, also while the machine sleeps */
} mx_cold_clock;

/* Times and reserves. 0 = the default everywhere, so {0} is right outside of tests. */
typedef struct mx_cold_tuning {
    const mx_cold_fileops *fileops;
    const mx_cold_clock *clock;
    int64_t min_free_bytes;    /* left free on the disk; 0 = larger of 1 GiB and 2 %, -1 = none */
    int64_t delete_age_s;      /* younger files are never deleted; 0 = 600, -1 = no such rule */
    int64_t orphan_age_s;      /* older temporary files are orphans; 0 = 3600, -1 = at any age */
    uint64_t retry_us;         /* between attempts when degraded; 0 = 30 s */
    uint64_t sweep_us;         /* between sweeps; 0 = 10 min */
    uint64_t stop_us;          /* for a folder that hangs, in mx_cold_stop; 0 = 5 s */
    uint64_t pace_us;          /* a paced writer has begun each job after so long; 0 = 10 s */
    uint64_t (*cpu_us)(void);  /* what the calling thread has computed; NULL = the system's clock */
} mx_cold_tuning;

typedef struct mx_cold_config {
    mx_cold_mode mode;
    mx_cold_compress compress;
    const char *dir;            /* e.g. ~/.mtplx/session_cache, expanded; made when absent */
    uint64_t max_bytes;         /* of all files below dir/v1, all models together; 0 = default (a
                                   tenth of what was free at start without it, at most 32 GiB) */
    uint64_t write_budget;      /* bytes of pages and states a day, UTC; 0 = no limit */
    uint64_t ttl_s;             /* what was not used for so long is deleted; 0 = never */
    size_t queue_bytes;         /* write queue bound; 0 = default 512 MiB */
    mx_hash256 root;            /* of this model and settings, no isolation salt */
    mx_gone *gone;              /* learns the identities of pages that are deleted; or NULL */
    const mx_hash256 *auth_key; /* or NULL; copied. With one every file that is written carries a tag
                                   made with it, and none without is used; then the folder need not
                                   be ours alone */
    const char *model_json;     /* content of model.json, for people */
    void (*wake)(void *arg);    /* called from cold's threads when something is to be polled */
    void *wake_arg;
    mx_cold_tuning tuning;
} mx_cold_config;

/* Starts the threads. A folder that cannot be used is not an error: the tier is degraded and says
 * so in the log. Errors: no memory, no thread, mode OFF (MX_E_INVALID: do not open it at all). */
mx_err mx_cold_open(mx_cold **out, const mx_kv_shape *shape, const mx_cold_config *cfg,
                    mx_errbuf *eb);
/* Stops the threads without flushing what is still queued (call mx_cold_flush first) and marks
 * those jobs MX_E_CANCELLED: afterwards mx_cold_poll hands out all that is left, then NULL. Waits
 * at most tuning.stop_us for a folder that hangs; false = a thread is still stuck in it: the jobs
 * that it holds are not handed out, and their payloads must stay valid until the process ends. */
bool mx_cold_stop(mx_cold *c);
/* mx_cold_stop, when that was not done, and frees everything. Jobs that were not polled are the
 * caller's again. NULL is allowed. */
void mx_cold_close(mx_cold *c);

/* ---- jobs ------------------------------------------------------------------------------------ */

typedef enum mx_cold_job_kind {
    MX_COLD_PROBE,
    MX_COLD_READ,
    MX_COLD_READ_IDS,
    MX_COLD_WRITE_PAGE,
    MX_COLD_WRITE_STATE,
    MX_COLD_WRITE_SESSION,
    MX_COLD_CONDEMN
} mx_cold_job_kind;

enum { MX_COLD_NEXT_TOKENS = 8 };
/* The index of the state of a READ among what is in use. */
#define MX_COLD_STATE_PAYLOAD (SIZE_MAX - 1)

/* Pages are read by several threads at a time, by at most so many. */
enum { MX_COLD_LANES = 4 };

/* Which payloads of a job are in use now. */
typedef struct mx_cold_busy {
    size_t payload[MX_COLD_LANES]; /* SIZE_MAX = none */
} mx_cold_busy;

MX_INLINE bool mx_cold_is_busy(const mx_cold_busy *b, size_t payload)
{
    bool is_so = false;
    for (size_t i = 0; i < MX_COLD_LANES; i++) {
        is_so |= b->payload[i] == payload;
    }
    return is_so;
}

typedef struct mx_cold_ids {
    int32_t *ids;             /* [n] */
    size_t n;
    mx_turn *turns;           /* [n_turns] those that begin within the n tokens */
    size_t n_turns;
} mx_cold_ids;
void mx_cold_ids_free(mx_cold_ids *found);

typedef struct mx_cold_job mx_cold_job;
struct mx_cold_job {
    mx_cold_job_kind kind;
    void *user;               /* the caller's */
    mx_err status;            /* when polled back: MX_OK, or why not */
    mx_cold_job *next;        /* cold's queue link */
    uint64_t queued_us;       /* cold's: when it was submitted */
    bool is_abandoned;        /* cold's, see mx_cold_abandon */
    mx_cold_busy busy;        /* cold's */

    /* All kinds: where in which chain. */
    mx_hash256 root;          /* includes the isolation salt */
    mx_hash256 parent_id;     /* identity of the page before first_page; the root when that is 0 */
    uint64_t first_page;

    /* PROBE and READ: the prompt from position first_page * 64 on (borrowed until polled). */
    const int32_t *tokens;
    size_t n_tokens;

    /* PROBE out: what a READ would give, decided without reading a payload. */
    size_t n_full;            /* whole pages that follow parent_id and match the tokens */
    mx_hash256 tail_id;       /* the stored page with the longest common prefix behind them */
    uint32_t tail_file_rows;  /* rows stored in it (64 for a full page); 0 = none */
    uint32_t tail_rows;       /* rows of it that match the tokens: 1..64; 0 = none */
    uint64_t read_bytes;      /* payload bytes a READ would touch */
    uint64_t n_shared;        /* how long the stored rows agree with the prompt, from position 0 */
    /* PROBE out, for people: how what is stored goes on behind the match, */
    int32_t next_tokens[MX_COLD_NEXT_TOKENS]; /* [n_next]; 0 = nothing known does */
    uint32_t n_next;
    bool is_under_other_model; /* nothing is here, but the first page is stored for another model */
    uint32_t n_condemned;     /* PROBE and READ out: files that were found to be damaged */

    /* READ in: payloads to fill, n_full + (tail_rows > 0). A READ carries over what PROBE filled
     * in. Of the tail page only rows 0..tail_rows-1 are filled. READ out: n_read pages from the
     * front are verified (checksum, identity, tokens); the tail counts as the last one. Bad files
     * were quarantined, and where one was bad or gone, what else is stored of its page took its
     * place: n_full and what is said of the tail are then smaller than before. Status is MX_OK also
     * when less was read than asked for. Payloads from n_read on hold anything (the first of them
     * may have received unverified bytes): zero before reuse.
     *
     * Where the shape has windowed layers: locals[i] takes their rows of page i, NULL: they are not
     * wanted; payloads[i] those of the others. Out: NULL, too, where the file has none. All pages that
     * the token behind what PROBE found sees are in files that have them, or before first_page. */
    uint8_t **payloads;
    uint8_t **locals;
    size_t n_read;
    uint64_t elapsed_us;

    /* WRITE_PAGE in: the page's bytes and tokens. n_tokens < 64 = partial page: the payload is the
     * page as in RAM, its rows are compacted here. The payload is borrowed until polled back (or
     * abandoned), the rest until polled back; rows from n_tokens on may be written meanwhile.
     * `tokens`/n_tokens = the page's own tokens; `parent_id`, `first_page` (the page's own index)
     * and `root` its place; page_id its identity.
     * Status: MX_OK = durable. MX_E_FULL = over the folder's limit or no space, MX_E_LIMIT = the
     * day's budget does not allow it, MX_E_DENIED, MX_E_IO = the folder fails (see the stats), MX_E_INVALID = page_id is not the identity of
     * what was given, MX_E_NOMEM. Whatever it is, the caller just goes on. */
    const uint8_t *payload;
    const uint8_t *local;     /* of a page with windowed layers, and like payload; NULL = without their
                               * rows, with 64 tokens only */
    mx_hash256 page_id;

    /* PROBE and READ where the shape has a state; `chain` is the whole prompt from position 0 on, of
     * which `tokens` is the part behind first_page pages. A state is wanted behind more than state_min
     * tokens. PROBE out: state_at = the greatest position for which the folder has a state and, with
     * the pages before first_page, all rows (0 = none); what else PROBE tells is then what leads to
     * exactly there, possibly nothing. READ in: a place for the state. READ out: state_at = the
     * position of what is in it, verified, with the pages before it; when a file was bad, a smaller
     * one than before, or 0. Pages and rows behind state_at are of no use. */
    const int32_t *chain;
    uint64_t state_min, state_at;
    mx_hash256 state_id;
    uint8_t *state_payload;

    /* WRITE_STATE in: payload = the state at the end of n_tokens tokens of page first_page, borrowed
     * as that of a page, but written from where it is: payload 0 is in use meanwhile.
     * page_id = mx_cold_state_identity. Submit it behind its pages. Status as above. */

    /* WRITE_SESSION in: the manifest. All page identities of the chain in order (owned by the
     * caller until polled), tokens in the whole chain, and what kind of point it is. Submit it
     * behind its pages. Status MX_OK = the session is durable (logged "durable session=...");
     * MX_E_NOT_FOUND = some pages are not in the folder, or might not be after a power failure:
     * mx_cold_has_page is false for those from now on, so they can be written again. */
    const mx_hash256 *page_ids;
    size_t n_pages;
    size_t n_session_tokens;  /* in (64 * (n_pages - 1), 64 * n_pages] */
    uint32_t entry_kind;      /* 0 prompt, 1 turn */
    const mx_hash256 *state_ids; /* [n_states] ascending by position, those that are not in the folder */
    const uint64_t *state_positions; /* are left out; both like page_ids */
    size_t n_states;
    mx_hash256 session_id;    /* for logs; the file is named by the last page */
    const mx_turn *turns;     /* [n_turns] the answers in it, at most MX_TURNS_MAX; like page_ids */
    size_t n_turns;
    const char *session_name; /* whose turn it is: that session's bookmark is moved here; NULL = none */
    bool is_imported;         /* from another machine: a manifest of that name that is there stays */

    /* READ_IDS in: page_id = a manifest. Out: its answers, and the tokens of its chain, fewer when a page
     * is missing or bad. The caller's to mx_cold_ids_free. MX_E_NOT_FOUND: it is not there, or not
     * under job->root. */
    mx_cold_ids found;

    /* CONDEMN in: page_ids[n_pages] and state_ids[n_states], whose content is wrong though their sums
     * are right. From the submit on they count as absent; the writer, in its turn, moves the files to
     * quarantine, with `reason`; what is written behind this job stays. Never refused for want of
     * room. Status: MX_OK also when none was there; else the files are still there, and a server that
     * starts later believes them. */
    const char *reason;
};

/* Hands a job over. MX_E_FULL: the write queue has no room (nothing queued; the caller may retry
 * later or drop it). MX_E_LIMIT: the day's write budget is used up, and this page or state is not known
 * to be there. MX_E_UNSUPPORTED: the mode does not do that (reading in write-only). */
mx_err mx_cold_submit(mx_cold *c, mx_cold_job *job);

/* Files of a chain by their names. */
typedef struct mx_cold_names {
    const mx_hash256 *page_ids;  /* [n_pages] */
    size_t n_pages;
    const mx_hash256 *state_ids; /* [n_states] */
    size_t n_states;
} mx_cold_names;

/* While is_paced, which it is not at first, the writer spares the CPU for those who wait for a next token:
 * it takes about one hundredth of one core, but more where what is queued would wait for longer than 10 s.
 * It is not paced when more than half of the queue is full, nor in mx_cold_flush. Never blocks; any
 * thread. */
void mx_cold_pace(mx_cold *c, bool is_paced);

/* The next finished job of any kind, or NULL. Never blocks. */
mx_cold_job *mx_cold_poll(mx_cold *c);

/* The caller needs its payloads back before the job is done: it no longer waits for a READ, or is
 * short of pages. From now on none of them is touched, except those whose indices are returned: they
 * are in system calls, and the caller's when the job is polled. All else that the job points to stays
 * as it is until then. The job ends with MX_E_CANCELLED, unless it was past the point where that
 * matters. Never waits for the folder. */
mx_cold_busy mx_cold_abandon(mx_cold *c, mx_cold_job *job);

/* How long the reader has given no sign of life while it had something to do; 0 = it works or is
 * idle. What distinguishes a folder that hangs from one that is busy. */
uint64_t mx_cold_stalled_us(mx_cold *c);

/* Is this page known to be durable in the folder (written by us or seen)? RAM only, a hint: need
 * not be written again. Never waits for the folder. */
bool mx_cold_has_page(mx_cold *c, const mx_hash256 *page_id); /* or state */
/* And not known to lack the rows of windowed layers? */
bool mx_cold_has_whole_page(mx_cold *c, const mx_hash256 *page_id);

/* The name of the state at the end of the first n_tokens (1..64) tokens of page first_page, which
 * follows parent_id: SHA-256 over "mtplx state v1" padded with NUL to 16 bytes, root, the identity of
 * a page of these tokens in that place, u64 position, u64 presence, little endian. */
mx_hash256 mx_cold_state_identity(const mx_hash256 *root, const mx_hash256 *parent_id,
                                  uint64_t first_page, const int32_t *tokens, uint32_t n_tokens);

/* The answers of which the folder's manifests tell, under this root: those whose prompt has more than
 * min_bytes and at most max_bytes of text; with a nonce, only the one that has it. turns[n] and
 * sessions[n], for READ_IDS, are the caller's to mx_free. Right after the start it waits for the
 * manifests to be read, at most wait_us. MX_E_NOMEM: none. Any thread. */
mx_err mx_cold_list_turns(mx_cold *c, const mx_hash256 *root, uint64_t min_bytes,
                          uint64_t max_bytes, const uint8_t *nonce, uint64_t wait_us,
                          mx_turn **turns, mx_hash256 **sessions, size_t *n);

/* ---- bookmarks: what is known of them without the folder; any thread ---- */

bool mx_cold_has_pins(mx_cold *c);
bool mx_cold_is_pinned(mx_cold *c, const mx_hash256 *entry); /* by some bookmark of this model */
/* The session stands at `entry` now. False: it is not pinned. *old: where it stood. */
bool mx_cold_move_pin(mx_cold *c, const mx_hash256 *own, const mx_hash256 *entry, mx_hash256 *old);
/* After the bookmark was changed in the folder. */
void mx_cold_set_pin(mx_cold *c, const mx_hash256 *own, const mx_hash256 *entry, bool on);
/* Entries that were deleted because their session's time was over, one at a time. */
bool mx_cold_take_expired(mx_cold *c, mx_hash256 *entry);

/* Waits until the writer is done with the job that it is at now: what was abandoned before is not
 * written any more, and what was written is there. False: the time ran out. */
bool mx_cold_settle(mx_cold *c, uint64_t timeout_us);

/* Waits until everything queued is durable or the deadline passes. True = all flushed, false = time
 * ran out or something queued could not be written. */
bool mx_cold_flush(mx_cold *c, uint64_t timeout_us);

/* Runs the start-up scan or a sweep now and waits for its end. False = the time ran out. */
bool mx_cold_sweep(mx_cold *c, uint64_t timeout_us);

typedef struct mx_cold_stats {
    bool is_degraded;
    char degraded_reason[512];
    bool is_looked_at;         /* after the start: is_degraded tells whether the folder can be used */
    uint64_t turns;            /* answers whose ids are known to be in the folder */
    bool is_loaded;            /* names and manifests have been read after start, */
    bool is_complete;          /* and the heads of pages that have many siblings */
    uint64_t files, bytes;     /* below dir/v1, of all models, as far as known */
    uint64_t max_bytes;
    uint64_t pages_written, states_written, bytes_written, sessions_written, write_failures;
    uint64_t dropped_full;
    uint64_t pages_skipped;    /* not written because they were there */
    uint64_t bytes_skipped;    /* likewise */
    uint64_t sessions_skipped; /* likewise */
    uint64_t pages_read, states_read, bytes_read, quarantined;
    uint64_t files_swept, bytes_swept;
    uint64_t files_over_limit; /* of files_swept: because the folder was full */
    uint64_t files_expired;    /* of files_swept: not used for longer than ttl_s */
    uint64_t bytes_today;      /* with a write_budget: written since midnight UTC */
    uint64_t dropped_budget;   /* of dropped_full: for that budget */
    uint64_t queued_jobs, queued_bytes;
    uint64_t rests;            /* how often the writer stood back for others (mx_cold_pace) */
    double read_bytes_per_us;  /* measured; 0 = not yet */
} mx_cold_stats;
void mx_cold_get_stats(mx_cold *c, mx_cold_stats *out); /* any thread */

/* ---- the cache key -------------------------------------------------------------------------- */

#define MX_COLD_KEY_NAME "cache.key"

/* The secret of this folder, with which isolation salts are made. Kept in dir/cache.key, made there
 * at first use; or, when `file` is given, in that file (at least 32 bytes). The file must be ours
 * and nobody else's to read: else MX_E_DENIED. The text says what is wrong and what to do. */
mx_err mx_cold_cache_key(const char *dir, const char *file, mx_hash256 *out, mx_errbuf *eb);

/* What follows from the key of --cache-key-file: `object`, to authenticate files with, and `root`, which
 * goes into the roots of all chains, so that what has another key has other names. MX_E_NOMEM. */
mx_err mx_cold_derive_keys(const mx_hash256 *cache_key, mx_hash256 *object, mx_hash256 *root);

/* ---- without a server ------------------------------------------------------------------------ */

#define MX_COLD_MARKER_NAME "mtplx-session-cache.txt"
#define MX_COLD_MARKER_LINE "mtplx session cache"

/* Removes everything below dir that belongs to the cache (`mtplx cache rm --all`). MX_E_INVALID:
 * the folder does not look like one (no marker file), nothing was removed. An absent or empty
 * folder is fine. Foreign names are left alone: then MX_OK, and the text says so. *n_files,
 * *n_bytes: what was removed. key: as for the tools (cold_tools.h). */
mx_err mx_cold_remove_all(const char *dir, const mx_hash256 *key, uint64_t *n_files,
                          uint64_t *n_bytes, mx_errbuf *eb);

#endif
