/* A library that is loaded before a process's own ones (LD_PRELOAD): a false clock, a slow disk, and a journal
 * of what a power cut would lose.
 *
 *   CHAOS_CONTROL  a file with a struct control, which the harness changes while the process runs
 *   CHAOS_JOURNAL  a folder for the journal, and for the files that a lost rename or removal brings back
 *   CHAOS_DATA     the folder whose files are the disk; all other files are left alone
 *
 * Journal: while `journal` is set, each write to a file of the disk first records the former bytes of its pages,
 * each sync that it is over, and each change of a folder what reverts it. `power.py` reads it after a kill.
 * Not covered: stores into memory that is mapped from a file. Neither LMDB (without WRITEMAP) nor DIOS writes
 * durable bytes that way; the locks in lock.mdb are no durable bytes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define FDS_MAX 65536
#define PAGE 4096LL

struct control {
    int64_t clock_offset_ns;
    int64_t strobe_ns;        /* added to the clock in every other period */
    int64_t strobe_period_ns;
    int64_t sync_delay_ns;
    int64_t stalled;          /* syncs wait while this is set */
    int64_t journal;
};

enum kind { WRITE = 1, SYNC = 2, SYNC_FOLDER = 3, CREATE = 4, RENAME = 5, REMOVE = 6, WROTE_SYNCED = 7 };

struct record {
    uint32_t kind, first_length, second_length;
    uint32_t data_length;
    int64_t inode, offset, length, size, upto;
};

static struct control none;
static struct control *control = &none;
static char data_folder[PATH_MAX], journal_folder[PATH_MAX];
static int journal_fd = -1;
static unsigned char tracked[FDS_MAX]; /* 1: a file of the disk, 2: its writes are synced, 3: a folder */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned saved;

#define REAL(type, name, ...)                               \
    static type (*real)(__VA_ARGS__);                       \
    if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CHAOS_CONTROL"), *data = getenv("CHAOS_DATA"), *journal = getenv("CHAOS_JOURNAL");
    if (!path) return;
    int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
    if (fd >= 0) {
        void *found = mmap(NULL, sizeof(struct control), PROT_READ, MAP_SHARED, fd, 0);
        if (found != MAP_FAILED) control = found;
        syscall(SYS_close, fd);
    }
    if (data && journal) {
        snprintf(data_folder, sizeof data_folder, "%s", data);
        snprintf(journal_folder, sizeof journal_folder, "%s", journal);
        char place[PATH_MAX + 16];
        snprintf(place, sizeof place, "%s/journal", journal_folder);
        journal_fd = syscall(SYS_openat, AT_FDCWD, place, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (journal_fd >= 0) { /* above the numbers that a program may expect to get */
            int high = syscall(SYS_fcntl, journal_fd, F_DUPFD_CLOEXEC, 900);
            if (high >= 0) { syscall(SYS_close, journal_fd); journal_fd = high; }
        }
    }
}

static int on(void) { return journal_fd >= 0 && control->journal; }

/* -- the clock ------------------------------------------------------------------------------------ */
static void shift(struct timespec *time) {
    int64_t add = control->clock_offset_ns;
    int64_t period = control->strobe_period_ns;
    if (control->strobe_ns && period > 0) {
        struct timespec steady;
        syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &steady);
        if (((steady.tv_sec * 1000000000LL + steady.tv_nsec) / period) & 1) add += control->strobe_ns;
    }
    int64_t all = time->tv_sec * 1000000000LL + time->tv_nsec + add;
    time->tv_sec = all / 1000000000LL;
    time->tv_nsec = all % 1000000000LL;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    REAL(int, "clock_gettime", clockid_t, struct timespec *);
    int status = real(clock, time);
    if (!status && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) shift(time);
    return status;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    (void)zone;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (where) *where = now.tv_sec;
    return now.tv_sec;
}

/* -- the journal ---------------------------------------------------------------------------------- */
static int64_t journal_size(void) {
    struct stat status;
    return fstat(journal_fd, &status) ? 0 : status.st_size;
}

