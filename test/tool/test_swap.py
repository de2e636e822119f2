# SPDX-License-Identifier: MIT
"""
test_swap - another malloc in the place of the one inside (tools/native/swap): each block goes back to where it came from.

What `try` makes of it: test_own.py.
"""

import os
import subprocess

import pytest
import toolkit
from toolkit import build

import bindings
import own
import peers

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="entries are patched on x86-64 alone")

DROP_IN = str(toolkit.BUILD / "libquire-malloc.so")
HELPER = str(toolkit.BUILD / "tools" / own.SWAP)

# A program with a malloc of its own, which stops the process at what is neither its block nor, where it was told of it, libc's. A resolver runs
# before all constructors: what it allocates is from before the swap.
PROGRAM = r"""
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
extern void *__libc_malloc(size_t); extern void __libc_free(void *); extern void *__libc_realloc(void *, size_t);
#define API __attribute__((noinline, visibility("default")))
static char pool[64 << 20] __attribute__((aligned(64))); /* nothing of it is used twice */
static size_t used = 64, taken, given;
static void *libcs[4];
static int is_libcs(void *p) { for (int i = 0; i < 4; i++) if (p && p == libcs[i]) return 1; return 0; }
static int is_ours(void *p) { return (char *)p > pool && (char *)p < pool + sizeof pool; }
static size_t *size_of(void *p) { if (!is_ours(p)) abort(); return (size_t *)p - 2; }
static void *take(size_t n, size_t align) {
    size_t end, at, old = __atomic_load_n(&used, __ATOMIC_RELAXED);
    do { at = (old + 16 + align - 1) / align * align; end = at + (n + 15) / 16 * 16; if (end > sizeof pool) return 0;
    } while (!__atomic_compare_exchange_n(&used, &old, end, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    *(size_t *)(pool + at - 16) = n;
    __atomic_fetch_add(&taken, 1, __ATOMIC_RELAXED);
    return pool + at;
}
API void *malloc(size_t n) { return take(n, 16); }
API void *calloc(size_t c, size_t n) { return take(c * n, 16); }
API void *memalign(size_t a, size_t n) { return take(n, a); }
API void *aligned_alloc(size_t a, size_t n) { return take(n, a); }
API int posix_memalign(void **p, size_t a, size_t n) { *p = take(n, a); return *p ? 0 : ENOMEM; }
API size_t malloc_usable_size(void *p) {
    if (is_libcs(p)) return (((size_t *)p)[-1] & -8) - 16;
    return p ? *size_of(p) : 0;
}
API void free(void *p) {
    if (!p) return;
    if (is_libcs(p)) { __libc_free(p); return; }
    *size_of(p) = 0;
    __atomic_fetch_add(&given, 1, __ATOMIC_RELAXED);
}
API void *realloc(void *old, size_t n) {
    if (is_libcs(old)) return __libc_realloc(old, n);
    void *p = take(n, 16);
    if (old && p) { memcpy(p, old, *size_of(old) < n ? *size_of(old) : n); *size_of(old) = 0; }
    return p;
}
static char *early[64];
static void nothing(void) {}
static void *resolve(void) {
    for (int i = 0; i < 64; i++) { early[i] = malloc(100); for (int k = 0; k < 100; k++) early[i][k] = (char)i; }
    if (LIBCS) libcs[0] = __libc_malloc(100);
    return nothing;
}
void at_relocation(void) __attribute__((ifunc("resolve")));
static int wrong;
#define MUST(x) ((x) ? 0 : (wrong++, printf("line %d: %s\n", __LINE__, #x)))
static void *work(void *arg) {
    int first = (int)(intptr_t)arg;
    void *kept[64] = {0};
    for (int i = 0; i < 20000; i++) {
        void **at = &kept[i % 64];
        free(*at);
        *at = malloc(i % 300);
        if (i % 1000 == 0 && i / 1000 < 8) free(early[first + i / 1000]);
    }
    for (int i = 0; i < 64; i++) free(kept[i]);
    return 0;
}
int main(int count, char **words) {
    int is_inside = strcmp(words[1], "inside") == 0;
    (void)count;
    at_relocation();
    void *p = malloc(50);
    MUST(is_ours(p) == is_inside);
    free(p);
    size_t before = given;
    free(early[0]);
    MUST(given == before + 1);
    MUST(malloc_usable_size(early[1]) == 100);
    early[2] = realloc(early[2], 5000);
    MUST(early[2][0] == 2 && early[2][99] == 2);
    early[2] = realloc(early[2], 50);
    MUST(early[2][49] == 2);
    free(early[2]);
    early[3] = realloc(early[3], 20);
    MUST(early[3][19] == 3);
    free(early[3]);
    free(libcs[0]);
    if (LIBCS) {
        /* as from a library that is bound past us: one where libc's heap was at the swap, and one with a mapping of its own */
        for (int i = 0; i < 2; i++) {
            size_t bytes = i ? 1 << 20 : 200;
            libcs[1] = __libc_malloc(bytes);
            MUST(malloc_usable_size(libcs[1]) + 8 >= bytes);
            free(libcs[1]);
            libcs[2] = __libc_malloc(bytes);
            memset(libcs[2], 7, bytes);
            libcs[3] = realloc(libcs[2], 2 * bytes);
            MUST(((char *)libcs[3])[bytes - 1] == 7);
            free(libcs[3]);
        }
    }
    pthread_t threads[4];
    before = given;
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, work, (void *)(intptr_t)(16 + 8 * i));
    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
    MUST(is_inside || given >= before + 32);
    int (*serving)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "quire_malloc_serving");
    printf("%d wrong, serving %d\n", wrong, serving ? serving() : -1);
    return wrong;
}
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """The program without blocks of libc's, and with them: libmimalloc.so has libc's second names too."""
    folder = tmp_path_factory.mktemp("swap")
    return [build(folder, PROGRAM, f"program{libcs}", ["-pthread", "-ldl", "-rdynamic", f"-DLIBCS={libcs}"]) for libcs in (0, 1)]


def swapped(program, preload, to):
    """What the program says with this malloc in the place of its own; the environment's order is `preload`."""
    env = {"LD_PRELOAD": ":".join(preload), "QUIRE_SWAP": to, "MALLOC_MMAP_THRESHOLD_": "131072"}  # libc's stays where it is then
    done = subprocess.run([program, "inside" if to == own.ITSELF else "outside"], env=env, capture_output=True, text=True, check=False, timeout=toolkit.HANGS_S)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


@pytest.mark.parametrize("preload", [[DROP_IN, HELPER], [HELPER, DROP_IN]], ids=["swap_first", "drop_in_first"])
def test_a_block_from_before_the_swap_and_one_of_libcs_go_back_to_where_they_came_from(programs, preload):
    for program in programs:
        assert "0 wrong" in swapped(program, preload, DROP_IN)


def test_no_other_malloc_is_given_a_block_from_before_the_swap(programs):
    for peer in peers.installed():
        assert "0 wrong" in swapped(programs[0], [peer.path, HELPER], peer.path), peer
    for program in programs:
        assert "0 wrong" in swapped(program, [bindings.libc_path(), HELPER], bindings.libc_path())
        assert "0 wrong" in swapped(program, [HELPER], own.ITSELF)


def test_the_drop_in_serves_a_swapped_program_by_its_short_way(programs):
    env = own.dress(programs[0], DROP_IN)({})
    assert "serving 1" in swapped(programs[0], env["LD_PRELOAD"].split(":"), DROP_IN)
