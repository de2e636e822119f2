# SPDX-License-Identifier: MIT
"""malloc before main, in constructors, plug-ins and last destructors, across forks, with signals, and without memory."""

import shutil
import signal
import subprocess

import pytest
from preload_kit import LIBRARY, assert_sound, run


@pytest.mark.parametrize("conf", ["", "check:50", "secure:1", "passthrough:1"])
@pytest.mark.parametrize("group", [["before_main"], ["at_exit"], ["exit_while_busy"], ["small_stacks"], ["cancel", "30"]])
def test_blocks_are_sound_whenever_they_are_asked_for(build, group, conf):
    assert_sound(run(build("life.c"), *group, conf=conf))


@pytest.mark.parametrize("conf", ["", "check:50"])
def test_a_plug_in_may_come_and_go_with_blocks_of_both_sides(build, conf):
    plugin = build("plugin.c", "-shared", "-fPIC")
    assert_sound(run(build("life.c"), "plugin", plugin, conf=conf))


@pytest.mark.parametrize("conf", [None, "secure:1", "check:1", "prof:1K,prof_exit:0"])
def test_blocks_that_libc_handed_out_past_us_go_back_to_libc(build, conf):
    plugin = build("strangers_plugin.c", "-shared", "-fPIC")
    assert_sound(run(build("strangers.c"), plugin, conf=conf))


@pytest.mark.parametrize("without", ["brk", "descriptors", "first thread"])
def test_blocks_of_libc_go_back_to_libc_where_the_kernel_says_less_than_usual(build, without):
    plugin = build("strangers_plugin.c", "-shared", "-fPIC")
    assert_sound(run(build("strangers.c"), without, plugin))


def test_the_report_of_a_process_whose_main_has_ended_knows_its_memory(build):
    done = run(build("main_ends.c"), "worker", conf="stats:exit", timeout=20)
    assert "main_ends-c[" in done.stderr and "memory 0 B" not in done.stderr and "MiB  in memory (RSS)" in done.stderr, done.stderr


def test_blocks_of_libc_go_back_to_libc_under_a_plan_too(build, tmp_path):
    plan = tmp_path / "plan"
    plan.write_text("quire-steer 1\nmodule 0 00 nobody\nframe 0 module 0 offset 10 f\npool 1 arena peak 1000\nsite 1 pool 1\npath 0\nend 5\n")
    plugin = build("strangers_plugin.c", "-shared", "-fPIC")
    for timed in ("", ",plan_timed:1"):
        assert_sound(run(build("strangers.c"), plugin, conf=f"plan:{plan}{timed}"))


def test_freed_memory_goes_back_though_the_thread_that_last_began_a_page_sleeps(build):
    assert_sound(run(build("clock.c"), conf="decay:10ms"))


@pytest.mark.parametrize("block_bytes", [100, 5000, 20000, 100000])
def test_what_a_program_of_one_thread_has_freed_goes_back_though_it_calls_nothing_any_more(build, block_bytes):
    assert_sound(run(build("one_size.c"), block_bytes))


@pytest.mark.by_turns
def test_children_that_no_handler_of_a_fork_repaired_find_nothing_held(build):
    assert_sound(run(build("copies.c"), conf="decay:1ms"))


@pytest.mark.parametrize("conf", ["decay:100ms,pressure:1", "top:100ms", ""])
@pytest.mark.parametrize("tls_bytes", [40000, 52000, 57000, 250000])
def test_a_thread_of_ours_has_room_beside_a_programs_thread_local_storage(build, tls_bytes, conf, tmp_path):
    assert_sound(run(build("much_tls.c", f"-DTLS_BYTES={tls_bytes}"), conf=conf, cwd=tmp_path))


@pytest.mark.parametrize("words", [[], ["first arena"]])
def test_what_looks_like_libcs_with_other_memory_before_it_is_refused(build, words):
    done = run(build("disguised.c"), *words)
    assert done.returncode < 0
    assert done.stderr.startswith("quire: heap: E2 "), done.stderr


def test_the_report_is_written_while_other_threads_go_on(build, tmp_path):
    report = tmp_path / "report"
    for stats_format in ("text", "json", "prom"):
        assert_sound(run(build("life.c"), "exit_while_busy", conf=f"stats:exit={report},leaks:1,stats_format:{stats_format}"))
        assert report.stat().st_size > 500


def test_a_thread_with_little_stack_may_end_the_program_and_the_report_is_written(build, tmp_path):
    report = tmp_path / "report"
    for conf in ("", f"stats:exit={report},leaks:1"):
        assert_sound(run(build("life.c"), "exit_from_small_stack", conf=conf))
    assert "live at the end:" in report.read_text()


def test_the_last_destructors_of_threads_allocate_and_nothing_is_lost(build):
    assert_sound(run(build("life.c"), "key_destructors", 300))


def test_threads_that_end_with_live_blocks_cost_nothing_that_stays(build):
    assert_sound(run(build("life.c"), "many_threads", 3000))


@pytest.mark.by_turns
@pytest.mark.parametrize("conf", ["", "secure:1"])
def test_children_forked_from_busy_threads_allocate(build, conf):
    assert_sound(run(build("life.c"), "fork", 60, conf=conf))


@pytest.mark.by_turns
def test_the_handlers_of_other_libraries_allocate_in_the_child(build):
    """Preloaded behind us it is initialised before us, but for our -z initfirst: its handler would find what vanished threads held."""
    handler = build("at_fork.c", "-shared", "-fPIC")
    assert_sound(run(build("life.c"), "fork", 60, env={"LD_PRELOAD": f"{LIBRARY} {handler}"}))


