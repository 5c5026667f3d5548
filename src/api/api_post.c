/* SPDX-License-Identifier: MIT
 *
 * Some templates replay an answer in other words than it was sampled in: reasoning is left out,
 * what opened the answer is not repeated. Then the pages of the answer are of no use to the next
 * turn, and all that the template moved has to be read again while somebody waits for it. So the
 * replayed form is computed right after the answer, as idle work of the engine
 * (mx_request_params.is_idle).
 *
 * Rendering and tokenising take a thread of their own: the answer ends on the thread that serves
 * all sockets. Of several answers that wait for it the oldest are given up.
 */
#include "api/api_state.h"

#include "base/log.h"
#include "base/mem.h"

enum {
    MAX_WAITING = 8,
    /* Fewer are read by the next turn along with what the user says. */
    MIN_TOKENS = 32,
};

typedef struct job {
    struct job *next;
    mx_reply reply;
    mx_prompt_rules rules;
    const mx_hash256 *salt;
    mx_tokens ids;
} job;

struct mx_post {
    mx_api *api;
    pthread_t thread;
    pthread_mutex_t mu;
    pthread_cond_t cond;
    job *first; /* under mu, as what follows */
    size_t n;
    bool is_stopping, is_joined;
};

void mx_reply_free(mx_reply *r)
{
    json_object_put(r->body);
    mx_buf_free(&r->text);
    *r = (mx_reply){0};
}

static void job_free(job *j)
{
    mx_reply_free(&j->reply);
    mx_tokens_free(&j->ids);
    mx_free(j);
}

static size_t n_common(const mx_tokens *a, const mx_tokens *b)
{
    size_t n = mx_min_size(a->n, b->n), i = 0;
    while (i < n && a->ids[i] == b->ids[i]) {
        i++;
    }
    return i;
}

static void submit(mx_api *a, const job *j, const mx_prompt *next)
{
    mx_request_params p = {
        .prompt = next->tokens.ids,
        .n_prompt = next->tokens.n,
        .is_idle = true,
        .sampling = mx_sampling_default(),
        .cache = MX_CACHE_USE,
        .salt = j->salt,
        .marks = next->marks,
        .n_marks = next->n_marks,
        .turns = next->turns.list,
        .n_turns = next->turns.n,
        .id = "post-commit",
    };
    mx_request *r;
    mx_errbuf eb = {0};
    if (mx_request_create(&r, a->engine, &p, &eb) == MX_OK) {
        (void)mx_engine_submit(a->engine, r, &eb); /* it stops, or takes it */
        mx_request_unref(r);
    }
}

static void run(mx_api *a, const job *j)
{
    mx_prompt next = {0};
    if (mx_api_next_prompt(a, &j->reply, &j->rules, &next)) {
        size_t n_same = n_common(&next.tokens, &j->ids);
        if (next.tokens.n >= n_same + MIN_TOKENS) {
            mx_log(MX_LOG_DEBUG, "post-commit: tokens=%zu of them_new=%zu", next.tokens.n,
                   next.tokens.n - n_same);
            submit(a, j, &next);
        }
    }
    mx_prompt_free(&next);
}

static void *post_main(void *arg)
{
    mx_post *p = arg;
    pthread_mutex_lock(&p->mu);
    while (!p->is_stopping) {
        job *j = p->first;
        if (j == NULL) {
            pthread_cond_wait(&p->cond, &p->mu);
            continue;
        }
        p->first = j->next;
        p->n--;
        pthread_mutex_unlock(&p->mu);
        run(p->api, j);
        job_free(j);
        pthread_mutex_lock(&p->mu);
    }
    pthread_mutex_unlock(&p->mu);
    return NULL;
}

mx_post *mx_post_start(mx_api *a)
{
    mx_post *p = mx_calloc(1, sizeof *p);
    if (p == NULL) {
        return NULL;
    }
    p->api = a;
    pthread_mutex_init(&p->mu, NULL);
    pthread_cond_init(&p->cond, NULL);
    if (pthread_create(&p->thread, NULL, post_main, p) != 0) {
        p->is_stopping = p->is_joined = true;
        mx_post_free(p);
        return NULL;
    }
    return p;
}

void mx_post_stop(mx_post *p)
{
    if (p == NULL || p->is_joined) {
        return;
    }
    pthread_mutex_lock(&p->mu);
    p->is_stopping = true;
    pthread_cond_signal(&p->cond);
    pthread_mutex_unlock(&p->mu);
    pthread_join(p->thread, NULL);
    p->is_joined = true;
}

void mx_post_free(mx_post *p)
{
    if (p == NULL) {
        return;
    }
    while (p->first != NULL) {
        job *j = p->first;
        p->first = j->next;
        job_free(j);
    }
    pthread_mutex_destroy(&p->mu);
    pthread_cond_destroy(&p->cond);
    mx_free(p);
}

void mx_post_answer(mx_post *p, mx_reply *reply, const mx_prompt_rules *rules,
                    const mx_hash256 *salt, mx_tokens *ids)
{
    job *j = mx_calloc(1, sizeof *j), *given_up = NULL;
    if (j == NULL) {
        return; /* the reply stays the caller's */
    }
    *j = (job){.reply = *reply, .rules = *rules, .salt = salt, .ids = *ids};
    j->rules.stores = false;
    *reply = (mx_reply){0};
    *ids = (mx_tokens){0};
    pthread_mutex_lock(&p->mu);
    if (p->is_stopping) {
        given_up = j;
    } else {
        job **end = &p->first;
        while (*end != NULL) {
            end = &(*end)->next;
        }
        *end = j;
        if (++p->n > MAX_WAITING) {
            given_up = p->first;
            p->first = given_up->next;
            p->n--;
        }
        pthread_cond_signal(&p->cond);
    }
    pthread_mutex_unlock(&p->mu);
    if (given_up != NULL) {
        job_free(given_up);
    }
}
