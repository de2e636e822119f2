# SPDX-License-Identifier: MIT
"""test_rounds - the program itself under each allocator: order, failures, time, and what is done around each run."""

import math
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
from collections import namedtuple
from statistics import median

import pytest
from toolkit import BUILD, TOOL, build

import launch
import peers
import rounds
import stops
import target as targets
from errors import EnvironmentLacks, QuireError

SAY = """
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    FILE *f = fopen("said", "a");
    fprintf(f, "%s|%s\\n", getenv("LD_PRELOAD") ? getenv("LD_PRELOAD") : "", getenv("EXTRA") ? getenv("EXTRA") : "");
    free(malloc(getenv("EXTRA") ? 1 : 2));
    return getenv("EXTRA") ? 7 : 0;
}
"""
Fake = namedtuple("Fake", "cpu_s wall_s status peak_rss_bytes served slow stderr", defaults=(0, 1_000_000, None, None, ""))


def contest_of(argv, **more):
    return rounds.Contest(targets.resolve([str(w) for w in argv]), launch.Input(), **more)


class Acted(rounds.Contest):
    """A contest whose runs are made up: CPU seconds by row."""

    def __init__(self, costs, status=None):
        super().__init__(namedtuple("T", "name is_python inside")("prog", False, None), None)
        self.costs, self.status = costs, status or {}
        self.first = Fake(1.0, 1.0)
        self.rows = [rounds.Row(n, None if n in (rounds.LIBC, rounds.TODAY) else f"/{n}.so") for n in costs]
        self.runs, self.turns = {n: [] for n in costs}, {n: [] for n in costs}
        self.order = []
        self.clock = 0.0

    def run_once(self, row):
        self.order.append(row.name)
        cost = self.costs[row.name]
        self.clock += cost
        self.spent_s += cost
        return Fake(cost, cost, self.status.get(row.name, 0))


@pytest.fixture
def fake_time(monkeypatch):
    def of(contest):
        monkeypatch.setattr(rounds.time, "monotonic", lambda: contest.clock)
        return contest

    return of