@pytest.mark.parametrize(("words", "more"), [([], 13), (["threads"], 16)])
def test_a_child_begins_with_few_copied_pages(build, words, more):
    """A server that forks for each request pays for each, 5 us and more; what another thread had is put in order when the child first uses a heap."""
    program = build("fork_faults.c", "-pthread")
    ours, libcs = int(run(program, *words).stdout), int(subprocess.run([program, *words], capture_output=True, text=True, check=True).stdout)
    assert ours <= libcs + more, f"{ours}, with libc's malloc {libcs}"


@pytest.mark.parametrize("conf", ["", "decay:0", "top:20ms", "secure:1", "prof:64K,prof_at:1G,prof_exit:0", "pressure"])
@pytest.mark.parametrize("how", ["alone", "worker", "child"])
def test_a_process_whose_main_ended_by_pthread_exit_ends_with_its_last_thread(build, how, conf):
    done = run(build("main_ends.c"), how, conf=conf, timeout=20)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr


def test_fork_with_streams_in_use_does_not_hang(build):
    assert_sound(run(build("life.c"), "fork_stdio", 20))


def test_signals_at_twenty_kilohertz_disturb_nothing(build):
    assert_sound(run(build("life.c"), "signals", 400))


def test_threads_that_ask_at_once_for_more_than_there_is_are_told_so(build):
    program = build("refused.c")
    for _ in range(30):
        assert_sound(run(program, conf=""))


@pytest.mark.parametrize("mib", [40, 200])
def test_a_limited_address_space_is_enomem_and_no_crash(build, mib):
    assert_sound(run(build("shortage.c"), "address_space", mib))


@pytest.mark.parametrize("conf", ["limit:1M", "limit:32M", "limit:32M,secure:1", "limit:32M,check:500"])
def test_a_limit_is_enomem_and_what_was_freed_can_be_had_again(build, conf):
    assert_sound(run(build("shortage.c"), "limit", conf=conf))


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
@pytest.mark.parametrize(
    ("call", "places"),
    [
        ("mmap", "15 17 18+ 19 20 21 22+"), ("mprotect", "4 5+ 6 7+"), ("munmap", "1 2+ 4 5+"), ("madvise", "1+ 2 7+ 20"), ("mremap", "1+ 2"),
        ("getrandom", "1"), ("membarrier", "1"),
    ],
)  # fmt: skip
def test_whatever_the_kernel_refuses_malloc_says_null_or_serves(build, call, places, tmp_path):
    """Earlier calls are the loader's, which gives up by itself."""
    program, refusals = build("shortage.c"), 0
    for when in places.split():
        words = ["strace", "-f", "-qq", "-o", tmp_path / "log", "-E", f"LD_PRELOAD={LIBRARY}", "-e", f"trace={call}"]
        done = run(*words, "-e", f"inject={call}:error=ENOMEM:when={when}", program, "refused", env={"LD_PRELOAD": ""})
        if "shared librar" in done.stderr or "cannot be preloaded" in done.stderr or "TLS" in done.stderr:
            continue  # the loader was refused, before the program began
        assert_sound(done)
        refusals += "(INJECTED)" in (tmp_path / "log").read_text()
    assert refusals > 0, f"{call} was never refused"


def test_libc_may_free_the_vectors_of_its_cached_stacks_under_its_lock(build):
    assert_sound(run(build("life.c"), "stacks_are_cached", 4))


@pytest.mark.parametrize("conf", ["decay:200ms", "decay:0"])
def test_what_was_freed_goes_back_to_the_system(build, conf):
    assert_sound(run(build("shortage.c"), "give_back", conf=conf))


def test_what_is_seldom_run_is_no_neighbour_of_malloc():
    """A fault brings all of the segment that the page cache holds in one piece: 180 KB of reports in each process."""
    listed = subprocess.run(["readelf", "-lW", LIBRARY], capture_output=True, text=True, check=True).stdout
    code = [[int(word, 16) for word in line.split()[2:6:3]] for line in listed.splitlines() if "LOAD" in line and "R E" in line]
    symbols = subprocess.run(["readelf", "-sW", LIBRARY], capture_output=True, text=True, check=True).stdout
    at = {line.split()[7]: int(line.split()[1], 16) for line in symbols.splitlines() if " FUNC " in line or " OBJECT " in line}
    if "report_print" not in at:
        pytest.skip("the library is stripped")

    def segment(name):
        return next(i for i, (start, size) in enumerate(code) if start <= at[name] < start + size)

    assert {segment(name) for name in ("preload_start", "heap_default_configure")} == {0}, "what every process runs"
    assert {segment(name) for name in ("malloc", "free", "heap_next_page", "region_take")} == {1}, "what most programs run"
    assert {segment(name) for name in ("heap_resize_begin", "heap_fork_in_child")} == {2}, "what some do, and the child of a fork"
    assert {segment(name) for name in ("report_print", "quire_percpu_alloc")} == {3}, "all other"
    assert all(size <= most << 10 for (_, size), most in zip(code[:3], (16, 60, 36), strict=True))
    assert max(at["live"], at["pagemap_near"]) < min(at[name] for name in ("pagemap_root", "shards", "region_by_id", "steer_entries"))


@pytest.mark.parametrize(("ends", "status"), [("term", -signal.SIGTERM), ("exit", 3)])
def test_a_thread_that_was_cancelled_ends_the_process_all_the_same(build, tmp_path, ends, status):
    done = run(build("cancelled.c", "-pthread"), ends, conf=f"stats:exit,stats_file:/dev/null,prof:4096,prof_file:{tmp_path}/profile")
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
