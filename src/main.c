/* SPDX-License-Identifier: MIT
 *
 * The program. Everything it does is in src/cli.
 */
#include "cli/cli.h"

#include <fcntl.h>
#include <unistd.h>

/* Started without some of the standard streams (`>&-`), the next file that is opened would be one of
 * them, and what is printed would be written into it. */
static void fill_standard_streams(void)
{
    int fd;
    do {
        fd = open("/dev/null", O_RDWR);
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd > STDERR_FILENO) {
        close(fd);
    }
}

int main(int argc, char **argv)
{
    fill_standard_streams();
    return mx_cli_main(argc, argv);
}
