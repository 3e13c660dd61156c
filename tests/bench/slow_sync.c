/* Makes each fdatasync of a process take longer, by the milliseconds in SLOW_SYNC. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int fdatasync(int file) {
    const char *slow = getenv("SLOW_SYNC");
    long milliseconds = slow ? atol(slow) : 0;
    struct timespec pause = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    int result = (int)syscall(SYS_fdatasync, file);
    nanosleep(&pause, NULL);
    return result;
}
