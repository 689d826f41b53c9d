/* LD_PRELOAD library: makes the disk fail for files whose path contains EVERBEAT_DISK_PATH.
 *
 * The fault is the int64 in EVERBEAT_DISK_FAULT_FILE, which is mapped once, so a test switches it while processes run:
 * 0 no fault, 1 writes fail with ENOSPC (the disk is full), 2 fsync and fdatasync fail with EIO. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { DISK_FULL = 1, FSYNC_FAILS = 2 };

static const int64_t *fault;
static const char *path_part;

__attribute__((constructor)) static void shim_start(void) {
    int saved_errno = errno;
    const char *file_path = getenv("EVERBEAT_DISK_FAULT_FILE");
    const char *part = getenv("EVERBEAT_DISK_PATH");
    if (file_path != NULL && part != NULL) {
        path_part = strdup(part); /* PostgreSQL overwrites its environment with the title of the process */
        int file = open(file_path, O_RDONLY | O_CLOEXEC);
        void *page = MAP_FAILED;
        if (file >= 0) {
            page = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
            close(file);
        }
        if (page == MAP_FAILED) {
            /* Abort, because a test whose disk does not fail would prove nothing. */
            fprintf(stderr, "diskshim: cannot map %s\n", file_path);
            abort();
        }
        __atomic_store_n(&fault, (const int64_t *)page, __ATOMIC_RELEASE);
    }
    errno = saved_errno;
}

static int is_faulty(int file, int64_t kind) {
    const int64_t *current = __atomic_load_n(&fault, __ATOMIC_ACQUIRE);
    if (current == NULL || __atomic_load_n(current, __ATOMIC_RELAXED) != kind)
        return 0;
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0)
        return 0;
    path[length] = '\0';
    return strstr(path, path_part) != NULL;
}

#define REAL(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name))
#define FAIL(code) do { errno = (code); return -1; } while (0)

int fsync(int file) {
    if (is_faulty(file, FSYNC_FAILS))
        FAIL(EIO);
    return REAL(int, "fsync", int)(file);
}

int fdatasync(int file) {
    if (is_faulty(file, FSYNC_FAILS))
        FAIL(EIO);
    return REAL(int, "fdatasync", int)(file);
}

ssize_t write(int file, const void *data, size_t size) {
    if (is_faulty(file, DISK_FULL))
        FAIL(ENOSPC);
    return REAL(ssize_t, "write", int, const void *, size_t)(file, data, size);
}

ssize_t pwrite(int file, const void *data, size_t size, off_t offset) {
    if (is_faulty(file, DISK_FULL))
        FAIL(ENOSPC);
    return REAL(ssize_t, "pwrite", int, const void *, size_t, off_t)(file, data, size, offset);
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t offset) {
    if (is_faulty(file, DISK_FULL))
        FAIL(ENOSPC);
    return REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t)(file, data, size, offset);
}

ssize_t pwritev(int file, const struct iovec *parts, int count, off_t offset) {
    if (is_faulty(file, DISK_FULL))
        FAIL(ENOSPC);
    return REAL(ssize_t, "pwritev", int, const struct iovec *, int, off_t)(file, parts, count, offset);
}

ssize_t pwritev64(int file, const struct iovec *parts, int count, off64_t offset) {
    if (is_faulty(file, DISK_FULL))
        FAIL(ENOSPC);
    return REAL(ssize_t, "pwritev64", int, const struct iovec *, int, off64_t)(file, parts, count, offset);
}

int ftruncate(int file, off_t size) {
    struct stat status;
    if (is_faulty(file, DISK_FULL) && fstat(file, &status) == 0 && size > status.st_size)
        FAIL(ENOSPC);
    return REAL(int, "ftruncate", int, off_t)(file, size);
}

int posix_fallocate(int file, off_t offset, off_t size) {
    if (is_faulty(file, DISK_FULL))
        return ENOSPC;
    return REAL(int, "posix_fallocate", int, off_t, off_t)(file, offset, size);
}
