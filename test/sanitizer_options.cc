// SPDX-License-Identifier: MIT
/* What the tests ask of the sanitizers: sizes that cannot be are refused with NULL, as without them. */
#define FOR_THE_RUNTIME extern "C" __attribute__((visibility("default")))
FOR_THE_RUNTIME const char *__asan_default_options();
FOR_THE_RUNTIME const char *__tsan_default_options();

const char *__asan_default_options() { return "allocator_may_return_null=1"; }
/* After a fork the child starts a reaper of its own. */
const char *__tsan_default_options() { return "allocator_may_return_null=1:die_after_fork=0"; }
