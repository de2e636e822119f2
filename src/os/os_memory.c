// SPDX-License-Identifier: MIT
/*
 * os_memory.c - how much memory this process may have, and whether it is short: what the cgroups say, else the machine.
 *
 *     /proc/self/cgroup    0::/a/b           /sys/fs/cgroup/a/b/memory.max          memory.pressure        memory.events.local
 *                                            /sys/fs/cgroup/a/memory.max            each directory up to the root: the least counts
 *                          7:memory:/a/b     /sys/fs/cgroup/memory/a/b/memory.limit_in_bytes, and so on      memory.failcnt
 *                          neither           /proc/meminfo                          /proc/pressure/memory
 *
 * In a container the path may be the host's, of which the mount shows the last part alone: directories that are not there are passed over, and the
 * mount's own root is the container's.  Other places for the mounts than these two are not looked for.
 *
 * The seam: all paths are below os_root_set()'s directory, and each opening passes os_fault(OS_OPEN).
 *
 * Locks: none.  Nothing is allocated and no file stays open.  Not here: what is done about it (pages/pressure.c, preload/conf.c).
 */
#include <errno.h>
#include <string.h>

#include "os/os.h"

enum { ROOT_BYTES = 256, PATH_BYTES = 1024, CGROUP_BYTES = 4096, MEMINFO_BYTES = 512, WORDS_BYTES = 256 };

static char root[ROOT_BYTES];

void os_root_set(const char *directory)
{
    size_t bytes = strlen(directory);
    memcpy(root, directory, bytes < ROOT_BYTES ? bytes + 1 : 0);
}

static bool join(char path[PATH_BYTES], const char *a, const char *b, const char *c)
{
    const char *parts[] = {root, a, b, c};
    size_t used = 0;
    for (int i = 0; i < 4; i++) {
        size_t bytes = strlen(parts[i]);
        if (bytes >= PATH_BYTES - used)
            return false;
        memcpy(path + used, parts[i], bytes + 1);
        used += bytes;
    }
    return true;
}

static int read_below(const char *a, const char *b, const char *c, char *text, size_t bytes)
{
    char path[PATH_BYTES];
    if (os_fault(OS_OPEN))
        return -EMFILE;
    return join(path, a, b, c) ? os_read_text(path, text, bytes) : -ENAMETOOLONG;
}

/* The number behind `word`; UINT64_MAX: none is there, or it is too large for one. */
static uint64_t number_after(const char *text, const char *word)
{
    const char *at = strstr(text, word);
    uint64_t n = 0;
    if (!at)
        return UINT64_MAX;
    for (at += strlen(word); *at == ' '; at++)
        ;
    if (*at < '0' || *at > '9')
        return UINT64_MAX;
    for (; *at >= '0' && *at <= '9'; at++)
        if (__builtin_mul_overflow(n, (uint64_t)10, &n) || __builtin_add_overflow(n, (uint64_t)(*at - '0'), &n))
            return UINT64_MAX;
    return n;
}

struct cgroup {
    const char *mount, *limit_file, *events_file;
    bool has_pressure; /* the first version has no such file */
    char path[CGROUP_BYTES]; /* "": the mount's root */
};

/* "7:cpu,memory:/a/b": one of the names between the colons. */
static bool has_memory(const char *names, const char *end)
{
    for (; names < end; names += strcspn(names, ",:") + 1)
        if (strncmp(names, "memory", 6) == 0 && (names[6] == ',' || names[6] == ':'))
            return true;
    return false;
}

/* The line that is about memory: the first version's, where there is one, for the second's has no memory then. */
static bool cgroup_find(struct cgroup *out)
{
    char text[CGROUP_BYTES];
    const char *found = NULL;
    if (read_below("/proc/self/cgroup", "", "", text, sizeof text) < 0)
        return false;
    for (char *line = text; *line; line += strcspn(line, "\n"), line += *line != 0) {
        char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
        bool is_second = path && strncmp(line, "0::", 3) == 0;
        if (!path || !(is_second ? !found : has_memory(names + 1, path)))
            continue;
        found = path + 1;
        out->mount = is_second ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
        out->limit_file = is_second ? "/memory.max" : "/memory.limit_in_bytes";
        out->events_file = is_second ? "/memory.events.local" : "/memory.failcnt";
        out->has_pressure = is_second;
    }
    size_t bytes = found ? strcspn(found, "\n") : 0;
    memcpy(out->path, found ? found : "", bytes);
    out->path[bytes] = 0;
    if (strstr(out->path, "/..")) /* outside of what this namespace shows */
        out->path[0] = 0;
    return found != NULL;
}

/* One directory up; false: it was the root. */
static bool cgroup_up(struct cgroup *cgroup)
{
    char *slash = strrchr(cgroup->path, '/');
    if (slash)
        *slash = 0;
    return slash != NULL;
}

uint64_t os_memory_bytes(void)
{
    char text[MEMINFO_BYTES];
    struct cgroup cgroup;
    uint64_t least = UINT64_MAX, kib = UINT64_MAX;
    if (read_below("/proc/meminfo", "", "", text, sizeof text) > 0)
        kib = number_after(text, "MemTotal:");
    if (kib < UINT64_MAX / 1024)
        least = kib * 1024;
    if (!cgroup_find(&cgroup))
        return least == UINT64_MAX ? 0 : least;
    do {
        uint64_t limit = UINT64_MAX;
        if (read_below(cgroup.mount, cgroup.path, cgroup.limit_file, text, sizeof text) > 0)
            limit = number_after(text, ""); /* "max" is none */
        least = limit < least ? limit : least;
    } while (cgroup_up(&cgroup));
    return least == UINT64_MAX ? 0 : least;
}

/* "some avg10=0.00 avg60=0.00 avg300=0.00 total=12345", and a line of "full" */
int os_memory_stalled_us(uint64_t *out)
{
    char text[WORDS_BYTES];
    struct cgroup cgroup;
    int got = -ENOENT;
    if (cgroup_find(&cgroup) && cgroup.has_pressure)
        do
            got = read_below(cgroup.mount, cgroup.path, "/memory.pressure", text, sizeof text);
        while (got <= 0 && cgroup_up(&cgroup));
    if (got <= 0)
        got = read_below("/proc/pressure/memory", "", "", text, sizeof text);
    if (got <= 0)
        return got < 0 ? got : -ENOENT;
    *out = strncmp(text, "some ", 5) == 0 ? number_after(text, "total=") : UINT64_MAX;
    return *out == UINT64_MAX ? -EINVAL : 0;
}

/* "low 0", "high 4", "max 2", "oom 0" and so on, a line each; the first version's file has one number. */
static uint64_t limit_hits_of(const char *text)
{
    uint64_t high = number_after(text, "high "), most = number_after(text, *text >= '0' && *text <= '9' ? "" : "max ");
    return (high == UINT64_MAX ? 0 : high) + (most == UINT64_MAX ? 0 : most);
}

/* A file that says only what was this cgroup's own limit's (Linux 5.2): those above count what their other children did to theirs, too. */
int os_memory_limit_hits(uint64_t *out)
{
    char text[WORDS_BYTES];
    struct cgroup cgroup;
    int result = -ENOENT;
    *out = 0;
    if (!cgroup_find(&cgroup))
        return result;
    do {
        int got = read_below(cgroup.mount, cgroup.path, cgroup.events_file, text, sizeof text);
        if (got < 0 && got != -ENOENT && got != -EACCES)
            return got; /* without its count the sum would seem to have grown at the next look */
        if (got > 0) {
            *out += limit_hits_of(text);
            result = 0;
        }
    } while (cgroup_up(&cgroup));
    return result;
}
