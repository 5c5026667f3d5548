/* SPDX-License-Identifier: MIT
 *
 * Cores and memory. A container's limits are in its cgroup, not in /proc/meminfo, and a server that
 * sizes its caches by the machine is killed there; so both are read and the smaller one counts.
 * Page cache that the cgroup charges to us can be dropped, so it counts as free.
 */
#include "cli/cli_machine.h"

#include "base/mem.h"

#include <pwd.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { TEXT_CAP = 16384 };

/* A small file as text; false = not there. */
static bool read_text(const char *root, const char *path, char text[TEXT_CAP])
{
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    FILE *f = fopen(full, "re");
    if (f == NULL) {
        return false;
    }
    size_t n = fread(text, 1, TEXT_CAP - 1, f);
    text[n] = '\0';
    fclose(f);
    return n > 0;
}

static bool read_number(const char *root, const char *path, uint64_t *out)
{
    char text[TEXT_CAP];
    char *end;
    if (!read_text(root, path, text)) {
        return false;
    }
    *out = strtoull(text, &end, 10);
    return end != text; /* "max" is no number: no limit */
}

/* The number behind `key` at the start of a line. */
static bool find_number(const char *text, const char *key, uint64_t *out)
{
    size_t n = strlen(key);
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, n) == 0) {
            *out = strtoull(line + n, NULL, 10);
            return true;
        }
    }
    return false;
}

unsigned mx_machine_cores(void)
{
    cpu_set_t set;
    unsigned n = sched_getaffinity(0, sizeof set, &set) == 0 ? (unsigned)CPU_COUNT(&set) : 1;
    char text[TEXT_CAP];
    unsigned long long quota, period;
    if (read_text("", "/sys/fs/cgroup/cpu.max", text)
        && sscanf(text, "%llu %llu", &quota, &period) == 2 && period > 0)
    {
        unsigned long long cores = (quota + period - 1) / period;
        if (cores > 0 && cores < n) {
            n = (unsigned)cores;
        }
    }
    return n == 0 ? 1 : n;
}

static bool cgroup_free(const char *root, uint64_t *out)
{
    static const struct { const char *limit, *used, *stat, *cache_key; } layouts[] = {
        {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat",
         "inactive_file "},
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes",
         "/sys/fs/cgroup/memory/memory.usage_in_bytes",
         "/sys/fs/cgroup/memory/memory.stat", "total_inactive_file "},
    };
    for (size_t i = 0; i < MX_COUNT(layouts); i++) {
        uint64_t limit, used, cache = 0;
        char text[TEXT_CAP];
        if (!read_number(root, layouts[i].limit, &limit)
            || !read_number(root, layouts[i].used, &used))
        {
            continue;
        }
        if (read_text(root, layouts[i].stat, text)) {
            find_number(text, layouts[i].cache_key, &cache);
        }
        used -= cache < used ? cache : used;
        *out = limit > used ? limit - used : 0;
        return true;
    }
    return false;
}

uint64_t mx_machine_free_bytes(const char *root)
{
    char text[TEXT_CAP];
    uint64_t kib = 0, of_cgroup = 0;
    uint64_t of_machine = 0;
    if (read_text(root, "/proc/meminfo", text) && find_number(text, "MemAvailable:", &kib)) {
        of_machine = kib * 1024;
    }
    if (!cgroup_free(root, &of_cgroup)) {
        return of_machine;
    }
    return of_machine == 0 || of_cgroup < of_machine ? of_cgroup : of_machine;
}

const char *mx_machine_home(void)
{
    const char *home = getenv("HOME");
    if (home != NULL && *home != '\0') {
        return home;
    }
    struct passwd *pw = getpwuid(getuid());
    return pw == NULL || pw->pw_dir == NULL || *pw->pw_dir == '\0' ? NULL : pw->pw_dir;
}
