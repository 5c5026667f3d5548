/* SPDX-License-Identifier: MIT
 *
 * cli_inspect.h: `mtplx inspect`: what this machine offers, what a model file holds and whether it runs
 * here. Belongs to the main thread.
 */
#ifndef MX_CLI_INSPECT_H
#define MX_CLI_INSPECT_H

/* What follows the command. 0; 1 = the model cannot run here; 2 = wrong usage. */
int mx_cli_inspect(int argc, char **argv);

#endif
