/* SPDX-License-Identifier: MIT
 *
 * Every filter keeps a head of one total order: larger logit first, then smaller id. So a filter is
 * nothing but the last candidate that it keeps, filters combine by taking the stricter one, and the
 * draw walks the kept tokens by ascending id whatever the filters were. Nothing but the few best
 * candidates is ever sorted: 50,000 to 250,000 logits per token make a full sort the dearest step.
 *
 * The definition, step by step, is docs/sampling.md; golden values in the tests hold it in place.
 */
#include "model/sampler.h"

#include "base/mem.h"
#include "model/sampler_math.h"

#include <assert.h>
#include <math.h>

enum { MAX_PENALTY_WINDOW = 1 << 20 };

/* A token further than this below the best (after the temperature) has no weight: all of them
 * together are less than the last bit of the sum. */
#define NEGLIGIBLE (-60.0)

typedef struct candidate {
    float logit;
    int32_t id;
} candidate;

struct mx_sampler {
    mx_sampling set;
    uint32_t n_vocab;
    bool is_greedy;

    /* Repetition penalty. With a window: `recent` is a ring of the last tokens, mark[id] the number
     * of the sample in which id was last penalised. Without: `recent` lists the distinct tokens so
     * far and mark[id] = 1 says that id is in it. */
    int32_t *recent; /* [recent_cap] */
    uint32_t recent_cap, n_recent, recent_at;
    uint32_t *mark; /* [n_vocab] */
    uint32_t n_samples;

    /* Presence and frequency penalty: the distinct generated tokens and how often each came. */
    int32_t *generated;        /* [n_vocab] */
    uint32_t *generated_count; /* [n_vocab] */
    uint32_t n_generated;

    candidate *best; /* [n_vocab] or NULL when nothing is ever sorted */
    double *weight;  /* [n_vocab] or NULL when greedy */
    float *raw;      /* [n_vocab] the logits as they came, or NULL without logprobs */
};

mx_sampling mx_sampling_default(void)
{
    return (mx_sampling){.temperature = 1.0f,
                         .top_p = 1.0f,
                         .repetition_penalty = 1.0f,
                         .penalty_window = 64};
}

static mx_err check_settings(const mx_sampling *s, uint32_t n_vocab, mx_errbuf *eb)
{
    if (n_vocab == 0 || n_vocab > INT32_MAX) {
        return mx_fail(eb, MX_E_INVALID, "a vocabulary of %u tokens cannot be sampled", n_vocab);
    }
    if (!(s->temperature >= 0.0f && s->temperature <= 1e6f)) {
        return mx_fail(eb, MX_E_INVALID, "temperature must be 0 to 1e6, not %g",
                       (double)s->temperature);
    }
    if (!(s->top_p >= 0.0f && s->top_p <= 1.0f)) {
        return mx_fail(eb, MX_E_INVALID, "top_p must be 0 to 1, not %g", (double)s->top_p);
    }
    if (!(s->min_p >= 0.0f && s->min_p <= 1.0f)) {
        return mx_fail(eb, MX_E_INVALID, "min_p must be 0 to 1, not %g", (double)s->min_p);
    }
    if (!(s->repetition_penalty > 1e-6f && s->repetition_penalty <= 1e6f)) {
        return mx_fail(eb, MX_E_INVALID, "repetition_penalty must be 1e-6 to 1e6, not %g",
                       (double)s->repetition_penalty);
    }
    if (!(fabsf(s->presence_penalty) <= 1e6f) || !(fabsf(s->frequency_penalty) <= 1e6f)) {
        return mx_fail(eb, MX_E_INVALID,
                       "presence_penalty and frequency_penalty must be numbers up to 1e6");
    }
    if (s->penalty_window > MAX_PENALTY_WINDOW) {
        return mx_fail(eb, MX_E_INVALID, "the penalty window must be 0 to %d tokens, not %u",
                       MAX_PENALTY_WINDOW, s->penalty_window);
    }
    if (s->n_top_logprobs > MX_MAX_TOP_LOGPROBS) {
        return mx_fail(eb, MX_E_INVALID, "top_logprobs must be 0 to %d, not %u",
                       MX_MAX_TOP_LOGPROBS, s->n_top_logprobs);
    }
    for (size_t i = 0; i < s->n_bias; i++) {
        if (s->bias[i].token < 0 || (uint32_t)s->bias[i].token >= n_vocab) {
            return mx_fail(eb, MX_E_INVALID, "logit_bias: there is no token %d (0 to %u)",
                           s->bias[i].token, n_vocab - 1);
        }
        if (!(fabsf(s->bias[i].bias) <= 1e6f)) {
            return mx_fail(eb, MX_E_INVALID, "logit_bias of token %d must be a number up to 1e6",
                           s->bias[i].token);
        }
    }
    return MX_OK;
}

