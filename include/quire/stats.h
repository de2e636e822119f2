// SPDX-License-Identifier: MIT
/*
 * quire/stats.h - what every object of the process holds, written to a file descriptor.
 *
 * Use it for a page of metrics, a report at exit, a dump on a signal that the program waits for, or from a debugger (`call quire_stats_write(2, 0)`).
 * It shows the process-wide sources, every slab, every per-CPU pool and every heap, with the blocks of each size, named as their creators named
 * them, with sums that add up.  Arenas are for one thread each and in no list, so that threads with an arena each never meet: their memory is in the
 * default source's taken_bytes and not shown by itself.  Only where QUIRE_CONF has `top` are those with a name listed, and shown too.
 *
 *     quire_stats_write(2, QUIRE_STATS_TEXT);               // a table for people
 *     int fd = open("metrics.prom", O_WRONLY | O_CREAT | O_TRUNC, 0644);
 *     if (quire_stats_write(fd, QUIRE_STATS_PROMETHEUS) != 0)
 *         perror("metrics.prom");
 *     close(fd);
 *
 * doc/stats.md lists what is written, in each format.
 *
 * Threads: any thread may write at any time, several at once too; objects may be created, used and destroyed meanwhile.  No lock is held
 * while anything is written, so that a reader who is slow stops nobody but the caller.
 * Signals and fork: not to be called from a signal handler.  The child of a fork writes what it has itself.
 * In the function of quire_on_panic() it looks at the object in question too: one whose memory was overwritten may end the process half-way.
 */
#ifndef QUIRE_STATS_H
#define QUIRE_STATS_H

#include <quire/export.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Formats. */
#define QUIRE_STATS_TEXT 0u       /* aligned columns of bytes and counts, a sum under each kind */
#define QUIRE_STATS_JSON 1u       /* one object, "schema": "quire.stats/1"; every field of the structs of statistics under its own name */
#define QUIRE_STATS_PROMETHEUS 2u /* the text exposition format 0.0.4 */

/*
 * Write the statistics of all objects to `fd`.  Returns 0 with errno as it was, or -1 with errno: EINVAL (no such format), or that of write(2): EBADF,
 * EIO, ENOSPC, EPIPE (after SIGPIPE, where that is not ignored), EAGAIN (a descriptor that does not wait is full); a part may have been written by
 * then.  Interrupted and short writes go on.  Allocates nothing: neither from malloc nor from a source; takes some 20 KiB of stack.  What threads have
 * freed of each other's is brought home first, and memory that becomes free by that may start the default source's clock (quire/source.h).  Each object is
 * shown as it was at one moment, different objects at moments that follow each other; those that come or go meanwhile may be missing.  In
 * Prometheus' format the values of an object are of one moment while its kind has fewer than 32 objects (or sizes), else each metric's is of its own, but for
 * the parts of its memory.  Cost: the statistics of every object, and a system call for each 4 KiB, which is no point of cancellation.  MT-Safe.
 */
QUIRE_API int quire_stats_write(int fd, uint32_t format);

#ifdef __cplusplus
}
#endif
#endif
