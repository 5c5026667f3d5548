/* SPDX-License-Identifier: MIT
 *
 * What people want to know about the bank: what is stored behind a common beginning.
 */
#include "bank/bank_tree.h"

size_t mx_bank_continuation(const mx_bank *b, const mx_hash256 *root, const int32_t *tokens,
                            size_t n, int32_t *out, uint32_t cap, uint32_t *n_out)
{
    *n_out = 0;
    mx_bank_tree *tree = mx_tree_get(b, root);
    const mx_bank_node *at = tree != NULL ? &tree->top : NULL;
    size_t n_common = 0;
    while (at != NULL && n_common < n) {
        mx_child_hit hit =
            mx_node_find(at, tokens + n_common, (uint32_t)mx_min_size(n - n_common, MX_PAGE_TOKENS));
        n_common += hit.common;
        if (hit.common == MX_PAGE_TOKENS) {
            at = hit.best;
            continue;
        }
        /* To the end of this page, and into the first of those that follow it. */
        uint32_t row = hit.common;
        for (const mx_bank_node *p = hit.best; p != NULL && *n_out < cap; row = 0) {
            while (row < p->n_rows && *n_out < cap) {
                out[(*n_out)++] = p->page->tokens[row++];
            }
            p = p->n_children > 0 ? p->children[0] : NULL;
        }
        break;
    }
    return n_common;
}
