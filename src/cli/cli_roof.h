/* SPDX-License-Identifier: MIT
 *
 * cli_roof.h: what the machine can do at most, to measure the program against: multiply-accumulates
 * per second for each family of instructions, the rate at which memory is read, the rate of the
 * disk.
 *
 * Functions block until they are done and may be called from one thread at a time; they start threads
 * of their own.
 */
#ifndef MX_CLI_ROOF_H
#define MX_CLI_ROOF_H

#include "base/err.h"
#include "kernels/kern.h"

typedef struct mx_roof_family {
    const char *name;     /* "i16 x i16 vpmaddwd 256" */
    mx_cpu_level level;   /* of the kernels that could use it */
    unsigned macs;        /* multiply-accumulates per round */
    bool (*is_there)(void);
    void (*run)(uint64_t n_rounds);
} mx_roof_family;

const mx_roof_family *mx_roof_families(size_t *n);
/* The one that the kernels of this level multiply such activations with. */
const mx_roof_family *mx_roof_of_level(mx_cpu_level level, mx_act_type act);

/* Multiply-accumulates per second of n_threads (at least 1) together, at their best of many short
 * slices within `seconds`, of which there is one at least. 0: a thread could not be started. */
double mx_roof_macs(const mx_roof_family *f, unsigned n_threads, double seconds);

/* Bytes per second that n_threads read from memory: [0] best, [1] median of `repeats`. The buffer
 * must be larger than the caches: mx_roof_dram_bytes says how large. */
size_t mx_roof_dram_bytes(void);
mx_err mx_roof_dram(double rates[2], unsigned n_threads, size_t n_bytes, unsigned repeats,
                    mx_errbuf *eb);

typedef struct mx_roof_disk_rates {
    double write, cold, direct, direct_threads, cached; /* bytes per second; 0 = not possible here */
} mx_roof_disk_rates;

/* With a file of n_bytes in `dir` that has no name and so is gone afterwards, whatever happens. */
mx_err mx_roof_disk(mx_roof_disk_rates *out, const char *dir, size_t n_bytes, unsigned n_threads,
                    mx_errbuf *eb);

#endif
