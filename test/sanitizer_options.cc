// SPDX-License-Identifier: MIT
/* What the tests ask of the sanitizers: sizes that cannot be are refused with NULL, as without them. */
#define FOR_THE_RUNTIME extern "C" __attribute__((visibility("default")))
FOR_THE_RUNTIME const char *__asan_default_options();
FOR_THE_RUNTIME const char *__tsan_default_options();

const char *__asan_default_options() { return "allocator_may_return_null=1"; }
/*
 * After a fork the child starts a reaper of its own.  At its end a process waits for races of threads that still run: for 50 ms, which is many of
 * the reaper's steps, and not for the second of the default, which hundreds of tests that take a hundredth would each be idle for.
 */
const char *__tsan_default_options() { return "allocator_may_return_null=1:die_after_fork=0:atexit_sleep_ms=50"; }
