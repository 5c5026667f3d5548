/* SPDX-License-Identifier: MIT
 *
 * sched_internal.h: the engine's own structures, shared by the files of this folder only.
 *
 * Threads: everything in mx_engine and mx_request belongs to the engine thread, except what stands
 * under "shared" with the lock that guards it. Lock order: engine.mu before request.mu; neither is
 * held while user code (wake) runs or while anything is computed.
 */
#ifndef MX_SCHED_INTERNAL_H
#define MX_SCHED_INTERNAL_H

#include "sched/engine.h"
#include "sched/sched_share.h"
#include "sched/sched_text.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    MX_OUT_PAUSE_BYTES = 64 << 10,     /* unread output at which a sequence is paused */
    MX_OUT_ABANDON_US = 60 * 1000000,  /* unread for so long: the reader is gone */
    MX_PROBE_WAIT_US = 2 * 1000000,    /* a few name look-ups: more means that the folder hangs */
    MX_IDLE_MAX = 8,
    MX_ADMIT_TOKENS = 256,             /* answer tokens an admission sets aside pages for */
};

typedef enum mx_run_state {
    MX_RUN_QUEUED,   /* waiting for admission; holds no pages */
    MX_RUN_PROBING,  /* the cold tier is looking; whole RAM pages are held */
    MX_RUN_READING,  /* the cold tier is filling pages */
    MX_RUN_FOLLOWING, /* an older run is computing what this one needs; holds no pages */
    MX_RUN_ACTIVE,   /* has pages; tokens are being fed or sampled */
    MX_RUN_DONE
} mx_run_state;

/* A token's log probability record that waits until its text may be shown. */
typedef struct mx_held_token {
    mx_sample sample;
    uint64_t begin, end; /* the clean text it contributed to: [begin, end) of mx_text.n_clean */
    uint32_t piece_begin, piece_end;
} mx_held_token;

typedef struct mx_ticket mx_ticket; /* sched_cold.c: a job that the cold tier holds for us */
typedef struct mx_query mx_query;   /* sched_query.c: a question of another thread */

/* What was seen on the way to a restore, for its explanation. */
typedef struct mx_miss_look {
    size_t n_common;          /* the longest common prefix with anything stored, and */
    int32_t stored[MX_SNIPPET_TOKENS]; /* [n_stored] how that goes on */
    uint32_t n_stored;
    size_t n_condemned;       /* damaged files that were met */
    bool is_under_other_model;
} mx_miss_look;

/* The boundaries on a request's way that the cold tier has or was given. */
typedef struct mx_sent_states {
    mx_hash256 *ids;     /* [n] ascending by position */
    uint64_t *positions; /* [n] */
    size_t n, ids_cap, positions_cap;
    size_t until;        /* so many tokens of the way were looked through */
} mx_sent_states;

struct mx_request {
    /* Constant after create. */
    mx_engine *engine;
    mx_request_params params; /* pointers in it are ours */
    mx_hash256 root;
    mx_logit_bias *bias;
    mx_str *stops;
    char *stop_bytes;
    uint32_t *marks;
    mx_turn *turns;
    char session_name[MX_SESSION_NAME_MAX + 1]; /* "" = none, else */
    mx_hash256 session;       /* its name in files */
    size_t n_prompt;
    size_t max_total;         /* prompt + answer tokens, at most */

    _Atomic uint32_t refs;
    _Atomic bool is_cancelled;

    /* Engine thread. */
    mx_run_state state;
    mx_request *leader;       /* whom it follows, until that run has follow_until tokens; NULL = */
    size_t follow_until;      /* nobody, or that run has left the list */
    mx_request *next;         /* link in the queue or the list of runs */
    int32_t *tokens;          /* [max_total] prompt, then what was sampled */
    size_t n_tokens;
    mx_seq seq;               /* seq.n_tokens of them have been fed */
    mx_sampler *sampler;
    mx_text text;
    float *hidden;            /* [n_embd] the model's output after hidden_at tokens */
    size_t hidden_at;         /* 0 = none; == n_tokens: ready to sample */
    size_t asked_stops[4];    /* where others, who follow, want a boundary; 0 = free */
    bool is_prompt_done;
    bool was_admitted;        /* the statistics of the prompt are settled */
    bool is_approximate;      /* nothing that is computed may be stored */
    mx_held_token *held;      /* [n_held] */
    size_t n_held, held_cap;
    mx_buf held_pieces;
    mx_ticket *ticket;        /* the probe or read we wait for */
    uint64_t wait_deadline_us; /* when we stop waiting for it */
    size_t n_cold_pages;      /* pages of seq that were handed to the cold writer */
    mx_sent_states sent;      /* and states */
    size_t n_windows;         /* where windows are kept: so many tokens were looked through */
    bool reads_all;           /* the folder has turned out to have less than it said */
    bool has_looked_again;    /* RAM has turned out to have less by the time the folder answered */
    bool lets_rows_go;        /* under pressure: the cold writer gets no rows that nobody sees */
    bool has_cold_tail;       /* the last page of seq was read from this file: */
    mx_hash256 cold_tail_id;
    mx_bank_match match;            /* what RAM offered */
    mx_miss_look look;
    uint64_t submit_us, admit_us, prefill_done_us, paused_since_us;
    uint64_t restored_us;     /* when the first restore ended; it may be admitted again later */

