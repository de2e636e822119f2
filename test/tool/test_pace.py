# SPDX-License-Identifier: MIT
"""test_pace - the CPU's pace during a run, and times as at one and the same pace."""

import errno
import io
import os
import random
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections import namedtuple
from types import SimpleNamespace

import pytest
from test_rounds import Acted, Fake, contest_of
from toolkit import BUILD, TOOL, build

import load
import pace
import rounds
import trynoise
import trytable

WHERE = """
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
int main(void) {
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    fprintf(fopen("where", "a"), "%d\\n", CPU_COUNT(&set));
    for (volatile int i = 0; i < 20000000; i++)
        ;
}
"""
STOLEN = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *at)
{
    static __thread struct timespec last;
    static __thread unsigned calls;
    long done = syscall(SYS_clock_gettime, clock, at);
    if (clock == CLOCK_THREAD_CPUTIME_ID && ++calls % 10 == 0)
        *at = last; /* since the last look no time has passed, by what the host took before */
    else if (clock == CLOCK_THREAD_CPUTIME_ID)
        last = *at;
    return (int)done;
}
"""
Ended = namedtuple("Ended", "cpu_s wall_s")


AT_MOST = pace.SENSITIVITY_MAX["spin_ns"]


def runs_of(draw, base, share, number=20, noise=0.0):
    """Pairs (time, slowness) of a row whose program shares so much of the spin's slowness."""
    slows = [draw.choice((8000, 8100, 12000, 14000)) for _ in range(number)]
    return [(base * (slow / 8000) ** share * (1 + draw.gauss(0, noise)), slow) for slow in slows]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 1.0])
def test_the_sensitivity_is_that_of_all_rows_together(share):
    draw = random.Random(3)
    rows = [runs_of(draw, base, share) for base in (1.0, 0.8, 1.7)]
    assert pace.sensitivity(rows, AT_MOST) == pytest.approx(share, abs=1e-9)
    noisy = [runs_of(draw, base, share, noise=0.03) for base in (1.0, 0.8, 1.7)]
    assert pace.sensitivity(noisy, AT_MOST) == pytest.approx(share, abs=0.05)


@pytest.mark.by_turns
def test_a_thousand_runs_of_a_row_fit_into_little_memory():
    runs = runs_of(random.Random(9), 1.0, 0.7, number=1500, noise=0.01)
    tracemalloc.start()
    assert pace.sensitivity([runs], AT_MOST) == pytest.approx(0.7, abs=0.02)
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()


def test_a_run_that_something_else_slowed_moves_the_sensitivity_little():
    rows = [runs_of(random.Random(5), 1.0, 0.7, noise=0.01)]
    rows[0][3] = (5 * rows[0][3][0], rows[0][3][1])
    assert pace.sensitivity(rows, AT_MOST) == pytest.approx(0.7, abs=0.1)


def test_no_sensitivity_is_below_none_or_above_what_can_be():
    assert pace.sensitivity([[(2.0, 8000), (1.0, 12000)]], AT_MOST) == 0.0
    assert pace.sensitivity([[(1.0, 8000), (9.0, 12000)]], AT_MOST) == AT_MOST
    assert pace.sensitivity([[(1.0, None), (1.1, 8000)], [], [(1.0, 8000), (1.2, 8000)]], AT_MOST) == 0.0


def test_times_are_as_at_the_middle_pace_and_without_a_pace_as_they_were():
    rows = [[(time, pace.Slow(slow)) for time, slow in runs_of(random.Random(7), 1.0, 0.7)]]
    evened = pace.Evened(rows)
    times = [evened.time(*run) for run in rows[0]]
    assert max(times) == pytest.approx(min(times)) and min(r[0] for r in rows[0]) <= times[0] <= max(r[0] for r in rows[0])
    assert evened.sensitivity == {"spin_ns": pytest.approx(0.7), "stretch": 0.0}
    assert pace.Evened([[(1.5, None)]]).time(1.5, None) == 1.5
    assert evened.time(1.5, None) == 1.5


