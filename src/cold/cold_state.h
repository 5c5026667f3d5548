/* SPDX-License-Identifier: MIT
 *
 * cold_state.h: what the threads of the cold tier share. Not for other modules.
 *
 * Lock order: c->lock is a leaf (as is the index's own lock): nobody takes another lock, does I/O
 * or calls out while holding it. Folders, scratch memory and everything below "writer", "reader",
 * "sweeper" belong to that thread alone.
 */
#ifndef MX_COLD_STATE_H
#define MX_COLD_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/statvfs.h>

#include "base/buf.h"
#include "cold/cold.h"
#include "cold/cold_bookmark.h"
#include "cold/cold_files.h"
#include "cold/cold_format.h"
#include "cold/cold_index.h"
#include "cold/cold_turns.h"

typedef enum mx_cold_side { MX_COLD_WRITING, MX_COLD_READING, MX_COLD_N_SIDES } mx_cold_side;

typedef struct mx_cold_wear {
    uint64_t budget;            /* bytes a day, 0 = no limit */
    int64_t day;                /* since 1970, UTC */
    uint64_t written, unsaved;  /* that day, by everybody as far as known; of it not in the file */
    uint64_t saved_us;
    bool is_known;
} mx_cold_wear;

/* What one thread needs to read or write an object. */
typedef struct mx_cold_scratch {
    uint8_t *head;              /* [MX_DISK_PAYLOAD_AT] */
    uint8_t *stored;            /* [page_bytes]: a compressed payload; NULL until there is one */
    uint8_t *whole;             /* [page_bytes]: a page with windowed layers in one piece; likewise */
    mx_codec codec;
} mx_cold_scratch;

typedef struct mx_cold_read_work mx_cold_read_work;

/* A thread that helps the reader. */
typedef struct mx_cold_lane {
    mx_cold *c;
    pthread_t thread;
    unsigned number;            /* 1 and up; lane 0 is the reader */
    uint64_t n_seen;            /* of n_lane_works, guarded by the lock */
    mx_cold_scratch scratch;
} mx_cold_lane;

/* A pinned bookmark. */
typedef struct mx_cold_pin {
    mx_hash256 own, entry;
} mx_cold_pin;

typedef struct job_list {
    mx_cold_job *first, *last;
} job_list;

struct mx_cold {
    /* Constant after open. */
    mx_kv_shape shape;
    mx_cold_mode mode;
    uint32_t codec;             /* of the pages that are written */
    bool has_auth_key;
    mx_hash256 auth_key;
    mx_cold_fileops shared_ops; /* tuning.fileops then: those of the configuration, and it accepts others */
    char *dir, *model_json;
    mx_hash256 root;
    size_t queue_bytes_max, page_bytes;
    mx_cold_tuning tuning;      /* defaults filled in; -1 became 0 */
    bool has_default_reserve;   /* the larger of 1 GiB and 2 % */
    void (*wake)(void *arg);
    void *wake_arg;
    mx_gone *gone;
    mx_cold_index *index;
    mx_cold_turns *turns;
    /* What mx_cold_follow_clock has decided: what to add to the clock that does not jump, */
    atomic_llong clock_offset_s;
    int64_t ahead_since_s;      /* and, by that one, since when the other is ahead; 0 = it is not. The sweeper's */