def test_each_row_runs_once_a_round_with_its_own_library(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    contest = contest_of([build(tmp_path, SAY)])
    contest.begin()
    found = peers.installed()[:2]
    contest.enter(rounds.rows(contest.target, found, []))
    for _ in range(3):
        contest.run_round()
    said = [line.split("|")[0] for line in (tmp_path / "said").read_text().splitlines()][1:]
    wanted = sorted(["", *(p.path for p in found)])
    assert [sorted(said[i : i + 3]) for i in (0, 3, 6)] == [wanted] * 3
    assert contest.rounds == 3 and not contest.failed


def test_a_row_in_which_the_program_ends_otherwise_is_out_with_the_reason(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    contest = contest_of([build(tmp_path, SAY)])
    contest.begin()
    odd = rounds.Row("odd", None, lambda env: {**env, "EXTRA": "1"})
    contest.enter([rounds.Row(rounds.LIBC, None), odd])
    contest.run_round()
    contest.run_round()
    assert contest.failed == {"odd": "with it the program ends with exit status 7"}
    assert not contest.has("odd") and len(contest.runs["odd"]) == 1 and contest.rounds == 2


def test_a_program_that_ends_otherwise_on_libcs_own_malloc_blames_no_allocator(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    five_times = """
    #include <stdio.h>
    int main(void) {
        FILE *f = fopen("quota", "a");
        fputc('.', f);
        if (ftell(f) <= 5)
            return 0;
        fputs("quota used up\\n", stderr);
        return 7;
    }
    """
    contest = contest_of([build(tmp_path, five_times)])
    contest.begin()
    contest.enter([rounds.Row(rounds.LIBC, None), rounds.Row("other", None, lambda env: env)])
    with pytest.raises(EnvironmentLacks, match="exit status 0 alone, and ended with exit status 7 .* on libc's malloc: quota used up") as found:
        for _ in range(4):
            contest.run_round()
    assert "--prepare" in found.value.fix and contest.rounds == 2


def test_a_library_that_would_not_serve_the_program_is_out_before_the_first_round(tmp_path):
    contest = contest_of([build(tmp_path, SAY)])
    contest.enter([rounds.Row(rounds.LIBC, None), rounds.Row("no malloc", "libm.so.6")])
    assert "malloc would come from" in contest.failed["no malloc"]
    assert [r.name for r in contest.active()] == [rounds.LIBC]


def test_the_order_is_drawn_anew_in_each_round():
    contest = Acted({"libc": 1.0, "a": 1.0, "b": 1.0, "c": 1.0})
    for _ in range(12):
        contest.run_round()
    orders = {tuple(contest.order[i : i + 4]) for i in range(0, 48, 4)}
    assert all(sorted(o) == ["a", "b", "c", "libc"] for o in orders) and len(orders) > 4


def test_savings_are_told_pair_by_pair():
    contest = Acted({"libc": 1.0, "a": 0.8})
    for scale in (1.0, 2.0, 1.5, 1.0, 3.0):
        contest.costs = {"libc": scale, "a": 0.8 * scale}
        contest.run_round()
    found = contest.saved_percent("a")
    assert found.value == pytest.approx(20)
    elsewhen = rounds.ELSEWHEN_POINTS + rounds.ELSEWHEN_SHARE * 20  # the rounds agree, but those of another hour might not
    assert found.low == pytest.approx(20 - elsewhen) and found.high == pytest.approx(20 + elsewhen)
    assert contest.best_preload().name == "a"


def test_rounds_end_when_the_verdict_is_settled_at_a_look(fake_time):
    contest = fake_time(Acted({"libc": 0.1, "a": 0.1}))
    asked = []
    rounds.compete(contest, 100, None, lambda: asked.append(contest.rounds) or contest.rounds >= 12)
    assert contest.rounds == 12 and asked == [5, 8, 12]


def test_rounds_end_with_the_time_and_never_take_more_than_sixty(fake_time):
    contest = fake_time(Acted({"libc": 1.0, "a": 1.0}))
    rounds.compete(contest, 21, None, lambda: False)
    assert contest.rounds == 10
    contest = fake_time(Acted({"libc": 0.001, "a": 0.001}))
    rounds.compete(contest, 1e9, None, lambda: False)
    assert contest.rounds == 60


def test_a_long_program_has_five_rounds_of_the_rows_that_decide(fake_time):
    costs = {"libc": 10.0, "steered": 8.0, "bad": 12.0, "good": 9.0, "worse": 11.0}
    contest = fake_time(Acted(costs))
    rounds.compete(contest, 200, None, lambda: True)
    assert {n: len(r) for n, r in contest.runs.items()} == {"libc": 6, "steered": 5, "good": 5, "bad": 2, "worse": 2}
    assert contest.clock <= 200 and contest.few == ["bad", "worse"]


def test_rows_that_were_left_out_get_the_time_that_is_left_and_are_compared_with_libc_in_the_same_rounds(fake_time):
    costs = {"libc": 1.0, "steered": 0.5, "bad": 5.0, "good": 0.6}
    contest = fake_time(Acted(costs))
    grown = contest.run_once

    def slower_each_time(row):
        ran = grown(row)
        if row.name not in seen:  # from a cold disk
            contest.clock += ran.cpu_s
            contest.spent_s += ran.cpu_s
        seen.add(row.name)
        scale = 1 + len(contest.runs["libc"])
        return ran._replace(cpu_s=ran.cpu_s * scale)

    seen = set()
    contest.run_once = slower_each_time
    rounds.compete(contest, 50, None, lambda: True)
    assert {n: len(r) for n, r in contest.runs.items()} == {"libc": 9, "steered": 5, "good": 5, "bad": 5}
    assert contest.clock <= 50 and contest.few == []
    assert set(contest.turns["bad"]) - set(contest.turns["good"]) == {5, 6, 7, 8}


def test_rows_that_had_no_time_in_the_first_round_are_compared_with_the_allocator_of_today_too(fake_time):
    contest = fake_time(Acted({"libc": 1.0, "today": 0.9, "steered": 0.7, "good": 0.6, "other": 0.8}))
    contest.first_s = 30.0  # from a cold disk
    rounds.compete(contest, 60, None, lambda: contest.rounds >= 5, {"good": 40.0}.get, is_hard=True)
    assert {name: len(runs) for name, runs in contest.runs.items()} == {"libc": 10, "today": 10, "steered": 5, "good": 5, "other": 5}
    assert contest.saved_percent("steered", rounds.TODAY).value == pytest.approx(100 * (1 - 0.7 / 0.9))
    assert contest.best_preload(rounds.TODAY).name == "good"


def test_a_row_of_few_rounds_has_a_wide_interval():
    contest = Acted({"libc": 1.0, "a": 0.8, "late": 0.7})
    for turn in range(8):
        contest.costs = {"libc": 1.0, "a": 0.8 + turn / 100, "late": 0.7}
        contest.run_round(None if turn == 0 else {"libc", "a"})
    few, many = contest.saved_percent("late"), contest.saved_percent("a")
    assert few.high - few.low > 2 * 6 and few.low < few.value < few.high
    assert few.high - few.low > many.high - many.low
    alone = Acted({"libc": 1.0, "a": 0.8})
    alone.run_round()
    assert alone.saved_percent("a").low < 5


def test_what_the_replay_promised_helps_to_choose_the_preload_that_goes_on(fake_time):
    contest = fake_time(Acted({"libc": 10.0, "lucky": 8.9, "good": 9.0}))
    rounds.compete(contest, 100, None, lambda: True, {"lucky": -5.0, "good": 12.0}.get)
    assert {n: len(r) for n, r in contest.runs.items()} == {"libc": 5, "good": 5, "lucky": 1}
    assert contest.best_preload().name == "good"  # a row of one round is not compared with those of five


def test_a_number_of_rounds_is_kept_whatever_it_takes(fake_time):
    contest = fake_time(Acted({"libc": 10.0, "a": 9.0}))
    rounds.compete(contest, 1, 3, lambda: True)
    assert contest.rounds == 3


def test_a_round_without_an_answer_in_time_ends_even_the_first_five(fake_time):
    contest = fake_time(Acted({"libc": 100.0, "a": 100.0}))
    rounds.compete(contest, 150, None, lambda: False)
    assert contest.rounds == 1


@pytest.mark.parametrize("wall_s, limit_s", [(0.01, 60), (0.5, 60), (1, 75), (5, 195), (10, 345)])
def test_the_usual_time_limit_grows_with_the_program(wall_s, limit_s):
    assert rounds.usual_limit_s(wall_s) == limit_s


@pytest.mark.parametrize("wall_s, limit_s", [(0.5, 175), (1.5, 180), (7, 180), (10, 180), (20, 320)])
def test_a_server_has_its_verdict_within_three_minutes_unless_its_load_takes_long(wall_s, limit_s):
    assert rounds.usual_limit_s(wall_s, is_load=True) == limit_s


def test_hooks_run_around_each_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hooks = rounds.Hooks("echo prepare >>log; rm -f said", "echo cleanup >>log; test -f said")
    contest = contest_of([build(tmp_path, SAY)], hooks=hooks)
    contest.begin()
    contest.run_once(rounds.Row(rounds.LIBC, None))
    assert (tmp_path / "log").read_text().split() == ["prepare", "cleanup"] * 2


def test_what_a_hook_starts_for_the_program_does_not_keep_us(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    began_s = time.monotonic()
    contest = contest_of([build(tmp_path, SAY)], hooks=rounds.Hooks("sleep 100 & echo $! >beside", "kill $(cat beside)"))
    contest.begin()
    assert time.monotonic() - began_s < 60


def test_a_hook_that_fails_ends_the_command_with_what_it_said(tmp_path):
    contest = contest_of([build(tmp_path, SAY)], hooks=rounds.Hooks("echo no such luck >&2; exit 3"))
    with pytest.raises(QuireError) as caught:
        contest.begin()
    assert "--prepare" in caught.value.what and caught.value.why == "no such luck"


@pytest.mark.parametrize("scatter", [0.02, 0.4])
def test_noise_of_the_same_size_in_both_rows_is_no_saving_and_no_loss(scatter):
    found = []
    for seed in range(150):
        draw, contest = random.Random(seed), Acted({"libc": 1.0, "a": 0.9})
        contest.run_once = lambda row, draw=draw: Fake((1.0 if row.name == "libc" else 0.9) * math.exp(draw.gauss(0, scatter)), 1.0)
        for _ in range(8):
            contest.run_round()
        found.append(contest.saved_percent("a").value)
    assert abs(median(found) - 10) < 8 * scatter  # quotients averaged as they are: 5 points and more below it, with 0.4


def test_the_scatter_is_that_of_two_runs_of_one_row():
    contest = Acted({"libc": 1.0, "a": 0.5})
    assert contest.scatter_percent() is None
    for scale in (1.0, 1.1):
        contest.costs = {"libc": scale, "a": 0.5 * scale}
        contest.run_round()
    assert contest.scatter_percent() == pytest.approx(10)


@pytest.mark.parametrize("row, inside, how", [("today", None, "as it runs today"), ("libc", "libjemalloc.so.2", "with libc's malloc in the place of its own"), ("libc", None, "on libc's malloc")])
def test_a_row_that_others_are_compared_with_and_ends_otherwise_is_no_saving(row, inside, how):
    contest = Acted({"libc": 1.0, "today": 0.9, "good": 0.6}, {row: 9})
    contest.target = contest.target._replace(inside=inside)
    with pytest.raises(EnvironmentLacks, match=how):
        contest.run_round()


def test_a_saving_is_at_most_all_of_it():
    contest = Acted({"libc": 1.0, "a": 0.01})
    for turn in range(6):
        contest.costs = {"libc": 1.0 + turn / 10, "a": 0.01}
        contest.run_round()
    assert contest.saved_percent("a").high == 100.0


def test_a_hook_that_fails_is_told_with_a_line_that_can_be_typed():
    command = "echo 'a  b' >/dev/null; test 'x y' = z"
    with pytest.raises(QuireError) as raised:
        rounds.Hooks(command).around(lambda: None)
    typed = raised.value.fix.partition("sh -c ")[2]
    assert subprocess.run(["sh", "-c", f"printf %s {typed}"], capture_output=True, text=True, check=True).stdout == command


def test_a_stop_while_a_hook_runs_ends_what_the_hook_started(tmp_path):
    hook = "sleep 77.5 & echo $! > child; mv child there; wait"
    tool = subprocess.Popen([sys.executable, TOOL, "try", "--no-report", "--prepare", hook, "--", "true"], cwd=tmp_path, stderr=subprocess.PIPE, env={**os.environ, "QUIRE_BUILD_DIR": str(BUILD)})
    there = tmp_path / "there"
    while not there.exists():
        assert tool.poll() is None
        time.sleep(0.01)
    tool.send_signal(signal.SIGTERM)
    tool.communicate(timeout=60)
    stat = pathlib.Path(f"/proc/{there.read_text().strip()}/stat")
    until = time.monotonic() + 30  # it is told to end; when it runs again, it does
    while is_there(stat) and time.monotonic() < until:
        time.sleep(0.01)
    assert not is_there(stat)


def test_a_stop_while_a_hook_is_being_started_ends_it(monkeypatch):
    started, plain = [], subprocess.Popen

    def popen(*words, **more):
        started.append(plain(*words, **more))
        signal.raise_signal(signal.SIGTERM)
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    with pytest.raises(stops.Stopped), stops.raised():
        rounds.Hooks("sleep 77.5").around(lambda: None)
    ended = started[0].poll()
    started[0].kill()
    assert ended == -signal.SIGTERM


def is_there(stat):
    """A zombie is not: its new parent has not looked yet."""
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
