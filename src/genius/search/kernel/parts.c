/* Parts of an open file into memory: a call for each part from Python takes as long as reading it. */
#define _XOPEN_SOURCE 700
#include <errno.h>
#include <stdint.h>
#include <unistd.h>

/* Reads `size` bytes from each of n places of a file into `out`, one after the other. Returns how many parts were
   read: fewer than n where the file ends before, or -errno where it cannot be read. */
int64_t genius_read_parts(int32_t file, const int64_t *starts, int64_t n, int64_t size, uint8_t *out) {
    for (int64_t part = 0; part < n; part++, out += size)
        for (int64_t done = 0; done < size;) {
            ssize_t more = pread(file, out + done, (size_t)(size - done), (off_t)(starts[part] + done));
            if (more < 0 && errno == EINTR) continue;
            if (more < 0) return -(int64_t)errno;
            if (more == 0) return part;
            done += more;
        }
    return n;
}
