/* SPDX-License-Identifier: MIT
 *
 * Looking at a model takes two steps: what its keys and tensors say, which works for files of any
 * architecture, and then the same checks that loading makes, which say whether it runs here or why it
 * does not. No weight is read.
 */
#include "cli/cli_inspect.h"

#include "cli/cli_machine.h"
#include "cli/cli_options.h"
#include "gguf/gguf.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>

enum { KEY_CAP = 160, DEFAULT_ROWS = 512 + 16, DEFAULT_LOGIT_ROWS = 16 };

/* ---- the machine ----------------------------------------------------------------------------- */

static int inspect_cpu(void)
{
    char size[32];
    mx_print_size(size, sizeof size, mx_machine_free_bytes(""));
    printf("cores       %u usable\n", mx_machine_cores());
    printf("memory      %s free\n", size);
    printf("best level  %s\n", mx_cpu_level_name(mx_cpu_best()));
    for (int level = MX_CPU_PORTABLE; level <= MX_CPU_NEON; level++) {
        const mx_kern *k = mx_kern_get((mx_cpu_level)level);
        if (k->level != (mx_cpu_level)level) {
            continue; /* not in this build, or not on this machine */
        }
        for (mx_act_type act = MX_ACT_16; act <= MX_ACT_8; act++) {
            char hex[65];
            mx_hash256 id = act == MX_ACT_8 ? mx_kern_numerics_id_8(k) : mx_kern_numerics_id(k);
            mx_hash256_hex(&id, hex);
            printf("numerics    %s %.16s on %s\n", mx_numerics_name(act), hex, k->name);
        }
    }
    return 0;
}

/* ---- what the file says ---------------------------------------------------------------------- */

/* Text from a file, made fit for a terminal. */
static const char *safe(char out[KEY_CAP], mx_str s)
{
    return mx_log_safe(out, KEY_CAP, s.ptr, s.len);
}

static void print_text(const mx_gguf *g, const char *label, const char *key)
{
    mx_str s;
    char text[KEY_CAP];
    if (mx_gguf_get_str(g, key, &s, NULL) == MX_OK) {
        printf("%-15s %s\n", label, safe(text, s));
    }
}

/* Keys of the architecture that are numbers, in one line. */
static void print_shape(const mx_gguf *g, mx_str arch)
{
    static const struct { const char *key, *label; } shape[] = {
        {"block_count", "layers"},
        {"embedding_length", "embedding"},
        {"attention.head_count", "heads"},
        {"attention.head_count_kv", "key-value heads"},
        {"attention.key_length", "head size"},
        {"feed_forward_length", "FFN"},
        {"expert_count", "experts"},
        {"expert_used_count", "experts per token"},
        {"expert_feed_forward_length", "FFN of an expert"},
        {"full_attention_interval", "layers per full attention"},
        {"attention.sliding_window", "window"},
        {"context_length", "context"},
    };
    const char *between = "";
    printf("%-15s ", "shape");
    for (size_t i = 0; i < MX_COUNT(shape); i++) {
        char key[KEY_CAP];
        uint64_t v;
        snprintf(key, sizeof key, "%.*s.%s", (int)mx_min_size(arch.len, 64), arch.ptr,
                 shape[i].key);
        if (mx_gguf_get_u64(g, key, &v, NULL) == MX_OK) {
            printf("%s%s %llu", between, shape[i].label, (unsigned long long)v);
            between = ", ";
        }
    }
    printf("%s\n", *between == '\0' ? "not stated" : "");
}

static void print_tensors(const mx_gguf *g)
{
    enum { MAX_TYPES = 64 };
    size_t n[MAX_TYPES] = {0}, bytes[MAX_TYPES] = {0};
    uint64_t n_params = 0;
    for (size_t i = 0; i < mx_gguf_n_tensors(g); i++) {
        const mx_gguf_tensor *t = mx_gguf_tensor_at(g, i);
        const unsigned type = (unsigned)t->type->type % MAX_TYPES;
        n[type]++;
        bytes[type] += t->n_bytes;
        n_params += t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    }
    printf("%-15s %.1f million\n", "parameters", (double)n_params * 1e-6);
    printf("%-15s %zu", "tensors", mx_gguf_n_tensors(g));
    for (unsigned type = 0; type < MAX_TYPES; type++) {
        if (n[type] > 0) {
            char size[32];
            mx_print_size(size, sizeof size, bytes[type]);
            printf(", %zu %s (%s)", n[type], mx_qtype_get(type)->name, size);
        }
    }
    printf("\n");
}

