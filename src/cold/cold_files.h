/* SPDX-License-Identifier: MIT
 *
 * cold_files.h: the folder of the cold tier and the few things that are done to files in it.
 *
 * A mx_cold_folder holds open folder descriptors and belongs to one thread; each of cold's threads
 * has its own, so no descriptor is closed under another thread's feet. All system calls that can
 * fail for reasons of the disk go through a table, which a test replaces.
 */
#ifndef MX_COLD_FILES_H
#define MX_COLD_FILES_H

#include "base/err.h"
#include "base/hash.h"
#include "cold/cold.h"

#include <sys/stat.h>
#include <sys/uio.h>

/* The real system calls; what mx_cold_config.fileops = NULL means. */
extern const mx_cold_fileops mx_cold_real_fileops;
/* The same for folders that need not be ours alone. */
extern const mx_cold_fileops mx_cold_shared_fileops;

typedef struct mx_cold_folder {
    const mx_cold_fileops *ops;
    const char *dir;     /* the configured folder, borrowed */
    char root_hex[65];   /* name of the folder of this root */
    bool has_states;     /* of this model: no other makes a folder for them */
    int top_fd, v1_fd, root_fd, pages_fd, states_fd, sessions_fd; /* -1 = closed */
    bool has_device;     /* after the first success the folder must stay on this device, */
    dev_t device;        /* or it was unmounted and we would fill another disk */
    uint64_t temp_start, temp_counter;
    /* The last folder fsync after a rename failed: the name is there, its durability unknown. */
    bool is_renamed_unsynced;
    bool has_met_error;  /* and how many damaged files: since the thread set them to 0 */
    uint32_t n_condemned;
    uint8_t name_sync[2][256]; /* of pages/xx and states/xx, while open: MX_COLD_NAME_* */
} mx_cold_folder;

enum { MX_COLD_NAME_CAP = 96 };
/* Whether the name of a folder is durable: not known, yes, never in this process. */
enum { MX_COLD_NAME_UNKNOWN, MX_COLD_NAME_SYNCED, MX_COLD_NAME_FAILED };

void mx_cold_folder_init(mx_cold_folder *f, const mx_cold_fileops *ops, const char *dir,
                         const mx_hash256 *root, bool has_states);
void mx_cold_folder_close(mx_cold_folder *f);

/* Makes the descriptors usable: opens them, reopens them when the folder was removed since. With
 * `create` missing folders are made; without, MX_E_NOT_FOUND says that there is none. MX_E_DENIED:
 * not ours, writable by others, a symbolic link, another device. */
mx_err mx_cold_folder_ready(mx_cold_folder *f, bool create, mx_errbuf *eb);

/* The configured folder itself, made when absent, whatever is below it; f must be closed. Only with the
 * marker does it become ours. */
mx_err mx_cold_folder_top(mx_cold_folder *f, bool with_marker, mx_errbuf *eb);

/* Is the marker in that folder, as it has to be? */
bool mx_cold_has_marker(int top_fd);

/* Opens (create: makes) a folder below; O_NOFOLLOW, ours, not writable by others. -1 sets *err. */
int mx_cold_open_dir(const mx_cold_fileops *ops, int parent, const char *name, bool create,
                     mx_err *err, mx_errbuf *eb);

/* Pages and states are objects: kept in two folders in the same way. */
typedef enum mx_cold_object { MX_COLD_PAGE, MX_COLD_STATE } mx_cold_object;

MX_INLINE int mx_cold_objects_fd(const mx_cold_folder *f, mx_cold_object o)
{
    return o == MX_COLD_STATE ? f->states_fd : f->pages_fd;
}

/* "<xx>" and "<64 hex>.page" or ".state". */
void mx_cold_object_name(mx_cold_object o, const mx_hash256 *id, char xx[3],
                         char name[MX_COLD_NAME_CAP]);
/* Opens (create: makes) the folder in which an object lies, and sees to it that its own name is
 * durable, whoever made it: -1 sets *err (MX_E_IO without a text: an earlier sync has failed). For
 * who is about to call something in it durable. */
int mx_cold_open_synced(mx_cold_folder *f, mx_cold_object o, const mx_hash256 *id, bool create,
                        mx_err *err, mx_errbuf *eb);
void mx_cold_session_name(const mx_hash256 *last_page, char name[MX_COLD_NAME_CAP]);

/* Opens a regular file for reading, MX_E_NOT_FOUND when absent, MX_E_CORRUPT when it is something
 * else, MX_E_IO otherwise. *fd is the caller's to close. */
mx_err mx_cold_open_file(const mx_cold_fileops *ops, int dir, const char *name, int *fd,
                         uint64_t *bytes, mx_errbuf *eb);
/* Reads exactly what the vectors hold, from offset 0. A short file is MX_E_CORRUPT "size". */
mx_err mx_cold_read_all(const mx_cold_fileops *ops, int fd, struct iovec *iov, int n_iov,
                        mx_errbuf *eb);

/* Temp name, write, fsync, rename to `name`, fsync of dir: durable when MX_OK. The vectors are used
 * up. MX_E_FULL: no space; MX_E_DENIED: permission; MX_E_IO: the rest. */
mx_err mx_cold_write_file(mx_cold_folder *f, int dir, const char *name, struct iovec *iov,
                          int n_iov, mx_errbuf *eb);

/* Opens v1/gc.lock, made when absent; *fd is the caller's to lock and close. `dir` is for the text. */
mx_err mx_cold_open_lock(const mx_cold_fileops *ops, int v1_fd, const char *dir, int *fd, mx_errbuf *eb);

/* Moves a bad file to quarantine/ and puts the reason beside it; logs it. False when it could not
 * be moved (then it stays where it is). */
bool mx_cold_quarantine(mx_cold_folder *f, int dir, const char *name, const char *reason);

/* Moves a file of ours back to where it was, if there is none; the name is synced. */
bool mx_cold_give_back(const mx_cold_fileops *ops, int from, int to, const char *name);

/* Sets the modification time to `ns` since 1970. MX_E_NOT_FOUND when there is no such name. */
mx_err mx_cold_touch(const mx_cold_folder *f, int dir, const char *name, int64_t ns);
/* The same for a file that is used, which must not make it older: with a clock that was set back it has a
 * time in the future, and keeps that. */
mx_err mx_cold_renew(const mx_cold_folder *f, int dir, const char *name, int64_t ns);
int64_t mx_cold_wall_ns(void);

/* In nanoseconds since 1970. What is further away than these can say (1677, 2262) counts as that. */
MX_INLINE int64_t mx_cold_time_ns(const struct timespec *t)
{
    const int64_t s = (int64_t)t->tv_sec, most_s = INT64_MAX / 1000000000 - 1;
    return s > most_s ? INT64_MAX : s < -most_s ? INT64_MIN : s * 1000000000 + t->tv_nsec;
}

/* Times for page i of a chain that is used now, and for a state of it, between its page and the one behind:
 * the limit takes the oldest first, which is then the end. */
MX_INLINE int64_t mx_cold_page_time_ns(int64_t now_ns, uint64_t i)
{
    return now_ns - (int64_t)i * 1000;
}

MX_INLINE int64_t mx_cold_state_time_ns(int64_t now_ns, uint64_t position)
{
    return mx_cold_page_time_ns(now_ns, (position - 1) / 64) - 500;
}

/* Maps an errno of a system call on a file to a code. */
mx_err mx_cold_errno(int e);

#endif