static void append(struct record *record, const char *first, const char *second, const void *data) {
    record->first_length = first ? strlen(first) : 0;
    record->second_length = second ? strlen(second) : 0;
    struct iovec parts[] = {{record, sizeof *record},
                            {(void *)first, record->first_length},
                            {(void *)second, record->second_length},
                            {(void *)data, record->data_length}};
    syscall(SYS_writev, journal_fd, parts, 4);
}

static int path_of(int fd, char *path) {
    char link[40];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length > 0 ? length : 0] = 0;
    return length > 0;
}

static int on_disk(const char *path) {
    size_t length = strlen(data_folder);
    return length && !strncmp(path, data_folder, length) && (path[length] == '/' || !path[length]);
}

static int full_path(int folder, const char *path, char *found) {
    if (path[0] == '/') {
        snprintf(found, PATH_MAX, "%s", path);
        return 1;
    }
    char base[PATH_MAX];
    if (folder == AT_FDCWD ? !getcwd(base, sizeof base) : !path_of(folder, base)) return 0;
    return snprintf(found, PATH_MAX, "%s/%s", base, path) < PATH_MAX;
}

static void opened(int fd, int flags) {
    if (fd < 0 || fd >= FDS_MAX) return;
    tracked[fd] = 0;
    if (journal_fd < 0) return;
    char path[PATH_MAX];
    struct stat status;
    if (!path_of(fd, path) || !on_disk(path) || fstat(fd, &status)) return;
    if (S_ISDIR(status.st_mode)) tracked[fd] = 3;
    else if (S_ISREG(status.st_mode)) tracked[fd] = flags & O_DSYNC ? 2 : 1;
}

/* Record the former bytes of the pages that a write will change; the lock is held until it is made. */
static void before_write(int fd, int64_t offset, int64_t length) {
    struct stat status;
    char path[PATH_MAX];
    if (length <= 0 || fstat(fd, &status) || !path_of(fd, path)) return;
    int64_t from = offset / PAGE * PAGE, to = (offset + length + PAGE - 1) / PAGE * PAGE;
    int64_t old_end = to < status.st_size ? to : status.st_size;
    int64_t old = old_end > from ? old_end - from : 0;
    char *bytes = malloc(old ? old : 1);
    ssize_t got = 0;
    if (bytes && old) {
        int reader = fd;
        if ((fcntl(fd, F_GETFL) & O_ACCMODE) == O_WRONLY)
            reader = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
        if (reader >= 0) got = syscall(SYS_pread64, reader, bytes, old, from);
        if (reader >= 0 && reader != fd) syscall(SYS_close, reader);
    }
    struct record record = {.kind = WRITE, .inode = status.st_ino, .offset = from, .length = to - from,
                            .size = status.st_size, .data_length = got > 0 ? got : 0};
    append(&record, path, NULL, bytes);
    free(bytes);
}

static int begin_write(int fd, int64_t offset, int64_t length) {
    if (fd < 0 || fd >= FDS_MAX || !on() || (tracked[fd] != 1 && tracked[fd] != 2)) return 0;
    pthread_mutex_lock(&lock);
    before_write(fd, offset, length);
    return 1;
}

static void end_write(int noted, int fd, int64_t offset, int64_t length) {
    if (!noted) return;
    if (tracked[fd] == 2) {
        struct stat status;
        struct record record = {.kind = WROTE_SYNCED, .offset = offset, .length = length};
        if (!fstat(fd, &status)) {
            record.inode = status.st_ino;
            append(&record, NULL, NULL, NULL);
        }
    }
    pthread_mutex_unlock(&lock);
}

/* -- slow disks ----------------------------------------------------------------------------------- */
static void stall(void) {
    int64_t delay = control->sync_delay_ns;
    struct timespec pause = {delay / 1000000000LL, delay % 1000000000LL}, moment = {0, 5000000};
    if (delay > 0) nanosleep(&pause, NULL);
    while (control->stalled) nanosleep(&moment, NULL);
}

static int is_disk(int fd) { return fd >= 0 && fd < FDS_MAX && tracked[fd]; }

static int synced(int fd, int (*sync)(int)) {
    if (!is_disk(fd)) return sync(fd);
    int64_t upto = on() ? journal_size() : -1;
    stall();
    int status = sync(fd);
    if (!status && upto >= 0 && on()) {
        struct stat found;
        char path[PATH_MAX];
        if (!fstat(fd, &found) && path_of(fd, path)) {
            struct record record = {.kind = tracked[fd] == 3 ? SYNC_FOLDER : SYNC, .inode = found.st_ino,
                                    .upto = upto};
            append(&record, path, NULL, NULL);
        }
    }
    return status;
}

