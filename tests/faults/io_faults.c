/* Preloaded: makes chosen calls of the C library on chosen files fail, or lists them.

   Only files whose paths match the pattern of `io_faults` count. Without an error to inject, each
   call is written to a descriptor, as a line of its operation and the path. */

#define _GNU_SOURCE
#undef _FILE_OFFSET_BITS
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static char wanted_path[4096], wanted_operation[32];
static int first, last, code, log_to = -1;

/* From now on, of the calls of this operation on these files, those from `from` to `to` (counted
   from 1) fail with `error`. With error 0 all calls are listed in the file `log` instead. */
void io_faults(const char *pattern, const char *operation, int from, int to, int error, int log) {
    strncpy(wanted_path, pattern, sizeof wanted_path - 1);
    strncpy(wanted_operation, operation, sizeof wanted_operation - 1);
    first = from, last = to, code = error, log_to = log;
}

static int fails(const char *operation, int folder, const char *path) {
    static int count;
    char whole[8192], place[64];
    int saved = errno;
    if (!wanted_path[0] || !path) return 0;
    if (path[0] == '/' || folder == AT_FDCWD) {
        snprintf(whole, sizeof whole, "%s", path);
    } else {
        snprintf(place, sizeof place, "/proc/self/fd/%d", folder);
        ssize_t length = readlink(place, whole, 4096);
        errno = saved;
        if (length < 0) return 0;
        snprintf(whole + length, sizeof whole - (size_t)length, "%s%s", path[0] ? "/" : "", path);
    }
    if (fnmatch(wanted_path, whole, 0)) return 0;
    if (!code) {
        if (log_to >= 0) dprintf(log_to, "%s %s\n", operation, whole);
        errno = saved;
        return 0;
    }
    if (strcmp(operation, wanted_operation)) return 0;
    count++;
    if (count < first || count > last) return 0;
    errno = code;
    return 1;
}

#define REAL(name) ({ static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name); real; })

#define ON_PATH(operation, type, failed, name, parameters, folder, path, ...) \
    type name parameters { \
        if (fails(operation, folder, path)) return failed; \
        return REAL(name)(__VA_ARGS__); }

#define ON_OPEN(name, parameters, folder, ...) \
    int name parameters { \
        va_list rest; va_start(rest, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        const char *kind = flags & O_DIRECTORY ? "list" : "open"; \
        if (fails(kind, folder, path)) return -1; \
        return REAL(name)(__VA_ARGS__, mode); }

ON_OPEN(open, (const char *path, int flags, ...), AT_FDCWD, path, flags)
ON_OPEN(open64, (const char *path, int flags, ...), AT_FDCWD, path, flags)
ON_OPEN(openat, (int at, const char *path, int flags, ...), at, at, path, flags)
ON_OPEN(openat64, (int at, const char *path, int flags, ...), at, at, path, flags)
ON_PATH("list", DIR *, NULL, opendir, (const char *path), AT_FDCWD, path, path)

#define ON_FILE(operation, type, failed, name, parameters, ...) \
    ON_PATH(operation, type, failed, name, parameters, file, "", __VA_ARGS__)

ON_FILE("read", ssize_t, -1, read, (int file, void *to, size_t size), file, to, size)
ON_FILE("read", ssize_t, -1, pread, (int file, void *to, size_t size, off_t at), file, to, size, at)
ON_FILE("read", ssize_t, -1, pread64, (int file, void *to, size_t size, off64_t at),
        file, to, size, at)
ON_FILE("read", void *, MAP_FAILED, mmap,
        (void *to, size_t size, int protection, int flags, int file, off_t at),
        to, size, protection, flags, file, at)
ON_FILE("read", void *, MAP_FAILED, mmap64,
        (void *to, size_t size, int protection, int flags, int file, off64_t at),
        to, size, protection, flags, file, at)
ON_FILE("write", ssize_t, -1, write, (int file, const void *from, size_t size), file, from, size)
ON_FILE("sync", int, -1, fsync, (int file), file)
ON_FILE("lock", int, -1, flock, (int file, int kind), file, kind)

ON_PATH("stat", int, -1, stat, (const char *path, struct stat *to), AT_FDCWD, path, path, to)
ON_PATH("stat", int, -1, stat64, (const char *path, struct stat64 *to), AT_FDCWD, path, path, to)
ON_PATH("stat", int, -1, lstat, (const char *path, struct stat *to), AT_FDCWD, path, path, to)
ON_PATH("stat", int, -1, lstat64, (const char *path, struct stat64 *to), AT_FDCWD, path, path, to)
ON_PATH("stat", int, -1, fstatat, (int at, const char *path, struct stat *to, int flags),
        at, path, at, path, to, flags)
ON_PATH("stat", int, -1, fstatat64, (int at, const char *path, struct stat64 *to, int flags),
        at, path, at, path, to, flags)
ON_PATH("mkdir", int, -1, mkdir, (const char *path, mode_t mode), AT_FDCWD, path, path, mode)
ON_PATH("remove", int, -1, unlink, (const char *path), AT_FDCWD, path, path)
ON_PATH("remove", int, -1, rmdir, (const char *path), AT_FDCWD, path, path)
ON_PATH("remove", int, -1, unlinkat, (int at, const char *path, int flags),
        at, path, at, path, flags)
ON_PATH("rename", int, -1, rename, (const char *path, const char *to), AT_FDCWD, path, path, to)
