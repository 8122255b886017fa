/* Logs what a process does to files under $LOG_UNDER, so that a test can tell what is on disk after a power loss.

   Each record in $LOG_TO is a line "OP SIZE OFFSET PATH [OTHER]\n" followed by SIZE bytes of data. What the
   process writes to stdout is logged too (as "out"), so that acknowledgements have their place in the order. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static int log_to = -1;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static void record(const char *op, const char *path, const char *other, const void *data, size_t size, long at) {
    const char *name = getenv("LOG_TO");
    if (!name) return;
    pthread_mutex_lock(&turn);
    if (log_to < 0) {
        log_to = REAL(open)(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    }
    char line[2 * PATH_MAX + 100];
    int length = snprintf(line, sizeof line, "%s %zu %ld %s%s%s\n", op, size, at, path, other ? " " : "", other ? other : "");
    REAL(write)(log_to, line, length);
    if (size) REAL(write)(log_to, data, size);
    pthread_mutex_unlock(&turn);
}

static int ours(const char *path) {
    const char *under = getenv("LOG_UNDER");
    return under && path && !strncmp(path, under, strlen(under));
}

/* The path of an open file, if it is one of ours that still has a name. */
static int path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return ours(path) && !strstr(path, " (deleted)");
}

static void absolute(int folder, const char *path, char *out) {
    char base[PATH_MAX];
    if (path[0] == '/') { snprintf(out, PATH_MAX, "%s", path); return; }
    if (folder == AT_FDCWD) { if (!getcwd(base, sizeof base)) base[0] = 0; }
    else { char link[64]; snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
           ssize_t n = readlink(link, base, sizeof base - 1); base[n < 0 ? 0 : n] = 0; }
    snprintf(out, PATH_MAX, "%s/%s", base, path);
}

static int opened(const char *hook, int folder, const char *path, int flags, mode_t mode) {
    char full[PATH_MAX];
    struct stat before;
    int (*real)(int, const char *, int, ...) = dlsym(RTLD_NEXT, hook);
    absolute(folder, path, full);
    int there = stat(full, &before) == 0;
    int fd = real(folder, path, flags, mode);
    if (fd >= 0 && ours(full)) {
        if (!there && (flags & O_CREAT)) record("create", full, NULL, NULL, 0, 0);
        if (there && (flags & O_TRUNC)) record("truncate", full, NULL, NULL, 0, 0);
    }
    return fd;
}

#define MODE(flags) mode_t mode = 0; if ((flags) & (O_CREAT | __O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }
int open(const char *path, int flags, ...) { MODE(flags) return opened("openat", AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return opened("openat", AT_FDCWD, path, flags, mode); }
int openat(int folder, const char *path, int flags, ...) { MODE(flags) return opened("openat", folder, path, flags, mode); }
int openat64(int folder, const char *path, int flags, ...) { MODE(flags) return opened("openat", folder, path, flags, mode); }

ssize_t write(int fd, const void *data, size_t size) {
    char path[PATH_MAX];
    long at = lseek(fd, 0, SEEK_CUR);
    ssize_t done = REAL(write)(fd, data, size);
    if (done > 0 && fd == STDOUT_FILENO) record("out", "-", NULL, data, done, 0);
    else if (done > 0 && path_of(fd, path)) record("write", path, NULL, data, done, at);
    return done;
}

static ssize_t put(ssize_t done, int fd, const void *data, off64_t at) {
    char path[PATH_MAX];
    if (done > 0 && path_of(fd, path)) record("write", path, NULL, data, done, at);
    return done;
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    return put(REAL(pwrite64)(fd, data, size, at), fd, data, at);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    return put(REAL(pwrite64)(fd, data, size, at), fd, data, at);
}

static int cut(int fd, off64_t size) {
    char path[PATH_MAX];
    int done = REAL(ftruncate64)(fd, size);
    if (!done && path_of(fd, path)) record("truncate", path, NULL, NULL, 0, size);
    return done;
}
int ftruncate(int fd, off_t size) { return cut(fd, size); }
int ftruncate64(int fd, off64_t size) { return cut(fd, size); }

static int synced(const char *hook, int fd) {
    int (*real)(int) = dlsym(RTLD_NEXT, hook);
    char path[PATH_MAX];
    int done = real(fd);
    if (!done && path_of(fd, path)) record("sync", path, NULL, NULL, 0, 0);
    return done;
}
int fsync(int fd) { return synced("fsync", fd); }
int fdatasync(int fd) { return synced("fdatasync", fd); }

static void named(const char *op, int folder, const char *path, int other_folder, const char *other) {
    char one[PATH_MAX], two[PATH_MAX];
    absolute(folder, path, one);
    if (other) absolute(other_folder, other, two);
    if (ours(one)) record(op, one, other ? two : NULL, NULL, 0, 0);
}
int rename(const char *path, const char *other) {
    int done = REAL(rename)(path, other);
    if (!done) named("rename", AT_FDCWD, path, AT_FDCWD, other);
    return done;
}
int renameat(int a, const char *path, int b, const char *other) {
    int done = REAL(renameat)(a, path, b, other);
    if (!done) named("rename", a, path, b, other);
    return done;
}
int unlink(const char *path) {
    int done = REAL(unlink)(path);
    if (!done) named("unlink", AT_FDCWD, path, 0, NULL);
    return done;
}
int unlinkat(int folder, const char *path, int flags) {
    int done = REAL(unlinkat)(folder, path, flags);
    if (!done) named("unlink", folder, path, 0, NULL);
    return done;
}
int rmdir(const char *path) {
    int done = REAL(rmdir)(path);
    if (!done) named("unlink", AT_FDCWD, path, 0, NULL);
    return done;
}
int mkdir(const char *path, mode_t mode) {
    int done = REAL(mkdir)(path, mode);
    if (!done) named("mkdir", AT_FDCWD, path, 0, NULL);
    return done;
}
int mkdirat(int folder, const char *path, mode_t mode) {
    int done = REAL(mkdirat)(folder, path, mode);
    if (!done) named("mkdir", folder, path, 0, NULL);
    return done;
}