    /* Shared, under mu. */
    pthread_mutex_t mu;
    mx_output out;            /* what the reader has not fetched; finish = set at the end */
    bool wants_room;          /* the engine paused this run: tell it when the reader fetched */
    mx_request_stats stats;
};

struct mx_engine {
    mx_engine_config cfg;
    mx_model *model;
    const mx_model_config *mc;
    const mx_tokenizer *tok;
    mx_kv_pool *pool;
    mx_bank *bank;
    mx_cold *cold;            /* NULL = off */
    bool is_cold_stuck;       /* its threads could not be ended */
    mx_gone *gone;            /* identities of pages that were stored and had to go */
    mx_hash256 root;          /* without salt */
    size_t max_seq_tokens;
    size_t spacing;           /* tokens between boundaries; 0 = the model has no state */
    size_t window_spacing;    /* tokens between windows that are kept; 0 = no layer has one */
    int32_t *eog_ids;         /* [n_eog] tokens that end a generation */
    size_t n_eog;

    mx_request *queue;        /* waiting, oldest first */
    mx_request *idle;         /* likewise, of those that nobody waits for; at most MX_IDLE_MAX */
    mx_request *runs;         /* probing, reading, active; admission order */
    size_t n_runs;
    size_t turn;              /* which prefill goes next */
    mx_ticket *tickets;       /* all jobs that the cold tier holds */
    size_t n_late;            /* of them: nobody waits for them any more, the folder hangs */
    uint64_t n_unwritten;     /* jobs of the writer that failed, or found no room */
    bool is_queue_full;       /* the cold writer's; said in the log */
    bool is_writer_paced;     /* as it was told last */
    uint64_t starved_since_us; /* nothing can be computed for want of pages; 0 = it can */
    double us_per_token;      /* measured prefill cost, 0 = not yet */
    mx_share share;           /* what passes cost, to divide them between streams and prompts */
    mx_engine_stats live;     /* published from time to time */

    /* One pass. */
    mx_batch_row *rows;       /* [prefill_chunk + max_running] */
    float *hidden;            /* [max_running][n_embd] */
    float *logits;            /* [max_running][n_vocab] */
    mx_request **batch_runs;  /* [max_running] */
    size_t *batch_first;      /* [max_running] first row of that run, */
    size_t *batch_count;      /* and how many */

    /* Shared, under mu. */
    pthread_mutex_t mu;
    pthread_cond_t wake, answered;
    mx_query *queries;        /* waiting to be run */
    bool has_ended;           /* nobody runs them any more */
    mx_request *incoming;     /* submitted, newest last */
    mx_request **incoming_end;
    size_t n_waiting;         /* incoming + queue */
    bool is_woken;
    bool is_stopping;
    _Atomic bool is_wanted;   /* somebody came: written under mu, read by passes that are idle work */
    uint64_t stop_deadline_us, flush_us;
    mx_engine_stats published;
    pthread_t thread;
};

/* engine.c */
void mx_engine_wake(mx_engine *e); /* any thread */

/* sched_request.c */
/* Ends a request: releases its pages, tells the reader. text may be NULL. */
void mx_request_end(mx_request *r, mx_finish finish, mx_err error, const char *text);
/* Gives one sampled token's text (and record) to the reader; true = a stop string ended it. */
bool mx_request_emit(mx_request *r, const mx_sample *s);
void mx_request_flush_text(mx_request *r);
size_t mx_request_unread(mx_request *r);
void mx_request_wake_reader(mx_request *r);

