# SPDX-License-Identifier: MIT
"""test_bench_micro_driver - the small programs of `quire bench micro`: what they print, whose malloc they measure, what they refuse."""

import json
import os
import pathlib
import shutil
import subprocess

import pytest
import toolkit

import bench.apps as bench_apps
import bench.apps_inputs as bench_apps_inputs
import bench.micro as bench_micro
import bench.run as bench_run
import bindings
import peers

MICRO = toolkit.BUILD / "bench" / "micro"
TIMED = toolkit.BUILD / "bench" / "timed"
DROP_IN = toolkit.BUILD / "libquire-malloc.so"
WORKLOADS = {
    a[0]: a
    for part in (bench_micro.MICRO, bench_micro.SHAPES, bench_micro.SEED, bench_micro.WALKS)
    for a in part.values()
}


def micro(*words, preload=None):
    """One figure of the driver."""
    env = {k: v for k, v in os.environ.items() if k not in bench_run.MEDDLING}
    if preload:
        env["LD_PRELOAD"] = str(preload)
    done = subprocess.run(
        [MICRO, "--json", *map(str, words)], capture_output=True, text=True, env=env, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.by_turns
@pytest.mark.parametrize("workload", [*WORKLOADS, "session"])
def test_each_workload_ends_with_its_time_and_its_peak(workload):
    figure = micro("--workload", workload, "--percent", 1)
    assert figure["workload"] == workload and figure["allocator"] == "libc"
    assert figure["ops"] > 0 and figure["cpu_ns"] > 0 and figure["peak_rss_bytes"] > 1 << 20


def test_the_shapes_of_the_known_benchmarks_are_twenty_six():
    assert len(bench_micro.SHAPES) == 26 and not set(bench_micro.SHAPES) & set(bench_micro.MICRO)


def test_a_backlog_of_an_odd_number_of_threads_is_refused():
    done = subprocess.run(
        [MICRO, "--workload", "backlog", "--threads", "3"], capture_output=True, text=True
    )
    assert done.returncode == 2 and "fix: --threads 4" in done.stderr


@pytest.mark.parametrize("workload", ["jq", "producer", "server", "session", "realloc"])
def test_the_malloc_that_is_preloaded_is_the_one_that_is_named(workload):
    if not DROP_IN.exists():
        pytest.skip("libquire-malloc.so is not built")
    figure = micro("--workload", workload, "--percent", 1, preload=DROP_IN)
    assert figure["allocator"] == "libquire-malloc"


FORWARDS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
void *malloc(size_t bytes)
{
    static void *(*real)(size_t);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "malloc");
    return real(bytes);
}
"""


@pytest.fixture(scope="module")
def forwarding_library(tmp_path_factory):
    """A malloc of its own that asks libc's."""
    place = tmp_path_factory.mktemp("library")
    return toolkit.build(place, FORWARDS, "any.so", ["-shared", "-fPIC", "-ldl"])


@pytest.mark.parametrize(("name", "patterns"), [(n, p) for n, p, _ in peers.KNOWN])
def test_every_peer_that_the_tool_knows_is_known_to_the_driver_by_its_file(
    forwarding_library, tmp_path, name, patterns
):
    library = tmp_path / patterns[0].replace("so.*", "so.2").replace("*", "")
    shutil.copy(forwarding_library, library)
    assert micro("--workload", "one", "--percent", 1, preload=library)["allocator"] == name


@pytest.mark.long
def test_the_memory_of_threads_and_of_drifting_sizes_is_told(tmp_path):
    assert micro("--workload", "once", "--threads", 20)["thread_bytes"] < 1 << 20
    drift = micro("--workload", "drift", "--seconds", 1)
    assert drift["quarter_2_bytes"] > 10 << 20 and 0.5 < drift["last_to_second"] < 2


def test_the_same_choices_are_made_in_every_process():
    figures = [micro("--workload", "cc1", "--percent", 2) for _ in range(2)]
    assert figures[0]["ops"] == figures[1]["ops"]
    assert abs(figures[0]["peak_rss_bytes"] - figures[1]["peak_rss_bytes"]) < 1 << 20


def test_an_unknown_workload_is_refused_with_what_tells_the_others():
    done = subprocess.run([MICRO, "--workload", "won"], capture_output=True, text=True)
    assert done.returncode == 2 and "fix: micro --help" in done.stderr