int fsync(int fd) {
    REAL(int, "fsync", int);
    return synced(fd, real);
}

int fdatasync(int fd) {
    REAL(int, "fdatasync", int);
    return synced(fd, real);
}

int msync(void *address, size_t length, int flags) {
    REAL(int, "msync", void *, size_t, int);
    if (flags & MS_SYNC) stall();
    return real(address, length, flags);
}

/* -- writes --------------------------------------------------------------------------------------- */
static int64_t total(const struct iovec *parts, int count) {
    int64_t sum = 0;
    for (int i = 0; i < count; i++) sum += parts[i].iov_len;
    return sum;
}

static int64_t position(int fd) {
    if (fd >= 0 && fd < FDS_MAX && tracked[fd] && on()) {
        struct stat status;
        if (fcntl(fd, F_GETFL) & O_APPEND) return fstat(fd, &status) ? 0 : status.st_size;
        int64_t at = syscall(SYS_lseek, fd, 0, SEEK_CUR);
        return at < 0 ? 0 : at;
    }
    return 0;
}

#define WRITING(fd, offset, length, call)                  \
    if (is_disk(fd) && tracked[fd] == 2) stall();          \
    int64_t at = (offset), bytes = (length);               \
    int noted = begin_write(fd, at, bytes);                \
    __typeof__(call) result = call;                        \
    int error = errno;                                     \
    end_write(noted, fd, at, bytes);                       \
    errno = error;                                         \
    return result

ssize_t write(int fd, const void *from, size_t count) {
    REAL(ssize_t, "write", int, const void *, size_t);
    WRITING(fd, position(fd), count, real(fd, from, count));
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    WRITING(fd, position(fd), total(parts, count), real(fd, parts, count));
}

ssize_t pwrite64(int fd, const void *from, size_t count, off64_t offset) {
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
    WRITING(fd, offset, count, real(fd, from, count, offset));
}

ssize_t pwrite(int fd, const void *from, size_t count, off_t offset) { return pwrite64(fd, from, count, offset); }

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset) {
    REAL(ssize_t, "pwritev64", int, const struct iovec *, int, off64_t);
    WRITING(fd, offset, total(parts, count), real(fd, parts, count, offset));
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
    return pwritev64(fd, parts, count, offset);
}

ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t offset, int flags) {
    REAL(ssize_t, "pwritev64v2", int, const struct iovec *, int, off64_t, int);
    WRITING(fd, offset < 0 ? position(fd) : offset, total(parts, count), real(fd, parts, count, offset, flags));
}

ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    return pwritev64v2(fd, parts, count, offset, flags);
}

ssize_t sendfile64(int fd, int source, off64_t *from, size_t count) {
    REAL(ssize_t, "sendfile64", int, int, off64_t *, size_t);
    WRITING(fd, position(fd), count < (1 << 26) ? count : 1 << 26, real(fd, source, from, count));
}

ssize_t sendfile(int fd, int source, off_t *from, size_t count) { return sendfile64(fd, source, from, count); }

ssize_t copy_file_range(int source, off64_t *from, int fd, off64_t *to, size_t count, unsigned flags) {
    REAL(ssize_t, "copy_file_range", int, off64_t *, int, off64_t *, size_t, unsigned);
    WRITING(fd, to ? *to : position(fd), count < (1 << 26) ? count : 1 << 26,
            real(source, from, fd, to, count, flags));
}

int ftruncate64(int fd, off64_t size) {
    REAL(int, "ftruncate64", int, off64_t);
    struct stat status;
    int64_t end = is_disk(fd) && on() && !fstat(fd, &status) ? status.st_size : 0;
    int64_t low = end < size ? end : size, high = end < size ? size : end;
    WRITING(fd, low, high - low, real(fd, size));
}

int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

int posix_fallocate64(int fd, off64_t offset, off64_t length) {
    REAL(int, "posix_fallocate64", int, off64_t, off64_t);
    WRITING(fd, offset, length, real(fd, offset, length));
}