/* sched_admit.c */
/* r, which is at the end of the list of runs, gets what is known of its prompt. */
void mx_admit_start(mx_engine *e, mx_request *r);
/* Starts queued requests as far as pages allow; true when something changed. */
bool mx_admit_all(mx_engine *e);
/* What RAM has of n tokens that a request could start from: a boundary at their very end serves with
 * its hidden vector only, else the greatest before it counts, here as for the cold tier. */
void mx_admit_look(const mx_engine *e, const mx_hash256 *root, const int32_t *tokens, size_t n,
                   mx_bank_match *m);
/* The cold tier answered a probe, */
void mx_admit_probed(mx_engine *e, mx_request *r, const mx_cold_job *job);
/* or a read: pages[0..n_pages-1] belong to the caller, the first job->n_read of them are filled;
 * *state, where there are states, belongs to the caller and is filled when job->state_at > 0. What is
 * taken over becomes NULL. */
void mx_admit_read(mx_engine *e, mx_request *r, const mx_cold_job *job, mx_page **pages,
                   mx_kvstate **state);
/* Goes on with what RAM has. */
void mx_admit_without_cold(mx_engine *e, mx_request *r);
/* Who follows r starts anew: r leaves the list of runs. */
void mx_admit_unfollow(mx_request *r);
/* A page from the pool, evicting from the bank where needed; NULL when everything is in use. */
mx_page *mx_admit_page(mx_engine *e, bool is_whole); /* or without local */
mx_kvstate *mx_admit_state(mx_engine *e); /* likewise */
/* Takes a run off the list and puts it back at the front of the queue, its work kept in the bank. */
void mx_admit_requeue(mx_engine *e, mx_request *r);

/* Is reading what a probe found faster than computing n_gain tokens? */
bool mx_admit_is_worth_reading(const mx_engine *e, const mx_cold_job *job, size_t n_gain);
/* The label of a chain that ends in the tail of a probe or read. */
mx_restore_kind mx_admit_cold_kind(const mx_engine *e, const mx_cold_job *job);

/* sched_verify.c */
/* Computes what r->seq was given again. False: some bit differs (logged); files of pages or of the
 * state that differ are condemned. */
bool mx_verify_restored(mx_engine *e, mx_request *r);

/* sched_miss.c */
typedef struct mx_miss_case {
    mx_hash256 root;
    const mx_hash256 *parent; /* identity of the last whole page that was reused; NULL = not known */
    const int32_t *tokens;
    size_t n_prompt, n_reused;
    bool is_cache_off, is_not_worth;
} mx_miss_case;
void mx_miss_look_ram(const mx_engine *e, const mx_hash256 *root, const int32_t *tokens, size_t n,
                      mx_miss_look *look);
void mx_miss_look_cold(mx_miss_look *look, const mx_cold_job *job);
/* Fills diverged, diverged_at, miss_reason, miss. */
void mx_miss_explain(const mx_engine *e, const mx_miss_case *m, const mx_miss_look *look,
                     mx_request_stats *out);
/* The counters of one admitted prompt. */
void mx_miss_count(mx_engine *e, const mx_request_stats *s);

/* sched_pins.c */
/* r has just been recorded in the bank: pins that point, when a bookmark says so. */
void mx_pin_point(mx_engine *e, const mx_request *r, bool is_turn);
/* Entries of sessions whose time is over leave the bank, too; true when there was one. */
bool mx_pin_forget_expired(mx_engine *e);

/* sched_query.c */
bool mx_query_run_all(mx_engine *e); /* true when there was one */
void mx_query_end_all(mx_engine *e); /* the engine thread ends */
/* The job for a question came back (its ids may be taken); NULL = it never will. */
void mx_query_answered(mx_engine *e, mx_query *q, mx_cold_job *job);

/* sched_step.c */
/* One forward pass with whatever is ready; true when something was done. */
bool mx_step(mx_engine *e);
/* Writes the end of a run into both tiers. */
void mx_step_commit_turn(mx_engine *e, mx_request *r);

/* sched_idle.c */
/* Takes a submitted idle request into the line; the oldest goes when it is full. */
void mx_idle_add(mx_engine *e, mx_request *r);
/* When there is other work, what runs idly leaves the list of runs; its finished chunks stay in the
 * bank. */
void mx_idle_give_way(mx_engine *e);
/* The next idle request that there is room for becomes a run; true when something changed. The engine
 * has nothing else to do. */
bool mx_idle_start(mx_engine *e);
/* The engine stops: nobody waits for them. */
void mx_idle_drop_all(mx_engine *e);

