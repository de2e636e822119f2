# SPDX-License-Identifier: MIT
"""test_budget - `try --time-limit S` bounds all of it: what there is no time for is left out, and said."""

import contextlib
import json
from types import SimpleNamespace

import pytest
from test_manners import CHURN
from test_rounds import Acted
from toolkit import build, quire

import budget
import cmd_try
import rounds
import trysmall
from measure import Estimate


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(budget.time, "monotonic", lambda: now[0])
    return now


def test_what_is_left_is_shared_out_by_what_each_step_takes(clock, monkeypatch):
    one = budget.Budget(100.0, 20.0, True)
    clock[0] += 4
    one.read_s = 1.0
    assert one.left_s == pytest.approx(16)
    assert one.allows_model(0.25) and not one.allows_model(0.3)  # 31 replays in half of it
    assert one.leaves_model(0.5) and not one.leaves_model(0.6)
    assert one.allows_runs(16, 1.0) and not one.allows_runs(17, 1.0)
    monkeypatch.setattr(budget, "PAGE_CPU_S", 1.0)
    assert one.for_rounds_s() == pytest.approx(13) and one.allows_page()
    one.crowd = 10.0  # a page that takes more than its share is left out, and the rounds get all
    assert one.for_rounds_s() == pytest.approx(16)
    clock[0] += 12
    assert not one.allows_page() and one.for_rounds_s() <= 4.1


def test_one_replay_may_take_what_all_may_and_where_the_limit_is_a_wish_what_a_start_takes_on_a_busy_machine(clock):
    order, wish = (budget.Budget(100.0, 1.0, is_hard) for is_hard in (True, False))
    assert order.one_replay_s(0.1) == 0.1 and wish.one_replay_s(0.1) == 2.0 and wish.one_replay_s(60.0) == 60.0


def test_the_usual_limit_is_a_wish(clock):
    one = budget.Budget(100.0, 20.0, False)
    clock[0] += 50
    assert one.allows_model(9) and one.allows_runs(99, 9) and one.allows_page()
    assert one.for_rounds_s() == pytest.approx(6)


@pytest.fixture
def fake_time(monkeypatch):
    def of(contest, first_s):
        monkeypatch.setattr(rounds.time, "monotonic", lambda: contest.clock)
        contest.first_s = first_s
        return contest

    return of


def test_a_hard_limit_is_kept_from_the_second_round_on(fake_time):
    contest = fake_time(Acted({"libc": 1.0, "a": 1.0, "drop-in": 1.0}), 1.0)
    rounds.compete(contest, 7, None, lambda: False, is_hard=True)
    assert contest.clock <= 7 and contest.rounds == 3  # all of them once, then those that decide
    soft = fake_time(Acted({"libc": 1.0, "a": 1.0, "drop-in": 1.0}), 1.0)
    rounds.compete(soft, 7, None, lambda: False)
    assert soft.rounds == 5 and soft.clock > 7


@pytest.mark.parametrize("promised, ran", [({}, "drop-in"), ({"a": 9.0, "drop-in": 2.0}, "a")])
def test_where_a_round_of_all_does_not_fit_those_run_that_decide(fake_time, promised, ran):
    contest = fake_time(Acted({"libc": 1.0, "a": 1.0, "b": 1.0, "drop-in": 1.0}), 1.0)
    rounds.compete(contest, 2.5, None, lambda: False, promised.get, is_hard=True)
    assert {n: len(r) for n, r in contest.runs.items() if r} == {"libc": 1, ran: 1}


@pytest.mark.by_turns
def test_too_short_a_limit_leaves_out_the_advice_and_says_so(tmp_path):
    # 300,000 pairs: the replays alone take longer than the limit on any machine.
    program = build(tmp_path, CHURN.replace("4000", "300000"), name="slow")
    done = quire(tmp_path, "try", "--time-limit", 0.05, "-o", "t.qtr", "--", program)
    assert done.returncode == 0, done.stderr
    left = next(line for line in done.stdout.splitlines() if line.startswith("  left out: "))
    assert "no time for replays and advice" in done.stdout and left.endswith(f"there was no time to run {'them' if ',' in left else 'it'}")
    assert "advise t.qtr" in done.stdout and "--time-limit" in done.stdout
    assert "no time for the page" in done.stderr and "replaying" not in done.stderr
    document = json.loads(quire(tmp_path, "try", "--json", "-f", "--time-limit", 0.05, "-o", "t.qtr", "--", program).stdout)
    ran = {row["name"] for row in document["allocators"] if row.get("rounds")}
    assert ran == {"libc", "drop-in"} and document["rounds"] == 1 and document["verdict"]["word"] == "INCONCLUSIVE"


