# SPDX-License-Identifier: MIT
"""test_finding - what runs and replays make together: the verdict of what was run, the model with its error."""

import re
from types import SimpleNamespace

import pytest
from test_measure import run_of
from test_rounds import Acted, Fake

import advise.advice as advice
import finding
import measure
import rounds
import steering
import target as targets
import tryreport
import trytable
from finding import Finding
from measure import Estimate

REPLAYS = {"libc": 500e6, "null": 100e6, "a": 300e6, "mix": 200e6, "mix-null": 80e6}


def contest_of(number=8, **costs):
    contest = Acted({"libc": 1.0, **costs})
    for turn in range(number):
        wobble = 1 + (turn % 3) / 1000
        contest.costs = {name: cost * wobble for name, cost in {"libc": 1.0, **costs}.items()}
        contest.run_round()
    return contest


def outcome_of(contest, **replays):
    series = measure.Series([measure.Backend("libc", None, None, False), measure.Backend("null", None, None, True)])
    costs = {**REPLAYS, **replays}
    for name in costs:
        series.runs[name] = [run_of(costs[name] + wobble) for wobble in (0, 1e5, 2e5, -1e5, 1e4)]
    library = [measure.Backend(n, f"/{n}.so", None, False) for n in costs if n not in ("libc", "null", "mix", "mix-null")]
    series.backends += library + [measure.Backend("mix", None, "plan", False), measure.Backend("mix-null", None, "plan", True)]
    return advice.Outcome(series, contest.column("libc", "cpu_s") if contest else [1.0])


def found_of(contest, sampled=None, **replays):
    return Finding(contest, outcome_of(contest, **replays), sampled)


def test_the_verdict_stands_on_what_was_run_whatever_the_model_says():
    assert found_of(contest_of(a=0.99)).verdict.verdict.word == advice.NO  # the model says 20 % for a and 30 % for the mix
    yes = found_of(contest_of(a=0.9), a=495e6).verdict
    assert (yes.name, yes.verdict.word) == ("a", advice.YES) and yes.saving.value == pytest.approx(10)


def test_the_row_that_saves_most_stands_for_the_verdict_and_any_gain_makes_a_yes():
    both = found_of(contest_of(a=0.9, steered=0.8)).verdict
    assert both.name == "steered" and both.saving.value == pytest.approx(20)
    assert found_of(contest_of(a=0.8, steered=0.9)).verdict.name == "a"
    other = found_of(contest_of(a=0.8, steered=1.2)).verdict
    assert (other.name, other.verdict.word) == ("a", advice.YES)


@pytest.mark.parametrize(("timed_s", "sampled", "needless"), [(0.1, None, 10), (0.1, 50, 10), (0.4, 50, 30), (0.4, 15, 0)])
def test_frees_that_code_would_not_make_save_no_more_than_what_allocation_takes(timed_s, sampled, needless):
    counted = steering.Counters(9, 9, 9, timed_s * 1e9, 0, 1, 0)
    contest = contest_of(steered=0.8)
    found = Finding(contest, outcome_of(contest), sampled and Estimate(sampled, sampled, sampled), steered=finding.Steered(None, counted))
    assert found.needless_percent == pytest.approx(needless, abs=0.2)


def test_the_models_error_is_what_it_says_of_a_row_that_was_run_less_what_the_run_says():
    found = found_of(contest_of(a=0.9))
    assert found.model_error("a") == pytest.approx(10, abs=0.1) and found.model_error_max == found.model_error("a")
    assert found.model_error("libc") is None and found.model_error("steered") is None
    assert found.mix_saving.value == pytest.approx(30, abs=0.1)
    assert found.mix_saving.low < 20.1 and found.mix_saving.high > 39.9


def test_of_a_program_that_may_run_once_a_malloc_that_could_be_preloaded_counts_by_the_model():
    nothing = {"mix": 1e9, "mix-null": 0.0, "a": 10e6}
    assert Finding(None, outcome_of(None, **nothing), cpu_s=1.0).verdict.verdict.word != advice.YES
    yes = Finding(None, outcome_of(None, **nothing), cpu_s=1.0, preloads=True).verdict
    assert (yes.name, yes.verdict.word) == ("a", advice.YES)


def test_where_nothing_was_run_the_usual_error_stands_in_every_interval():
    found = Finding(None, outcome_of(None), cpu_s=1.0)
    assert not found.measured and found.model_error_max is None
    assert found.mix_saving.low < 30 * (1 - finding.ERROR_USUAL) + 1 and found.mix_saving.high > 30 * (1 + finding.ERROR_USUAL) - 1
    assert found.verdict.name == "mix"
    assert all(row["measured"] is False for row in trytable.json_rows(found))


