/* SPDX-License-Identifier: MIT
 *
 * The answer of POST /admin/cache/lookup for people. Text from the server is printed with control
 * characters replaced: it may be anybody's.
 */
#include "cli/cli_explain.h"

#include "api/api_json.h"
#include "base/log.h"
#include "cli/cli_post.h"
#include "cli/cli_table.h"

#include <errno.h>
#include <stdio.h>

enum { MAX_FILE = 64 << 20 };

static mx_err read_input(const char *file, mx_buf *out, mx_errbuf *eb)
{
    FILE *f = strcmp(file, "-") == 0 ? stdin : fopen(file, "re");
    if (f == NULL) {
        return mx_fail_errno(eb, MX_E_NOT_FOUND, errno, "cannot open %.200s", file);
    }
    char block[16384];
    size_t n;
    while (out->len <= MAX_FILE && (n = fread(block, 1, sizeof block, f)) > 0) {
        mx_buf_append(out, block, n);
    }
    bool has_failed = ferror(f) != 0;
    if (f != stdin) {
        fclose(f);
    }
    if (has_failed || out->failed || out->len > MAX_FILE) {
        return mx_fail(eb, MX_E_IO, "cannot read %.200s, or it is larger than 64 MiB", file);
    }
    return MX_OK;
}

static int64_t number(struct json_object *o, const char *name)
{
    struct json_object *v = mx_json_field(o, name);
    return v != NULL ? json_object_get_int64(v) : 0;
}

static const char *text(struct json_object *o, const char *name)
{
    struct json_object *v = mx_json_field(o, name);
    return v != NULL ? json_object_get_string(v) : "";
}

/* "about 12 ms", or nothing when it is not known. */
static const char *about(struct json_object *o, const char *name, char out[48])
{
    struct json_object *v = mx_json_field(o, name);
    double ms = v != NULL ? json_object_get_double(v) : 0;
    out[0] = '\0';
    if (ms >= 1000) {
        snprintf(out, 48, "  (about %.1f s)", ms / 1000);
    } else if (ms > 0) {
        snprintf(out, 48, "  (about %.1f ms)", ms);
    }
    return out;
}

static const char *in_words(const char *reason)
{
    static const struct { const char *reason, *words; } table[] = {
        {"no_entry", "nothing that is stored is known to go on from here"},
        {"diverged_at", "what is stored goes on differently"},
        {"evicted", "it was stored once and had to go (--kv-budget, --ssd-session-cache-max-size)"},
        {"other_model", "it is stored for another model, or for this one with other settings"},
        {"other_isolation", "it is stored under another API key"},
        {"boundary_only", "this model can go on from stored boundaries only"},
        {"not_worth_reading", "reading it from disk would take longer than computing it"},
        {"quarantined", "a file was damaged"},
        {"cache_off", "the request says \"cache\": \"off\""},
    };
    for (size_t i = 0; i < MX_COUNT(table); i++) {
        if (strcmp(reason, table[i].reason) == 0) {
            return table[i].words;
        }
    }
    return "";
}

static void print_snippet(const char *label, struct json_object *miss, const char *name)
{
    struct json_object *v = mx_json_field(miss, name);
    char safe[512];
    if (v != NULL) {
        mx_str s = mx_json_text(v);
        printf("    %-8s \"%s\"\n", label, mx_log_safe(safe, sizeof safe, s.ptr, s.len));
    }
}

