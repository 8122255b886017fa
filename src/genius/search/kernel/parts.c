/* Parts of an open file into memory: a call for each part from Python takes as long as reading it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/uio.h>
#include <unistd.h>

/* Whether a whole part came without waiting for the disk. If not, the system is asked to fetch it meanwhile. */
static int at_once(int32_t file, int64_t start, int64_t size, uint8_t *out) {
#ifdef RWF_NOWAIT
    struct iovec into = {out, (size_t)size};
    if (preadv2(file, &into, 1, (off_t)start, RWF_NOWAIT) == (ssize_t)size) return 1;
#endif
#ifdef POSIX_FADV_WILLNEED
    posix_fadvise(file, (off_t)start, (off_t)size, POSIX_FADV_WILLNEED);
#endif
    return 0;
}

/* Reads `size` bytes from each of n places of a file into `out`, one after the other. What is not in memory is asked
   for first, all parts together: the disk then works on many of them at the same time. `waiting` has room for n
   numbers. Returns how many parts were read: fewer than n where the file ends before, or -errno where it cannot be
   read. */
int64_t genius_read_parts(int32_t file, const int64_t *starts, int64_t n, int64_t size, uint8_t *out, int64_t *waiting) {
    int64_t missing = 0;
    for (int64_t part = 0; part < n; part++)
        if (!at_once(file, starts[part], size, out + part * size)) waiting[missing++] = part;
    for (int64_t next = 0; next < missing; next++) {
        const int64_t part = waiting[next];
        for (int64_t done = 0; done < size;) {
            ssize_t more = pread(file, out + part * size + done, (size_t)(size - done), (off_t)(starts[part] + done));
            if (more < 0 && errno == EINTR) continue;
            if (more < 0) return -(int64_t)errno;
            if (more == 0) return part;
            done += more;
        }
    }
    return n;
}