def test_where_looks_and_replay_differ_by_over_a_third_the_lower_share_counts_and_the_model_shrinks():
    found = found_of(contest_of(a=0.9), Estimate(20.0, 18.0, 22.0))
    assert found.disagree and found.share_percent.value == 20.0 and found.scale == pytest.approx(0.5, abs=0.01)
    assert found.mix_saving.value == pytest.approx(15, abs=0.2)
    near = found_of(contest_of(a=0.9), Estimate(35.0, 33.0, 37.0))
    assert not near.disagree and near.share_percent.value == 35.0 and near.scale == 1.0
    more = found_of(contest_of(a=0.9), Estimate(80.0, 78.0, 82.0))
    assert more.disagree and more.share_percent.value == pytest.approx(40, abs=0.1) and more.scale == 1.0
    refuted = found_of(contest_of(a=0.5), Estimate(80.0, 78.0, 82.0))  # half of the time is saved: more than the replay says that all of it costs
    assert refuted.disagree and refuted.refuting_replay == "a" and refuted.share_percent.value == 80.0 and more.refuting_replay is None


@pytest.mark.parametrize(("looks", "share", "scale"), [(Estimate(2.0, 1.0, 4.0), 20, 1.0), (Estimate(15.0, 13.0, 17.0), 20, 1.0), (Estimate(19.0, 16.0, 22.0), 19, 0.475)])
def test_looks_that_saw_less_than_a_malloc_saves_are_refuted(looks, share, scale):
    """Page faults on memory that libc's malloc gave back are in the program's code, where no look counts them: Apache's mod_deflate under libc's malloc."""
    found = found_of(contest_of(a=0.8), looks)
    assert found.refuting == ("a" if share == 20 else None)
    assert found.disagree and found.share_percent.value == pytest.approx(share) and found.scale == pytest.approx(scale, abs=0.01)
    assert share == 19 or found_of(contest_of(a=0.8), looks, a=200e6).scale == pytest.approx(20 / 30, abs=0.01)  # the model says 30
    faster = found_of(contest_of(a=0.4), looks)
    assert faster.refuting == "a" and faster.share_percent.value == pytest.approx(60) and faster.scale == 1.0


def test_a_saving_that_noise_may_have_made_refutes_no_looks():
    contest = Acted({"libc": 1.0, "a": 0.95})
    for turn in range(9):
        contest.costs = {"libc": 1.0, "a": 0.75 + 0.05 * turn}
        contest.run_round()
    found = found_of(contest, Estimate(2.0, 1.0, 4.0))
    assert found.measured_saving("a").value > 4 and found.refuting is None and found.share_percent.value == 2.0
    mixed = Acted({"libc": 1.0, "a": 0.8, "b": 0.7})
    for turn in range(9):
        mixed.costs = {"libc": 1.0, "a": 0.8 + turn / 1000, "b": 0.3 + 0.1 * turn}
        mixed.run_round()
    assert found_of(mixed, Estimate(2.0, 1.0, 4.0)).refuting == "a"  # b seems to save more, and may save nothing


def test_the_most_that_can_be_saved_is_never_less_than_what_a_row_saves():
    found = found_of(contest_of(a=0.4, steered=0.3), Estimate(35.0, 33.0, 37.0))
    assert found.most_percent == pytest.approx(70)


def test_a_program_with_an_allocator_of_its_own_is_judged_against_that():
    contest = contest_of(a=0.8, today=0.7)
    found = found_of(contest)
    assert found.base == rounds.TODAY and found.verdict.verdict.word == advice.NO
    assert found.verdict.saving.value < 0 < found.saving("a").value


def test_memory_alone_can_make_a_yes():
    contest = contest_of(a=1.0)
    contest.runs["a"] = [Fake(r.cpu_s, r.wall_s, 0, 800_000) for r in contest.runs["a"]]
    found = found_of(contest)
    assert found.verdict.verdict.word == advice.YES and "memory" in found.verdict.verdict.reason


def test_a_peak_that_is_another_in_each_run_makes_no_yes():
    contest = contest_of(a=1.0)
    for name, peaks in (("libc", (5, 35, 20, 21, 30, 9, 22, 12)), ("a", (25, 8, 18, 33, 17, 18, 7, 29))):
        contest.runs[name] = [Fake(r.cpu_s, r.wall_s, 0, peak << 20) for r, peak in zip(contest.runs[name], peaks)]
    found = found_of(contest)
    assert found.memory_percent("a") > advice.MEMORY_PERCENT_MIN and found.verdict.verdict.word == advice.NO


def test_rounds_go_on_while_the_verdict_is_open():
    clear, few = contest_of(a=0.8), contest_of(number=4, a=0.8)
    assert found_of(clear).settled() and not found_of(few).settled()
    torn = contest_of(a=0.97)
    for turn, ran in enumerate(torn.runs["a"]):
        torn.runs["a"][turn] = Fake(ran.cpu_s * (1 + (turn % 5 - 2) / 100), 1.0)
    assert not found_of(torn).settled()


def test_the_time_that_would_settle_it_is_told_where_there_is_such_a_time():
    contest = contest_of(number=12, a=0.96)
    for turn, ran in enumerate(contest.runs["a"]):
        contest.runs["a"][turn] = Fake(ran.cpu_s * (1 + (turn % 5 - 2) / 80), 1.0)
    found = found_of(contest)
    assert found.verdict.verdict.word == advice.INCONCLUSIVE
    assert 60 < found.seconds_wanted(60) <= 300


