/* SPDX-License-Identifier: MIT
 *
 * Turns as bytes.
 */
#include "cold/cold_turn.h"

enum {
    T_TEXT = 0,
    T_N_BYTES = 32,
    T_SUM = 40,
    T_N_PROMPT = 48,
    T_N_END = 52,
    T_NONCE = 56,
    T_ZERO = 72
};

void mx_turn_encode(const mx_turn *t, uint8_t out[MX_TURN_BYTES])
{
    memset(out, 0, MX_TURN_BYTES);
    memcpy(out + T_TEXT, t->text.b, sizeof t->text.b);
    mx_put_le64(out + T_N_BYTES, t->n_bytes);
    mx_put_le64(out + T_SUM, t->sum);
    mx_put_le32(out + T_N_PROMPT, t->n_prompt);
    mx_put_le32(out + T_N_END, t->n_end);
    memcpy(out + T_NONCE, t->nonce, sizeof t->nonce);
}

bool mx_turn_decode(mx_turn *t, const uint8_t bytes[MX_TURN_BYTES])
{
    memcpy(t->text.b, bytes + T_TEXT, sizeof t->text.b);
    t->n_bytes = mx_get_le64(bytes + T_N_BYTES);
    t->sum = mx_get_le64(bytes + T_SUM);
    t->n_prompt = mx_get_le32(bytes + T_N_PROMPT);
    t->n_end = mx_get_le32(bytes + T_N_END);
    memcpy(t->nonce, bytes + T_NONCE, sizeof t->nonce);
    return t->n_bytes > 0 && t->n_prompt > 0 && t->n_end > t->n_prompt &&
           mx_get_le64(bytes + T_ZERO) == 0;
}
