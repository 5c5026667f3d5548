/* SPDX-License-Identifier: MIT
 *
 * Runs a fuzz target over files and folders, for builds without libFuzzer: the corpus, and after it
 * a fixed number of seeded random mutations of each file, so that every `make test` fuzzes a little.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MUTATIONS = 200, MAX_BYTES = 1 << 20 };

static uint64_t state = 0x9E3779B97F4A7C15u;
static size_t n_files, n_runs;

static uint32_t next_random(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32);
}

/* A copy of exactly `size` bytes, so that a sanitizer sees reads past its end. */
static void run(const uint8_t *bytes, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    if (copy == NULL) {
        abort();
    }
    memcpy(copy, bytes, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
    n_runs++;
}

static void mutate_and_run(const uint8_t *bytes, size_t size)
{
    uint8_t *copy = malloc(size + 1);
    if (copy == NULL) {
        abort();
    }
    for (int i = 0; i < MUTATIONS; i++) {
        memcpy(copy, bytes, size);
        size_t n = size;
        uint32_t edits = 1 + next_random() % 4;
        for (uint32_t e = 0; e < edits && n > 0; e++) {
            size_t at = next_random() % n;
            switch (next_random() % 4) {
            case 0: copy[at] ^= (uint8_t)(1u << next_random() % 8); break;
            case 1: copy[at] = (uint8_t)next_random(); break;
            case 2: memset(copy + at, next_random() % 2 ? 0xFF : 0, n - at < 8 ? n - at : 8); break;
            default: n = at; break;
            }
        }
        run(copy, n);
    }
    free(copy);
}

static void visit(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        fprintf(stderr, "%s: cannot be read\n", path);
        exit(1);
    }
    if (S_ISDIR(st.st_mode)) {
        struct dirent **names;
        int n = scandir(path, &names, NULL, alphasort);
        for (int i = 0; i < n; i++) {
            if (names[i]->d_name[0] != '.') {
                char sub[4096];
                snprintf(sub, sizeof sub, "%s/%s", path, names[i]->d_name);
                visit(sub);
            }
            free(names[i]);
        }
        if (n >= 0) {
            free(names);
        }
        return;
    }
    FILE *f = fopen(path, "rb");
    uint8_t *bytes = malloc(MAX_BYTES);
    if (f == NULL || bytes == NULL) {
        fprintf(stderr, "%s: cannot be opened\n", path);
        exit(1);
    }
    size_t n = fread(bytes, 1, MAX_BYTES, f);
    fclose(f);
    n_files++;
    run(bytes, n);
    mutate_and_run(bytes, n);
    free(bytes);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        visit(argv[i]);
    }
    printf("%zu files, %zu runs\n", n_files, n_runs);
    if (n_files == 0) {
        fprintf(stderr, "no corpus file: the test would prove nothing\n");
        return 1;
    }
    return 0;
}