@pytest.mark.parametrize(
    ("sites", "memory_bytes", "does"),
    [(3, 4 << 20, ": which call sites get arenas (not those that the heap serves as well), and how much memory to expect;"), (0, 4 << 20, ": how much memory to expect;"), (3, 0, ": which call sites get arenas (not those that the heap serves as well);")],
)
def test_the_row_of_the_advice_carried_out_says_what_its_plan_does_and_no_more(sites, memory_bytes, does):
    contest = contest_of(steered=0.85)
    steered = finding.Steered(steering.Written("x.plan", sites, 9, 9, [], memory_bytes), None)
    text = "\n".join(trytable.text(Finding(contest, outcome_of(contest), steered=steered), None))
    assert f"advice carried out: libquire-malloc.so with a plan{does} the program as it is" in text


def test_rows_say_what_was_measured_and_how_far_the_model_is_off():
    rows = {row["name"]: row for row in trytable.json_rows(found_of(contest_of(a=0.9, steered=0.85)))}
    assert [rows[n]["measured"] for n in ("libc", "a", "steered", "mix")] == [True, True, True, False]
    assert rows["a"]["model_error_percent"] == pytest.approx(10, abs=0.1) and rows["steered"]["model_error_percent"] is None
    assert rows["mix"]["model_error_percent"] == pytest.approx(10, abs=0.1)
    assert rows["steered"]["saving_percent"]["value"] == pytest.approx(15)
    text = "\n".join(trytable.text(found_of(contest_of(a=0.9, steered=0.85)), None))
    assert "advice carried out" in text and "modelled" in text


def test_a_table_without_replays_has_no_column_for_what_the_model_said():
    contest = contest_of(a=0.9)
    assert "the model said" in trytable.text(found_of(contest), None)[0]
    head, *rows = trytable.text(Finding(contest, None), None)
    assert head.split() == "allocator CPU time saves wall time peak memory".split() and len(rows) == 2


def test_a_no_says_how_much_is_saved_at_most_and_by_whom():
    report = tryreport.Report(targets.Target(["p"], "/p", "/p"))
    report.contest = contest_of(a=0.99)
    report.finding, report.recording = found_of(report.contest), SimpleNamespace(facts={})
    report.settle(None)
    assert report.verdict.word == advice.NO
    assert re.fullmatch(r"at most 1.0 % \(.* to .*\) of the CPU time is saved, by a in the place of malloc, the program as it is", report.verdict.reason)


@pytest.mark.parametrize(
    ("few", "said"),
    [([], None), (["b"], "b: their intervals are wide, and the verdict does not hang on them."), (["a", "b", "steered"], "a, b, advice carried out: their intervals are wide, and the verdict does not hang on b.")],
)
def test_rows_of_few_rounds_that_the_verdict_leaves_out_are_named(few, said):
    judged = [SimpleNamespace(name=name) for name in ("a", "steered")]
    found = SimpleNamespace(contest=SimpleNamespace(few=few), judged=lambda: judged)
    assert trytable.few_text(found) == [f"  No time was left for as many rounds of {said}"] * bool(few)


def test_a_plan_without_a_call_site_must_be_better_than_a_malloc_that_one_line_preloads():
    for sites, won in ((0, "a"), (3, "steered")):
        contest = contest_of(a=0.8, steered=0.79)
        steered = finding.Steered(steering.Written("x.plan", sites, 9, 9, [], 1 << 24), None)
        assert Finding(contest, outcome_of(contest), steered=steered).verdict.name == won
    contest = contest_of(a=0.8, steered=0.7)
    assert Finding(contest, outcome_of(contest), steered=finding.Steered(steering.Written("x.plan", 0, 9, 9, [], 1 << 24), None)).verdict.name == "steered"


@pytest.mark.parametrize(("looks", "beyond"), [(Estimate(2.0, 1.0, 3.0), True), (Estimate(20.0, 19.0, 21.0), False)])
def test_a_malloc_that_seems_to_save_more_than_allocation_takes_does_so_by_where_blocks_lie(looks, beyond):
    mixed = contest_of(number=9, a=0.95)
    mixed.runs["a"] = [run._replace(cpu_s=run.cpu_s * (1.15 if i % 3 == 0 else 0.9)) for i, run in enumerate(mixed.runs["a"])]
    found = found_of(mixed, looks)
    assert found.refuting is None and found.saves_beyond_share == beyond


def test_so_does_the_advice_carried_out():
    found = found_of(contest_of(a=0.99, steered=0.7), Estimate(20.0, 19.0, 21.0))
    assert found.refuting is None and found.saves_beyond_share


def test_where_no_malloc_could_be_run_nothing_is_beyond_the_share():
    contest = contest_of(a=0.5)
    contest.failed["a"] = "it crashed"
    found = found_of(contest, Estimate(20.0, 19.0, 21.0))
    assert found.best_preload() is None and not found.saves_beyond_share
