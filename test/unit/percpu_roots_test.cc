// SPDX-License-Identifier: MIT
/* What LeakSanitizer is told of a pool's memory.  Telling takes its lock, so nothing that a signal handler may do tells it anything. */
#include <gtest/gtest.h>

#include <dlfcn.h>
#include <quire/percpu.h>

#include <atomic>

namespace {
std::atomic<size_t> told{0}, taken_back{0};

void pass_on(const char *name, const void *start, size_t bytes)
{
    if (auto *next = reinterpret_cast<void (*)(const void *, size_t)>(dlsym(RTLD_NEXT, name)))
        next(start, bytes);
}
} // namespace

/* In place of the sanitizer's, which is asked behind these where there is one. */
extern "C" void __lsan_register_root_region(const void *start, size_t bytes);
extern "C" void __lsan_register_root_region(const void *start, size_t bytes)
{
    told++;
    pass_on("__lsan_register_root_region", start, bytes);
}
extern "C" void __lsan_unregister_root_region(const void *start, size_t bytes);
extern "C" void __lsan_unregister_root_region(const void *start, size_t bytes)
{
    taken_back++;
    pass_on("__lsan_unregister_root_region", start, bytes);
}

TEST(PercpuRoots, the_first_write_of_each_copy_tells_no_sanitizer)
{
    size_t told_before = told, taken_before = taken_back;
    quire_percpu_opts opts = {};
    opts.struct_bytes = sizeof opts;
    quire_percpu *pool = quire_percpu_create(&opts);
    ASSERT_NE(pool, nullptr);
    quire_percpu_ref ref = quire_percpu_alloc(pool, 64, 0);
    size_t told_at_first = told;
    EXPECT_GT(told_at_first, told_before) << "what only its copies point to is no leak";
    for (unsigned cpu = 0; cpu < quire_percpu_cpus(pool); cpu++)
        (void)quire_percpu_at(pool, ref, cpu);
    quire_percpu_add(pool, ref, 1);
    EXPECT_EQ(told, told_at_first);
    quire_percpu_free(pool, ref);
    quire_percpu_destroy(pool);
    EXPECT_EQ(taken_back - taken_before, told - told_before);
}
