/* Loaded into a gateway by LD_PRELOAD: keeps a log of what it does to its data file, in order, and can make it fail.
 *
 * A write is logged before it is made (a power cut in the middle of it may leave any part), a sync when it is over
 * (only then may anyone rely on it), an acknowledgement before it is sent (no client knows of it earlier). So "logged
 * before" is never weaker than "happened before". What the file is called is asked of the kernel at each call.
 *
 *   RECORDER_FOLDER  the store's folder; files in it whose names begin with data.mdb are watched
 *   RECORDER_LOG     where the log goes; see recorder.py for its records
 *   RECORDER_SYNC    "lie": syncs return at once and are not logged
 *   RECORDER_FAIL    "sync:3:EIO", "meta:1:short": the n-th sync of the data file or write through its O_DSYNC
 *                    descriptor (or sync of a "folder", made of the store's and those above it) fails, once
 *   RECORDER_ARMED   a path; n counts only while something is there
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define LOG_LIMIT (512l << 20)
#define SHORT (-1)
#define REAL(name) ((__typeof__(&name)) real(#name))

enum place { ELSEWHERE, DATA, BESIDE, FOLDER };

struct record {
    char kind;
    char place;
    uint16_t error;
    uint32_t size; /* bytes that follow */
    uint64_t offset;
    uint64_t length;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int log_file = -1;
static long log_size, due;
static int lying, failure;
static char folder[PATH_MAX], fail_at[16];
static const char *armed;

static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found)
        abort();
    return found;
}

__attribute__((constructor)) static void set_up(void) {
    char how[16] = "";
    const char *path = getenv("RECORDER_LOG"), *sync = getenv("RECORDER_SYNC"), *fail = getenv("RECORDER_FAIL");
    if (!path)
        return;
    snprintf(folder, sizeof folder, "%s", getenv("RECORDER_FOLDER"));
    lying = sync && !strcmp(sync, "lie");
    armed = getenv("RECORDER_ARMED");
    if (fail && sscanf(fail, "%15[a-z]:%ld:%15s", fail_at, &due, how) != 3)
        abort();
    failure = !strcmp(how, "short") ? SHORT : !strcmp(how, "ENOSPC") ? ENOSPC : EIO;
    log_file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static enum place place_of(int descriptor) {
    char link[64], path[PATH_MAX];
    size_t length = strlen(folder);
    if (log_file < 0)
        return ELSEWHERE;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t got = readlink(link, path, sizeof path - 1);
    if (got <= 0 || path[0] != '/')
        return ELSEWHERE;
    path[got] = 0;
    if ((size_t) got <= length && !strncmp(path, folder, got) && (!folder[got] || folder[got] == '/'))
        return FOLDER;
    if (strncmp(path, folder, length) || strncmp(path + length, "/data.mdb", 9))
        return ELSEWHERE;
    return path[length + 9] ? BESIDE : DATA;
}

static void note(struct record record, const struct iovec *parts, int count) {
    int kept = errno;
    struct iovec all[count + 1];
    all[0] = (struct iovec) {&record, sizeof record};
    for (int part = 0; part < count; part++) {
        all[part + 1] = parts[part];
        record.size += parts[part].iov_len;
    }
    pthread_mutex_lock(&mutex);
    log_size += sizeof record + record.size;
    /* A log that broke off must not pass for a whole one. */
    if (log_size > LOG_LIMIT || REAL(writev)(log_file, all, count + 1) != (ssize_t) (sizeof record + record.size))
        abort();
    pthread_mutex_unlock(&mutex);
    errno = kept;
}

static int fails_now(const char *what) {
    pthread_mutex_lock(&mutex);
    int now = due > 0 && !strcmp(what, fail_at) && (!armed || !access(armed, F_OK)) && !--due;
    pthread_mutex_unlock(&mutex);
    return now;
}

static ssize_t put(int descriptor, const struct iovec *parts, int count, off_t offset) {
    enum place place = place_of(descriptor);
    ssize_t length = 0;
    if (place != DATA && place != BESIDE)
        return -2;
    for (int part = 0; part < count; part++)
        length += parts[part].iov_len;
    struct record record = {.kind = 'W', .place = place, .offset = offset, .length = length};
    int durable = fcntl(descriptor, F_GETFL) & O_DSYNC;
    if (durable && fails_now("meta")) {
        /* EIO as a kernel gives it: the new bytes are in its cache, and perhaps on the disk. */
        struct iovec some = {parts[0].iov_base, failure == EIO ? length : failure == SHORT ? length / 2 : 0};
        record.length = some.iov_len;
        note(record, &some, 1);
        record.kind = 'F';
        record.error = failure == SHORT ? 0 : failure;
        note(record, 0, 0);
        ssize_t written = REAL(pwrite)(descriptor, some.iov_base, some.iov_len, offset);
        errno = record.error;
        return failure == SHORT ? written : -1;
    }
    note(record, parts, count);
    ssize_t written = REAL(pwritev)(descriptor, parts, count, offset);
    if (written == length && durable && !lying) {
        record.kind = 'D';
        note(record, 0, 0);
    }
    return written;
}

ssize_t pwrite(int descriptor, const void *bytes, size_t length, off_t offset) {
    struct iovec part = {(void *) bytes, length};
    ssize_t written = put(descriptor, &part, 1, offset);
    return written == -2 ? REAL(pwrite)(descriptor, bytes, length, offset) : written;
}

ssize_t pwrite64(int descriptor, const void *bytes, size_t length, off_t offset) {
    return pwrite(descriptor, bytes, length, offset);
}

ssize_t pwritev(int descriptor, const struct iovec *parts, int count, off_t offset) {
    ssize_t written = put(descriptor, parts, count, offset);
    return written == -2 ? REAL(pwritev)(descriptor, parts, count, offset) : written;
}

ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    ssize_t written = put(descriptor, parts, count, lseek(descriptor, 0, SEEK_CUR));
    if (written > 0)
        lseek(descriptor, written, SEEK_CUR);
    return written == -2 ? REAL(writev)(descriptor, parts, count) : written;
}

