# SPDX-License-Identifier: MIT
"""QUIRE_CONF=prof: what is estimated is what was allocated, by stack; files come when they are asked for; what is asked wrongly is said."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from pprof_kit import PPROF, WHY_NOT
from preload_kit import ROOT, environment, run

sys.path.insert(0, str(ROOT / "tools" / "quire"))
import heapprofile  # noqa: E402

TOOL = [sys.executable, str(ROOT / "tools" / "quire" / "__main__.py")]


def profiles(folder):
    """The profiles in a folder, oldest number first."""
    return [heapprofile.read(path.read_text(), str(path)) for path in sorted(folder.glob("quire.*.heap"), key=lambda p: p.name.split(".")[2])]


def exact(stderr):
    """{function: bytes} as the program says it."""
    return {name: int(count) for name, count in re.findall(r"(small|middle|large|grown) (\d+)", stderr)}


def by_function(raw, program):
    """{function: [live blocks, live bytes, all blocks, all bytes]} of the program's own innermost functions."""
    names = subprocess.run(["nm", str(program)], capture_output=True, text=True, check=True).stdout.splitlines()
    starts = sorted((int(line.split()[0], 16), line.split()[2]) for line in names if len(line.split()) == 3)
    found, places = {}, heapprofile.places_of(raw)
    for addresses, figures in raw.stacks:
        path, address = places[addresses[0]]
        name = next((n for start, n in reversed(starts) if start < address), "") if os.path.basename(path) == program.name else ""
        found[name] = [a + b for a, b in zip(found.get(name, [0] * 4), figures)]
    return found


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.by_turns
def test_ten_million_allocations_are_told_to_a_part_in_two_hundred_and_each_stack_to_a_part_in_ten(build, folder):
    program = build("profile.c")
    done = run(program, "run", "10000000", conf="prof")
    assert done.returncode == 0, done.stderr
    (raw,) = profiles(folder)
    wanted, got = exact(done.stderr), by_function(raw, program)
    whole = sum(figures[3] for _, figures in raw.stacks)
    assert abs(whole / sum(wanted.values()) - 1) < 0.005
    for name, exactly in wanted.items():
        # four times the standard deviation of a sample of one in 512 KiB
        room = 4 * (1 / (exactly / raw.facts["period"])) ** 0.5
        assert abs(got[name][3] / exactly - 1) < room, name
    assert raw.facts["period"] == 512 << 10 and raw.facts["lost"] == 0
    assert raw.facts["held_bytes"] < 1 << 20


def test_at_a_finer_rate_every_stack_is_told_to_a_part_in_twenty_blocks_too(build, folder):
    program = build("profile.c")
    done = run(program, "run", "1000000", conf="prof:2K")  # at 8K one run in hundreds was further off
    (raw,) = profiles(folder)
    wanted, got = exact(done.stderr), by_function(raw, program)
    for name, exactly in wanted.items():
        assert abs(got[name][3] / exactly - 1) < 0.05, name
    assert abs(got["small"][2] / 800000 - 1) < 0.05
    live_small = 0.8 * 50000 * 47.5
    assert abs(got["small"][1] / live_small - 1) < 0.25


def test_a_profile_has_whole_stacks(build, folder):
    run(build("profile.c"), "run", "200000", conf="prof:8K")
    (raw,) = profiles(folder)
    document = heapprofile.named(raw)
    chains = {" < ".join(document["functions"][f][0] for loc in s[0] for f in document["locations"][loc]) for s in document["stacks"]}
    assert any(chain.startswith("small < run < main < ") for chain in chains), chains
    assert any(chain.startswith("middle < run < main < ") for chain in chains), chains


def test_a_program_whose_path_is_long_is_found_by_it(build, folder):
    deep = folder.joinpath(*["d" * 200] * 4)
    deep.mkdir(parents=True)
    shutil.copy(build("profile.c"), deep / "p")
    run(str(deep / "p"), "run", "2000", conf="prof:8K,prof_file:quire.%p.%n.heap")
    (raw,) = profiles(folder)
    assert str(deep / "p") in [path for *_, path in raw.mappings]


