/* A disk that can fail, for a process that has this library preloaded: between the program and the kernel's page cache.

   Only regular files whose path has ".db" in it are watched. FAILING_DISK names a directory. While it has a file "fail",
   fsync and fdatasync of a watched file fail with EIO; if that file has a 1 in it, only the next one does. What was
   written before a failed sync stays in the file, as in the page cache of Linux, and counts as clean from then on: the
   next sync succeeds and does not write it. "disk/" has what the medium has: what syncs that succeeded have written. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILES 64
#define PAGE 4096
#define PAGES 16384 /* 64 MB */

struct watched {
    dev_t device;
    ino_t number;
    unsigned char dirty[PAGES];
};

static struct watched files[FILES];
static int known;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define REAL(result, name, ...) \
    static result (*real)(__VA_ARGS__); \
    if (!real) real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

static ssize_t write_through(int fd, const void *data, size_t size, off_t offset) {
    REAL(ssize_t, "pwrite", int, const void *, size_t, off_t);
    return real(fd, data, size, offset);
}

/* The file behind the descriptor, if it is watched; its path goes into `path`. */
static struct watched *find(int fd, char *path, size_t size) {
    struct stat about;
    char link[64];
    if (!getenv("FAILING_DISK") || fstat(fd, &about) || !S_ISREG(about.st_mode)) return NULL;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, size - 1);
    if (length < 0) return NULL;
    path[length] = 0;
    if (!strstr(path, ".db") || strstr(path, "-shm")) return NULL;
    for (int i = 0; i < known; i++)
        if (files[i].device == about.st_dev && files[i].number == about.st_ino) return &files[i];
    if (known == FILES) abort();
    files[known].device = about.st_dev;
    files[known].number = about.st_ino;
    return &files[known++];
}

static void note_write(int fd, off_t offset, ssize_t size) {
    char path[4096];
    int error = errno;
    if (size <= 0) return;
    pthread_mutex_lock(&lock);
    struct watched *file = find(fd, path, sizeof path);
    for (off_t page = offset / PAGE; file && page <= (offset + size - 1) / PAGE; page++) {
        if (page >= PAGES) abort();
        file->dirty[page] = 1;
    }
    pthread_mutex_unlock(&lock);
    errno = error;
}

static int is_to_fail(void) {
    char name[4096];
    snprintf(name, sizeof name, "%s/fail", getenv("FAILING_DISK"));
    int control = open(name, O_RDONLY);
    if (control < 0) return 0;
    char once = 0;
    if (read(control, &once, 1) == 1) unlink(name);
    close(control);
    return 1;
}

static int sync_file(int fd, int (*real)(int)) {
    char path[4096], medium[8192], page[PAGE];
    pthread_mutex_lock(&lock);
    struct watched *file = find(fd, path, sizeof path);
    if (!file) {
        pthread_mutex_unlock(&lock);
        return real(fd);
    }
    int failed = is_to_fail();
    snprintf(medium, sizeof medium, "%s/disk/%s", getenv("FAILING_DISK"), strrchr(path, '/') + 1);
    int copy = failed ? -1 : open(medium, O_RDWR | O_CREAT, 0600);
    for (off_t i = 0; i < PAGES; i++) {
        if (!file->dirty[i]) continue;
        file->dirty[i] = 0;
        ssize_t got = failed ? 0 : pread(fd, page, PAGE, i * PAGE);
        if (got > 0 && write_through(copy, page, got, i * PAGE) != got) abort();
    }
    if (copy >= 0) close(copy);
    pthread_mutex_unlock(&lock);
    if (failed) errno = EIO;
    return failed ? -1 : 0;
}

int fsync(int fd) {
    REAL(int, "fsync", int);
    return sync_file(fd, real);
}

int fdatasync(int fd) {
    REAL(int, "fdatasync", int);
    return sync_file(fd, real);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    ssize_t written = write_through(fd, data, size, offset);
    note_write(fd, offset, written);
    return written;
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) { return pwrite(fd, data, size, offset); }

ssize_t write(int fd, const void *data, size_t size) {
    REAL(ssize_t, "write", int, const void *, size_t);
    off_t offset = lseek(fd, 0, SEEK_CUR);
    ssize_t written = real(fd, data, size);
    if (offset >= 0) note_write(fd, offset, written);
    return written;
}