static void print_tokenizer(const mx_gguf *g)
{
    mx_str model = MX_STR("none"), pre = MX_STR("not named");
    char a[KEY_CAP], b[KEY_CAP];
    size_t n_tokens = 0, n_merges = 0;
    (void)mx_gguf_get_str(g, "tokenizer.ggml.model", &model, NULL);
    (void)mx_gguf_get_str(g, "tokenizer.ggml.pre", &pre, NULL);
    (void)mx_gguf_array_count(g, "tokenizer.ggml.tokens", &n_tokens, NULL);
    (void)mx_gguf_array_count(g, "tokenizer.ggml.merges", &n_merges, NULL);
    printf("%-15s %s, pre-tokeniser %s, %zu tokens, %zu merges\n", "tokeniser", safe(a, model),
           safe(b, pre), n_tokens, n_merges);
    mx_str template;
    if (mx_gguf_get_str(g, "tokenizer.chat_template", &template, NULL) == MX_OK) {
        printf("%-15s yes, %zu bytes\n", "chat template", template.len);
    } else {
        printf("%-15s none: /v1/chat/completions needs one\n", "chat template");
    }
}

static void print_mtp(const mx_gguf *g, mx_str arch)
{
    char key[KEY_CAP];
    uint64_t n = 0;
    snprintf(key, sizeof key, "%.*s.nextn_predict_layers", (int)mx_min_size(arch.len, 64),
             arch.ptr);
    (void)mx_gguf_get_u64(g, key, &n, NULL);
    if (n > 0) {
        printf("%-15s %llu, at the end of the layers: recognised, not used yet\n", "MTP blocks",
               (unsigned long long)n);
    } else {
        printf("%-15s none\n", "MTP blocks");
    }
}

static void print_file(const mx_gguf *g, const char *path)
{
    char size[32], text[KEY_CAP];
    uint64_t bytes = 0;
    for (size_t i = 0; i < mx_gguf_n_parts(g); i++) {
        bytes += mx_gguf_part_at(g, i).n_bytes;
    }
    mx_print_size(size, sizeof size, bytes);
    printf("%-15s %s, %s in %zu file%s, %zu keys\n", "file", safe(text, mx_str_of(path)), size,
           mx_gguf_n_parts(g), mx_gguf_n_parts(g) == 1 ? "" : "s", mx_gguf_n_keys(g));
    mx_str arch = MX_STR("");
    (void)mx_gguf_get_str(g, "general.architecture", &arch, NULL);
    print_text(g, "name", "general.name");
    print_text(g, "architecture", "general.architecture");
    print_shape(g, arch);
    print_tensors(g);
    print_tokenizer(g);
    print_mtp(g, arch);
}

/* ---- whether it runs ------------------------------------------------------------------------- */

static void print_memory(const mx_model *m)
{
    const mx_model_memory need = mx_model_get_memory(m);
    char weights[32], work[32], per_token[32], all[32];
    const size_t work_bytes = need.work_bytes + need.table_bytes;
    const uint64_t kv_bytes = need.page_bytes / MX_PAGE_TOKENS;
    mx_print_size(weights, sizeof weights, need.weight_bytes);
    mx_print_size(work, sizeof work, work_bytes);
    mx_print_size(per_token, sizeof per_token, kv_bytes);
    mx_print_size(all, sizeof all, kv_bytes * mx_model_get_config(m)->n_ctx);
    printf("%-15s weights %s, work space up to %s, keys and values %s per token (%s for the whole "
           "context)\n", "memory", weights, work, per_token, all);
}

static int inspect_model(const char *path)
{
    mx_gguf *g;
    mx_errbuf eb = {{0}};
    char text[sizeof eb.text];
    mx_err e = mx_gguf_open(&g, path, &eb);
    if (e == MX_OK) {
        print_file(g, path);
        mx_gguf_close(g);
        const mx_model_options opt = {
            .path = path,
            .max_batch_rows = DEFAULT_ROWS,
            .max_logit_rows = DEFAULT_LOGIT_ROWS,
            .cpu_level = mx_cpu_best(),
            .n_workers = mx_machine_cores(),
        };
        mx_model *m;
        e = mx_model_load(&m, &opt, NULL, &eb);
        if (e == MX_OK) {
            print_memory(m);
            mx_model_destroy(m);
        }
    }
    if (e != MX_OK) {
        printf("%-15s no: %s\n", "runs here",
               mx_log_safe(text, sizeof text, eb.text, strlen(eb.text)));
        return 1;
    }
    char size[32];
    mx_print_size(size, sizeof size, mx_machine_free_bytes(""));
    printf("%-15s yes, with %s instructions on %u cores; %s of memory are free\n", "runs here",
           mx_cpu_level_name(mx_cpu_best()), mx_machine_cores(), size);
    return 0;
}

int mx_cli_inspect(int argc, char **argv)
{
    if (argc != 1 || (argv[0][0] == '-' && strcmp(argv[0], "--cpu") != 0)) {
        fprintf(stderr, "mtplx: inspect takes --cpu or the name of a GGUF file; `mtplx help` shows what "
                "is possible\n");
        return 2;
    }
    return strcmp(argv[0], "--cpu") == 0 ? inspect_cpu() : inspect_model(argv[0]);
}
