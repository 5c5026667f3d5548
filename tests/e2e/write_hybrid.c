/* SPDX-License-Identifier: MIT
 *
 * write_hybrid FILE TEMPLATE: writes the tiny model of hybrid_model.h with that chat template, for the
 * end-to-end tests, which are Python and need a file.
 */
#include "hybrid_model.h"

#include <stdio.h>

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: write_hybrid FILE TEMPLATE\n");
        return 2;
    }
    mx_tiny_spec spec = hybrid_spec();
    spec.chat_template = argv[2];
    mx_tiny_write(argv[1], &spec);
    return 0;
}