@pytest.mark.skipif(not PPROF, reason=WHY_NOT)
def test_go_tool_pprof_opens_the_file_as_it_is_and_finds_the_names(build, folder):
    program = build("profile.c")
    run(program, "run", "200000", conf="prof:8K")
    (path,) = folder.glob("*.heap")
    wanted = by_function(*profiles(folder), program)
    for column, index in ((1, "inuse_space"), (3, "alloc_space")):
        words = [*PPROF, "-top", "-unit=B", f"-sample_index={index}", str(path)]
        done = subprocess.run(words, env={**os.environ, "PPROF_TMPDIR": str(folder)}, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        got = {row[5]: row[0] for row in map(str.split, done.stdout.splitlines()) if len(row) == 6 and row[1].endswith("%")}
        assert {name: got.get(name) for name in ("small", "middle", "large")} == {name: f"{wanted[name][column]}B" for name in ("small", "middle", "large")}


def test_threads_children_and_new_sizes_are_counted_and_each_process_writes_its_own(build, folder):
    done = run(build("profile.c"), "mixed", conf="prof:16K,leaks:1,stats_file:/dev/null")
    assert done.returncode == 0, done.stderr
    found = profiles(folder)
    assert len(found) == 4 and len({raw.facts["pid"] for raw in found}) == 4
    for raw in found:
        for _, (live_blocks, live_bytes, all_blocks, all_bytes) in raw.stacks:
            assert live_bytes <= all_bytes and live_blocks <= all_blocks
        assert raw.facts["lost"] == 0
    whole = max(sum(f[3] for _, f in raw.stacks) for raw in found)
    assert whole > 80_000_000  # what realloc made is among it


@pytest.mark.long
def test_children_that_allocate_little_have_their_share_of_samples(build, folder):
    program = build("profile.c")
    done = run(program, "children", conf="prof")
    assert done.returncode == 0, done.stderr
    seen = sum(by_function(raw, program).get("in_child", [0] * 4)[3] for raw in profiles(folder))
    exactly = 400 * 1024 * 64
    assert abs(seen / exactly - 1) < 4 * (1 / 50) ** 0.5  # 50 samples, four times the standard deviation


@pytest.mark.parametrize("size", [30_000, 100_000, (20 << 20) - 32])
def test_a_realloc_of_the_middle_of_a_sampled_block_is_refused_as_that(build, folder, size):
    done = run(build("profile.c"), "inside", size, conf="prof:1K")
    assert re.match(r"quire: heap: E[23] ", done.stderr), (done.returncode, done.stderr)
    assert done.returncode < 0


def test_the_last_destructors_of_threads_are_sampled_as_seldom_as_all(build, folder):
    program = build("profile.c")
    done = run(program, "late", conf="prof")
    assert done.returncode == 0, done.stderr
    assert sum(figures[3] for raw in profiles(folder) for figures in by_function(raw, program).values()) < 20 * (512 << 10)  # of 19 KB: 400 samples were 210 MB


@pytest.mark.by_turns
@pytest.mark.parametrize("conf", ["secure:1", "limit:1G", "leaks:1,stats_file:/dev/null", "decay:0", "top:1", "check:1000"])
def test_it_goes_with_other_options(build, folder, conf):
    done = run(build("profile.c"), "mixed", conf=f"prof:16K,{conf}")
    assert done.returncode == 0 and "quire:" not in done.stderr, done.stderr
    assert len(profiles(folder)) == 4


def test_what_it_does_not_go_with_is_said_once(folder):
    done = run("/bin/echo", "on", conf="prof,passthrough:1")
    assert (done.returncode, done.stdout) == (0, "on\n")
    assert done.stderr == "quire: QUIRE_CONF: prof does not go with passthrough; there is no profile\n"
    assert profiles(folder) == []


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ("prof:12", 'prof cannot be "12"; write prof:0|1|SIZE'),
        ("prof:2T", 'prof cannot be "2T"'),
        ("prof:often", 'prof cannot be "often"'),
        ("prof_at:much", 'prof_at cannot be "much"'),
        ("prof_signal:KILL", 'prof_signal cannot be "KILL"; write prof_signal:USR1|USR2|N'),
        ("prof_signal:9", 'prof_signal cannot be "9"'),
        ("prof_signal:65", 'prof_signal cannot be "65"'),
        ("prof_exit:maybe", 'prof_exit cannot be "maybe"'),
    ],
)
def test_a_wrong_value_is_one_line(folder, conf, said):
    done = run("/bin/echo", "on", conf=conf)
    assert (done.returncode, done.stdout) == (0, "on\n")
    assert done.stderr.startswith("quire: QUIRE_CONF: " + said) and len(done.stderr.splitlines()) == 1
    assert profiles(folder) == []


def test_a_file_that_cannot_be_written_is_said(folder):
    done = run("perl", "-e", "my @x = (1) x 100000", conf="prof,prof_file:/nowhere/at/all")
    assert done.returncode == 0
    assert done.stderr == "quire: the profile cannot be written to /nowhere/at/all: No such file or directory; set prof_file in QUIRE_CONF to a file that can\n"


