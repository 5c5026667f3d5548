// link: mx_model
/* SPDX-License-Identifier: MIT
 *
 * How fast text becomes tokens: `bench_tokenizer MODEL.gguf [TEXT-FILE] [MEGABYTES]`.
 *
 * Prose and code first (best of five; from the file when one is given), then texts that are made to
 * be slow, once each, at two sizes: a linear tokeniser takes the same time per byte for both. All times
 * are CPU times.
 */
#include "base/buf.h"
#include "base/mem.h"
#include "model/model_vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const char *const sentences[] = {
    "The harbour lay still in the early light, and only the gulls seemed to have business there. ",
    "She counted the coins twice, wrote 1,284 in the ledger, and closed it without a word.\n",
    "\"You can't mean that,\" he said; but it was plain from her face that she meant all of it. ",
    "By 1931 the mill had changed hands four times, and nobody remembered who had built it. ",
    "Rain came over the hills at noon - grey, steady, patient - and stayed until Thursday.\n\n",
    "What does a clockmaker do when the clocks are right? He listens, I suppose, and waits. ",
};

static const char *const code_lines[] = {
    "    for (size_t i = 0; i < n_items; i++) {\n", "        total += weights[i] * values[i];\n",
    "    }\n", "    return total > 0x7FFF ? MAX_VALUE : (int)total;\n", "}\n\n",
    "static int compare_names(const void *a, const void *b)\n{\n", "    /* stable order */\n",
    "def load(path: str, *, limit=100) -> list[dict]:\n", "    with open(path) as f:\n",
    "        return [json.loads(line) for line in f][:limit]\n\n",
};

/* Of this thread, not of the wall: neighbours do not count. */
static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static mx_buf mixture(const char *const *parts, size_t n_parts, size_t bytes)
{
    mx_buf b = {0};
    uint64_t seed = 1;
    while (b.len < bytes && !b.failed) {
        mx_buf_str(&b, parts[next_random(&seed) % n_parts]);
    }
    return b;
}

static mx_buf repeated(const char *unit, size_t bytes)
{
    return mixture(&unit, 1, bytes);
}

/* Letters at random: one word in which hardly anything repeats. */
static mx_buf noise(size_t bytes)
{
    mx_buf b = {0};
    uint64_t seed = 2;
    char *p = mx_buf_reserve(&b, bytes);
    for (size_t i = 0; p != NULL && i < bytes; i++) {
        p[i] = (char)('a' + next_random(&seed) % 26);
        b.len++;
    }
    return b;
}

static mx_buf read_file(const char *path)
{
    mx_buf b = {0};
    FILE *f = fopen(path, "rb");
    char chunk[65536];
    size_t n;
    if (f == NULL) {
        fprintf(stderr, "cannot read %s\n", path);
        exit(1);
    }
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0) {
        mx_buf_append(&b, chunk, n);
    }
    fclose(f);
    return b;
}

static void measure(const mx_tokenizer *t, const char *name, mx_buf text, int runs)
{
    double best = 1e30;
    size_t n_tokens = 0;
    for (int i = 0; i < runs; i++) {
        mx_tokens out = {0};
        double begin = cpu_seconds();
        mx_err e = mx_tokenizer_encode(t, text.ptr, text.len, NULL, 0, false, &out);
        double s = cpu_seconds() - begin;
        if (e != MX_OK) {
            printf("%-28s %s\n", name, mx_err_name(e));
            best = 0;
        }
        best = s < best ? s : best;
        n_tokens = out.n;
        mx_tokens_free(&out);
    }
    if (best > 0) {
        printf("%-28s %7.1f MB/s  %8.2f ms  %9zu bytes %9zu tokens\n", name,
               (double)text.len / best * 1e-6, best * 1e3, text.len, n_tokens);
    }
    mx_buf_free(&text);
}

static mx_tokenizer *load(const char *path)
{
    mx_errbuf eb;
    mx_gguf *g = NULL;
    mx_vocab_desc d;
    void *memory = NULL;
    mx_tokenizer *t = NULL;
    if (mx_gguf_open(&g, path, &eb) != MX_OK || mx_vocab_from_gguf(g, &d, &memory, &eb) != MX_OK) {
        fprintf(stderr, "%s\n", eb.text);
        exit(1);
    }
    double begin = cpu_seconds();
    if (mx_tokenizer_create(&t, &d, &eb) != MX_OK) {
        fprintf(stderr, "%s\n", eb.text);
        exit(1);
    }
    printf("%s %s, %zu tokens, %zu merges: created in %.1f ms\n", d.model, d.pre ? d.pre : "-",
           d.n_tokens, d.n_merges, (cpu_seconds() - begin) * 1e3);
    mx_free(memory);
    mx_gguf_close(g);
    return t;
}

int main(int argc, char **argv)
{
    static const struct { const char *name, *unit; } hostile[] = {
        {"one letter", "a"},       {"blanks", " "},          {"line breaks", "\n"},
        {"digits", "7"},           {"exclamation marks", "!"}, {"combining marks", "\xCC\x81"},
        {"CJK", "\xE4\xB8\xAD"},   {"less-than signs", "<"},  {"control marks", "<|im_end|>"},
        {"ill-formed", "\xFF"},    {"blank, letter", " a"},   {"capitals", "A"},
        {"apostrophes", "'"},      {"letter, mark", "e\xCC\x81"}, {"CR LF", "\r\n"},
        {"blank, line break", " \n"}, {"tabs", "\t"},
    };
    if (argc < 2) {
        fprintf(stderr, "usage: bench_tokenizer MODEL.gguf [TEXT-FILE | -] [MEGABYTES]\n");
        return 2;
    }
    size_t bytes = (argc > 3 ? (size_t)atol(argv[3]) : 10) * 1000000;
    mx_tokenizer *t = load(argv[1]);
    if (argc > 2 && strcmp(argv[2], "-") != 0) {
        measure(t, argv[2], read_file(argv[2]), 5);
    }
    measure(t, "prose", mixture(sentences, MX_COUNT(sentences), 1000000), 5);
    measure(t, "prose, 1 kB", mixture(sentences, MX_COUNT(sentences), 1000), 5);
    measure(t, "code", mixture(code_lines, MX_COUNT(code_lines), 1000000), 5);
    for (size_t i = 0; i < MX_COUNT(hostile); i++) {
        char name[64];
        snprintf(name, sizeof name, "%s, a tenth", hostile[i].name);
        measure(t, name, repeated(hostile[i].unit, bytes / 10), 1);
        measure(t, hostile[i].name, repeated(hostile[i].unit, bytes), 1);
    }
    measure(t, "random letters, a tenth", noise(bytes / 10), 1);
    measure(t, "random letters", noise(bytes), 1);
    mx_tokenizer_destroy(t);
    return 0;
}