/* sched_stops.c */
/* Tokens between two boundaries on the way; 0 = pages are all there is. */
size_t mx_stop_spacing(const mx_kv_shape *shape);
/* The same for the local rows of windowed layers; 0 = there are none. */
size_t mx_stop_window_spacing(const mx_kv_shape *shape);
/* The next position behind what r has been fed at which a pass is to end; SIZE_MAX = none. */
size_t mx_stop_next(const mx_engine *e, const mx_request *r);
/* Somebody follows o until it has n tokens: with states or windowed layers o will leave a boundary there. False: it has
 * been asked for too many. */
bool mx_stop_want(const mx_engine *e, mx_request *o, size_t n);
/* r starts: where it leaves what is stored, the next one may, too. */
void mx_stop_learn(const mx_engine *e, mx_request *r);
/* What saves fewer tokens is not worth a state, which is megabytes. */
enum { MX_STOP_MIN_TOKENS = 32 };
/* r has just been fed: keeps a boundary when it stands where one is wanted; true = it does. */
bool mx_stop_keep(mx_engine *e, mx_request *r);

/* With windowed layers: keeps the rows that one sees behind wanted places, as far as whole pages (or
 * with the tail, when that is in the bank) go. */
void mx_stop_keep_windows(mx_engine *e, mx_request *r, bool with_tail);

/* The same for the end of what r has in whole pages: its sequence is given up. */
void mx_stop_keep_here(mx_engine *e, mx_request *r);

/* r has another sequence: of its pages the cold writer has the first n_pages. */
MX_INLINE void mx_request_begin_store(mx_request *r, size_t n_pages)
{
    r->n_cold_pages = n_pages;
    r->sent.n = r->sent.until = 0;
    r->n_windows = r->seq.n_tokens;
    r->lets_rows_go = false;
}

MX_INLINE bool mx_request_may_store(const mx_request *r)
{
    return r->params.cache == MX_CACHE_USE && !r->is_approximate;
}

/* sched_cold.c */
/* Hands a probe or a read over for r; false = go on without the cold tier. */
bool mx_ticket_probe(mx_engine *e, mx_request *r);
bool mx_ticket_read(mx_engine *e, mx_request *r, const mx_cold_job *probe);
/* The same for a lookup: a probe behind the first n_full whole pages of tokens (copied), where there
 * are states for one behind n_ram tokens. */
bool mx_ticket_query(mx_engine *e, mx_query *q, const mx_hash256 *root, const int32_t *tokens,
                     size_t n, size_t n_full, size_t n_ram);
/* For the tokens of a stored session. */
bool mx_ticket_ids(mx_engine *e, mx_query *q, const mx_hash256 *root, const mx_hash256 *session);
/* r no longer waits for its ticket: its pages are free at once, what comes back is dropped. is_late:
 * because the folder hangs; then nobody asks it before it has answered. */
void mx_ticket_abandon(mx_request *r, bool is_late);
/* Takes the pages back that only the cold writer still holds; true when there were any. What was not
 * written is offered again with the next commit that has it. */
bool mx_ticket_shed(mx_engine *e);
/* Jobs of the writer that are not done. */
bool mx_ticket_is_writing(const mx_engine *e);
/* Queues what the sequence has and the folder lacks; with_entry: also the tail (of a turn) and the
 * manifest. */
void mx_ticket_store(mx_engine *e, mx_request *r, mx_entry_kind kind, bool with_entry);
/* Pages, then states, whose files hold something else than what the tokens lead to: they count as
 * absent from now on and go to quarantine. */
void mx_ticket_condemn(mx_engine *e, const mx_request *r, const mx_hash256 *ids, size_t n_pages,
                       size_t n_states);
/* A chain that is to go. */
typedef struct mx_doomed {
    const mx_hash256 *id;    /* its name */
    mx_cold_names names;
    const mx_hash256 *root;
    const int32_t *tokens;   /* [n_tokens] of it; NULL = not known, or turns that end inside of a page on the */
    size_t n_tokens;         /* way stay */
} mx_doomed;
/* What waits to be written of it, and the manifests that end in one of its pages or have its name, is
 * not written any more, nor offered again; NULL = everything. True: there was something. */
bool mx_ticket_drop(mx_engine *e, const mx_doomed *d);
/* The files of the manifest of that name, when it waits to be written; else NULL. Valid until the
 * ticket ends. */
const mx_cold_job *mx_ticket_manifest(const mx_engine *e, const mx_hash256 *id);
bool mx_ticket_collect(mx_engine *e);     /* polls finished jobs; true when there was one */
void mx_ticket_release_all(mx_engine *e); /* after the tier was closed */

#endif
