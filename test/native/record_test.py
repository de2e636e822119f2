# SPDX-License-Identifier: MIT
"""record_test.py - the recorder and the analyser on programs whose allocations are known to the last one."""
import platform
import subprocess
import pytest
from record_kit import HERE, analyse, analyse_raw, build, program_ops, record, site

EVERY_CALL = r"""
#include <malloc.h>
#include <stdlib.h>
#include <errno.h>
#include <stdio.h>
int main(void) {
    void *m = malloc(100), *c = calloc(10, 20), *a = aligned_alloc(64, 128), *g = memalign(256, 300), *v = valloc(5000), *w = pvalloc(1);
    void *p = NULL;
    if (posix_memalign(&p, 4096, 8192)) return 1;
    m = realloc(m, 1000);
    m = reallocarray(m, 30, 100);
    void *n = realloc(NULL, 7);
    void *z = malloc(0);
    errno = 77;
    if (malloc(-1ul) || errno != ENOMEM) return 2;
    if (reallocarray(m, -1ul, 16) || errno != ENOMEM) return 3;
    errno = 77;
    free(m); free(c); free(a); free(g); free(v); free(w); free(p); free(n); free(z); free(NULL);
    return errno == 77 ? 0 : 4;
}
"""


def test_every_call_of_the_malloc_family_is_seen_with_its_size_and_its_free(tmp_path):
    program = build(tmp_path, EVERY_CALL)
    done, trace = record(tmp_path, [program])
    assert done.returncode == 0 and done.stderr == ""
    report = analyse(trace)
    own = [entry for entry in report["sites"] if entry["function"] == "main"]
    sizes = sorted(size["bytes"] for entry in own for size in entry["sizes"]["top"] for _ in range(size["count"]))
    assert sizes == [0, 1, 7, 100, 128, 200, 300, 5000, 8192]
    assert sum(entry["never_freed"] for entry in own) == 0
    assert sum(entry["reallocs"] for entry in own) == 2 and sum(entry["realloc_bytes"] for entry in own) == 4000
    assert sum(entry["zeroed"] for entry in own) == 1 and sum(entry["aligned"] for entry in own) == 5
    assert report["trace"]["complete"] and report["trace"]["unknown_frees"] == 0
    assert report["trace"]["command"] == [str(program)]


SLOTS_SIDE_BY_SIDE = 16  # of one thread: Q7 of tools/native/trace/program.h

PHASES = r"""
#include <stdlib.h>
struct node { struct node *next; char pad[40]; };
static struct node *make(struct node *next) { struct node *n = malloc(sizeof *n); n->next = next; return n; }
static void phase(int count) {
    struct node *list = NULL;
    for (int i = 0; i < count; i++) list = make(list);
    while (list) { struct node *next = list->next; free(list); list = next; }
}
int main(void) { for (int i = 0; i < 5; i++) phase(100); void *one; for (int i = 0; i < 50; i++) { one = malloc(32); free(one); } return 0; }
"""


def test_generations_lifetimes_and_peaks_are_those_of_the_program(tmp_path):
    program = build(tmp_path, PHASES, flags=["-fno-inline"])
    _, trace = record(tmp_path, [program])
    report = analyse(trace)
    nodes = site(report, "make")
    assert (nodes["count"], nodes["bytes"], nodes["peak_live_objects"], nodes["peak_live_bytes"]) == (500, 24000, 100, 4800)
    generations = nodes["generations"]
    assert generations["count"] == 5 and generations["open_at_end"] is False
    assert (generations["allocated_bytes_sum"], generations["allocated_bytes_max"]) == (24000, 4800)
    assert (generations["peak_live_bytes_sum"], generations["objects_max"]) == (24000, 100)
    assert nodes["lifetime_allocations"]["max"] == 99 and nodes["lifetime_ns"]["p50"] <= nodes["lifetime_ns"]["max"]
    single = [entry for entry in report["sites"] if entry["function"] == "main" and entry["count"] == 50][0]
    assert single["peak_live_objects"] == 1 and single["generations"]["count"] == 50
    assert nodes["bytes_at_program_peak"] == 4800