static bool uses_repetition(const mx_sampling *s)
{
    return s->repetition_penalty != 1.0f;
}

static bool uses_counts(const mx_sampling *s)
{
    return s->presence_penalty != 0.0f || s->frequency_penalty != 0.0f;
}

static bool allocate(mx_sampler *s)
{
    size_t v = s->n_vocab;
    bool ok = true;
    if (uses_repetition(&s->set)) {
        s->recent_cap = s->set.penalty_window ? s->set.penalty_window : s->n_vocab;
        s->recent = mx_calloc(s->recent_cap, sizeof *s->recent);
        s->mark = mx_calloc(v, sizeof *s->mark);
        ok = ok && s->recent != NULL && s->mark != NULL;
    }
    if (uses_counts(&s->set)) {
        s->generated = mx_calloc(v, sizeof *s->generated);
        s->generated_count = mx_calloc(v, sizeof *s->generated_count);
        ok = ok && s->generated != NULL && s->generated_count != NULL;
    }
    if (!s->is_greedy) {
        s->weight = mx_calloc(v, sizeof *s->weight);
        ok = ok && s->weight != NULL;
    }
    if (s->set.want_logprobs) {
        s->raw = mx_calloc(v, sizeof *s->raw);
        ok = ok && s->raw != NULL;
    }
    bool sorts = !s->is_greedy && (s->set.top_k > 0 || s->set.top_p < 1.0f);
    if (sorts || (s->set.want_logprobs && s->set.n_top_logprobs > 0)) {
        s->best = mx_calloc(v, sizeof *s->best);
        ok = ok && s->best != NULL;
    }
    return ok;
}

mx_err mx_sampler_create(mx_sampler **out, uint32_t n_vocab, const mx_sampling *settings,
                         mx_errbuf *eb)
{
    *out = NULL;
    MX_TRY(check_settings(settings, n_vocab, eb));
    mx_sampler *s = mx_calloc(1, sizeof *s);
    if (s == NULL) {
        return mx_fail(eb, MX_E_NOMEM, "no memory for a sampler");
    }
    s->set = *settings;
    s->n_vocab = n_vocab;
    s->is_greedy =
        settings->temperature == 0.0f || settings->top_k == 1 || settings->top_p == 0.0f;
    if (!allocate(s)) {
        mx_sampler_destroy(s);
        return mx_fail(eb, MX_E_NOMEM, "no memory for a sampler of %u tokens", n_vocab);
    }
    *out = s;
    return MX_OK;
}

void mx_sampler_destroy(mx_sampler *s)
{
    if (s == NULL) {
        return;
    }
    mx_free(s->recent);
    mx_free(s->mark);
    mx_free(s->generated);
    mx_free(s->generated_count);
    mx_free(s->best);
    mx_free(s->weight);
    mx_free(s->raw);
    mx_free(s);
}

