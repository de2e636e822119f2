// SPDX-License-Identifier: MIT
/*
 * slab_common.c - what the workloads of the driver `slab` share: threads, the head of a row, how each allocator gives memory back.
 */
#include <string.h>

#include <quire/source.h>

#include "slab_driver.h"

static struct quire_source *files; /* of --file; NULL: the default source */

static void files_end(void)
{
    quire_source_destroy(files);
}

static void files_open(const char *directory)
{
    files = quire_source_file(directory, "bench");
    if (!files)
        bench_usage("no pages in files there", "--file DIR, a directory that may be written");
    atexit(files_end);
}

struct quire_slab *slab_make(const struct slab_config *config, size_t element_bytes, uint32_t flags)
{
    if (config->kind != KIND_SLAB)
        return NULL;
    flags |= (config->defrag ? QUIRE_SLAB_DEFRAG : 0u) | (config->single ? QUIRE_SLAB_SINGLE_THREAD : 0u);
    if (config->file && !files)
        files_open(config->file);
    struct quire_slab *slab = quire_slab_create(element_bytes, &(struct quire_slab_opts){.name = "bench", .source = files, .flags = flags});
    if (!slab)
        bench_die("no slab: out of memory");
    return slab;
}

size_t slab_sound(struct quire_slab *slab, size_t live)
{
    if (!slab)
        return 0;
    struct quire_slab_stats stats = {.struct_bytes = sizeof stats};
    quire_slab_stats(slab, &stats);
    if (stats.mapped_bytes != stats.live_bytes + stats.free_bytes + stats.meta_bytes)
        bench_die("statistics: mapped is not live + free + meta");
    if (stats.live_elements != live)
        bench_die("statistics: another number of live elements than the workload holds");
    const char *broken = quire_slab_check(slab);
    if (broken)
        bench_die(broken);
    return stats.mapped_bytes;
}

void slab_give_back(enum slab_kind kind, struct quire_slab *slab)
{
    if (kind == KIND_SLAB) {
        quire_slab_trim(slab);
        quire_source_trim(quire_source_default());
        return;
    }
    bench_give_back();
}

void slab_workers_start(struct slab_worker *workers, size_t count, struct slab_worker like, void *(*run)(void *worker))
{
    static pthread_barrier_t line;
    if (pthread_barrier_init(&line, NULL, (unsigned)count + 1) != 0)
        bench_die("no barrier");
    for (size_t i = 0; i < count; i++) {
        workers[i] = like;
        workers[i].line = &line;
        workers[i].idx = i;
        if (pthread_create(&workers[i].thread, NULL, run, &workers[i]) != 0)
            bench_die("no thread: out of memory, or over the limit of `ulimit -u`");
    }
}

void slab_workers_end(struct slab_worker *workers, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        pthread_join(workers[i].thread, NULL);
        if (i > 0) {
            workers[0].pairs += workers[i].pairs;
            workers[0].cpu_ns += workers[i].cpu_ns;
        }
    }
    pthread_barrier_destroy(workers[0].line);
}

void slab_row_open(const struct slab_config *config, size_t element_bytes)
{
    static const char *const unmanaged[] = {"none", "touch"};
    const char *name = config->kind == KIND_SLAB     ? "quire-slab"
                       : config->kind == KIND_MALLOC ? bench_malloc_name()
                                                     : unmanaged[strcmp(config->workload, "burst") == 0];
    bench_row_open(config->json, config->workload, name);
    bench_row_count("threads", config->threads);
    bench_row_count("element_bytes", element_bytes);
}
