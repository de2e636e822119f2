# SPDX-License-Identifier: MIT
"""own_test.py - allocators that a program brought along: instructions and entries as a table, calls as events, programs that stay as they are."""
import json
import os
import re
import shutil
import subprocess

import pytest

from record_kit import BUILD, ROOT, RECORDER, analyse, build, record

OWN = ROOT / "tools" / "native" / "own"
HELPER = BUILD / "tools" / "quire-own"
LONG = pytest.mark.skipif(not os.environ.get("QUIRE_TEST_LONG"), reason="QUIRE_TEST_LONG is not set")
pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="entries are patched on x86-64 alone")

TABLE = r"""
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include "entry.h"
#include "insn.h"
#include "names.h"

static int wrong;
#define MUST(x, what) ((x) ? 0 : (wrong++, printf("line %d: %s\n", __LINE__, what)))

static const struct { const char *code; unsigned bytes, kind; } insns[] = {
    {"\x55", 1, INSN_PLAIN}, {"\x48\x89\xe5", 3, INSN_PLAIN}, {"\x48\x83\xec\x18", 4, INSN_PLAIN}, {"\x41\x57", 2, INSN_PLAIN},
    {"\x48\x81\xec\x00\x01\x00\x00", 7, INSN_PLAIN}, {"\xf3\x0f\x1e\xfa", 4, INSN_PLAIN}, {"\x64\x48\x8b\x04\x25\x00\x00\x00\x00", 9, INSN_PLAIN},
    {"\x48\x8b\x05\x10\x00\x00\x00", 7, INSN_PLAIN}, {"\x48\xb8\x01\x02\x03\x04\x05\x06\x07\x08", 10, INSN_PLAIN}, {"\x66\xb8\x01\x02", 4, INSN_PLAIN},
    {"\xf6\x05\x01\x02\x03\x04\x01", 7, INSN_PLAIN}, {"\xf6\xd8", 2, INSN_PLAIN}, {"\x0f\xba\xe0\x05", 4, INSN_PLAIN}, {"\xc5\xf8\x77", 3, INSN_PLAIN},
    {"\xc5\xfa\x6f\x07", 4, INSN_PLAIN}, {"\xc4\xe3\x7d\x39\xc1\x01", 6, INSN_PLAIN}, {"\x62\xf1\x7c\x48\x10\x47\x01", 7, INSN_PLAIN},
    {"\x66\x2e\x0f\x1f\x84\x00\x00\x00\x00\x00", 10, INSN_PLAIN}, {"\xeb\x10", 2, INSN_JUMP}, {"\xe9\x00\x00\x00\x00", 5, INSN_JUMP}, {"\x74\xfe", 2, INSN_BRANCH},
    {"\x0f\x84\x00\x00\x00\x00", 6, INSN_BRANCH}, {"\xe8\x00\x00\x00\x00", 5, INSN_CALL}, {"\xe2\xfe", 2, INSN_LOOP}, {"\xc3", 1, INSN_END}, {"\xff\xe0", 2, INSN_END},
    {"\xff\x25\x00\x00\x00\x00", 6, INSN_END}, {"\xff\xd0", 2, INSN_PLAIN}, {"\x0f\x0b", 2, INSN_END}, {"\x06", 0, INSN_UNKNOWN}, {"\x66\xe8\x00\x00\x00\x00", 0, INSN_UNKNOWN},
    {"\x0f\x04", 0, INSN_UNKNOWN}, {"\x66\x66\x66\x66\x66\x66\x66\x66\x66\x66\x66\x66\x66\x66\x66\x90", 0, INSN_UNKNOWN},
};

/* `moved` 0: refused. */
static const struct { const char *what, *code; unsigned bytes, room, skip, moved; } entries[] = {
    {"usual", "\x55\x48\x89\xe5\x41\x57\xc3", 7, 16, 0, 6},
    {"behind endbr64", "\xf3\x0f\x1e\xfa\x48\x83\xec\x08\x31\xc0\x48\x83\xc4\x08\xc3", 15, 16, 4, 6},
    {"tail jump", "\xe9\x00\x01\x00\x00", 5, 16, 0, 5},
    {"return, then padding", "\xc3\x66\x0f\x1f\x84\x00\x00\x00\x00\x00", 1, 10, 0, 1},
    {"return, then another function", "\xc3\x55\x48\x89\xe5\xc3", 1, 6, 0, 0},
    {"return, and the end", "\xc3\x90\x90\x90", 1, 4, 0, 0},
    {"a loop back to its second instruction", "\x31\xc0\xff\xc0\x39\xf8\x75\xfa\xc3", 9, 16, 0, 0},
    {"a loop back to its first", "\xff\xc0\x39\xf8\x90\x75\xf9\xc3", 8, 16, 0, 5},
    {"a call that returns into the jump", "\x90\xe8\x00\x00\x00\x00\xc3", 7, 16, 0, 6},
    {"two calls", "\xff\xd0\xff\xd0\xc3\x90\x90", 5, 16, 0, 5},
    {"loop instruction", "\xe2\xfe\x90\x90\x90\x90\xc3", 7, 16, 0, 0},
    {"unknown", "\x06\x90\x90\x90\x90\x90\xc3", 7, 16, 0, 0},
    {"unknown, further on", "\x90\x90\x90\x90\x90\x90\x06\xc3", 8, 16, 0, 0},
    {"falls out of its end", "\x90\x90\x90", 3, 16, 0, 0},
};

static const struct { const char *name; unsigned family, call; } names[] = {
    {"mi_malloc", OWN_MIMALLOC, OWN_ALLOC}, {"mi_heap_calloc", OWN_MIMALLOC, OWN_ZEROED}, {"mi_heap_new", OWN_NOBODY, 0}, {"mi_free_size", OWN_MIMALLOC, OWN_FREE},
    {"mi_free_generic_mt", OWN_NOBODY, 0}, {"_rjem_sdallocx", OWN_JEMALLOC, OWN_FREE}, {"xallocx", OWN_JEMALLOC, OWN_RESIZE_HERE}, {"je_arena_malloc", OWN_NOBODY, 0},
    {"tc_newarray", OWN_TCMALLOC, OWN_ALLOC}, {"malloc", OWN_LIBC, OWN_ALLOC}, {"_Znwm", OWN_LANGUAGE, OWN_ALLOC}, {"_ZnwmPv", OWN_NOBODY, 0},
    {"_ZdlPvmSt11align_val_t", OWN_LANGUAGE, OWN_FREE}, {"__rust_realloc", OWN_LANGUAGE, OWN_RESIZE},
    {"_RNvCsfLfy6EI15iL_7___rustc12___rust_alloc", OWN_LANGUAGE, OWN_ALLOC}, {"_RNvCsfLfy6EI15iL_7___rustc26___rust_alloc_error_handler", OWN_NOBODY, 0},
};

int twice(int n);
__asm__(".text\n.p2align 4\ntwice: push %rbp\nmov %rsp, %rbp\nlea (%rdi,%rdi), %eax\npop %rbp\nret\n.p2align 4\n");

static void patch_and_put_back(void) {
    unsigned char *pages = entry_pages_near((unsigned long)twice, (unsigned long)twice + 64, 4096);
    struct entry entry = {.function = (unsigned char *)twice, .stub = pages};
    MUST(pages != 0 && entry_look((unsigned char *)twice, 9, 16, &entry.plan) == 0, "twice() is usual");
    unsigned char before[16];
    memcpy(before, (void *)twice, 16);
    entry.to = pages + 2048;  /* lea eax, [rdi + rdi * 2]; ret */
    memcpy(pages + 2048, "\x8d\x04\x7f\xc3", 4);
    MUST(entry_prepare(&entry), "in reach");
    mprotect((void *)((unsigned long)twice & -4096), 8192, PROT_READ | PROT_WRITE | PROT_EXEC);
    mprotect(pages, 4096, PROT_READ | PROT_EXEC);
    entry_patch(&entry);
    int (*volatile call)(int) = twice;
    int (*original)(int) = (int (*)(int))entry_original(&entry);
    MUST(call(7) == 21, "the hook");
    MUST(original(7) == 14, "the original");
    entry_unpatch(&entry);
    MUST(call(7) == 14 && memcmp(before, (void *)twice, 16) == 0, "put back");
}

int main(void) {
    for (unsigned i = 0; i < sizeof insns / sizeof insns[0]; i++) {
        unsigned char code[32];
        memset(code, 0x90, sizeof code);
        memcpy(code, insns[i].code, insns[i].bytes ? insns[i].bytes : strlen(insns[i].code) + 4 * (strlen(insns[i].code) == 2));
        struct insn insn = insn_decode(code, sizeof code);
        if (insn.kind != insns[i].kind || insn.length != insns[i].bytes) {
            wrong++;
            printf("instruction %u: kind %d, %u bytes\n", i, (int)insn.kind, insn.length);
        }
        MUST(insns[i].bytes < 2 || insn_decode(code, insns[i].bytes - 1).length < insns[i].bytes, "not beyond the end");
    }
    for (unsigned i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        struct entry_plan plan;
        const char *why = entry_look((const unsigned char *)entries[i].code, entries[i].bytes, entries[i].room, &plan);
        if ((why == 0) != (entries[i].moved != 0) || (why == 0 && (plan.skip != entries[i].skip || plan.moved != entries[i].moved))) {
            wrong++;
            printf("%s: %s, skip %u, moved %u\n", entries[i].what, why ? why : "patched", plan.skip, plan.moved);
        }
    }
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct own_kind kind = {0};
        unsigned family = own_name(names[i].name, &kind);
        MUST(family == names[i].family && (family == OWN_NOBODY || kind.call == names[i].call), names[i].name);
    }
    patch_and_put_back();
    return wrong;
}
"""