    pthread_mutex_t lock;
    pthread_cond_t writer_cond, reader_cond, sweeper_cond; /* something to do, or stop; the writer's: or
                                                              * less reason to rest */
    pthread_cond_t idle_cond;                              /* something was finished */
    /* Guarded by lock. */
    job_list writes, reads, done;
    bool writer_busy, reader_busy, sweeper_busy;
    unsigned n_flushing;        /* > 0: the writer does not make room for readers, nor rest */
    bool is_paced;              /* it rests between jobs */
    bool is_sweep_wanted;
    uint64_t n_sweeps;          /* finished */
    uint64_t next_sweep_us;     /* a sweep for lack of room is not started before */
    int64_t spent_day;          /* since 1970, UTC: until its end nothing is written, for the budget */
    uint64_t written_bytes, written_files; /* since the scan began */
    uint64_t n_lost;            /* write jobs that did not end MX_OK */
    uint64_t n_ended;           /* write jobs, however they ended */
    uint64_t retry_at_us;       /* for writing */
    bool has_failed[MX_COLD_N_SIDES]; /* stats.is_degraded is one of them */
    uint64_t reader_alive_us;   /* the reader's last sign of life in this job */
    uint64_t max_bytes;         /* 0 = the default, not settled yet: see mx_cold_limit */
    bool is_hindrance_told;     /* nothing can be deleted, and people have been told */
    bool is_counted;            /* stats.bytes is what a sweep has seen, and what was written since */
    mx_cold_stats stats;
    mx_cold_pin pins[MX_PINS_MAX]; /* [n_pins] of this root */
    size_t n_pins;
    mx_hash256 expired[64];     /* [n_expired] entries that went with their sessions' time */
    size_t n_expired;

    pthread_cond_t lane_cond, lane_done_cond;
    mx_cold_read_work *lane_work; /* NULL = none */
    uint64_t n_lane_works;        /* so far */
    unsigned n_lanes_busy;

    atomic_bool is_stopping;
    atomic_bool is_foreign_logged, is_limit_logged; /* once per process is enough */
    bool is_stopped, is_stuck;  /* the caller of stop and close only */
    pthread_t writer, reader, sweeper;
    bool has_writer, has_reader, has_sweeper;

    int64_t ttl_s;              /* 0 = for ever */

    mx_cold_folder writer_folder;
    mx_cold_wear wear;
    mx_cold_scratch writer_scratch;
    uint8_t *writer_rows;       /* [page_bytes]: the payload, compact */

    mx_cold_folder reader_folder;
    mx_cold_lane lanes[MX_COLD_LANES - 1];
    size_t n_lanes;             /* threads beside the reader; constant after open */
    mx_cold_scratch reader_scratch;
    uint8_t *reader_rows;       /* [page_bytes]: a tail, compact */
    uint8_t *reader_page;       /* [page_bytes]: a partial tail, unpacked */
    mx_hash256 *reader_ids;     /* [reader_ids_cap] */
    size_t reader_ids_cap;
    size_t reader_n_used;       /* identities of the last READ to be touched */
    mx_hash256 *reader_path;    /* [reader_path_cap] whole pages of a prompt from position 0 */
    size_t reader_path_cap;
    mx_hash256 reader_state;    /* used by the last READ; */
    uint64_t reader_state_at;   /* 0 = none */

    mx_cold_folder sweeper_folder;
    mx_cold_scratch sweeper_scratch;
};

/* cold_wear.c; the writer's. */
#define MX_COLD_WEAR_NAME "written.txt"
/* MX_E_LIMIT: so many bytes more are not in the day's budget; from then on mx_cold_submit says so. */
mx_err mx_cold_wear_check(mx_cold *c, uint64_t need);
bool mx_cold_wear_is_spent_locked(const mx_cold *c); /* any thread */
void mx_cold_wear_note(mx_cold *c, uint64_t bytes); /* after they were written */
void mx_cold_wear_save(mx_cold *c);                 /* what is not in the file yet */

/* cold_pins.c: the pinned bookmarks that a sweep has seen. */
void mx_cold_learn_pins(mx_cold *c, const mx_cold_pin *seen, size_t n);

/* Thread bodies. */
void mx_cold_write_job(mx_cold *c, mx_cold_job *job);
void mx_cold_read_job(mx_cold *c, mx_cold_job *job);
/* After the job was handed back: what it used becomes the youngest. */
void mx_cold_read_done(mx_cold *c);
void mx_cold_sweep_once(mx_cold *c);
/* cold_heads.c: between sweeps. Breaks off when a sweep is wanted; false: there is more to do. */
bool mx_cold_read_heads(mx_cold *c);
/* Lets restores that wait have the disk first, unless the one that runs is stuck. */
void mx_cold_yield_to_reader(mx_cold *c);