def test_the_sites_bytes_at_the_programs_peak_sum_to_the_peak(tmp_path):
    for source in (PHASES, THREADS, EVERY_CALL):
        _, trace = record(tmp_path, [build(tmp_path, source)])
        report = analyse(trace)
        assert sum(entry["bytes_at_program_peak"] for entry in report["sites"]) == report["trace"]["peak_live_bytes"]
        assert sum(entry["count"] for entry in report["sites"]) == report["trace"]["allocations"]
        trace.unlink()


def test_a_site_tells_function_file_and_line_and_two_callers_apart(tmp_path):
    source = PHASES.replace("phase(100);", "phase(100);\n phase(3);")
    program = build(tmp_path, source, flags=["-fno-inline"])
    _, trace = record(tmp_path, [program])
    report = analyse(trace)
    makes = [entry for entry in report["sites"] if entry["function"] == "make"]
    assert sorted(entry["count"] for entry in makes) == [3, 500]
    assert makes[0]["file"].endswith("program.c") and makes[0]["line"] == 4
    assert makes[0]["stack"][0] == "make (program.c:4)" and makes[0]["stack"][2].startswith("main (program.c:")


def test_inlined_functions_are_frames_of_their_own(tmp_path):
    source = PHASES.replace("static struct node *make", "static inline __attribute__((always_inline)) struct node *make")
    _, trace = record(tmp_path, [build(tmp_path, source)])
    makes = [entry for entry in analyse(trace)["sites"] if entry["function"] == "make"]
    assert sum(entry["count"] for entry in makes) == 500
    assert makes[0]["stack"][0] == "make (inlined) (program.c:4)" and makes[0]["inlined"]
    assert any(text.startswith(("phase (program.c:", "phase (inlined) (program.c:")) for text in makes[0]["stack"])


def test_a_stripped_program_still_has_distinct_sites(tmp_path):
    program = build(tmp_path, PHASES, flags=["-O0", "-s"])
    _, trace = record(tmp_path, [program])
    names = {entry["function"]: entry["count"] for entry in analyse(trace)["sites"]}
    mine = {name: count for name, count in names.items() if name.startswith("program+0x")}
    assert sorted(mine.values()) == [50, 500]


WRAPPED = r"""
#include <stdlib.h>
#include <string.h>
void *xmalloc(size_t n) { void *p = malloc(n); if (!p) abort(); return p; }
void *company_get(size_t n) { return xmalloc(n + 8); }
void red(void) { for (int i = 0; i < 10; i++) free(xmalloc(16)); }
void green(void) { for (int i = 0; i < 20; i++) free(company_get(16)); }
void blue(void) { for (int i = 0; i < 30; i++) free(strdup("blue")); }
int main(void) { red(); green(); blue(); return 0; }
"""


def test_wrappers_are_folded_by_name_and_by_request(tmp_path):
    program = build(tmp_path, WRAPPED, flags=["-fno-inline", "-fno-optimize-sibling-calls"])
    _, trace = record(tmp_path, [program])
    counts = {entry["function"]: entry["count"] for entry in analyse(trace)["sites"]}
    assert (counts["red"], counts["company_get"], counts["blue"]) == (10, 20, 30)
    counts = {entry["function"]: entry["count"] for entry in analyse(trace, "--wrapper", "company_get")["sites"]}
    assert counts["green"] == 20 and "company_get" not in counts


def test_a_tiny_function_called_from_many_places_is_folded(tmp_path):
    callers = "".join(f"void user{i}(void) {{ free(get({i + 1})); }}\n" for i in range(9))
    calls = "".join(f"user{i}();" for i in range(9))
    source = "#include <stdlib.h>\nvoid *get(int n) { return malloc((size_t)n * 8) ?: (void *)1; }\n" + callers + \
             f"int main(void) {{ {calls} return 0; }}\n"
    program = build(tmp_path, source, flags=["-fno-inline", "-fno-optimize-sibling-calls"])
    _, trace = record(tmp_path, [program])
    names = {entry["function"] for entry in analyse(trace)["sites"]}
    assert {f"user{i}" for i in range(9)} <= names and "get" not in names