void mx_sampler_accept(mx_sampler *s, int32_t token, bool is_generated)
{
    assert(token >= 0 && (uint32_t)token < s->n_vocab);
    if (s->recent != NULL && s->set.penalty_window > 0) {
        s->recent[s->recent_at] = token;
        s->recent_at = s->recent_at + 1 == s->recent_cap ? 0 : s->recent_at + 1;
        s->n_recent += s->n_recent < s->recent_cap;
    } else if (s->recent != NULL && s->mark[token] == 0) {
        s->mark[token] = 1;
        s->recent[s->n_recent++] = token;
    }
    if (s->generated != NULL && is_generated && s->generated_count[token]++ == 0) {
        s->generated[s->n_generated++] = token;
    }
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void apply_bias(const mx_sampler *s, float *logits)
{
    for (size_t i = 0; i < s->set.n_bias; i++) {
        const mx_logit_bias *b = &s->set.bias[i];
        logits[b->token] = b->bias <= -100.0f ? -INFINITY : logits[b->token] + b->bias;
    }
}

static void apply_penalties(mx_sampler *s, float *logits)
{
    float penalty = s->set.repetition_penalty;
    bool has_window = s->set.penalty_window > 0;
    s->n_samples++;
    for (uint32_t i = 0; i < s->n_recent; i++) {
        int32_t id = s->recent[i];
        if (has_window && s->mark[id] == s->n_samples) {
            continue; /* came twice within the window */
        }
        if (has_window) {
            s->mark[id] = s->n_samples;
        }
        logits[id] = logits[id] > 0.0f ? logits[id] / penalty : logits[id] * penalty;
    }
    for (uint32_t i = 0; i < s->n_generated; i++) {
        int32_t id = s->generated[i];
        logits[id] -= s->set.frequency_penalty * (float)s->generated_count[id];
        logits[id] -= s->set.presence_penalty;
    }
}

/* The smallest id with the largest logit; a NaN is never chosen. */
static int32_t argmax(const float *logits, uint32_t n)
{
    uint32_t at = 0;
    float max = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        if (logits[i] > max) {
            max = logits[i];
            at = i;
        }
    }
    return (int32_t)at;
}

static bool comes_before(candidate a, candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

/* A heap whose root is the candidate that comes last in the order. */
static void sift_down(candidate *heap, size_t n, size_t at)
{
    candidate moving = heap[at];
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= n) {
            break;
        }
        if (child + 1 < n && comes_before(heap[child], heap[child + 1])) {
            child++;
        }
        if (!comes_before(moving, heap[child])) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moving;
}

/* Puts the `cap` best tokens with logit >= floor into s->best, best first; returns how many. */
static size_t select_best(mx_sampler *s, const float *logits, float floor, size_t cap)
{
    candidate *heap = s->best;
    size_t n = 0;
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        candidate c = {logits[i], (int32_t)i};
        if (!(c.logit >= floor) || c.logit == -INFINITY) {
            continue;
        }
        if (n < cap) {
            heap[n++] = c;
            if (n == cap) {
                for (size_t at = n / 2; at-- > 0;) {
                    sift_down(heap, n, at);
                }
            }
        } else if (comes_before(c, heap[0])) {
            heap[0] = c;
            sift_down(heap, n, 0);
        }
    }
    for (size_t at = n / 2; n < cap && at-- > 0;) {
        sift_down(heap, n, at);
    }
    for (size_t end = n; end-- > 1;) {
        candidate last = heap[0];
        heap[0] = heap[end];
        heap[end] = last;
        sift_down(heap, end, 0);
    }
    return n;
}

static double weight_of(const mx_sampler *s, float logit, float max)
{
    if (logit == max) {
        return 1.0; /* also when both are infinite */
    }
    double x = ((double)logit - (double)max) / (double)s->set.temperature;
    return x >= NEGLIGIBLE ? mx_sampler_exp(x) : 0.0;
}

