/* SPDX-License-Identifier: MIT
 *
 * Commands. Each has a line in the table that names it, describes it and runs it; help is made from
 * the table.
 */
#include "cli/cli.h"

#include "api/api.h"
#include "base/mem.h"
#include "cli/cli_bench.h"
#include "cli/cli_cache.h"
#include "cli/cli_inspect.h"
#include "cli/cli_options.h"
#include "cli/cli_start.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>

typedef struct command {
    const char *name, *usage, *summary;
    int (*run)(int argc, char **argv); /* what follows the command */
} command;

static int run_help(int argc, char **argv);

static const command commands[] = {
    {"start", "mtplx start [OPTIONS]", "serve a model on http://127.0.0.1:8000", mx_cli_start},
    {"bench", "mtplx bench roof|model FILE [OPTIONS]", "how fast this machine and a model on it are",
     mx_cli_bench},
    {"cache", "mtplx cache ls|show|verify|gc|rm|sessions|... [OPTIONS]",
     "conversations kept on disk: look, check, remove", mx_cli_cache},
    {"inspect", "mtplx inspect FILE.gguf | --cpu",
     "what a model file holds and needs, or what this machine offers", mx_cli_inspect},
    {"help", "mtplx help [COMMAND]", "this text, or the options of a command", run_help},
};

static const command *find_command(const char *name)
{
    for (size_t i = 0; i < MX_COUNT(commands); i++) {
        if (strcmp(commands[i].name, name) == 0) {
            return &commands[i];
        }
    }
    return NULL;
}

static int no_command(const char *name)
{
    fprintf(stderr, "mtplx: there is no command `%s`; `mtplx help` lists them\n", name);
    return 2;
}

static int run_help(int argc, char **argv)
{
    if (argc == 0) {
        printf("mtplx " MX_VERSION ": serves a local model, and keeps every prompt it has "
               "computed.\n\n");
        for (size_t i = 0; i < MX_COUNT(commands); i++) {
            printf("  %-55s %s\n", commands[i].usage, commands[i].summary);
        }
        printf("  %-55s %s\n\n", "mtplx --version", "the version");
        printf("Exit status: 0 = done, 1 = failed, 2 = the command line or the environment is wrong.\n");
        return 0;
    }
    const command *c = find_command(argv[0]);
    if (c == NULL) {
        return no_command(argv[0]);
    }
    if (argc > 1) {
        fprintf(stderr, "mtplx: help takes one command, `%s` is one too many\n", argv[1]);
        return 2;
    }
    printf("%s: %s\n", c->usage, c->summary);
    mx_buf b = {0};
    if (c->run == mx_cli_start) {
        mx_settings_help(&b);
    } else if (c->run == mx_cli_bench) {
        mx_cli_bench_help(&b);
    } else if (c->run == mx_cli_cache) {
        mx_cli_cache_help(&b);
    }
    if (b.len > 0) {
        printf("\n%.*s", (int)b.len, b.ptr);
    }
    mx_buf_free(&b);
    return 0;
}

static int run_command(int argc, char **argv)
{
    if (argc < 2) {
        run_help(0, NULL);
        return 2;
    }
    const char *name = argv[1];
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
        printf("mtplx " MX_VERSION "\n");
        return 0;
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        return run_help(0, NULL);
    }
    const command *c = find_command(name);
    if (c == NULL) {
        return no_command(name);
    }
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            return run_help(1, argv + 1);
        }
    }
    return c->run(argc - 2, argv + 2);
}

/* A result that did not reach its reader is a failure (a full disk, say). */
static bool has_written(void)
{
    return fflush(stdout) == 0 && ferror(stdout) == 0;
}

int mx_cli_main(int argc, char **argv)
{
    /* A file that may not grow (`ulimit -f`) is a failed write, as on a full disk, and not the end. */
    (void)signal(SIGXFSZ, SIG_IGN);
    int code = run_command(argc, argv);
    if (!has_written()) {
        fprintf(stderr, "mtplx: cannot write to the standard output: %s\n", strerror(errno));
        code = code == 0 ? 1 : code;
    }
    return code;
}