@pytest.mark.by_turns
def test_cxx_new_is_recorded_and_standard_containers_are_folded_into_their_users(tmp_path):
    source = r"""
#include <string>
#include <vector>
struct Thing { int values[20]; };
Thing *make() { return new Thing; }
void fill() { std::vector<std::string> lines; for (int i = 0; i < 40; i++) lines.emplace_back(100, 'x'); }
int main() { for (int i = 0; i < 30; i++) delete make(); fill(); }
"""
    program = build(tmp_path, source, flags=["-fno-inline"], language="c++")
    _, trace = record(tmp_path, [program])
    report = analyse(trace)
    assert site(report, "make()")["count"] == 30 and site(report, "make()")["sizes"]["max"] == 80
    assert sum(entry["count"] for entry in report["sites"] if entry["function"] == "fill()") >= 40
    assert not [entry for entry in report["sites"] if entry["function"].startswith("std::")]


THREADS = r"""
#include <pthread.h>
#include <stdlib.h>
#include <sched.h>
#define N 20000
static void *_Atomic box[64];
static void *producer(void *arg) { (void)arg; for (int i = 0; i < N; i++) { void *p = malloc(24 + i % 8);
    while (1) { void *none = NULL; if (__atomic_compare_exchange_n((void **)&box[i % 64], &none, p, 0, 5, 5)) break; sched_yield(); } } return NULL; }
static void *consumer(void *arg) { (void)arg; for (int i = 0; i < N; i++) { void *p;
    while (!(p = __atomic_exchange_n((void **)&box[i % 64], NULL, 5))) sched_yield(); free(p); } return NULL; }
int main(void) { pthread_t a, b; pthread_create(&a, 0, producer, 0); pthread_create(&b, 0, consumer, 0); pthread_join(a, 0); pthread_join(b, 0); return 0; }
"""


def replay_order_holds(streams, slots):
    """Run the streams as a replayer would: round-robin, a cross-thread op waits for its slot.  Objects left alive."""
    filled, at = [False] * slots, [0] * len(streams)
    while any(at[t] < len(stream) for t, stream in enumerate(streams)):
        moved = False
        for t, stream in enumerate(streams):
            while at[t] < len(stream):
                kind, _, flags, _, slot, _ = stream[at[t]]
                if kind in (4, 5) and not filled[slot]:
                    assert flags & 1, "an op without the cross-thread flag met an empty slot"
                    break
                if kind in (1, 2, 3):
                    assert not filled[slot] and not flags & 1
                    filled[slot] = True
                elif kind == 5:
                    filled[slot] = False
                at[t] += 1
                moved = True
        assert moved, "the program cannot go on: every thread waits"
    return sum(filled)


def test_cross_thread_frees_follow_their_allocations_and_the_program_replays_without_a_deadlock(tmp_path):
    _, trace = record(tmp_path, [build(tmp_path, THREADS)])
    report = analyse(trace, "--program", tmp_path / "p.qrp")
    made = site(report, "producer")
    assert (made["count"], made["cross_thread_frees"], made["never_freed"]) == (20000, 20000, 0)
    assert (made["threads_allocating"], made["threads_freeing"]) == (1, 1)
    assert report["trace"]["unknown_frees"] == 0 and report["trace"]["missed_frees"] == 0
    header, directory, streams = program_ops(tmp_path / "p.qrp")
    assert len(directory) >= 3 and sum(count for _, count, _, _ in directory) == header["ops"]
    assert replay_order_holds(streams, header["slots"]) == \
        report["trace"]["allocations"] - report["trace"]["frees"]


