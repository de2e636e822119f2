# SPDX-License-Identifier: MIT
"""The library on arm64: compiled by Debian's cross compiler, run by qemu-user. The recorder has record_aarch64_test.py, restartable sequences arm64_percpu_test.py.

    always               the library in one file, and three C programs of doc/examples.md print what they print here
    QUIRE_TEST_LONG=1    all of those; unit, model, fault, death and orders tests; the drop-in; run, check, a plan, top and map of a program, as the tool of this machine sees it;
                         with a build of the tools, too: plans, advice and replays

GoogleTest is compiled from Debian's source (libgtest-dev).  For the tool's part programs of the other processor have to start as such do: the kernel hands
them to the emulator (binfmt_misc), in a user namespace of the test's own.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import arm64_kit
import pytest
from arm64_percpu_test import CC, QEMU, needs
from record_aarch64_test import ATTACHED_PARTS, recorder_of, there  # noqa: F401 (a fixture)
from record_kit import BUILD, ROOT, analyse, site

sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "test" / "preload")]
from manual import examples  # noqa: E402 - after the path
from steer_kit import wild_plan  # noqa: E402

PREFIX = "/usr/aarch64-linux-gnu"
EMULATOR = [QEMU, "-L", PREFIX]
EMULATOR_STATIC = "qemu-aarch64-static"  # started by the kernel, and with a program's LD_PRELOAD in its environment
GTEST = Path("/usr/src/googletest")
KINDS = ("orders", "fault", "death", "unit", "model")
LONG = pytest.mark.skipif(not os.environ.get("QUIRE_TEST_LONG"), reason="minutes of building and of emulation; QUIRE_TEST_LONG=1")
LEFT = ["stats", "heap", "netdata"]  # what the first two print has sizes of what the emulator maps, too; the third is not in the one file
# What qemu 7.2 stands in the way of, each alone in a process of its own.  All else has to pass.
LEFT_OUT = {
    "a child of a process with threads cannot start one (qemu: plugins/core.c, assertion failed)": """
        PercpuThread.the_child_of_a_fork_has_copies_of_its_own_and_goes_on SourceDefault.a_child_of_a_fork_can_go_on_at_once
        StatsWrite.the_child_of_a_fork_writes_whatever_others_were_doing StatsWrite.the_hook_of_a_refusal_amid_them_may_look_at_other_heaps
        HeapLife.the_child_of_a_fork_goes_on_with_its_copy Plain/HeapWalk.the_child_of_a_fork_goes_on_with_the_walk/0
        Plain/HeapWalk.the_child_of_a_fork_goes_on_with_the_walk/1""",
    "memory of the emulator's own counts as the program's": """
        Heap.a_huge_block_that_nobody_touches_costs_nothing_by_its_size PercpuMemory.reuse_commits_nothing_that_was_never_written
        PercpuMemory.a_hundred_thousand_objects_on_64_cpus_of_which_two_write_are_at_most_16_mb HeapFault.a_process_that_may_map_no_more_gets_null_and_lives_on
        SourceDefault.addresses_that_cannot_be_unmapped_are_not_lost""",
    "the emulator says so when a program ends by a fault, where nothing is to be said": """
        HeapSecureDeathTest.a_large_block_cannot_be_touched_after_its_free_or_where_it_was HeapSecureDeathTest.kind_29_a_block_of_no_bytes_is_touched
        HeapSecureDeathTest.large_blocks_have_pages_round_them_that_cannot_be_touched""",
    "a child for each of a thousand corruptions takes more than ten minutes": "HeapCorruptionDeathTest.random_writes_into_freed_blocks_leave_the_heap_sound_or_stop_it",
    "MADV_REMOVE is answered, and not done": "SourceFault.addresses_that_cannot_be_unmapped_are_counted",
    "MADV_DONTDUMP is not passed on": "Aral.pages_stay_out_of_core_dumps_when_asked SlabDump.pages_of_a_slab_that_is_not_dumped_are_marked_so_for_the_kernel",
    "/proc/self/maps does not name the break": "Os.memory_is_told_apart_as_the_kernel_names_it",
    "clone(2) makes threads and forks alone": "MemoryFault.a_copy_does_what_it_is_told_and_the_process_sees_no_child MemoryFault.a_copy_made_inside_of_an_allocation_does_not_wait_for_its_lock "
    "MemoryFault.a_child_that_was_forked_while_another_thread_made_a_copy_can_make_one",
}


def run(*command, **options):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, errors="replace", check=False, **{"timeout": 3600, **options})


def must(*command, **options):
    done = run(*command, **options)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


# ---- always: the library's objects; in the long form the library in one file ----


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if not os.environ.get("QUIRE_TEST_LONG"):
        return arm64_kit.objects()
    folder = tmp_path_factory.mktemp("arm64")
    must(sys.executable, ROOT / "scripts" / "amalgamate.py", folder)
    must(CC, "-std=gnu11", "-O0", "-pthread", "-c", folder / "quire.c", "-o", folder / "quire.o")
    return [folder / "quire.o"]


@pytest.mark.by_turns
@needs(CC, QEMU)
def test_the_c_examples_print_on_arm64_what_their_page_says(library, tmp_path):
    blocks = list(examples.blocks())
    names = [what[:-2] for kind, what, _ in blocks if kind == "code" and what[:-2] not in LEFT]
    assert len(names) >= 5
    for name in names if os.environ.get("QUIRE_TEST_LONG") else names[:3]:
        must(CC, "-std=c11", "-O1", "-I", ROOT / "include", ROOT / "examples" / f"{name}.c", *library, "-static", "-pthread", "-lm", "-o", tmp_path / f"{name}.arm64")
        (tmp_path / name).write_text(f'#!/bin/sh\nexec {" ".join(EMULATOR)} "$0.arm64" "$@"\n')
        (tmp_path / name).chmod(0o755)
        ((command, shown),) = [(what, text) for kind, what, text in blocks if kind == "output" and f"./{name}" in what]
        assert examples.output_of(command, tmp_path, os.environ) == shown


# ---- QUIRE_TEST_LONG: what ctest runs here ----


@pytest.fixture(scope="module")
def drop_in(tmp_path_factory):
    """A check build for arm64 with its drop-in. QUIRE_TEST_ARM64_BUILD: where it is kept."""
    folder = Path(os.environ.get("QUIRE_TEST_ARM64_BUILD") or tmp_path_factory.mktemp("build"))
    parts = ["-DQUIRE_BUILD_TESTS=ON", "-DQUIRE_BUILD_TOOLS=OFF", "-DQUIRE_BUILD_BENCH=OFF", "-DQUIRE_CHECK=1", f"-DQUIRE_GTEST_SOURCE={GTEST}"]
    flags = ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O0", "-DCMAKE_C_FLAGS_RELEASE=-O2"]
    short = {key: value for key, value in os.environ.items() if key != "QUIRE_TEST_LONG"}
    must("cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "--toolchain", ROOT / "cmake" / "aarch64.cmake", *parts, *flags, env=short)
    must("ninja", "-C", folder, "quire_malloc")
    return folder


def failed(text):
    return set(re.findall(r"^\[  FAILED  \] ([\w./]+)", text, re.MULTILINE))


@LONG
@needs(CC, QEMU, "aarch64-linux-gnu-g++")
@pytest.mark.skipif(not GTEST.is_dir(), reason="no source of GoogleTest; apt-get install libgtest-dev")
@pytest.mark.parametrize("kind", KINDS)
def test_the_tests_of_a_kind_pass_on_arm64(drop_in, kind):
    """All in one process; whoever fails there fails in a process of its own, too, and is not one that the emulator is in the way of."""
    program = drop_in / "test" / f"test_{kind}"
    must("ninja", "-C", drop_in, program.name)
    short = {**{key: value for key, value in os.environ.items() if key != "QUIRE_TEST_LONG"}, "QUIRE_TEST_EMULATOR": " ".join(EMULATOR)}
    known = {name for names in LEFT_OUT.values() for name in names.split()}
    done = run(*EMULATOR, program, "--gtest_filter=*-" + ":".join(known), env=short)
    assert re.search(r" tests? from \d+ test suites? ran\. \(", done.stdout), done.stdout[-2000:] + done.stderr[-2000:]
    alone = {name: run(*EMULATOR, program, f"--gtest_filter={name}", env=short) for name in sorted(failed(done.stdout))}
    wrong = {name: again.stdout[-1500:] for name, again in alone.items() if again.returncode != 0}
    assert not wrong, "\n".join(wrong.values())


# ---- QUIRE_TEST_LONG: the tool ----

PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
struct node { struct node *next; char pad[56]; };
static __attribute__((noinline)) struct node *make(struct node *n) { struct node *m = malloc(sizeof *m); m->next = n; return m; }
int main(int argc, char **argv) {
    struct node *list = NULL;
    for (int i = 0; i < 20000; i++) list = make(list);
    puts("ready"), fflush(stdout);
    for (int i = 0; i < (argc > 1 ? atoi(argv[1]) * 10 : 0); i++) free(malloc(1000)), usleep(100000);
    while (list) { struct node *next = list->next; free(list); list = next; }
    return 0;
}
"""
MAGIC = r":arm64:M::\x7f\x45\x4c\x46\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:"
NAMESPACE = """mount -t binfmt_misc none /proc/sys/fs/binfmt_misc && printf '%s' '{0}' >/proc/sys/fs/binfmt_misc/register && exec "$@" """


