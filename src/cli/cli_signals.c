/* SPDX-License-Identifier: MIT
 *
 * The signal thread. sigwait instead of handlers: a handler could do next to nothing, and would
 * need global variables to say what happened. The second signal must work even when the main thread
 * hangs in its clean-up, so it is this thread that ends the process.
 */
#include "cli/cli_signals.h"

#include "base/log.h"
#include "base/mem.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

struct mx_signals {
    pthread_t thread;
    pthread_mutex_t mu;
    pthread_cond_t arrived;
    int first;          /* the first signal, 0 = none yet */
    bool ends_cleanly;
    bool is_ending;     /* destroy was called */
    sigset_t set;
};

static void *signal_main(void *arg)
{
    mx_signals *s = arg;
    for (;;) {
        int sig;
        if (sigwait(&s->set, &sig) != 0) {
            continue;
        }
        pthread_mutex_lock(&s->mu);
        if (sig == SIGUSR1) { /* destroy's word, or sent to the process by anybody */
            bool is_ending = s->is_ending;
            pthread_mutex_unlock(&s->mu);
            if (is_ending) {
                return NULL;
            }
            continue;
        }
        bool at_once = s->first != 0 || !s->ends_cleanly;
        if (!at_once) {
            s->first = sig;
            pthread_cond_signal(&s->arrived);
        }
        pthread_mutex_unlock(&s->mu);
        if (at_once) {
            _exit(128 + sig);
        }
    }
}

mx_err mx_signals_create(mx_signals **out, mx_errbuf *eb)
{
    mx_signals *s = mx_calloc(1, sizeof *s);
    if (s == NULL) {
        return mx_fail(eb, MX_E_NOMEM, "out of memory");
    }
    pthread_mutex_init(&s->mu, NULL);
    pthread_cond_init(&s->arrived, NULL);
    sigemptyset(&s->set);
    sigaddset(&s->set, SIGINT);
    sigaddset(&s->set, SIGTERM);
    sigaddset(&s->set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &s->set, NULL);
    signal(SIGPIPE, SIG_IGN); /* a closed socket is an error code, not the end */
    int rc = pthread_create(&s->thread, NULL, signal_main, s);
    if (rc != 0) {
        mx_free(s);
        return mx_fail_errno(eb, MX_E_IO, rc, "cannot start the signal thread");
    }
    *out = s;
    return MX_OK;
}

void mx_signals_set_clean_end(mx_signals *s, bool on)
{
    pthread_mutex_lock(&s->mu);
    s->ends_cleanly = on;
    pthread_mutex_unlock(&s->mu);
}

int mx_signals_wait(mx_signals *s)
{
    pthread_mutex_lock(&s->mu);
    while (s->first == 0) {
        pthread_cond_wait(&s->arrived, &s->mu);
    }
    int sig = s->first;
    pthread_mutex_unlock(&s->mu);
    return sig;
}

void mx_signals_destroy(mx_signals *s)
{
    if (s == NULL) {
        return;
    }
    pthread_mutex_lock(&s->mu);
    s->is_ending = true;
    pthread_mutex_unlock(&s->mu);
    pthread_kill(s->thread, SIGUSR1);
    pthread_join(s->thread, NULL);
    pthread_mutex_destroy(&s->mu);
    pthread_cond_destroy(&s->arrived);
    mx_free(s);
}
