# SPDX-License-Identifier: MIT
"""The recorder on arm64: compiled by Debian's cross compiler, run by qemu-user. A program's trace tells the same there as here.

The recorder's compression is left out (programs/plain_zstd.c): the other machine's libzstd is seldom here.
QUIRE_TEST_LONG: all tests of record_test.py there, too.
"""
import os
import shutil
import subprocess
import sys

import pytest
from arm64_percpu_test import CC, QEMU, needs
from record_kit import HERE, ROOT, Machine, analyse, build, record

PREFIX = "aarch64-linux-gnu"
COMMON_PARTS = ("hooks", "own_none", "thread", "touched", "stack", "meta", "file", "process", "rules_tables")
RECORDER_PARTS = (*COMMON_PARTS, "preload", "pool")
ATTACHED_PARTS = (*COMMON_PARTS, "attach", "slots", "new")
PARTS_BELOW = ("prof/cfi.c", "prof/rule.c", "os/os_readable.c", "os/os_object.c")
FLAGS = ["-std=gnu11", "-O1", "-g", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-omit-frame-pointer", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-DQUIRE_CHECK=0", f"-I{ROOT}/tools/native/pools/include"]
# What the emulator stands in the way of: names from a libc that it finds elsewhere, memory that the kernel wipes at a fork, descriptors of its own.
LEFT_OUT = "wrappers or ordinary_end or SYS_clone or closes_every or becomes_another or killed_at_a_random"
# What has nothing to do with the processor: the reader's own tests, C++'s standard library.
LEFT_OUT += " or cxx or another_preloaded or cut_off or flipped or cannot_be_written or empty_and_newer"

# Every call, generations, deep and mutual recursion, frames of many sizes, code without unwind tables, a signal handler, threads that free each other's.
EVERYTHING = r"""
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#define LINK __attribute__((noinline))
void *bare(int n);
struct node { struct node *next; char pad[40]; };
static LINK struct node *make(struct node *next) { struct node *n = malloc(sizeof *n); n->next = next; return n; }
static LINK void phase(int count) {
    struct node *list = NULL;
    for (int i = 0; i < count; i++) list = make(list);
    while (list) { struct node *next = list->next; free(list); list = next; }
}
static LINK void *deep(int n) { char room[n % 7 * 16 + 1]; memset(room, n, sizeof room); void *p = n > 0 ? deep(n - 1) : malloc(10); if (!p || room[0] != n) abort(); return p; }
static LINK void *odd(int n);
static LINK void *even(int n) { void *p = n ? odd(n - 1) : calloc(3, 5); if (!p) abort(); return p; }
static LINK void *odd(int n) { volatile char room[200]; room[n] = 1; void *p = n ? even(n - 1) : malloc(8); if (!p || !room[n]) abort(); return p; }
static LINK void *above(int n) { char room[500]; memset(room, n, sizeof room); void *p = bare(n); if (room[n] == 9) abort(); return p; }
static void *_Atomic box[64];
static void *_Atomic kept;
static LINK void handler(int s) { (void)s; kept = malloc(44); free(kept); }
static LINK void family(void) {
    void *m = realloc(malloc(100), 1000), *p = NULL;
    if (posix_memalign(&p, 4096, 8192)) abort();
    free(reallocarray(m, 30, 100)); free(p); free(aligned_alloc(64, 128)); free(memalign(256, 300)); free(realloc(NULL, 7)); malloc(11);
}
#define N 3000
static void *producer(void *arg) { for (int i = 0; i < N; i++) { void *p = malloc(24 + i % 8 + (size_t)arg), *none = NULL;
    while (!__atomic_compare_exchange_n((void **)&box[i % 64], &none, p, 0, 5, 5)) { none = NULL; sched_yield(); } } return NULL; }
static void *consumer(void *arg) { for (int i = 0; i < N; i++) { void *p; while (!(p = __atomic_exchange_n((void **)&box[i % 64], arg, 5))) sched_yield(); free(p); } return NULL; }
int main(void) {
    pthread_t a, b;
    for (int i = 0; i < 5; i++) phase(100 + i);
    for (int i = 0; i < 300; i++) { free(deep(i % 30)); free(even(i % 40)); free(above(i % 8)); }
    family();
    signal(SIGUSR1, handler);
    for (int i = 0; i < 10; i++) raise(SIGUSR1);
    pthread_create(&a, 0, producer, (void *)1); pthread_create(&b, 0, consumer, 0); pthread_join(a, 0); pthread_join(b, 0);
    return 0;
}
"""
# Behind it, its main() called everything(): the same program, recorded as QUIRE_CONF=record does it, by itself.
BY_ITSELF = r"""
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
static const char *path;
static bool name(char *to, size_t bytes) { snprintf(to, bytes, "%s", path); return true; }
int main(int argc, char **argv) {
    void *library = dlopen(argv[1], RTLD_NOW);
    if (!library) { puts(dlerror()); return 2; }
    int (*begin)(bool (*)(char *, size_t), uint64_t, uint64_t) = dlsym(library, "quire_record_begin"), (*end)(void) = dlsym(library, "quire_record_end");
    path = argv[2];
    if (argc != 3 || end() == 0 || begin(name, 0, 0) != 0 || begin(name, 0, 0) == 0) return 3;
    int status = everything();
    return end() == 0 && end() != 0 ? status : 4;
}
"""
BARE = "#include <stdlib.h>\nvoid *bare(int n) { volatile int room[20]; room[n] = n; return malloc(room[n] + 1); }\n"