def namespace(emulator):
    """Words before a command, in which the kernel starts programs of both processors."""
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", NAMESPACE.format(MAGIC + emulator + ":F"), "sh"]


class Tool:
    """`quire` of this machine with the drop-in of the other, where the kernel starts programs of both."""

    def __init__(self, folder, drop_in, emulator):
        (folder / "build").mkdir()
        for library in drop_in.glob("libquire-malloc.so*"):
            (folder / "build" / library.name).symlink_to(library)
        (folder / "build" / "tools").symlink_to(BUILD / "tools")
        self.folder, self.library = folder, folder / "build" / "libquire-malloc.so"
        self.namespace = namespace(emulator)
        self.environment = {**os.environ, "QUIRE_BUILD_DIR": str(folder / "build"), "QEMU_LD_PREFIX": PREFIX, "NO_COLOR": "1"}
        (folder / "program.c").write_text(PROGRAM)
        must(CC, "-g", "-O1", "-fno-builtin", folder / "program.c", "-o", folder / "program")
        must(CC, "-g", "-O1", "-fno-builtin", "-static", folder / "program.c", "-o", folder / "alone")

    def __call__(self, *words):
        return run(*self.namespace, sys.executable, "-B", ROOT / "tools" / "quire", *words, cwd=self.folder, env=self.environment)