int posix_fallocate(int fd, off_t offset, off_t length) { return posix_fallocate64(fd, offset, length); }

int fallocate64(int fd, int mode, off64_t offset, off64_t length) {
    REAL(int, "fallocate64", int, int, off64_t, off64_t);
    WRITING(fd, offset, length, real(fd, mode, offset, length));
}

int fallocate(int fd, int mode, off_t offset, off_t length) { return fallocate64(fd, mode, offset, length); }

/* -- folders -------------------------------------------------------------------------------------- */
static int open_noted(int folder, const char *path, int flags, mode_t mode) {
    REAL(int, "openat64", int, const char *, int, ...);
    char full[PATH_MAX];
    int created = 0;
    if ((flags & O_CREAT) && on() && full_path(folder, path, full) && on_disk(full))
        created = access(full, F_OK) != 0;
    int fd = ((int (*)(int, const char *, int, mode_t))real)(folder, path, flags, mode);
    int error = errno;
    opened(fd, flags);
    struct stat status;
    if (fd >= 0 && created && !fstat(fd, &status)) {
        struct record record = {.kind = CREATE, .inode = status.st_ino};
        append(&record, full, NULL, NULL);
    }
    errno = error;
    return fd;
}

#define MODE(flags)                                     \
    mode_t mode = 0;                                    \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {            \
        va_list more;                                   \
        va_start(more, flags);                          \
        mode = va_arg(more, mode_t);                    \
        va_end(more);                                   \
    }

int open(const char *path, int flags, ...) { MODE(flags) return open_noted(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return open_noted(AT_FDCWD, path, flags, mode); }
int openat(int folder, const char *path, int flags, ...) { MODE(flags) return open_noted(folder, path, flags, mode); }
int openat64(int folder, const char *path, int flags, ...) { MODE(flags) return open_noted(folder, path, flags, mode); }

int close(int fd) {
    REAL(int, "close", int);
    if (fd >= 0 && fd < FDS_MAX && tracked[fd]) tracked[fd] = 0;
    if (fd == journal_fd && fd >= 0) return 0; /* a program that closes all of its descriptors */
    return real(fd);
}

int mkstemp64(char *pattern) {
    REAL(int, "mkstemp64", char *);
    int fd = real(pattern);
    opened(fd, 0);
    return fd;
}

/* Keep a file that a folder is about to lose; return its name in the folder of the journal. */
static int keep(const char *path, char *kept) {
    pthread_mutex_lock(&lock);
    unsigned number = saved++;
    pthread_mutex_unlock(&lock);
    if (snprintf(kept, PATH_MAX, "%s/kept-%d-%u", journal_folder, (int)getpid(), number) >= PATH_MAX) return 0;
    return !linkat(AT_FDCWD, path, AT_FDCWD, kept, 0);
}

/* `by_rename`: the removal is one step with the renaming that follows it. */
static void note_removal(const char *full, int by_rename) {
    char kept[PATH_MAX];
    if (keep(full, kept)) {
        struct record record = {.kind = REMOVE, .offset = by_rename};
        append(&record, full, kept, NULL);
    }
}

int unlinkat(int folder, const char *path, int flags) {
    REAL(int, "unlinkat", int, const char *, int);
    char full[PATH_MAX];
    if (on() && !(flags & AT_REMOVEDIR) && full_path(folder, path, full) && on_disk(full)) note_removal(full, 0);
    return real(folder, path, flags);
}

int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }

static int renamed(int from, const char *old, int to, const char *fresh) {
    REAL(int, "renameat", int, const char *, int, const char *);
    char first[PATH_MAX], second[PATH_MAX];
    int noted = on() && full_path(from, old, first) && full_path(to, fresh, second) && on_disk(second);
    if (noted && !access(second, F_OK)) note_removal(second, 1);
    int status = real(from, old, to, fresh);
    int error = errno;
    if (noted && !status) {
        struct record record = {.kind = RENAME};
        append(&record, first, second, NULL);
    }
    errno = error;
    return status;
}

int rename(const char *old, const char *fresh) { return renamed(AT_FDCWD, old, AT_FDCWD, fresh); }
int renameat(int from, const char *old, int to, const char *fresh) { return renamed(from, old, to, fresh); }