def test_the_global_order_is_kept_so_that_played_by_it_nobody_ever_waits(tmp_path):
    _, trace = record(tmp_path, [build(tmp_path, THREADS)])
    analyse(trace, "--program", tmp_path / "p.qrp")
    header, directory, streams = program_ops(tmp_path / "p.qrp")
    assert sum(ops for _, ops in header["runs"]) == header["ops"]
    at, filled = [0] * len(directory), set()
    for thread, ops in header["runs"]:
        for kind, _, _, _, slot, _ in streams[thread][at[thread]:at[thread] + ops]:
            if kind in (1, 2, 3):
                assert slot not in filled
                filled.add(slot)
            elif kind in (4, 5):
                assert slot in filled, "an op came before the object it is about"
                filled -= {slot} if kind == 5 else set()
        at[thread] += ops
    assert at == [count for _, count, _, _ in directory]


@pytest.mark.by_turns
def test_a_block_that_the_first_other_thread_made_is_never_freed_before_it_was_there(tmp_path):
    source = r"""
#include <pthread.h>
#include <stdlib.h>
static void *made(int n) { return malloc(n); }
static void *work(void *unused) { (void)unused; return made(77); }
int main(void) {
    void *got; pthread_t t;
    pthread_create(&t, 0, work, 0);
    for (int i = 0; i < 100000; i++) free(malloc(i % 100)); /* fast: events share the clock's readings */
    pthread_join(t, &got); free(got);
    for (int i = 0; i < 1003; i++) free(malloc(i % 100));
    return 0;
}
"""
    program = build(tmp_path, source)
    for attempt in range(10):
        _, trace = record(tmp_path, [program], tmp_path / f"{attempt}.qtr")
        report = analyse(trace)
        assert site(report, "made")["cross_thread_frees"] == 1
        assert report["trace"]["unknown_frees"] == 0 and report["trace"]["missed_frees"] == 0


def test_ages_are_measured_although_fast_calls_share_a_reading_of_the_clock(tmp_path):
    source = r"""
#include <stdlib.h>
#include <unistd.h>
static void *p[1000];
static void fill(void) { for (int i = 0; i < 1000; i++) p[i] = malloc(50); }
int main(void) { fill(); usleep(200000); for (int i = 0; i < 1000; i++) free(p[i]); return 0; }
"""
    _, trace = record(tmp_path, [build(tmp_path, source)])
    analyse(trace, "--profile", tmp_path / "profile.json")
    life = site(analyse(trace), "fill")["lifetime_ns"]
    assert life["p50"] > 1e8 and life["max"] < 3e11