def test_what_the_host_steals_is_taken_out_beside_what_slows_the_spin():
    draw, rows = random.Random(13), []
    for base in (1.0, 0.8):
        stretches = [draw.choice((1.0, 1.01, 1.3, 1.7)) for _ in range(25)]
        slows = [pace.Slow(8000 * stretch ** draw.choice((0.3, 0.6)), stretch) for stretch in stretches]  # neighbours do both
        rows.append([(base * (slow.spin_ns / 8000) ** 0.5 * slow.stretch**1.4, slow) for slow in slows])
    evened = pace.Evened(rows)
    assert evened.sensitivity == {"spin_ns": pytest.approx(0.5, abs=0.05), "stretch": pytest.approx(1.4, abs=0.05)}
    first, second = ([evened.time(*run) for run in runs] for runs in rows)
    assert max(first) < 1.02 * min(first) and second[0] / first[0] == pytest.approx(0.8, rel=0.02)
    alone = pace.Evened([[(time, slow._replace(stretch=1.0)) for time, slow in runs] for runs in rows])
    assert max(alone.time(time, slow._replace(stretch=1.0)) for time, slow in rows[0]) > 1.2 * min(first)


def test_ticks_are_those_of_the_cpus_that_are_asked(monkeypatch):
    lines = "cpu  30 0 30 9 9 0 0 100 7 0\ncpu0 10 1 10 9 9 2 3 90 7 0\ncpu1 20 0 20 9 9 0 0 10 7 0\ncpu2 1 1 1 1\nintr 5\n"
    monkeypatch.setattr("builtins.open", lambda *_, **__: io.StringIO(lines))
    assert pace.ticks([0]) == (26, 90) and pace.ticks([0, 1]) == (66, 100)
    assert pace.ticks([2]) == (0, 0) and pace.ticks([7]) == (0, 0)  # a kernel before 2.6.11; a CPU that is off


