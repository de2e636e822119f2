// SPDX-License-Identifier: MIT
/*
 * file.c - the trace file: made, grown by blocks, never larger than allowed.
 *
 *   header page | live | live | packed | packed | pad | live | packed ...      append at header->file_bytes
 *
 * Invariants:
 *   F1  file_bytes moves only after the block before it is wholly in the file
 *   F2  space of a mapped block is reserved before it is mapped: a full disk is a stop, never a SIGBUS
 *   F3  nothing is written past RLIMIT_FSIZE (that would be a SIGXFSZ) nor past the configured limit
 *   F4  nothing is written through a descriptor that is not our file any more (programs close or reuse them)
 *
 * Locks: the caller holds the recorder's lock.  After a stop nothing is appended; the header still tells why.
 * Not here: what is inside a block (thread.c, meta.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#define ZSTD_STATIC_LINKING_ONLY
#include <zstd.h>

#include "record.h"

#define ZSTD_LEVEL          1
#define ZSTD_LEVEL_NONE     (-(1 << 17))  // the lowest: a frame that holds the bytes as they are, nearly
#define PLAIN_BYTES_MAX     (128u << 20)  // of a trace; what comes after is packed, whatever that costs
#define PLAIN_SHARE         6u            // packing may take one part in so many of the time in which a block fills
#define DESCRIPTOR_FLOOR    800  // out of the way of programs that expect 3, 4, 5
#define PACKED_BYTES_MAX    (QTR_LIVE_BLOCK_BYTES + 4096)
#define MAPPINGS_MAX        8192

struct qtr_header *rec_header;

static struct {
    int descriptor;
    dev_t device;
    ino_t inode;
    size_t page_bytes;
    char path[PATH_MAX];
    unsigned char *out;  // one packed block
    ZSTD_CCtx *zstd;
    void *zstd_memory;
    size_t zstd_bytes;
    struct qtr_live *mapped[MAPPINGS_MAX];
    unsigned mapped_count;
    uint64_t pack_ticks;  // that packing a block takes: the last one's
    unsigned plain;       // blocks in a row that were not packed
} file = {.descriptor = -1};

static void *map_private(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* The same file under a number that the program does not expect for itself, if the limit allows one. */
int rec_file_moved_up(int fd) {
    int high = -1;
    for (int floor = DESCRIPTOR_FLOOR; floor >= 100 && high < 0; floor /= 2) {
        high = fcntl(fd, F_DUPFD_CLOEXEC, floor);
    }
    if (high < 0) {
        return fd;
    }
    close(fd);
    return high;
}

/* The descriptor, after making sure that it still is our file; -1 when the file cannot be reached (F4). */
static int descriptor_checked(void) {
    struct stat now;
    if (file.descriptor >= 0 && fstat(file.descriptor, &now) == 0 && now.st_dev == file.device &&
        now.st_ino == file.inode) {
        return file.descriptor;
    }
    int fd = open(file.path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
        return -1;
    }
    if (fstat(fd, &now) != 0 || now.st_dev != file.device || now.st_ino != file.inode) {
        close(fd);
        return -1;
    }
    file.descriptor = rec_file_moved_up(fd);
    return file.descriptor;
}

/* May the file grow to `end` bytes?  QTR_STOP_NONE or why not (F3). */
static enum qtr_stop room_until(uint64_t end) {
    if (rec_config.limit_bytes != 0 && end > rec_config.limit_bytes) {
        return QTR_STOP_LIMIT;
    }
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && end > limit.rlim_cur) {
        return QTR_STOP_FILE_SIZE;
    }
    return QTR_STOP_NONE;
}

static int write_whole(int fd, const void *data, size_t bytes, uint64_t offset) {
    const unsigned char *from = data;
    while (bytes > 0) {
        ssize_t n = pwrite(fd, from, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return n < 0 ? -errno : -ENOSPC;
        }
        from += n;
        bytes -= (size_t)n;
        offset += (uint64_t)n;
    }
    return 0;
}

