/* SPDX-License-Identifier: MIT
 *
 * gone.h: a bounded memory of identities: what was here and had to go. A new one takes the place of
 * an old one that falls on the same slot, so the memory forgets evenly and never grows.
 *
 * It is a hint: what it has seen may be forgotten; that it claims something it has never seen takes
 * two identities that agree in 64 chosen bits. Any thread, no locks: a slot is one word.
 */
#ifndef MX_GONE_H
#define MX_GONE_H

#include "base/hash.h"

typedef struct mx_gone mx_gone;

mx_gone *mx_gone_create(size_t n_slots); /* a power of two; 8 bytes each; NULL = no memory */
void mx_gone_destroy(mx_gone *g);        /* NULL is allowed, here and below */
void mx_gone_add(mx_gone *g, const mx_hash256 *id);
bool mx_gone_has(const mx_gone *g, const mx_hash256 *id);

#endif
