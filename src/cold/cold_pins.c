/* SPDX-License-Identifier: MIT
 *
 * What the server knows of bookmarks without asking the folder: which entries are pinned, for the tier
 * in RAM pins them, too, and which went because their session's time was over. Each sweep reads all
 * bookmarks and replaces the list; a change made here is in it at once.
 */
#include "cold/cold_state.h"

static mx_cold_pin *find_locked(mx_cold *c, const mx_hash256 *own)
{
    for (size_t i = 0; i < c->n_pins; i++) {
        if (mx_hash256_eq(&c->pins[i].own, own)) {
            return &c->pins[i];
        }
    }
    return NULL;
}

bool mx_cold_is_pinned(mx_cold *c, const mx_hash256 *entry)
{
    pthread_mutex_lock(&c->lock);
    size_t i = 0;
    while (i < c->n_pins && !mx_hash256_eq(&c->pins[i].entry, entry)) {
        i++;
    }
    bool is_so = i < c->n_pins;
    pthread_mutex_unlock(&c->lock);
    return is_so;
}

bool mx_cold_has_pins(mx_cold *c)
{
    pthread_mutex_lock(&c->lock);
    bool has = c->n_pins > 0;
    pthread_mutex_unlock(&c->lock);
    return has;
}

bool mx_cold_move_pin(mx_cold *c, const mx_hash256 *own, const mx_hash256 *entry, mx_hash256 *old)
{
    pthread_mutex_lock(&c->lock);
    mx_cold_pin *pin = find_locked(c, own);
    if (pin != NULL) {
        *old = pin->entry;
        pin->entry = *entry;
    }
    pthread_mutex_unlock(&c->lock);
    return pin != NULL;
}

void mx_cold_set_pin(mx_cold *c, const mx_hash256 *own, const mx_hash256 *entry, bool on)
{
    pthread_mutex_lock(&c->lock);
    mx_cold_pin *pin = find_locked(c, own);
    if (on && pin == NULL && c->n_pins < MX_PINS_MAX) {
        pin = &c->pins[c->n_pins++];
    }
    if (pin != NULL) {
        *pin = on ? (mx_cold_pin){*own, *entry} : c->pins[--c->n_pins];
    }
    pthread_mutex_unlock(&c->lock);
}

void mx_cold_learn_pins(mx_cold *c, const mx_cold_pin *seen, size_t n)
{
    pthread_mutex_lock(&c->lock);
    size_t n_kept = 0;
    for (size_t i = 0; i < c->n_pins; i++) { /* where one stands is known better here */
        size_t k = 0;
        while (k < n && !mx_hash256_eq(&seen[k].own, &c->pins[i].own)) {
            k++;
        }
        if (k < n) {
            c->pins[n_kept++] = c->pins[i];
        }
    }
    c->n_pins = n_kept;
    for (size_t k = 0; k < n && c->n_pins < MX_PINS_MAX; k++) {
        if (find_locked(c, &seen[k].own) == NULL) {
            c->pins[c->n_pins++] = seen[k];
        }
    }
    pthread_mutex_unlock(&c->lock);
}

bool mx_cold_take_expired(mx_cold *c, mx_hash256 *entry)
{
    pthread_mutex_lock(&c->lock);
    bool has = c->n_expired > 0;
    if (has) {
        *entry = c->expired[--c->n_expired];
    }
    pthread_mutex_unlock(&c->lock);
    return has;
}