/* Reserve real space, so that storing to the mapping cannot fail later (F2). */
static int reserve(int fd, uint64_t offset, size_t bytes) {
    int rc;
    do {
        rc = fallocate(fd, 0, (off_t)offset, (off_t)bytes) == 0 ? 0 : -errno;
    } while (rc == -EINTR);
    if (rc != -EOPNOTSUPP && rc != -ENOSYS) {
        return rc;
    }
    static const unsigned char zeros[4096];
    for (size_t done = 0; done < bytes; done += sizeof zeros) {
        rc = write_whole(fd, zeros, sizeof zeros, offset + done);
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

static void stop_for_errno(int rc) {
    rec_stop_locked(rc == -ENOSPC || rc == -EDQUOT ? QTR_STOP_DISK_FULL
                    : rc == -EFBIG                 ? QTR_STOP_FILE_SIZE
                                                   : QTR_STOP_FILE_LOST);
}

/* What is there and no file, nor a link, is somebody's mistake: a trace beside it would be found by nobody.  0 or -errno. */
static int place_checked(void) {
    struct stat there = {.st_mode = S_IFREG};
    int fd = open(rec_config.path, O_PATH | O_CLOEXEC | O_NOFOLLOW);  // the link itself
    if (fd >= 0) {
        (void)fstat(fd, &there);
        close(fd);
    }
    return S_ISDIR(there.st_mode) ? -EISDIR : S_ISREG(there.st_mode) || S_ISLNK(there.st_mode) ? 0 : -EEXIST;
}

/* PATH for the first process; PATH.PID when PATH is there already, as for a child; never an existing file. */
static int create_new(void) {
    int fd = -1, wrong = place_checked();
    if (wrong != 0) {
        return wrong;
    }
    for (unsigned attempt = 0; attempt < 100; attempt++) {
        int n = attempt == 0   ? snprintf(file.path, sizeof file.path, "%s", rec_config.path)
                : attempt == 1 ? snprintf(file.path, sizeof file.path, "%s.%d", rec_config.path, getpid())
                               : snprintf(file.path, sizeof file.path, "%s.%d.%u", rec_config.path, getpid(), attempt);
        if (n < 0 || (size_t)n >= sizeof file.path) {
            return -ENAMETOOLONG;
        }
        fd = open(file.path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd >= 0 || errno != EEXIST) {
            break;
        }
    }
    if (fd < 0) {
        return -errno;
    }
    fd = rec_file_moved_up(fd);
    struct stat status;
    if (fstat(fd, &status) != 0) {
        return -errno;
    }
    file.descriptor = fd;
    file.device = status.st_dev;
    file.inode = status.st_ino;
    return 0;
}

static void header_fill(struct qtr_header *header) {
    memcpy(header->magic, QTR_MAGIC, sizeof header->magic);
    header->version = QTR_VERSION;
    header->header_bytes = (uint32_t)file.page_bytes;
    header->pid = (uint32_t)getpid();
    header->parent_pid = (uint32_t)getppid();
    header->tick_shift = REC_TICK_SHIFT;
    header->start_tick = header->last_tick = rec_tick();
    header->start_monotonic_ns = header->last_monotonic_ns = rec_clock_ns(CLOCK_MONOTONIC);
    header->start_realtime_ns = rec_clock_ns(CLOCK_REALTIME);
    snprintf(header->machine, sizeof header->machine, "%s", CPU_X86_64 ? "x86_64" : "aarch64");
    header->state = QTR_RECORDING;
    header->file_bytes = file.page_bytes;
    size_t used = 0;
    for (char **argument = rec_arguments(); *argument != NULL; argument++) {
        size_t bytes = strlen(*argument) + 1;
        if (used + bytes > sizeof header->command) {
            break;
        }
        memcpy(header->command + used, *argument, bytes);
        used += bytes;
    }
    header->command_bytes = (uint32_t)used;
}

static int buffers_create(void) {
    if (file.out == NULL) {
        file.out = map_private(PACKED_BYTES_MAX);
        ZSTD_compressionParameters parameters = ZSTD_getCParams(ZSTD_LEVEL, QTR_LIVE_BLOCK_BYTES, 0);
        file.zstd_bytes = ZSTD_estimateCCtxSize_usingCParams(parameters) + 4096;
        file.zstd_memory = map_private(file.zstd_bytes);
    }
    if (file.out == NULL || file.zstd_memory == NULL) {
        return -ENOMEM;
    }
    file.zstd = ZSTD_initStaticCCtx(file.zstd_memory, file.zstd_bytes);
    return file.zstd == NULL ? -ENOMEM : 0;
}

int rec_file_open(void) {
    file.page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    int rc = buffers_create();
    if (rc == 0) {
        rc = room_until(file.page_bytes + 2 * QTR_LIVE_BLOCK_BYTES) == QTR_STOP_NONE ? create_new() : -EFBIG;
    }
    if (rc == 0) {
        rc = reserve(file.descriptor, 0, file.page_bytes);
        int fixed = rec_header != NULL ? MAP_FIXED : 0;  // an ended recording's place
        void *page = rc != 0 ? MAP_FAILED
                             : mmap(rec_header, file.page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | fixed, file.descriptor, 0);
        if (page != MAP_FAILED) {
            header_fill(page);
            rec_header = page;
            return 0;
        }
        rc = rc != 0 ? rc : -errno;
        unlink(file.path);
        close(file.descriptor);
        file.descriptor = -1;
    }
    return rc;
}

static void descriptor_close(void) {
    struct stat now;
    if (file.descriptor >= 0 && fstat(file.descriptor, &now) == 0 && now.st_dev == file.device &&
        now.st_ino == file.inode) {
        close(file.descriptor);
    }
    file.descriptor = -1;
}

void rec_file_forget(void) {
    for (unsigned i = 0; i < file.mapped_count; i++) {
        munmap(file.mapped[i], QTR_LIVE_BLOCK_BYTES);
    }
    file.mapped_count = 0;
    if (rec_header != NULL) {
        munmap(rec_header, file.page_bytes);
        rec_header = NULL;
    }
    descriptor_close();
}

/* A thread may be in the middle of an event: its stores still reach memory, but no file. */
static void become_memory(void *mapped, size_t bytes) {
    mmap(mapped, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

void rec_file_end(void) {
    for (unsigned i = 0; i < file.mapped_count; i++) {
        become_memory(file.mapped[i], QTR_LIVE_BLOCK_BYTES);
    }
    file.mapped_count = 0;
    become_memory(rec_header, file.page_bytes);
    rec_header->stop = QTR_STOP_FILE_LOST;  // who comes late stops there
    descriptor_close();
    madvise(file.zstd_memory, file.zstd_bytes, MADV_DONTNEED);  // begins anew with the next file
    madvise(file.out, PACKED_BYTES_MAX, MADV_DONTNEED);
    file.pack_ticks = file.plain = 0;
}

/* Fill up to the next OS page with a pad block, so that what follows can be mapped. */
static int pad_to_page(int fd) {
    uint64_t end = rec_header->file_bytes;
    size_t short_bytes = (size_t)(-end & (file.page_bytes - 1));
    if (short_bytes == 0) {
        return 0;
    }
    if (short_bytes < sizeof(struct qtr_block)) {
        short_bytes += file.page_bytes;
    }
    struct qtr_block pad = {.magic = QTR_BLOCK_MAGIC, .kind = QTR_BLOCK_PAD, .bytes = (uint32_t)short_bytes};
    int rc = write_whole(fd, &pad, sizeof pad, end);
    if (rc == 0) {
        rc = reserve(fd, end, short_bytes);
    }
    if (rc == 0) {
        rec_header->file_bytes = end + short_bytes;
    }
    return rc;
}

struct qtr_live *rec_file_live_block(struct qtr_live *at) {
    int fd = descriptor_checked();
    enum qtr_stop stop = room_until(rec_header->file_bytes + 2 * file.page_bytes + QTR_LIVE_BLOCK_BYTES);
    if (fd < 0 || stop != QTR_STOP_NONE || file.mapped_count == MAPPINGS_MAX) {
        rec_stop_locked(fd < 0 ? QTR_STOP_FILE_LOST : stop != QTR_STOP_NONE ? stop : QTR_STOP_MEMORY);
        return NULL;
    }
    int rc = pad_to_page(fd);
    uint64_t offset = rec_header->file_bytes;
    if (rc == 0) {
        rc = reserve(fd, offset, QTR_LIVE_BLOCK_BYTES);
    }
    if (rc != 0) {
        stop_for_errno(rc);
        return NULL;
    }
    struct qtr_live *live =
        mmap(at, QTR_LIVE_BLOCK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | (at != NULL ? MAP_FIXED : 0), fd, (off_t)offset);
    if (live == MAP_FAILED) {
        rec_stop_locked(QTR_STOP_MEMORY);
        return NULL;
    }
    live->block = (struct qtr_block){
        .magic = QTR_BLOCK_MAGIC, .kind = QTR_BLOCK_LIVE, .bytes = QTR_LIVE_BLOCK_BYTES};
    atomic_signal_fence(memory_order_seq_cst);
    rec_header->file_bytes = offset + QTR_LIVE_BLOCK_BYTES;
    file.mapped[file.mapped_count++] = live;
    return live;
}

/*
 * What this block is packed at. A program that does nothing but allocate fills blocks faster than they can be packed: then they are kept
 * as they are while the trace is small, and every 64th is packed to see what that takes now.
 */
static int level_for(const struct qtr_live *live) {
    uint64_t filled_in = rec_tick() - live->block.first_tick;
    bool is_plain = file.pack_ticks * PLAIN_SHARE > filled_in && rec_header->file_bytes < PLAIN_BYTES_MAX &&
                    (rec_config.limit_bytes == 0 || rec_header->file_bytes < rec_config.limit_bytes / 8) && file.plain < 64;
    file.plain = is_plain ? file.plain + 1 : 0;
    return is_plain ? ZSTD_LEVEL_NONE : ZSTD_LEVEL;
}

bool rec_file_pack(struct qtr_live *live) {
    if (rec_header->stop != QTR_STOP_NONE) {
        return false;
    }
    uint32_t used = (uint32_t)live->part_and_used, part = (uint32_t)(live->part_and_used >> 32);
    struct qtr_block *block = (struct qtr_block *)(void *)file.out;
    int level = level_for(live);
    uint64_t began = rec_tick();
    ZSTD_CCtx_setParameter(file.zstd, ZSTD_c_compressionLevel, level);
    ZSTD_CCtx_setParameter(file.zstd, ZSTD_c_checksumFlag, 1);
    size_t packed = ZSTD_compress2(file.zstd, block + 1, PACKED_BYTES_MAX - sizeof *block, live + 1, used);
    if (ZSTD_isError(packed)) {
        rec_stop_locked(QTR_STOP_MEMORY);
        return false;
    }
    if (level == ZSTD_LEVEL) {
        file.pack_ticks = rec_tick() - began;
    }
    size_t bytes = (sizeof *block + packed + 15) & ~(size_t)15;
    memset((unsigned char *)(block + 1) + packed, 0, bytes - sizeof *block - packed);
    *block = (struct qtr_block){.magic = QTR_BLOCK_MAGIC, .kind = QTR_BLOCK_PACKED, .bytes = (uint32_t)bytes,
                                .thread = live->block.thread, .part = part, .packed_bytes = (uint32_t)packed,
                                .raw_bytes = used, .first_tick = live->block.first_tick};
    uint64_t offset = rec_header->file_bytes;
    int fd = descriptor_checked();
    enum qtr_stop stop = fd < 0 ? QTR_STOP_FILE_LOST : room_until(offset + bytes);
    if (stop != QTR_STOP_NONE) {
        rec_stop_locked(stop);
        return false;
    }
    int rc = write_whole(fd, block, bytes, offset);
    if (rc != 0) {
        stop_for_errno(rc);
        return false;
    }
    rec_header->file_bytes = offset + bytes;
    rec_file_touch(true);
    return true;
}

void rec_file_touch(bool thoroughly) {
    rec_header->last_monotonic_ns = rec_clock_ns(CLOCK_MONOTONIC);
    rec_header->last_tick = rec_tick();
    if (thoroughly) {
        struct rusage usage;
        getrusage(RUSAGE_SELF, &usage);
        rec_header->cpu_ns = rec_clock_ns(CLOCK_PROCESS_CPUTIME_ID);
        rec_header->peak_rss_bytes = (uint64_t)usage.ru_maxrss * 1024;
    }
}
