/* SPDX-License-Identifier: MIT
 *
 * logitref.h: reads files of reference logits (format LOGITREF 1, described beside the vectors in
 * the shared folder) and measures how far logits are from them.
 */
#ifndef MX_LOGITREF_H
#define MX_LOGITREF_H

#include "base/base.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct logitref {
    uint8_t *bytes;
    size_t n_bytes;
    uint32_t n_tokens, n_vocab, top_k, n_full, n_greedy;
} logitref;

enum logitref_section {
    LOGITREF_IDS, LOGITREF_LSE, LOGITREF_NEXT, LOGITREF_TOP_ID, LOGITREF_TOP_LOGIT,
    LOGITREF_FULL_POS, LOGITREF_FULL, LOGITREF_GREEDY, LOGITREF_SECOND, LOGITREF_GREEDY_LOGIT,
    LOGITREF_SECOND_LOGIT, LOGITREF_GREEDY_LSE
};

MX_UNUSED static void logitref_close(logitref *r)
{
    mx_free(r->bytes);
    *r = (logitref){0};
}

/* Element i of a section of 4- or 8-byte elements. Stops the program when it lies outside. */
MX_UNUSED static const uint8_t *logitref_at(const logitref *r, enum logitref_section s, size_t i,
                                            size_t elem)
{
    size_t at = mx_get_le32(r->bytes + 32 + 4 * (size_t)s) + i * elem;
    if (at < 96 || at + elem > r->n_bytes) {
        fprintf(stderr, "logitref: element %zu of section %d lies outside the file\n", i, (int)s);
        abort();
    }
    return r->bytes + at;
}

MX_UNUSED static uint32_t logitref_u32(const logitref *r, enum logitref_section s, size_t i)
{
    return mx_get_le32(logitref_at(r, s, i, 4));
}

MX_UNUSED static double logitref_f32(const logitref *r, enum logitref_section s, size_t i)
{
    uint32_t bits = logitref_u32(r, s, i);
    float v;
    memcpy(&v, &bits, sizeof v);
    return (double)v;
}

MX_UNUSED static double logitref_f64(const logitref *r, enum logitref_section s, size_t i)
{
    uint64_t bits = mx_get_le64(logitref_at(r, s, i, 8));
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

MX_UNUSED static bool logitref_open(logitref *r, const char *path)
{
    *r = (logitref){0};
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        return false;
    }
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    r->n_bytes = size > 0 ? (size_t)size : 0;
    r->bytes = mx_alloc(r->n_bytes);
    bool ok = r->bytes != NULL && r->n_bytes >= 96 &&
              fread(r->bytes, 1, r->n_bytes, f) == r->n_bytes &&
              memcmp(r->bytes, "LOGITREF", 8) == 0 && mx_get_le32(r->bytes + 8) == 1;
    fclose(f);
    if (!ok) {
        logitref_close(r);
        return false;
    }
    r->n_tokens = mx_get_le32(r->bytes + 12);
    r->n_vocab = mx_get_le32(r->bytes + 16);
    r->top_k = mx_get_le32(r->bytes + 20);
    r->n_full = mx_get_le32(r->bytes + 24);
    r->n_greedy = mx_get_le32(r->bytes + 28);
    return true;
}

MX_UNUSED static double log_sum_exp(const float *l, size_t n)
{
    double max = (double)l[0], sum = 0;
    for (size_t i = 1; i < n; i++) {
        max = (double)l[i] > max ? (double)l[i] : max;
    }
    for (size_t i = 0; i < n; i++) {
        sum += exp((double)l[i] - max);
    }
    return max + log(sum);
}

/* KL(reference || ours) at position t over the listed tokens and the rest as one more bucket: never
 * more than the exact KL. lse: log_sum_exp of ours. */
MX_UNUSED static double logitref_coarse_kl(const logitref *r, uint32_t t, const float *ours,
                                           double lse)
{
    double kl = 0, rest_p = 1, rest_q = 1, ref_lse = logitref_f64(r, LOGITREF_LSE, t);
    for (uint32_t k = 0; k < r->top_k; k++) {
        size_t i = (size_t)t * r->top_k + k;
        double log_p = logitref_f32(r, LOGITREF_TOP_LOGIT, i) - ref_lse;
        double log_q = (double)ours[logitref_u32(r, LOGITREF_TOP_ID, i)] - lse;
        kl += exp(log_p) * (log_p - log_q);
        rest_p -= exp(log_p);
        rest_q -= exp(log_q);
    }
    if (rest_p > 1e-12) {
        kl += rest_p * log(rest_p / (rest_q > 1e-12 ? rest_q : 1e-12));
    }
    return kl;
}

/* The exact KL at whole row `row`. */
MX_UNUSED static double logitref_exact_kl(const logitref *r, uint32_t row, const float *ours,
                                          double lse)
{
    uint32_t t = logitref_u32(r, LOGITREF_FULL_POS, row);
    double kl = 0, ref_lse = logitref_f64(r, LOGITREF_LSE, t);
    for (uint32_t i = 0; i < r->n_vocab; i++) {
        double log_p = logitref_f32(r, LOGITREF_FULL, (size_t)row * r->n_vocab + i) - ref_lse;
        kl += exp(log_p) * (log_p - ((double)ours[i] - lse));
    }
    return kl;
}

#endif
