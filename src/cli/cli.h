/* SPDX-License-Identifier: MIT
 *
 * cli.h: the command line: commands, and the one entry point that main calls.
 */
#ifndef MX_CLI_H
#define MX_CLI_H

/* Runs the command in argv and returns the exit code: 0; 2 = the command line or the environment is
 * wrong, which is told without looking at anything else; 1 = failed; 130 and 143 = ended by a second
 * SIGINT or SIGTERM. Results go to stdout, everything else to stderr. */
int mx_cli_main(int argc, char **argv);

#endif