@pytest.mark.parametrize("khz, chosen", [({0: 4800000, 1: 5000000, 2: 5000000, 3: 3800000}, 2), ({}, 3), ({1: "unknown"}, 3)])
def test_a_program_of_one_thread_runs_on_a_fast_core_where_there_are_two_kinds(monkeypatch, khz, chosen):
    def told(path, **_):
        cpu = int(path.split("/")[5][3:])
        if cpu not in khz:
            raise FileNotFoundError(path)
        return io.StringIO(f"{khz[cpu]}\n")

    monkeypatch.setattr(pace.os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr("builtins.open", told)
    assert pace.Pace(1.0, True).cpus == {chosen} and pace.Pace(1.0, False).asked == [0, 1, 2, 3]


def test_few_ticks_say_nothing_of_a_stretch(monkeypatch):
    asked = pace.Pace(1.0, True)
    told = [(pace.TICKS_MIN, 40), (pace.TICKS_MIN - 1, 40), (pace.TICKS_MIN, -90), (-3, 0)]  # less stolen than before, less worked: a CPU went
    looks = iter([pace.Look([(90, 90 * 9000)], ticks) for ticks in told])
    monkeypatch.setattr(asked, "look", lambda: next(looks))
    begin = pace.Look([(0, 0)], (0, 0))
    assert asked.since(begin) == pace.Slow(9000, (pace.TICKS_MIN + 40) / pace.TICKS_MIN)
    assert asked.since(begin) == pace.Slow(9000, None)
    assert asked.since(begin) == pace.Slow(9000, 1.0)
    assert asked.since(begin) == pace.Slow(9000, None)


def test_a_row_of_runs_too_short_to_tell_what_was_stolen_is_not_taken_for_one_that_nothing_was_stolen_from():
    draw, contest = random.Random(17), Acted({"libc": 0.55, "a": 0.45})

    def stolen_from(row):
        stretch, base = draw.choice((1.2, 1.3, 1.5)), contest.costs[row.name]
        return Fake(base * stretch, 1.0, slow=pace.Slow(8000, stretch if base >= 0.5 else None))

    contest.run_once = stolen_from
    for _ in range(27):
        contest.run_round()
    assert contest.saved_percent("a").value == pytest.approx(100 * (1 - 0.45 / 0.55), abs=6)
    assert trynoise.pace_json(contest)["stolen_percent"] == pytest.approx(100 * (1 - 1 / 1.5), abs=0.01)
    contest.runs["libc"] = [ran._replace(slow=pace.Slow(8000)) for ran in contest.runs["libc"]]
    assert trynoise.pace_json(contest)["stolen_percent"] is None and trynoise.pace_text(contest) == []


def test_a_saving_is_found_although_each_pair_ran_at_two_paces():
    draw, contest = random.Random(11), Acted({"libc": 1.0, "a": 0.8})
    unaware = Acted({"libc": 1.0, "a": 0.8})

    def at_some_pace(row):
        slow = draw.choice((8000, 12000))
        return Fake((1.0 if row.name == "libc" else 0.8) * (slow / 8000) ** 0.7, 1.0, slow=pace.Slow(slow))

    contest.run_once = at_some_pace
    unaware.run_once = lambda row: at_some_pace(row)._replace(slow=None)
    for one in (contest, unaware):
        for _ in range(12):
            one.run_round()
    found, other = contest.saved_percent("a"), unaware.saved_percent("a")
    assert found.value == pytest.approx(20) and found.high - found.low < 3
    assert other.high - other.low > 20


def test_requests_a_cpu_second_are_those_of_the_cpu_time_beside_them():
    contest, paces = Acted({"libc": 1.0, "a": 0.8}), {"libc": (1.5, 1.5, 1.0), "a": (1.0, 1.0, 1.5)}
    contest.load = SimpleNamespace(requests=1000, command="wrk")

    def at_some_pace(row):
        slow = paces[row.name][len(contest.runs[row.name]) % 3]
        cpu_s = contest.costs[row.name] * slow
        return Fake(cpu_s, 10.0, served=load.Served(cpu_s, 10.0, 900, {}), slow=pace.Slow(8000 * slow))

    contest.run_once = at_some_pace
    for _ in range(12):
        contest.run_round()
    for name, cpu_s in (("libc", 1.25), ("a", 1.0)):
        told = trytable.served(SimpleNamespace(contest=contest, has=contest.has), name)
        assert told["requests_per_cpu_s"] == pytest.approx(1000 / cpu_s) and contest.middle(name, "cpu_s") == pytest.approx(cpu_s)


@pytest.mark.parametrize(
    "wall_of, driven, wall_s",
    [(lambda cpu_s: cpu_s, None, 1.25), (lambda cpu_s: 10 + cpu_s, None, 11.25), (lambda cpu_s: 0.4 * cpu_s, None, 0.5), (lambda cpu_s: 10.0, "wrk -d 10", 10.0)],
)
def test_of_wall_time_only_what_the_program_worked_is_as_at_one_pace(wall_of, driven, wall_s):
    contest = Acted({"libc": 1.0})
    contest.load = driven

    def at_some_pace(_):
        cpu_s = (1.0, 1.25, 1.5)[contest.rounds % 3]
        return Fake(cpu_s, wall_of(cpu_s), slow=pace.Slow(8000 * cpu_s))

    contest.run_once = at_some_pace
    for _ in range(15):
        contest.run_round()
    assert contest.column("libc", "cpu_s") == pytest.approx([1.25] * 15)
    assert contest.column("libc", "wall_s") == pytest.approx([wall_s] * 15)


def test_the_spread_says_how_far_the_paces_lie_apart():
    assert pace.spread_percent([8000] * 12 + [12000] * 12) == pytest.approx(50)
    assert pace.spread_percent([8000] * 9) is None and pace.spread_percent([]) is None
    assert pace.stolen_percent([1.0] * 12 + [1.25] * 3) == pytest.approx(20) and pace.stolen_percent([2.0] * 9) is None


def test_what_was_stolen_is_said_where_it_was_much():
    contest = Acted({"libc": 1.0})
    contest.run_once = lambda row: Fake(1.0, 1.0, slow=pace.Slow(8000, 1.25 if len(contest.runs["libc"]) % 3 == 0 else 1.0))
    for _ in range(12):
        contest.run_round()
    assert trynoise.pace_text(contest) == ["  The host of this virtual machine gave up to 20 % of its CPU time to others in some runs: times are as with as much in each."]
    assert trynoise.pace_json(contest) == {"spread_percent": 0.0, "sensitivity": 0.0, "stolen_percent": 20.0, "stolen_sensitivity": 0.0}
    assert trynoise.pace_text(Acted({"libc": 1.0})) == [] and trynoise.pace_json(Acted({"libc": 1.0})) is None


def test_the_helper_tells_of_the_cpus_that_were_asked():
    with pace.Pace(0.2, False) as asked:
        assert asked.cpus is None
        before = asked.look()
        assert asked.since(before) is None  # nothing was told since
        until_s = time.monotonic() + 60
        while any(now[0] <= then[0] + pace.SPINS_MIN for now, then in zip(asked.look().spins, before.spins)) and time.monotonic() < until_s:
            time.sleep(0.05)
        slow, told = asked.since(before), asked.look()
    assert 500 < slow.spin_ns < 1e6 and (slow.stretch or 1) >= 1 and all(now[0] > then[0] + pace.SPINS_MIN for now, then in zip(told.spins, before.spins))
    assert asked.look().spins == [] and asked.since(before) is None


def test_the_helper_needs_no_disk_with_room(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pace.Pace(0.2, True) as asked:
        until_s = time.monotonic() + 60
        while asked.process.poll() is None and asked.look().spins[0][0] < pace.SPINS_MIN and time.monotonic() < until_s:
            time.sleep(0.01)
        assert asked.look().spins[0][0] >= pace.SPINS_MIN


def test_a_spin_that_took_no_time_by_a_clock_that_theft_set_back_counts_for_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", str(build(tmp_path, STOLEN, "stolen.so", ["-shared", "-fPIC"])))
    with pace.Pace(0.2, True) as asked:
        until_s = time.monotonic() + 60
        for number in (20, 40):
            before = asked.look()
            while asked.look().spins[0][0] < number and time.monotonic() < until_s:
                time.sleep(0.01)
        assert asked.since(before).spin_ns > 500


@pytest.mark.parametrize("lacks", ["os.memfd_create", "subprocess.Popen"])
def test_where_the_helper_cannot_begin_nothing_is_told(monkeypatch, lacks):
    def lacking(*_, **__):
        raise OSError(errno.ENOSYS, "not here")

    monkeypatch.setattr(lacks, lacking)
    with pace.Pace(0.2, True) as asked:
        assert asked.since(asked.look()) is None


def test_of_a_cpu_that_the_helper_may_not_run_on_nothing_is_told():
    asked = pace.Pace(0.2, True)
    asked.asked.append(100_000)
    with asked:
        until_s = time.monotonic() + 60
        while asked.look().spins[0][0] < pace.SPINS_MIN and time.monotonic() < until_s:
            time.sleep(0.01)
        first, second = asked.look().spins
    assert first[0] >= pace.SPINS_MIN and second == (0, 0)


def test_clocks_that_stand_still_tell_nothing(tmp_path, monkeypatch):
    still = "#include <time.h>\nint clock_gettime(clockid_t clock, struct timespec *at) { *at = (struct timespec){clock, 0}; return 0; }"
    monkeypatch.setenv("LD_PRELOAD", str(build(tmp_path, still, "still.so", ["-shared", "-fPIC"])))
    with pace.Pace(0.2, True) as asked:
        time.sleep(0.5)
        assert asked.look().spins == [(0, 0)]


def test_the_helper_ends_where_its_input_cannot_be_read(tmp_path):
    words = [BUILD / "tools" / "quire-pace", "1000", tmp_path / "told", "0"]
    (tmp_path / "told").touch()
    with open(os.devnull, "wb") as unreadable:
        assert subprocess.run(words, stdin=unreadable, timeout=60).returncode == 0


def test_a_program_of_one_thread_runs_on_the_cpu_that_is_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    contest = contest_of([build(tmp_path, WHERE)])
    first = contest.begin()
    assert pace.is_serial(first, 1) and not pace.is_serial(first, 2) and not pace.is_serial(Ended(1.9, 1.0), 1)
    contest.enter([rounds.Row(rounds.LIBC, None)])
    ours = os.sched_getaffinity(0)
    with pace.Pace(first.wall_s, True) as contest.pace:
        contest.run_round()
    with pace.Pace(first.wall_s, False) as contest.pace:
        contest.run_round()
    assert (tmp_path / "where").read_text().split() == [str(len(ours)), "1", str(len(ours))]
    assert os.sched_getaffinity(0) == ours
    assert all(ran.slow for ran in contest.runs[rounds.LIBC])


def test_the_helper_ends_when_the_tool_is_killed(tmp_path):
    script = f"""
import sys; sys.path.insert(0, {str(TOOL)!r})
import os, pace
asked = pace.Pace(1.0, False).start()
print(asked.process.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    helper, until_s = int(done.stdout), time.monotonic() + 60
    while os.path.exists(f"/proc/{helper}") and time.monotonic() < until_s:
        time.sleep(0.01)
    assert done.returncode == -9 and not os.path.exists(f"/proc/{helper}")