def test_a_program_of_which_nothing_was_sampled_leaves_no_file(folder):
    words = ["perl", "-e", "my @x = (1) x 100000"]
    assert run(*words, conf="prof:1T").stderr == ""
    assert profiles(folder) == []
    assert run(*words, conf="prof").stderr == ""
    assert len(profiles(folder)) == 1


def test_off_there_is_no_file_and_no_thread(folder):
    assert run("/bin/true", conf="prof:0").stderr == ""
    assert run("/bin/true", conf="prof,prof_exit:0").stderr == ""
    assert profiles(folder) == []


def wait_for(condition, seconds=100):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


class Waiting:
    """The program, ready, until it is told to end."""

    def __init__(self, program, conf, how="wait"):
        self.process = subprocess.Popen([program, how], env=environment(conf), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n"

    def __enter__(self):
        return self.process

    def __exit__(self, *_):
        self.process.communicate("end\n", timeout=60)
        assert self.process.returncode == 0


def test_a_signal_writes_a_file_each_time(build, folder):
    with Waiting(build("profile.c"), "prof:16K,prof_signal:USR2,prof_file:quire.%p.%n.heap") as process:
        for count in (1, 2):
            process.send_signal(signal.SIGUSR2)
            assert wait_for(lambda n=count: len(list(folder.glob("*.heap"))) == n)
    assert wait_for(lambda: len(profiles(folder)) == 3)


def test_a_threshold_writes_a_file_when_so_much_is_live(build, folder):
    with Waiting(build("profile.c"), "prof:16K,prof_at:4M,prof_exit:0"):
        assert wait_for(lambda: len(list(folder.glob("*.heap"))) >= 1)
    assert sum(figures[1] for _, figures in profiles(folder)[-1].stacks) > 2 << 20


def test_a_running_process_answers_the_tool(build, folder):
    with Waiting(build("profile.c"), "prof:16K,prof_exit:0") as process:
        said = subprocess.run([*TOOL, "profile", "--pid", str(process.pid)], capture_output=True, text=True, check=False)
        assert said.returncode == 0, said.stderr
        assert re.match(r"profile-?c?: live [\d.]+ [KM]B in \d+ blocks, allocated [\d.]+ MB in \d+; estimated from \d+ samples", said.stdout), said.stdout
        assert "small < run < " in said.stdout
        assert subprocess.run([*TOOL, "profile", "--pid", str(process.pid), "--raw", "-o", "raw.heap"], check=False).returncode == 0
    raw = heapprofile.read((folder / "raw.heap").read_text(), "raw.heap")
    assert raw.facts["pid"] == process.pid and raw.stacks


def threads_of(process):
    return len(os.listdir(f"/proc/{process.pid}/task"))


def ask(*words):
    return subprocess.run([*TOOL, *words], capture_output=True, text=True, check=False)


def test_a_program_of_one_thread_has_no_second_one_until_somebody_asks(build, folder):
    program = shutil.copy(build("profile.c"), folder / f"only-{os.getpid()}")  # another run of these tests may go on beside
    with Waiting(program, "prof:16K,prof_signal:USR2,decay:0") as process:
        assert threads_of(process) == 1
        process.send_signal(signal.SIGUSR2)
        assert wait_for(lambda: profiles(folder) and profiles(folder)[0].facts["pid"] == process.pid)
        assert ask("top", "--pid", str(process.pid), "--json").returncode == 0
        assert ask("profile", "--pid", os.path.basename(process.args[0])).returncode == 0
        assert threads_of(process) == 1
        process.stdin.write("go on\n")
        process.stdin.flush()
        assert wait_for(lambda: threads_of(process) > 1)
        assert ask("profile", "--pid", str(process.pid)).returncode == 0
    assert not [path for path in pathlib.Path("/dev/shm").glob(f"quire.*/{process.pid}.*")]


@pytest.mark.parametrize("conf", ["top:1", "pressure:1"])
def test_with_options_that_watch_the_thread_is_there_from_the_start(build, folder, conf):
    with Waiting(build("profile.c"), f"prof,prof_exit:0,decay:0,{conf}") as process:
        assert threads_of(process) > 1


def test_a_program_that_handles_the_signal_itself_keeps_it(build, folder):
    with Waiting(build("profile.c"), "prof:16K,prof_exit:0,decay:0", "wait-urgent") as process:
        process.send_signal(signal.SIGURG)
        assert process.stdout.readline() == "urgent\n"
        assert threads_of(process) == 1


def test_a_process_without_a_profile_says_so(build, folder):
    with Waiting(build("profile.c"), "top:100ms") as process:
        said = subprocess.run([*TOOL, "profile", "--pid", str(process.pid)], capture_output=True, text=True, check=False)
    assert said.returncode == 3 and "has no profile" in said.stderr