/* What the index learns from a manifest, our own or one that was found. */
mx_err mx_cold_learn_manifest(mx_cold *c, const mx_disk_manifest *m);

/* Degradation, of writing and of reading apart: a file that cannot be read says nothing about the
 * next write, nor is a read healed by it. The first failure after a success is logged as a warning,
 * the rest is silence. */
void mx_cold_failed(mx_cold *c, mx_cold_side side, const char *what);
void mx_cold_worked(mx_cold *c, mx_cold_side side);
/* False: degraded, and the next attempt is not due. */
bool mx_cold_may_write(mx_cold *c);

/* Before and after a payload of a job is used. False: the job was abandoned, leave it alone. */
bool mx_cold_claim(mx_cold *c, mx_cold_job *job, unsigned lane, size_t payload);
void mx_cold_unclaim(mx_cold *c, mx_cold_job *job, unsigned lane);

/* Counts bytes and files up or down after the fact (any thread). */
void mx_cold_account(mx_cold *c, int64_t files, int64_t bytes);
void mx_cold_quarantined(mx_cold *c);
void mx_cold_want_sweep(mx_cold *c);
/* Waits until the manifests have been read after start, at most timeout_us. For the reader thread. */
void mx_cold_wait_loaded(mx_cold *c, uint64_t timeout_us);
bool mx_cold_is_loaded(mx_cold *c);
/* What stays free on the disk. */
uint64_t mx_cold_disk_reserve(const mx_cold *c, const struct statvfs *vfs);
/* The limit in bytes; settles the default, a tenth of what would be free without the cache, the first time
 * that a folder has been counted whose disk has its reserve free. */
uint64_t mx_cold_limit(mx_cold *c, const mx_cold_folder *f);
/* What is kept free below the limit by sweeping, so that the writer need not drop pages. */
uint64_t mx_cold_low_water(const mx_cold *c, uint64_t limit);

/* Where a page is wanted; fields that are NULL are not known to the caller. */
typedef struct mx_cold_want {
    mx_cold_object object;
    mx_hash256 id;
    const mx_hash256 *root, *parent;
    uint32_t n_tokens;          /* 0 = not known */
    uint64_t first_position;    /* checked when root is given */
} mx_cold_want;

MX_INLINE const mx_hash256 *mx_cold_auth_key(const mx_cold *c)
{
    return c->has_auth_key ? &c->auth_key : NULL;
}

/* Payload bytes of an object with n_tokens tokens. */
MX_INLINE size_t mx_cold_object_bytes(const mx_cold *c, mx_cold_object o, uint32_t n_tokens)
{
    return o == MX_COLD_STATE ? c->shape.state_bytes : mx_disk_payload_bytes(&c->shape, n_tokens);
}

bool mx_cold_make_scratch(mx_cold_scratch *s); /* false = no memory */
void mx_cold_free_scratch(mx_cold_scratch *s);
/* Makes room for a compressed payload; false = no memory. */
bool mx_cold_reserve_stored(const mx_cold *c, mx_cold_scratch *s);
/* Makes room for a page in one piece; false = no memory. */
bool mx_cold_reserve_whole(const mx_cold *c, mx_cold_scratch *s);
/* Where the payload of page i of a READ is to be read to: s->whole, or the page's own where it is all in
 * one piece. Then it is put into its place with mx_cold_put_page. NULL = no memory. */
uint8_t *mx_cold_place_of(const mx_cold *c, const mx_cold_job *job, mx_cold_scratch *s, size_t i);
void mx_cold_put_page(const mx_cold *c, mx_cold_job *job, size_t i, bool lacks_local,
                      const uint8_t *bytes);
/* Reads and checks a page or state file, steps 1 to 8, into *page. With a payload (n_tokens must be
 * known) step 10, too; of a page that lacks the rows of windowed layers it is the beginning that is
 * filled. MX_E_CORRUPT: it was damaged and is in quarantine now; MX_E_NOT_FOUND,
 * MX_E_UNSUPPORTED, MX_E_NOMEM, MX_E_IO. */