# An allocator of a program's own, in C++ for its exceptions; main's calls are counted by hand.
INSIDE = r"""
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
static char pool[1 << 20];
static size_t used;
#define EXPORT extern "C" __attribute__((noinline))
EXPORT void *mi_malloc(size_t n) {
    void *p = pool + used;
    if (n > sizeof pool) return nullptr;
    used += (n + 63) & ~(size_t)63;
    return p;
}
EXPORT void *mi_calloc(size_t c, size_t n) { return memset(mi_malloc(c * n), 0, c * n); }
EXPORT void *mi_malloc_aligned(size_t n, size_t) { return mi_malloc(n); }
EXPORT void mi_free(void *p) { if (p) memset(p, 0xdd, 1); }
EXPORT void *mi_realloc(void *old, size_t n) { void *p = mi_malloc(n); if (old) { memcpy(p, old, 8); mi_free(old); } return p; }
EXPORT void *mi_new(size_t n) { void *p = mi_malloc(n); if (!p) throw std::bad_alloc(); return p; }
EXPORT size_t mi_usable_size(void *) { return 8; }
__attribute__((noinline)) void site() { mi_free(mi_malloc(24)); }
int main() {
    int caught = 0;
    char *a = (char *)mi_malloc(100), *b = (char *)mi_calloc(3, 50), *c = (char *)mi_malloc_aligned(64, 64);
    strcpy(a, "kept");
    a = (char *)mi_realloc(a, 300);
    try { mi_new(2 << 20); } catch (const std::bad_alloc &) { caught++; }
    for (int i = 0; i < 10; i++) site();
    free(malloc(1000));
    printf("%s %d %d %s\n", a, caught, b[149], a >= pool && a < pool + sizeof pool ? "inside" : "outside");
    mi_free(a); mi_free(b); mi_free(c); mi_free(nullptr);
}
"""