static void print_prompt(struct json_object *p, size_t i, size_t n)
{
    char ms[48], size[32];
    if (n > 1) {
        printf("prompt %zu of %zu\n", i + 1, n);
    }
    printf("prompt       %8lld tokens%s\n", (long long)number(p, "prompt_tokens"),
           strcmp(text(p, "prompt_source"), "sampled_ids") == 0
               ? "  (with the ids of earlier answers)" : "");
    printf("  from RAM   %8lld\n", (long long)number(p, "ram_tokens"));
    mx_print_size(size, sizeof size, (uint64_t)number(p, "ssd_bytes"));
    printf("  from disk  %8lld", (long long)number(p, "ssd_tokens"));
    if (number(p, "ssd_bytes") > 0) {
        printf("  %s%s", size, about(p, "restore_ms", ms));
    }
    struct json_object *asked = mx_json_field(p, "ssd_asked");
    struct json_object *answered = mx_json_field(p, "ssd_answered");
    if (json_object_get_boolean(asked) && !json_object_get_boolean(answered)) {
        printf("  (the folder did not answer)");
    }
    printf("\n  to compute %8lld%s\n", (long long)number(p, "computed_tokens"),
           about(p, "compute_ms", ms));
    struct json_object *miss = mx_json_field(p, "miss");
    if (miss == NULL) {
        printf("everything is there\n");
        return;
    }
    const char *reason = text(miss, "reason");
    char safe[64];
    printf("%s, token %lld: %s\n", mx_log_safe(safe, sizeof safe, reason, strlen(reason)),
           (long long)number(miss, "token_index"), in_words(reason));
    print_snippet("stored", miss, "stored");
    print_snippet("asked", miss, "asked");
}

static struct json_object *prompts_of(struct json_object *answer)
{
    struct json_object *prompts = mx_json_field(answer, "prompts");
    return json_object_is_type(prompts, json_type_array) && json_object_array_length(prompts) > 0 ? prompts
                                                                                                 : NULL;
}

/* Something else may listen there. */
static mx_err read_answer(const char *url, unsigned status, const mx_buf *body, struct json_object **out,
                          mx_errbuf *eb)
{
    mx_err err = mx_json_parse(out, mx_buf_view(body), NULL);
    struct json_object *said = status == 200 ? prompts_of(*out)
                                             : mx_json_field(mx_json_field(*out, "error"), "message");
    if (err == MX_E_NOMEM) {
        return mx_fail(eb, err, "out of memory");
    }
    return said != NULL
               ? MX_OK
               : mx_fail(eb, MX_E_FORMAT, "what answers at %.200s (with status %u) is not mtplx: --url "
                         "names the server", url, status);
}

static int print_answer(unsigned status, struct json_object *answer)
{
    char safe[800];
    if (status != 200) {
        const char *message = text(mx_json_field(answer, "error"), "message");
        fprintf(stderr, "mtplx: the server says %u: %s\n", status,
                mx_log_safe(safe, sizeof safe, message, strlen(message)));
        return 1;
    }
    struct json_object *prompts = prompts_of(answer);
    size_t n = json_object_array_length(prompts);
    for (size_t i = 0; i < n; i++) {
        print_prompt(json_object_array_get_idx(prompts, i), i, n);
    }
    return 0;
}

int mx_cli_explain(const char *file, const char *url, const char *admin_key, const char *api_key)
{
    mx_buf body = {0}, answer = {0}, headers = {0};
    mx_errbuf eb = {{0}};
    unsigned status = 0;
    struct json_object *json = NULL;
    mx_err err = read_input(file, &body, &eb);
    if (admin_key != NULL) {
        mx_buf_printf(&headers, "Authorization: Bearer %s\r\n", admin_key);
    }
    if (api_key != NULL) {
        mx_buf_printf(&headers, "x-api-key: %s\r\n", api_key);
    }
    mx_buf_char(&headers, '\0');
    if (err == MX_OK && headers.failed) {
        err = mx_fail(&eb, MX_E_NOMEM, "out of memory");
    }
    if (err == MX_OK) {
        err = mx_cli_post(url, "/admin/cache/lookup", headers.ptr, mx_buf_view(&body), &status,
                          &answer, &eb);
    }
    if (err == MX_OK) {
        err = read_answer(url, status, &answer, &json, &eb);
    }
    int code = 1;
    if (err == MX_OK) {
        code = print_answer(status, json);
    } else {
        fprintf(stderr, "mtplx: %s\n", eb.text);
    }
    json_object_put(json);
    mx_buf_free(&body);
    mx_buf_free(&answer);
    mx_buf_free(&headers);
    return code;
}