/* The last candidate that top-k and top-p keep. */
static candidate last_kept(mx_sampler *s, const float *logits, float max)
{
    candidate last = {-INFINITY, INT32_MAX};
    double top_p = (double)s->set.top_p;
    double total = 0.0;
    size_t n = 0;
    if (s->set.top_k > 0 && s->set.top_k < s->n_vocab) {
        n = select_best(s, logits, -INFINITY, s->set.top_k);
        last = s->best[n - 1];
        for (size_t i = 0; i < n; i++) {
            total += weight_of(s, s->best[i].logit, max);
        }
    } else if (top_p < 1.0) {
        for (uint32_t i = 0; i < s->n_vocab; i++) {
            total += weight_of(s, logits[i], max);
        }
        /* Tokens below (1 - top_p) / n_vocab weigh less than 1 - top_p together, so none of them is
         * in the nucleus: they need not be sorted. A little slack keeps rounding out of it. */
        double least = (1.0 - top_p) * total / s->n_vocab;
        double floor = (double)max
                       + (double)s->set.temperature * (mx_sampler_log(least) - 1e-3);
        n = select_best(s, logits, (float)(floor - 1e-4 * fabs(floor)), s->n_vocab);
    }
    if (top_p < 1.0) {
        double sum = 0.0;
        for (size_t i = 0; i < n; i++) {
            sum += weight_of(s, s->best[i].logit, max);
            if (sum >= top_p * total) {
                return s->best[i];
            }
        }
    }
    return last;
}

static int32_t draw(mx_sampler *s, const float *logits, float max, uint64_t pos)
{
    candidate last = {-INFINITY, INT32_MAX};
    if (s->best != NULL) {
        last = last_kept(s, logits, max);
    }
    double min_p = (double)s->set.min_p;
    double total = 0.0;
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        candidate c = {logits[i], (int32_t)i};
        double w = comes_before(last, c) ? 0.0 : weight_of(s, c.logit, max);
        s->weight[i] = w >= min_p ? w : 0.0;
        total += s->weight[i];
    }
    double target = mx_sampler_uniform(s->set.seed, pos) * total;
    double sum = 0.0;
    uint32_t chosen = 0;
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        if (s->weight[i] > 0.0) {
            chosen = i; /* also the answer when rounding leaves sum at target at the very end */
            sum += s->weight[i];
            if (sum > target) {
                break;
            }
        }
    }
    return (int32_t)chosen;
}

/* Log-probabilities of the distribution that the model gave, before any setting changed it. */
static void fill_logprobs(mx_sampler *s, mx_sample *out)
{
    const float *raw = s->raw;
    double max = (double)raw[argmax(raw, s->n_vocab)];
    if (max == -INFINITY) {
        return;
    }
    double sum = 0.0;
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        sum += mx_sampler_exp((double)raw[i] - max);
    }
    double lse = max + mx_sampler_log(sum);
    out->logprob = (float)((double)raw[out->token] - lse);
    if (s->set.n_top_logprobs > 0) {
        size_t n = select_best(s, raw, -INFINITY,
                               mx_min_size(s->set.n_top_logprobs, s->n_vocab));
        out->n_top = (uint32_t)n;
        for (size_t i = 0; i < n; i++) {
            out->top[i] =
                (mx_logprob){s->best[i].id, (float)((double)s->best[i].logit - lse)};
        }
    }
}

void mx_sampler_sample(mx_sampler *s, float *logits, uint64_t pos, mx_sample *out)
{
    mx_mem_forbid(true);
    *out = (mx_sample){0};
    if (s->raw != NULL) {
        memcpy(s->raw, logits, s->n_vocab * sizeof *logits);
    }
    int32_t unbiased = s->set.n_bias > 0 ? argmax(logits, s->n_vocab) : 0;
    apply_bias(s, logits);
    apply_penalties(s, logits);
    int32_t top = argmax(logits, s->n_vocab);
    if (!(logits[top] > -INFINITY)) {
        out->token = unbiased; /* everything is banned, but one token must come */
    } else {
        out->token = s->is_greedy ? top : draw(s, logits, logits[top], pos);
    }
    if (s->raw != NULL) {
        fill_logprobs(s, out);
    }
    mx_mem_forbid(false);
}
