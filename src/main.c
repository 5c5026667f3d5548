/* SPDX-License-Identifier: MIT
 *
 * The program. Everything it does is in src/cli.
 */
#include "cli/cli.h"

int main(int argc, char **argv)
{
    return mx_cli_main(argc, argv);
}