def test_every_field_that_the_memory_table_reads_is_printed():
    assert "leaked_bytes" in micro("--workload", "threads", "--percent", 1)
    session = micro("--workload", "session", "--percent", 1)
    assert {"load_bytes", "libraries_bytes", "test_bytes", "given_back_bytes"} <= set(session)


# ---- programs ----


def test_what_timed_says_of_a_program_is_its_status_time_and_peak(tmp_path):
    program = toolkit.build(
        tmp_path,
        "#include <stdlib.h>\n#include <string.h>\nint main(void) { memset(malloc(50 << 20), 1, 50 << 20); return 4; }",
    )
    out = tmp_path / "figures"
    assert subprocess.run([TIMED, "--out", out, "--", program]).returncode == 0
    figure = json.loads(out.read_text())
    assert figure["status"] == 4 and 50 << 20 < figure["peak_rss_bytes"] < 60 << 20
    assert figure["cpu_ns"] <= figure["wall_ns"] * 2


def test_timed_itself_is_small_so_that_a_small_programs_peak_is_its_own(tmp_path):
    subprocess.run([TIMED, "--out", tmp_path / "f", "--", "true"], check=True)
    assert json.loads((tmp_path / "f").read_text())["peak_rss_bytes"] < 4 << 20


def test_a_program_that_cannot_be_started_is_status_125_inside(tmp_path):
    subprocess.run([TIMED, "--out", tmp_path / "f", "--", "no-such-program"], capture_output=True)
    assert json.loads((tmp_path / "f").read_text())["status"] == 125


def test_libc_is_preloaded_as_libc_where_a_program_brings_another_malloc():
    libc = bindings.libc_path()
    assert "libc" in os.path.basename(libc)
    assert os.path.realpath(bindings.malloc_owner("/bin/sh", libc)) == os.path.realpath(libc)


def test_the_inputs_of_the_programs_are_the_same_each_time(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        bench_apps_inputs.write(str(tmp_path / name))
    names = sorted(os.listdir(tmp_path / "a"))
    assert names == sorted(os.listdir(tmp_path / "b")) and len(names) == 11
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_quick_run_has_fewer_turns_over_the_same_data(tmp_path):
    for name, quick in (("full", False), ("quick", True)):
        (tmp_path / name).mkdir()
        bench_apps_inputs.write(str(tmp_path / name), quick)
    text = {n: (tmp_path / n / "trees.lua").read_text() for n in ("full", "quick")}
    assert "turn = 1, 24 do" in text["full"] and "turn = 1, 7 do" in text["quick"]
    data = [(tmp_path / n / "in.json").read_bytes() for n in ("full", "quick")]
    assert data[0] == data[1]
    left = [f.name for f in tmp_path.glob("*/*") if f.suffix != ".json" and "@" in f.read_text()]
    assert set(left) <= {"words.pl"}  # Perl's own arrays


def test_a_program_that_is_missing_is_left_out_with_its_package(monkeypatch):
    monkeypatch.setattr(bench_apps.shutil, "which", lambda name: None if name == "jq" else "/bin/x")
    present, missing = bench_apps.sort_out(None)
    assert "jq" not in present and missing == ["jq"]


def test_a_script_in_front_of_a_program_is_passed_over(tmp_path, monkeypatch):
    for folder, text in (("shims", b"#!/bin/sh\n"), ("real", pathlib.Path("/bin/true").read_bytes())):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "true").write_bytes(text)
        (tmp_path / folder / "true").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/shims:{tmp_path}/none:{tmp_path}/real:/bin")
    assert bench_apps.binary("true") == f"{tmp_path}/real/true"
    (tmp_path / "real" / "true").unlink()
    monkeypatch.setenv("PATH", f"{tmp_path}/shims:{tmp_path}/real")
    assert bench_apps.binary("true") == f"{tmp_path}/shims/true" and bench_apps.binary("nobody") == "nobody"


def test_a_program_fails_under_an_allocator_with_the_line_and_the_command(tmp_path):
    (tmp_path / "figures").write_text('{"status": 134}')
    with pytest.raises(bench_run.QuireError) as failed:
        bench_apps.read(str(tmp_path), "jq", "libquire-malloc")
    assert "jq failed under libquire-malloc (status 134)" in failed.value.text()
    assert "quire check -- jq" in failed.value.text()