@pytest.fixture(scope="module")
def inside(tmp_path_factory):
    return build(tmp_path_factory.mktemp("own"), INSIDE, language="c++", flags=["-Wno-unused-result"])


def look(*files):
    return json.loads(subprocess.run([HELPER, *files], check=True, capture_output=True, text=True).stdout)


def test_instructions_entries_and_names_are_told_as_the_table_says(tmp_path):
    program = build(tmp_path, TABLE, flags=["-w", f"-I{OWN}", "-D_GNU_SOURCE", *(str(OWN / f"{n}.c") for n in ("insn", "entry", "names"))])
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_calls_of_an_allocator_inside_are_events_once_each_and_exceptions_pass(tmp_path, inside):
    alone = subprocess.run([inside], capture_output=True, text=True).stdout
    done, trace = record(tmp_path, [inside])
    assert done.returncode == 0 and done.stderr == "" and done.stdout == alone == "kept 1 0 inside\n"
    report = analyse(trace)
    sites = {site["function"]: site for site in report["sites"]}
    assert sites["site()"]["count"] == 10, sites["site()"]
    # malloc, calloc, aligned; ten times malloc and free; libc's malloc and free, and its printf's buffer; one realloc; three frees
    assert report["trace"]["reallocs"] == 1 and report["trace"]["unknown_stacks"] == 0
    assert report["trace"]["allocations"] - report["trace"]["frees"] in (1, 2)  # the stream's buffer, libstdc++'s pool