mx_err mx_cold_load_page(mx_cold *c, mx_cold_folder *f, const mx_cold_want *want,
                         mx_cold_scratch *s, uint8_t *payload, mx_disk_page *page);
/* Has the file of this page the rows of windowed layers? Reads its head, and the index learns it. Nothing is
 * read where there are no such layers. */
bool mx_cold_page_is_whole(mx_cold *c, mx_cold_folder *f, const mx_hash256 *id, mx_cold_scratch *s);
/* mx_cold_load_page without any consequence: nothing is moved, logged or noted. *is_open (or NULL): the
 * file could be opened. */
mx_err mx_cold_try_page(const mx_cold *c, const mx_cold_folder *f, const mx_cold_want *want,
                        mx_cold_scratch *s, uint8_t *payload, mx_disk_page *page, bool *is_open,
                        mx_errbuf *eb);

/* cold_lanes.c; for the reader. Starts as many threads as there are cores to use, or fewer. */
void mx_cold_start_lanes(mx_cold *c);
/* Reads the job's whole pages, named by ids, into its payloads, several at a time. How many from the
 * front are there and verified; the next one is for the caller to look at. */
size_t mx_cold_read_in_lanes(mx_cold *c, mx_cold_job *job, const mx_hash256 *ids);
/* Is the file there with the right size? A wrong size sends it to quarantine, and then it is not.
 * MX_E_NOT_FOUND: no; anything else: the folder would not say. */
mx_err mx_cold_look_for(mx_cold *c, mx_cold_folder *f, mx_cold_object o, const mx_hash256 *id,
                        uint32_t n_tokens);
/* The same for who can go on without it in any case. */
bool mx_cold_page_exists(mx_cold *c, mx_cold_folder *f, const mx_hash256 *id, uint32_t n_tokens);
bool mx_cold_state_exists(mx_cold *c, mx_cold_folder *f, const mx_hash256 *id);
/* Quarantine with what belongs to it: the counter and the index. */
void mx_cold_condemn(mx_cold *c, mx_cold_folder *f, mx_cold_object o, const mx_hash256 *id,
                     const char *reason);
/* "<xx>/<64 hex>.page" or ".state", relative to the folder of these objects. */
void mx_cold_object_path(mx_cold_object o, const mx_hash256 *id, char path[MX_COLD_NAME_CAP]);
/* Gives the state at a position the age that puts it between its page and the one behind, when these
 * are touched with the same now_ns. False: it is not there. */
bool mx_cold_touch_state(mx_cold *c, mx_cold_folder *f, const mx_hash256 *id, uint64_t position,
                         int64_t now_ns);

/* cold_ids.c: a READ_IDS; for the reader. */
mx_err mx_cold_read_ids(mx_cold *c, mx_cold_job *job);

/* cold_boundary.c: the part of PROBE and READ that is about states; for the reader. */
/* The greatest state in (job->state_min, most] of the chain; sets state_id and state_at (0 = none). */
mx_err mx_cold_find_state(mx_cold *c, mx_cold_job *job, uint64_t most);
/* After the pages were probed: the greatest boundary, and what leads there. */
mx_err mx_cold_probe_state(mx_cold *c, mx_cold_job *job);
/* After the pages were read: fills in the state, or a smaller one. *bytes += what was read. */
mx_err mx_cold_read_state(mx_cold *c, mx_cold_job *job, uint64_t *bytes);
/* Sets times so that page i is older than page i-1 (docs/file-format.md, section 6). Pages that are
 * not there are removed from the index. Returns how many are missing. */
size_t mx_cold_touch_chain(mx_cold *c, mx_cold_folder *f, const mx_hash256 *ids, size_t n,
                           int64_t now_ns);

/* cold_clock.c. Seconds since 1970 that do not jump forward with the wall clock. Any thread. */
int64_t mx_cold_now_s(const mx_cold *c);
/* What a file that is used now is stamped with: the wall clock, which is everybody's. */
int64_t mx_cold_stamp_ns(const mx_cold *c);
void mx_cold_start_clock(mx_cold *c);
/* Before each sweep. */
void mx_cold_follow_clock(mx_cold *c);

#endif
