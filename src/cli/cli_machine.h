/* SPDX-License-Identifier: MIT
 *
 * cli_machine.h: what the machine (or the container) gives this process: cores, memory, folders.
 */
#ifndef MX_CLI_MACHINE_H
#define MX_CLI_MACHINE_H

#include "base/err.h"

/* Cores that this process may use: affinity and CPU quota count. At least 1. */
unsigned mx_machine_cores(void);
/* Memory that can still be taken: the smaller of what the machine has and the cgroup allows. 0 =
 * cannot be found out. root: "" for the real system; tests give a folder that holds proc/ and
 * sys/. */
uint64_t mx_machine_free_bytes(const char *root);
/* The home folder, from HOME or else the user database. NULL = none. */
const char *mx_machine_home(void);

#endif