def test_an_allocator_of_which_one_function_is_not_understood_is_left_alone_as_a_whole(tmp_path):
    source = INSIDE.replace('EXPORT void mi_free(void *p) { if (p) memset(p, 0xdd, 1); }', r"""
__asm__(".globl mi_free\n.type mi_free, @function\nmi_free:\n1: inc %rax\ninc %rcx\ncmp $5, %rcx\njl 1b+3\nret\n.size mi_free, .-mi_free\n");
extern "C" void mi_free(void *p);""")
    program = build(tmp_path, source, language="c++")
    told = look(program)["modules"][0]
    assert told["allocator"] == "mimalloc" and told["refused"] == "mi_free" and "loop" in told["why"]
    done, trace = record(tmp_path, [program])
    assert done.returncode == 0 and done.stdout.startswith("kept 1 0")
    assert "mi_free" in done.stderr and "not seen" in done.stderr
    assert not [site for site in analyse(trace)["sites"] if site["function"] == "site()"]


def test_where_a_library_has_started_a_thread_already_nothing_is_patched_and_that_is_said(tmp_path, inside):
    source = """
    #include <pthread.h>
    #include <unistd.h>
    static void *wait_here(void *unused) { pause(); return unused; }
    __attribute__((constructor)) static void start(void) { pthread_t thread; pthread_create(&thread, 0, wait_here, 0); }
    """
    library = build(tmp_path, source, name="early.so", flags=["-shared", "-fPIC"])
    done, _ = record(tmp_path, [inside], environment={"LD_PRELOAD": f"{RECORDER}:{library}"})
    assert done.returncode == 0 and done.stdout == "kept 1 0 inside\n" and "other threads may run already" in done.stderr