def test_a_stack_through_code_without_unwind_information_is_whole(tmp_path):
    (tmp_path / "bare.c").write_text("#include <stdlib.h>\nvoid *bare(int n) { volatile int room[20]; room[n] = n; return malloc(room[n] + 1); }\n")
    subprocess.run([HERE.compiler(), "-O1", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fno-omit-frame-pointer", "-c", "bare.c"], cwd=tmp_path, check=True)
    source = r"""
#include <stdlib.h>
#include <string.h>
void *bare(int n);
static __attribute__((noinline)) void *outer(int n) { char room[500]; memset(room, n, sizeof room); void *p = bare(n); if (room[n] == 9) abort(); return p; }
static __attribute__((noinline)) void *outermost(int n) { void *p = outer(n); if (!p) abort(); return p; }
int main(void) { for (int i = 0; i < 300; i++) free(outermost(i % 8)); return 0; }
"""
    # On arm64 a frame pointer does not say where its frame ends: the caller's has to say it.
    frames = "-fno-omit-frame-pointer" if HERE.prefix.startswith("aarch64") or platform.machine() == "aarch64" else "-fomit-frame-pointer"
    _, trace = record(tmp_path, [build(tmp_path, source, flags=[frames, str(tmp_path / "bare.o")])])
    stack = [frame.partition(" ")[0].partition("+")[0] for frame in site(analyse(trace), "bare")["stack"]]
    assert stack[:4] == ["bare", "outer", "outermost", "main"]


def test_a_slot_is_reused_within_a_thread_so_a_program_has_as_many_slots_as_live_objects(tmp_path):
    _, trace = record(tmp_path, [build(tmp_path, PHASES)])
    report = analyse(trace, "--program", tmp_path / "p.qrp")
    header, _, streams = program_ops(tmp_path / "p.qrp")
    assert header["slots"] == -(-report["trace"]["peak_live_objects"] // SLOTS_SIDE_BY_SIDE) * SLOTS_SIDE_BY_SIDE
    assert header["peak_live_bytes"] == report["trace"]["peak_live_bytes"]
    ids = {entry["id"] for entry in report["sites"]}
    assert {op[3] for op in streams[0]} <= ids and max(ids) < header["sites"]


def test_an_object_of_more_than_4_gib_keeps_its_size(tmp_path):
    source = "#include <stdlib.h>\nint main(void) { void *p = malloc(5ul << 30); if (!p) return 1; free(p); return 0; }\n"
    done, trace = record(tmp_path, [build(tmp_path, source)])
    if done.returncode == 1:
        pytest.skip("this machine does not give 5 GiB of address space")
    report = analyse(trace, "--program", tmp_path / "p.qrp")
    assert site(report, "main")["bytes"] == 5 << 30
    _, _, streams = program_ops(tmp_path / "p.qrp")
    at = [op[0] for op in streams[0]].index(6)
    high, low = streams[0][at], streams[0][at + 1]
    assert high[5] << 32 | low[5] == 5 << 30 and high[4] == low[4] and low[0] == 1


def test_two_hundred_threads_one_after_the_other_share_few_blocks_of_the_trace(tmp_path):
    source = r"""
#include <pthread.h>
#include <stdlib.h>
static void *work(void *arg) { for (int i = 0; i < 20; i++) free(malloc(50)); return arg; }
int main(void) { for (int i = 0; i < 200; i++) { pthread_t t; pthread_create(&t, 0, work, 0); pthread_join(t, 0); } return 0; }
"""
    _, trace = record(tmp_path, [build(tmp_path, source)])
    report = analyse(trace, "--program", tmp_path / "p.qrp")
    made = site(report, "work")
    assert made["count"] == 4000 and made["threads_allocating"] == 200 and made["cross_thread_frees"] == 0
    _, _, streams = program_ops(tmp_path / "p.qrp")
    lines = [{op[4] // SLOTS_SIDE_BY_SIDE for op in ops if op[3] == made["id"]} for ops in streams]
    assert all(len(own) <= 1 for own in lines)
    assert len(set().union(*lines)) == 200, "two threads' addresses lie in one cache line of the replay"
    assert trace.stat().st_size < 1 << 20


def test_allocations_of_constructors_before_main_and_after_it_are_recorded(tmp_path):
    source = r"""
#include <stdlib.h>
static void *kept;
__attribute__((constructor)) static void early(void) { kept = malloc(123); }
__attribute__((destructor)) static void late(void) { free(kept); }
int main(void) { return 0; }
"""
    _, trace = record(tmp_path, [build(tmp_path, source)])
    made = site(analyse(trace), "early")
    assert made["count"] == 1 and made["never_freed"] == 0


def test_functions_of_a_library_loaded_later_are_named(tmp_path):
    build(tmp_path, "#include <stdlib.h>\nvoid *plugin_make(void) { return malloc(64); }\n", name="plugin.so",
          flags=["-shared", "-fPIC", "-fno-optimize-sibling-calls"])
    source = r"""
#include <dlfcn.h>
#include <stdlib.h>
int main(int n, char **v) {
    for (int round = 0; round < 3; round++) {
        void *h = dlopen(v[1], RTLD_NOW);
        void *(*make)(void) = (void *(*)(void))dlsym(h, "plugin_make");
        for (int i = 0; i < 10; i++) free(make());
        dlclose(h);
    }
    return n == 0;
}
"""
    done, trace = record(tmp_path, [build(tmp_path, source), tmp_path / "plugin.so"])
    assert done.returncode == 0
    assert sum(entry["count"] for entry in analyse(trace)["sites"] if entry["function"] == "plugin_make") == 30


def test_functions_of_libraries_that_come_to_the_same_place_one_after_the_other_have_each_its_own_names(tmp_path):
    bodies = {"first": "return malloc(64);", "second": "volatile int bytes = 64; return malloc(bytes);"}
    plugins = [build(tmp_path, f"#include <stdlib.h>\nvoid *{word}_make(void) {{ {body} }}\n", name=f"{word}.so", flags=["-shared", "-fPIC"]) for word, body in bodies.items()]
    program = r"""
#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
int main(int n, char **v) {
    ElfW(Addr) place = 0;
    for (int round = 0; round < 4; round++) {
        struct link_map *h = dlopen(v[1 + round % 2], RTLD_NOW);
        if (place && h->l_addr != place) return 77;
        place = h->l_addr;
        void *(*make)(void) = (void *(*)(void))dlsym(h, round % 2 ? "second_make" : "first_make");
        for (int i = 0; i < 10; i++) free(make());
        dlclose(h);
    }
    return n == 0;
}
"""
    done, trace = record(tmp_path, [build(tmp_path, program), *plugins])
    if done.returncode == 77:
        pytest.skip("the second library came to another place")
    assert done.returncode == 0
    report = analyse(trace)
    for word in bodies:
        made = [entry for entry in report["sites"] if entry["function"] == f"{word}_make"]
        assert sum(entry["count"] for entry in made) == 20 and {entry["module"] for entry in made} == {f"{word}.so"}


# Of two libraries that come to the same place one after the other, the second's frame is larger.  `deep`: by the stack pointer alone the first's is known.
SAME_PLACE = r"""
#include <dlfcn.h>
#include <stdlib.h>
typedef void *make(void);
__attribute__((noinline)) static void *early(make *make, int deep) { return deep ? early(make, deep - 1) : make(); }
__attribute__((noinline)) static void *between(int deep) { return deep ? between(deep - 1) : malloc(10); }
__attribute__((noinline)) static void *late(make *make, int deep) { return deep ? late(make, deep - 1) : make(); }
int main(int count, char **words) {
    void *first = dlopen(words[1], RTLD_NOW), *libc = dlopen("libc.so.6", RTLD_NOW);
    make *make = dlsym(first, "plugin_make");
    int (*libcs)(void *) = dlsym(libc, "dlclose");
    for (int i = 0; i < 20; i++) free(early(make, i % 4));
    if (!libcs || (count > 3 ? libcs : dlclose)(first) || dlsym(dlopen(words[2], RTLD_NOW), "plugin_make") != (void *)make) return 77;
    free(between(3));
    for (int i = 0; i < 20; i++) free(late(make, i % 4));
    return 0;
}
"""
FRAME_OF = r"""
__asm__(".globl plugin_make\n.type plugin_make, @function\nplugin_make:\n.cfi_startproc\nsub $BYTES, %rsp\n.cfi_def_cfa_offset BYTES + 8\n"
        "mov $64, %edi\ncall malloc@PLT\nadd $BYTES, %rsp\n.cfi_def_cfa_offset 8\nret\n.cfi_endproc\n.size plugin_make, .-plugin_make\n");
"""


@pytest.mark.skipif(bool(HERE.prefix) or platform.machine() != "x86_64", reason="written for x86-64")
@pytest.mark.parametrize("way", [[], ["libc's own dlclose"]])
def test_a_library_at_the_place_of_one_that_is_gone_is_not_walked_by_what_was_learnt_of_that(tmp_path, way):
    plugins = [build(tmp_path, FRAME_OF.replace("BYTES", str(bytes_)), name=f"plugin{bytes_}.so", flags=["-shared", "-fPIC"]) for bytes_ in (24, 120)]
    done, trace = record(tmp_path, [build(tmp_path, SAME_PLACE), *plugins, *way])
    if done.returncode == 77:
        pytest.skip("the second library came to another place")
    assert done.returncode == 0
    callers = {"early": 0, "late": 0}
    for made in (entry for entry in analyse(trace)["sites"] if entry["function"] == "plugin_make"):
        caller = made["stack"][1].split(" ")[0]
        callers[caller] = callers.get(caller, 0) + made["count"]
    assert callers == {"early": 20, "late": 20}


def test_functions_of_a_library_that_is_named_from_the_programs_folder_are_named_wherever_that_goes(tmp_path):
    build(tmp_path, "#include <stdlib.h>\nvoid *plugin_make(void) { return malloc(64); }\n", name="plugin.so",
          flags=["-shared", "-fPIC", "-fno-optimize-sibling-calls"])
    source = r"""
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>
int main(void) {
    void *h = dlopen("./plugin.so", RTLD_NOW);
    void *(*make)(void) = (void *(*)(void))dlsym(h, "plugin_make");
    if (chdir("/") != 0) return 1;
    for (int i = 0; i < 10; i++) free(make());
    return 0;
}
"""
    done, trace = record(tmp_path, [build(tmp_path, source)])
    assert done.returncode == 0
    made = site(analyse(trace), "plugin_make")
    assert made["count"] == 10 and made["module"] == "plugin.so"


def test_stacks_of_recursion_coroutines_and_signal_handlers_are_recorded_without_harm(tmp_path):
    source = r"""
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
static ucontext_t home, away;
static void *deep(int n) { char room[n % 7 * 16 + 1]; memset(room, n, sizeof room); return n > 0 ? deep(n - 1) : malloc(10 + room[0]); }
static void coroutine(void) { for (int i = 0; i < 100; i++) { free(malloc(33)); swapcontext(&away, &home); } }
static void handler(int s) { (void)s; free(malloc(44)); }
int main(void) {
    for (int i = 0; i < 300; i++) free(deep(i % 60));
    static char stack[65536];
    getcontext(&away); away.uc_stack.ss_sp = stack; away.uc_stack.ss_size = sizeof stack; away.uc_link = &home;
    makecontext(&away, coroutine, 0);
    for (int i = 0; i < 100; i++) swapcontext(&home, &away);
    static char other[65536]; stack_t alternate = {.ss_sp = other, .ss_size = sizeof other}; sigaltstack(&alternate, 0);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK}; sigaction(SIGUSR1, &action, 0);
    for (int i = 0; i < 100; i++) raise(SIGUSR1);
    return 0;
}
"""
    done, trace = record(tmp_path, [build(tmp_path, source, flags=["-fno-optimize-sibling-calls"])])
    assert done.returncode == 0
    report = analyse(trace)
    counts = {name: sum(entry["count"] for entry in report["sites"] if entry["function"] == name)
              for name in ("deep", "coroutine", "handler")}
    assert counts == {"deep": 300, "coroutine": 100, "handler": 100}
    handled = site(report, "handler")
    assert any(text.startswith("main ") for text in handled["stack"]), handled["stack"]


def test_unknown_options_and_missing_arguments_are_usage_errors(tmp_path):
    assert analyse_raw("x.qtr", "--sitess", "y").returncode == 2
    assert analyse_raw("x.qtr", "--sites").returncode == 2
    done = analyse_raw(tmp_path / "missing.qtr")
    assert done.returncode == 3 and "No such file" in done.stderr and done.stderr.count("\n") == 1


def test_the_most_frequent_sizes_of_a_site_are_those_also_when_they_come_late(tmp_path):
    """Only so many different ones are counted: 4,096."""
    program = build(tmp_path, "#include <stdlib.h>\nint main(void) { for (int i = 0; i < 20000; i++) free(malloc(i < 100 ? 64 : i < 5100 ? 1000 + 16 * i : 64)); return 0; }")
    _, trace = record(tmp_path, [program])
    top = max(analyse(trace)["sites"], key=lambda entry: entry["count"])["sizes"]["top"]
    assert top[0] == {"bytes": 64, "count": 15000}