def recorder_of(folder, parts, name):
    """A recorder of these parts, for the other machine."""
    headers = folder / "include"
    headers.mkdir()
    for header in ("zstd.h", "zstd_errors.h"):
        shutil.copyfile(f"/usr/include/{header}", headers / header)
    sources = [ROOT / "tools" / "native" / "record" / f"{part}.c" for part in parts] + [ROOT / "src" / part for part in PARTS_BELOW]
    include = [f"-I{folder}" for folder in (ROOT / "src", ROOT / "include", headers)]
    recorder = folder / name
    own = ROOT / "test" / "native" / "programs" / "plain_zstd.c"
    exported = f"-Wl,--version-script={ROOT}/tools/native/record/{'attach' if 'attach' in parts else 'record'}.map"
    done = subprocess.run([f"{PREFIX}-gcc", *FLAGS, *include, *sources, own, exported, "-Wl,--no-undefined", "-o", recorder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return recorder


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    """The other machine, with a recorder."""
    return Machine(PREFIX, recorder_of(tmp_path_factory.mktemp("recorder"), RECORDER_PARTS, "libquire-record.so"))


def everything(folder, machine, source=EVERYTHING):
    """EVERYTHING, or what is made of it, compiled."""
    (folder / "bare.c").write_text(BARE)
    plain = ["-O1", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fno-omit-frame-pointer", "-c", "bare.c"]
    subprocess.run([machine.compiler(), *plain], cwd=folder, check=True)
    flags = ["-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-w", str(folder / "bare.o")]
    return build(folder, source, flags=flags, machine=machine)


def told(folder, machine):
    """What a trace says of EVERYTHING: {(function, line, stack as far as it is the program's): counts}, and the sums."""
    done, trace = record(folder, [everything(folder, machine)], machine=machine)
    assert (done.returncode, done.stderr) == (0, "")
    return told_by(trace)


def told_by(trace):
    """The same of a trace."""
    report = analyse(trace)
    about = report["trace"]
    assert about["complete"] and about["unknown_stacks"] == 0
    sites = {}
    for site in report["sites"]:
        frames = [frame for frame in site["stack"] if "(program.c:" in frame or frame.startswith("bare")]
        outermost = next((i for i, frame in enumerate(frames) if frame.startswith(("main ", "everything ", "producer "))), len(frames))
        key = tuple(frame.partition("+")[0].replace("everything ", "main ") for frame in frames[: outermost + 1])
        if frames and key[0].startswith(("bare", *OWN)):
            figures = (site["count"], site["bytes"], site["never_freed"], site["reallocs"], site["realloc_bytes"], site["zeroed"], site["aligned"])
            sites[key] = tuple(map(sum, zip(figures, sites.get(key, (0,) * len(figures)))))
    return sites, {name: about[name] for name in ("allocations", "frees", "events", "unknown_frees", "missed_frees", "threads")}


OWN = ("make ", "deep ", "even ", "odd ", "handler ", "family ", "producer ")


@pytest.mark.by_turns
@needs(CC, QEMU)
@pytest.mark.skipif(HERE.prefix != "" or not os.path.exists("/usr/include/zstd.h"), reason="runs within another machine's tests, or there is no zstd.h")
def test_a_program_recorded_on_arm64_has_the_counts_of_every_site_that_it_has_here(tmp_path, there):
    folders = [tmp_path / "here", tmp_path / "there"]
    for folder in folders:
        folder.mkdir()
    sites, sums = told(folders[0], HERE)
    assert sum(counts[0] for key, counts in sites.items() if key[0].startswith("deep")) == 300
    assert (3000, 85500) == next(counts[:2] for key, counts in sites.items() if key[0].startswith("producer"))
    assert [key for key in sites if key[0] == "bare"] and all("main" in key[-1] or len(key) > 20 for key in sites if not key[0].startswith("producer"))
    assert told(folders[1], there) == (sites, sums)


@pytest.mark.by_turns
@needs(CC, QEMU)
@pytest.mark.skipif(HERE.prefix != "" or not os.path.exists("/usr/include/zstd.h"), reason="runs within another machine's tests, or there is no zstd.h")
def test_a_program_that_records_itself_on_arm64_has_the_same_counts(tmp_path, there):
    folders = [tmp_path / name for name in ("here", "there", "recorder")]
    for folder in folders:
        folder.mkdir()
    sites, sums = told(folders[0], HERE)
    recorder = recorder_of(folders[2], ATTACHED_PARTS, "libquire-attach.so")
    program = everything(folders[1], there, EVERYTHING.replace("int main(void)", "int everything(void)") + BY_ITSELF)
    trace = folders[1] / "t.qtr"
    done = subprocess.run([*there.emulator(), program, recorder, trace], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    found, found_sums = told_by(trace)
    assert found == sites and found_sums["threads"] == sums["threads"] and found_sums["unknown_frees"] == 0


@pytest.mark.skipif(not os.environ.get("QUIRE_TEST_LONG"), reason="half a minute of emulation; QUIRE_TEST_LONG=1")
@needs(CC, QEMU)
def test_the_recorders_own_tests_pass_on_arm64(there):
    environment = {**os.environ, "QUIRE_TEST_CROSS": PREFIX, "QUIRE_TEST_RECORDER": str(there.recorder)}
    files = [ROOT / "test" / "native" / name for name in ("record_test.py", "record_robust_test.py")]
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ROOT, "--confcutdir", ROOT / "test", *files, "-k", f"not ({LEFT_OUT})"],
                          env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-4000:]
