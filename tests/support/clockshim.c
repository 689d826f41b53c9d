/* LD_PRELOAD library: shifts the wall clock of a process by the int64 of microseconds in EVERBEAT_CLOCK_OFFSET_FILE.
 *
 * The file is mapped once, before main, so a test steps the clock of running processes, including forked children, by
 * writing 8 bytes. Monotonic clocks do not change, so sleeps and timeouts keep their length. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

typedef int (*clock_gettime_function)(clockid_t, struct timespec *);

static const int64_t *offset_microseconds;
static clock_gettime_function real_clock_gettime;

__attribute__((constructor)) static void shim_start(void) {
    int saved_errno = errno;
    const char *path = getenv("EVERBEAT_CLOCK_OFFSET_FILE");
    if (path != NULL) {
        int file = open(path, O_RDONLY | O_CLOEXEC);
        void *page = MAP_FAILED;
        if (file >= 0) {
            page = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
            close(file);
        }
        if (page == MAP_FAILED) {
            /* Abort, because a test whose clock is not shifted would prove nothing. */
            fprintf(stderr, "clockshim: cannot map %s\n", path);
            abort();
        }
        __atomic_store_n(&offset_microseconds, (const int64_t *)page, __ATOMIC_RELEASE);
    }
    __atomic_store_n(&real_clock_gettime, (clock_gettime_function)dlsym(RTLD_NEXT, "clock_gettime"), __ATOMIC_RELEASE);
    errno = saved_errno;
}

static int unshifted(clockid_t clock, struct timespec *now) {
    clock_gettime_function real = __atomic_load_n(&real_clock_gettime, __ATOMIC_ACQUIRE);
    /* The constructor of another library may call this before our constructor has run. */
    return real != NULL ? real(clock, now) : (int)syscall(SYS_clock_gettime, clock, now);
}

static void shift(struct timespec *now) {
    const int64_t *offset = __atomic_load_n(&offset_microseconds, __ATOMIC_ACQUIRE);
    if (offset == NULL)
        return;
    int64_t microseconds = __atomic_load_n(offset, __ATOMIC_RELAXED);
    int64_t nanoseconds = now->tv_nsec + (microseconds % 1000000) * 1000;
    now->tv_sec += microseconds / 1000000;
    if (nanoseconds < 0) {
        nanoseconds += 1000000000;
        now->tv_sec -= 1;
    } else if (nanoseconds >= 1000000000) {
        nanoseconds -= 1000000000;
        now->tv_sec += 1;
    }
    now->tv_nsec = nanoseconds;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = unshifted(clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        shift(now);
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    if (zone != NULL) {
        ((struct timezone *)zone)->tz_minuteswest = 0;
        ((struct timezone *)zone)->tz_dsttime = 0;
    }
    if (clock_gettime(CLOCK_REALTIME, &precise) != 0)
        return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec precise;
    if (clock_gettime(CLOCK_REALTIME, &precise) != 0)
        return (time_t)-1;
    if (result != NULL)
        *result = precise.tv_sec;
    return precise.tv_sec;
}
