// SPDX-License-Identifier: MIT
/*
 * os_code.c - what of the address space can be run.
 *
 * Asked one mapping after the other, of the executable ones alone (PROCMAP_QUERY, Linux 6.11; proc_pid_maps(5)): a library is four mappings, and to write
 * the list of all takes the kernel three times as long.
 *
 * Locks: none.  Not here: the list as text, for older systems (os_read_each()).
 */
#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>

#include "os/os.h"
#include "os/os_call.h"

struct query {
    uint64_t bytes, wanted, at;
    uint64_t start, end, rights, page_bytes, offset, inode;
    uint32_t major, minor, name_bytes, build_id_bytes;
    uint64_t name, build_id;
};
enum { READABLE = 1, WRITABLE = 2, EXECUTABLE = 4, SHARED = 8, OR_NEXT = 0x10 };
#define QUERY _IOWR('f', 17, struct query)

static void put_rights(char rights[OS_RIGHTS_BYTES], uint64_t of)
{
    rights[0] = of & READABLE ? 'r' : '-';
    rights[1] = of & WRITABLE ? 'w' : '-';
    rights[2] = of & EXECUTABLE ? 'x' : '-';
    rights[3] = of & SHARED ? 's' : 'p';
    rights[4] = 0;
}

int os_code_each(void (*fn)(const struct os_code *code, void *arg), void *arg)
{
    struct os_code code = {.end = 0};
    int kept = errno, error = 0, fd = os_fault(OS_OPEN) ? -1 : call_open("/proc/thread-self/maps", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        error = -EMFILE;
    while (!error) {
        struct query query = {.bytes = sizeof query, .wanted = EXECUTABLE | OR_NEXT, .at = code.end, .name_bytes = sizeof code.name, .name = (uintptr_t)code.name};
        if (syscall(SYS_ioctl, fd, QUERY, &query) != 0) {
            error = -errno;
            break;
        }
        code.start = query.start;
        code.end = query.end;
        code.offset = query.offset;
        code.inode = query.inode;
        code.major = query.major;
        code.minor = query.minor;
        put_rights(code.rights, query.rights);
        if (query.name_bytes == 0)
            code.name[0] = 0;
        fn(&code, arg);
    }
    if (fd >= 0)
        call_close(fd);
    errno = kept;
    return error == -ENOENT ? 0 : error; /* there is none behind the last */
}