@pytest.fixture(scope="module")
def tool(tmp_path_factory, drop_in):
    emulator = shutil.which(EMULATOR_STATIC)
    if not emulator:
        pytest.skip("no qemu-aarch64-static; apt-get install qemu-user-static")
    made = Tool(tmp_path_factory.mktemp("tool"), drop_in, emulator)
    if run(*made.namespace, made.folder / "program", env=made.environment).stdout != "ready\n":
        pytest.skip("the kernel has no binfmt_misc in user namespaces (6.7 has)")
    return made


@LONG
@needs(CC, QEMU, "aarch64-linux-gnu-g++")
def test_run_and_check_serve_a_program_of_the_other_processor_and_refuse_a_static_one(tool):
    done = tool("run", "--", "./program")
    assert (done.returncode, done.stdout) == (0, "ready\n"), done.stderr
    assert "exit status 0" in done.stderr and re.search(r"heap: \d+ blocks", done.stderr) and "quire: " not in done.stderr
    served, alone = tool("check", "--", "./program"), tool("check", "--", "./alone")
    assert served.returncode == 0 and "malloc is served by" in served.stdout
    assert alone.returncode == 1 and "static binary" in alone.stdout


@LONG
@needs(CC, QEMU, "aarch64-linux-gnu-g++")
def test_top_and_map_show_a_process_of_the_other_processor(tool):
    environment = {**tool.environment, "LD_PRELOAD": str(tool.library), "QUIRE_CONF": "top"}
    with subprocess.Popen([*tool.namespace, "./program", "100"], cwd=tool.folder, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            end = time.monotonic() + 60
            while (shown := tool("top", "--pid", process.pid, "--once")).returncode and time.monotonic() < end:
                time.sleep(0.5)
            assert shown.returncode == 0 and re.search(r"default +heap .* 20,00\d\n", shown.stdout), shown.stdout + shown.stderr
            drawn = tool("map", process.pid)
            assert drawn.returncode == 0 and re.search(r"pages of 64 B, .*: 19,\d+ of", drawn.stdout), drawn.stdout + drawn.stderr
        finally:
            process.kill()


@LONG
@needs(CC, QEMU, "aarch64-linux-gnu-g++")
def test_a_plan_puts_blocks_of_the_other_processor_into_arenas(tool, there):
    """Recorded there, read here: the return addresses that led to malloc, each to an arena."""
    trace, paths = tool.folder / "trace.qtr", tool.folder / "paths.json"
    must(*EMULATOR, "-E", f"LD_PRELOAD={there.recorder}", "-E", f"QUIRE_RECORD={trace}", "./program", cwd=tool.folder)
    must(BUILD / "tools" / "quire-analyse", trace, "--paths", paths)
    assert wild_plan(json.loads(paths.read_text()), tool.folder / "plan", 1) >= 1
    report = tool.folder / "report.json"
    conf = f"plan:{tool.folder / 'plan'},stats:exit={report},stats_format:json"
    environment = {**tool.environment, "LD_PRELOAD": str(tool.library), "QUIRE_CONF": conf}
    assert must(*tool.namespace, "./program", cwd=tool.folder, env=environment) == "ready\n"
    assert json.loads(report.read_text())["plan"]["blocks"] >= 20000


def recorded_by_its_key(folder, library, flags):
    """PROGRAM under the drop-in with QUIRE_CONF=record: how many blocks make() made, as its trace says."""
    (folder / "program.c").write_text(PROGRAM)
    must(CC, "-g", "-O1", "-fno-builtin", *flags, folder / "program.c", "-o", folder / "program")
    trace = folder / "trace.qtr"
    words = ["-E", f"LD_PRELOAD={library}", "-E", f"QUIRE_CONF=record:{trace}"]
    done = run(*EMULATOR, *words, folder / "program")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ready\n", "")
    report = analyse(trace)
    assert report["trace"]["exited"] and not report["trace"]["attached"] and report["trace"]["lost_events"] == 0
    return site(report, "make")["count"]


@LONG
@needs(CC, QEMU, "aarch64-linux-gnu-g++")
@pytest.mark.parametrize("flags", [["-Wl,-z,lazy"], ["-Wl,-z,now"]], ids=["lazy", "now"])
def test_a_program_records_itself_by_the_key_of_its_drop_in(tmp_path, drop_in, flags):
    library = shutil.copy((drop_in / "libquire-malloc.so").resolve(), tmp_path / "own.so")
    (tmp_path / "tools").mkdir()
    recorder_of(tmp_path / "tools", ATTACHED_PARTS, "libquire-attach.so")
    assert recorded_by_its_key(tmp_path, library, flags) == 20000


# Allocators that are preloaded, and a program in its assembly.
OF_THIS_PROCESSOR = "a_peer_that_is_preloaded or very_many_sites or a_long_table"


@LONG
@needs(CC, QEMU, EMULATOR_STATIC)
@pytest.mark.parametrize("name", ["test_plan.py", "test_advise.py", "test_replay.py"])
def test_plans_advice_and_replays_by_helpers_of_the_other_processor_are_right(name, tmp_path):
    """QUIRE_TEST_ARM64_TOOLS: a build for arm64 with its tools, which needs an arm64 file system (doc/building.md)."""
    if not os.environ.get("QUIRE_TEST_ARM64_TOOLS"):
        pytest.skip("QUIRE_TEST_ARM64_TOOLS is not set")
    tree = Path(os.environ["QUIRE_TEST_ARM64_TOOLS"])
    root = re.search(r"^CMAKE_SYSROOT:\w+=(.+)$", (tree / "CMakeCache.txt").read_text(), re.MULTILINE)[1]
    for word, compiler in (("cc", CC), ("c++", CC.replace("gcc", "g++"))):
        (tmp_path / word).write_text(f'#!/bin/sh\nexec {compiler} "$@"\n')
        (tmp_path / word).chmod(0o755)
    environment = {**os.environ, "QUIRE_BUILD_DIR": str(tree), "QEMU_LD_PREFIX": root, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    environment.pop("QUIRE_TEST_LONG")
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", ROOT / "test" / "tool" / name, "-k", f"not ({OF_THIS_PROCESSOR})"]
    must(*namespace(shutil.which(EMULATOR_STATIC)), *words, env=environment, cwd=ROOT)
