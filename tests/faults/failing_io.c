/* Preloaded: the FAIL_AT-th write or fsync of a file below FAIL_UNDER fails with EIO (FAIL_FOREVER: all later ones too). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static long count;

static int fails(int fd) {
    const char *under = getenv("FAIL_UNDER"), *at = getenv("FAIL_AT");
    char link[64], path[PATH_MAX];
    if (!under || !at) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    /* the lock's note is for people, and -shm is shared memory that SQLite rebuilds */
    if (strncmp(path, under, strlen(under)) || strstr(path, ".lock") || strstr(path, "-shm")) return 0;
    count++;
    if (count == atol(at) || (count > atol(at) && getenv("FAIL_FOREVER"))) {
        errno = EIO;
        return 1;
    }
    return 0;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
ssize_t write(int fd, const void *data, size_t size) { return fails(fd) ? -1 : REAL(write)(fd, data, size); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return fails(fd) ? -1 : REAL(pwrite)(fd, data, size, at); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) { return fails(fd) ? -1 : REAL(pwrite64)(fd, data, size, at); }
int fsync(int fd) { return fails(fd) ? -1 : REAL(fsync)(fd); }
int fdatasync(int fd) { return fails(fd) ? -1 : REAL(fdatasync)(fd); }
