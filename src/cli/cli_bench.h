/* SPDX-License-Identifier: MIT
 *
 * cli_bench.h: `mtplx bench roof` and `mtplx bench model`: the limits of the machine, and the speed of
 * the forward pass beside them. No server, no sampling; results on stdout, with --json as one object.
 */
#ifndef MX_CLI_BENCH_H
#define MX_CLI_BENCH_H

#include "base/buf.h"
#include "cli/cli_table.h"

typedef struct mx_bench_settings {
    uint64_t threads;     /* 0 = as many as the process may use */
    uint64_t repeat;
    bool json;
    /* roof */
    char *dir;            /* NULL = the session cache's folder */
    uint64_t disk_size;   /* 0 = leave the disk alone */
    /* model */
    uint64_t prompt, gen, depth, batch, chunk;
    uint64_t cpu_level, kv_type, act_type;
    bool no_roof;
} mx_bench_settings;

/* What follows `mtplx bench`; returns the exit code. */
int mx_cli_bench(int argc, char **argv);
/* The option part of `mtplx help bench`. */
void mx_cli_bench_help(mx_buf *out);

/* cli_bench_model.c */
int mx_bench_model(const mx_bench_settings *s, const char *path);

#endif