def test_who_brought_nothing_along_is_not_taken_for_one_who_did(tmp_path):
    assert look("/bin/sh") == {"modules": [], "called": []}
    assert look(__file__, RECORDER / "nothing") == {"modules": [], "called": []}
    cut = tmp_path / "cut"
    whole = open("/bin/sh", "rb").read()
    for bytes_kept in (1, 63, 64, 200, len(whole) // 2, len(whole) - 100):
        cut.write_bytes(whole[:bytes_kept])
        look(cut)


@LONG
def test_lengths_of_instructions_are_those_of_a_disassembler(tmp_path):
    if not shutil.which("objdump"):
        pytest.skip("no objdump")
    driver = r"""
    #include <stdio.h>
    #include <stdlib.h>
    #include "insn.h"
    int main(void) {
        unsigned bytes, n = 0, wrong = 0;
        char hex[64];
        while (scanf("%u %63s", &bytes, hex) == 2) {
            unsigned char code[32] = {0};
            for (unsigned i = 0; i < bytes; i++) { unsigned v; sscanf(hex + 2 * i, "%2x", &v); code[i] = (unsigned char)v; }
            n++;
            wrong += insn_decode(code, 32).length != bytes;
        }
        printf("%u %u\n", n, wrong);
    }"""
    program = build(tmp_path, driver, flags=["-w", f"-I{OWN}", str(OWN / "insn.c")])
    libc = next(w for w in re.findall(r"/\S+", subprocess.run(["ldd", "/bin/sh"], capture_output=True, text=True).stdout) if "libc.so" in w)
    listed = subprocess.run(["objdump", "-d", "-w", "--insn-width=16", libc], capture_output=True, text=True).stdout
    lines = [line.split("\t") for line in listed.splitlines()]
    codes = [words[1].replace(" ", "") for words in lines if len(words) > 2 and "(bad)" not in words[2]]
    given = "".join(f"{len(code) // 2} {code}\n" for code in codes)
    count, wrong = subprocess.run([program], input=given, capture_output=True, text=True).stdout.split()
    assert int(count) > 100000 and int(wrong) == 0


POOLS = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include <quire/record.h>
static struct quire_record_pool nodes = {"nodes", 0}, texts = {"texts", 0};
static char *chunk;
__attribute__((noinline)) static void *node(int i) { void *p = chunk + 64 * i; quire_record_alloc(&nodes, p, 48); return p; }
__attribute__((noinline)) static void *text(int i) { void *p = chunk + 64 * i; quire_record_alloc(&texts, p, 10); return p; }
static void work(void) {
    for (int i = 0; i < 100; i++) {
        void *n = node(i), *t = text(i);
        if (i % 2) quire_record_realloc(&texts, t, t, 20);
        quire_record_free(&nodes, n);
    }
    quire_record_realloc(&nodes, NULL, chunk, 5);
    quire_record_free(&nodes, chunk);
    quire_record_free(&texts, NULL);
}
int main(int count, char **arguments) {
    chunk = malloc(1 << 16);
    printf("%d\n", quire_record_on());
    fflush(stdout);
    if (count > 1 && fork() == 0) { work(); _exit(0); }
    work();
    wait(NULL);
}
"""


def test_blocks_of_a_programs_own_pools_are_sites_with_the_pools_name_and_without_a_recorder_nothing(tmp_path):
    header = ROOT / "tools" / "native" / "pools" / "include"
    program = build(tmp_path, POOLS, flags=["-w", f"-I{header}", f"-L{BUILD}", "-l:libquire-record.a"])
    assert subprocess.run([program], capture_output=True, text=True).stdout == "0\n"
    done, trace = record(tmp_path, [program, "fork"])
    assert done.returncode == 0 and done.stdout == "1\n", done.stderr
    traces = sorted(tmp_path.glob("trace.qtr*"))
    assert len(traces) == 2  # of the child too
    for one in traces:
        report = analyse(one)
        sites = {site["function"]: site for site in report["sites"]}
        nodes, texts = sites["node (pool nodes)"], sites["text (pool texts)"]
        assert nodes["count"] == nodes["freed"] == 100 and texts["count"] == 100, texts
        assert report["trace"]["unknown_frees"] == 0 and report["trace"]["reallocs"] == 50


def test_the_header_compiles_alone(tmp_path):
    header = ROOT / "tools" / "native" / "pools" / "include"
    for compiler, standard, language in (("cc", "c11", "c"), ("c++", "c++17", "c++")):
        flags = [f"-std={standard}", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-x", language, f"-I{header}"]
        subprocess.run([compiler, *flags, header / "quire" / "record.h"], check=True)