@pytest.mark.parametrize("time_limit, load, wanted_s", [(None, None, trysmall.SECONDS_MAX), (200, None, 280), (None, object(), 280)])
def test_few_but_large_blocks_are_compared_for_a_minute_unless_more_was_asked_for(monkeypatch, time_limit, load, wanted_s):
    asked = []
    monkeypatch.setattr(rounds, "compete", lambda contest, limit_s, *more: asked.append(limit_s))
    monkeypatch.setattr(cmd_try.pace, "Pace", lambda wall_s, serial: contextlib.nullcontext())
    monkeypatch.setattr(cmd_try.finding, "Finding", lambda contest, outcome, **more: None)
    monkeypatch.setattr(trysmall, "settle", lambda report, args: None)
    first = SimpleNamespace(cpu_s=9.0, wall_s=9.0)
    report = SimpleNamespace(hurried=False, too_small=True, recorded=first, processes=[SimpleNamespace(facts={})], budget=SimpleNamespace(for_rounds_s=lambda: 280, is_hard=False))
    report.contest = SimpleNamespace(load=load, first=first, first_s=9.0)
    cmd_try.compare_alone(report, SimpleNamespace(time_limit=time_limit, rounds=None), "few")
    assert asked == [wanted_s]


@pytest.mark.parametrize("recorded_s, serial", [(2.0, False), (3.0, True)])
def test_processes_side_by_side_stay_so_although_the_first_run_waited_for_a_disk(monkeypatch, recorded_s, serial):
    asked = []
    monkeypatch.setattr(rounds, "compete", lambda *_: None)
    monkeypatch.setattr(cmd_try.pace, "Pace", lambda wall_s, is_serial: asked.append(is_serial) or contextlib.nullcontext())
    contest = SimpleNamespace(load=None, first=SimpleNamespace(cpu_s=3.0, wall_s=9.0))
    budget = SimpleNamespace(for_rounds_s=lambda: 280, is_hard=False)
    report = SimpleNamespace(contest=contest, recorded=SimpleNamespace(cpu_s=3.0, wall_s=recorded_s), processes=[SimpleNamespace(facts={"threads": 1})], budget=budget)
    cmd_try.run_rounds(report, SimpleNamespace(rounds=None), lambda: True)
    assert asked == [serial]


def test_the_time_in_the_first_line_is_that_of_the_table(monkeypatch):
    monkeypatch.setattr(trysmall.trytable, "text", lambda found, today: ["table"])
    monkeypatch.setattr(trysmall.trytable, "served_text", lambda found, today: [])
    none = dict.fromkeys(("today_text", "verdict_text", "rounds_text", "whole_text", "status_text"), lambda: [])
    recording = SimpleNamespace(facts={"allocations": 222, "peak_live_bytes": 15 << 20}, path="sort.qtr", begun_late=False, events_outside=0)
    runs = [SimpleNamespace(cpu_s=0.194)] * 3  # on a CPU that was slower for a while
    resident = [16 << 20]
    found = SimpleNamespace(program_s=Estimate(0.184, 0.18, 0.19), contest=SimpleNamespace(middle=lambda name, key: resident[0]))
    report = SimpleNamespace(target=SimpleNamespace(name="sort"), recording=recording, runs=runs, finding=found, hurried=False, unreplayed="", is_cut=False, process_count=1, processes=[], today_allocator=None, **none)
    assert "222 allocations in 184 ms of CPU time, at most 15.7 MB live at once: " in trysmall.text(report)[0]
    resident[0] = 14 << 20
    assert "live at once, not all of it touched: " in trysmall.text(report)[0]
    report.finding = None
    assert "222 allocations in 194 ms of CPU time" in trysmall.text(report)[0]


@pytest.mark.long
def test_where_the_rounds_leave_time_the_advice_comes_after_them(tmp_path, monkeypatch, capsys):
    import cli

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(budget.Budget, "allows_model", lambda *_: False)
    monkeypatch.setattr(budget.Budget, "leaves_model", lambda *_: leaves)
    for leaves in (True, False):
        assert cli.main(["try", "--no-report", "--json", "--time-limit", "1", "--", "jq", "-n", "[range(3000)|tostring]|length"]) == 0
        said = capsys.readouterr()
        document = json.loads(said.out)
        assert document["measured"] and "no time for replays and advice before the rounds" in said.err
        assert bool(document["sites"]) == bool(document["parts"]) == leaves
        assert (document["allocation_share_modelled_percent"] is not None) == leaves
        if document["saving_of"]:  # what the rounds know is told, whoever was left out
            assert document["saving_cpu_s"] and document["peak_memory_saved_bytes"] is not None
            assert document["rounds"] < 3 or document["scatter_percent"] is not None
