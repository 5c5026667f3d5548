/* SPDX-License-Identifier: MIT
 *
 * cli_table.h: option tables. A row says everything about a setting of a command: its name, its
 * environment variable (derived from the name), its kind, default, range and help text; parsing,
 * help and JSON are made from the rows. Values go to their place in a struct by offset.
 *
 * A setting comes from the command line, else from its environment variable, else it has its
 * default. Belongs to the main thread.
 */
#ifndef MX_CLI_TABLE_H
#define MX_CLI_TABLE_H

#include "base/buf.h"
#include "base/err.h"

typedef struct mx_string_list {
    char **items;
    size_t n, cap;
} mx_string_list;

typedef enum mx_option_kind {
    OPT_TEXT,    /* char *, NULL = not given */
    OPT_SECRET,  /* the same, never shown */
    OPT_LIST,    /* mx_string_list */
    OPT_SECRETS, /* the same, never shown */
    OPT_FLAG,    /* bool */
    OPT_NUMBER,  /* uint64_t, as are the rest */
    OPT_SIZE,    /* bytes */
    OPT_TIME,    /* seconds, given as 90s, 30m, 12h, 30d, or 0 */
    OPT_CHOICE,  /* the value of a word */
    OPT_ENV_BOOL, OPT_ENV_NUMBER /* environment only, the name is the variable; bool, uint64_t */
} mx_option_kind;

typedef struct mx_option_word {
    const char *word;
    uint64_t value;
} mx_option_word;

typedef struct mx_option {
    const char *name;      /* without dashes */
    mx_option_kind kind;
    size_t offset;
    const char *metavar;
    const char *initial;   /* default as text; NULL = unset */
    uint64_t min, max;     /* numbers; min of sizes, too, beside 0 */
    const mx_option_word *words; /* of a choice; the last has the word NULL */
    const char *help;
} mx_option;

enum {
    MX_TABLE_MAX_ROWS = 96,
    MX_SIZE_MIN = 1 << 20, /* of folders and budgets: less is a size whose unit was forgotten */
};

typedef struct mx_option_table {
    const char *command; /* whose `mtplx help` lists these: "start" */
    bool has_env;
    const mx_option *rows;
    size_t n_rows; /* at most MX_TABLE_MAX_ROWS */
} mx_option_table;

/* Defaults, then the environment, then argv[0..argc-1]. `to` (zeroed by the caller) points to the
 * struct. MX_E_INVALID: eb names the option or variable, what is wrong with it and what is
 * possible. Free in every case. */
mx_err mx_table_parse(const mx_option_table *t, void *to, int argc, char **argv, mx_errbuf *eb);
void mx_table_free(const mx_option_table *t, void *to); /* does not zero */

void mx_table_help(const mx_option_table *t, mx_buf *out);
/* {"port":8000,...}: all but secrets, of which it says how many there are; env_only chooses between
 * the rows that exist in the environment only and all others. */
void mx_table_json(const mx_option_table *t, const void *from, bool env_only, mx_buf *out);

/* "512M", "1.5GiB", "4096": binary multiples in every spelling. */
bool mx_parse_size(const char *text, uint64_t *out);
bool mx_parse_time(const char *text, uint64_t *out); /* seconds */
/* The same as the value of an option or variable, which eb names: 0, or at least min. */
mx_err mx_read_size(const char *shown, const char *text, uint64_t min, uint64_t *out,
                    mx_errbuf *eb);
/* "1.5 GiB" */
void mx_print_size(char *out, size_t cap, uint64_t bytes);

#endif