ssize_t write(int descriptor, const void *bytes, size_t length) {
    struct iovec part = {(void *) bytes, length};
    ssize_t written = put(descriptor, &part, 1, lseek(descriptor, 0, SEEK_CUR));
    if (written > 0)
        lseek(descriptor, written, SEEK_CUR);
    return written == -2 ? REAL(write)(descriptor, bytes, length) : written;
}

static int synced(int descriptor, int (*sync)(int)) {
    enum place place = place_of(descriptor);
    if (place == ELSEWHERE)
        return sync(descriptor);
    if (lying)
        return 0;
    struct record record = {.kind = place == FOLDER ? 'G' : 'S', .place = place};
    if (fails_now(place == FOLDER ? "folder" : "sync")) {
        record.kind = 'F';
        record.error = errno = failure;
        note(record, 0, 0);
        return -1;
    }
    note((struct record) {.kind = 'B', .place = place}, 0, 0);
    int result = sync(descriptor);
    if (!result)
        note(record, 0, 0);
    return result;
}

int fdatasync(int descriptor) {
    return synced(descriptor, REAL(fdatasync));
}

int fsync(int descriptor) {
    return synced(descriptor, REAL(fsync));
}

static int sized(int descriptor, int result) {
    enum place place = place_of(descriptor);
    struct stat now;
    if (!result && (place == DATA || place == BESIDE) && !fstat(descriptor, &now))
        note((struct record) {.kind = 'T', .place = place, .length = now.st_size}, 0, 0);
    return result;
}

int ftruncate(int descriptor, off_t length) {
    return sized(descriptor, REAL(ftruncate)(descriptor, length));
}

int ftruncate64(int descriptor, off_t length) {
    return ftruncate(descriptor, length);
}

int posix_fallocate(int descriptor, off_t offset, off_t length) {
    return sized(descriptor, REAL(posix_fallocate)(descriptor, offset, length));
}

int posix_fallocate64(int descriptor, off_t offset, off_t length) {
    return posix_fallocate(descriptor, offset, length);
}

int rename(const char *from, const char *to) {
    char data[PATH_MAX + 16];
    snprintf(data, sizeof data, "%s/data.mdb", folder);
    if (log_file >= 0 && !strcmp(to, data))
        note((struct record) {.kind = 'R', .place = DATA}, 0, 0);
    return REAL(rename)(from, to);
}

ssize_t send(int descriptor, const void *bytes, size_t length, int flags) {
    if (log_file >= 0 && length > 12 && !memcmp(bytes, "HTTP/1.1 202", 12))
        note((struct record) {.kind = 'A'}, &(struct iovec) {(void *) bytes, length}, 1);
    return REAL(send)(descriptor, bytes, length, flags);
}
