# SPDX-License-Identifier: MIT
"""test_shrinkage - what runs and model make together under a load: nearer to the truth than either, whichever errs."""

import random

import pytest
import shrinkage_trials
from test_finding import contest_of, found_of, outcome_of
from toolkit import ROOT

import finding
import trynoise
import trytable
import shrinkage
from shrinkage import drawn


def Row(measured, noise, modelled, rounds=9):
    return shrinkage.Row(measured, noise, modelled, rounds)


def rms(draw, noise, error, most=15, part=1.0, number=1500):
    """(of the runs, of the model, of both): how far each is from the truth, over so many programs of four mallocs of which a model says up to `most`, that part of the truth."""
    sums = [0.0, 0.0, 0.0]
    for _ in range(number):
        modelled = [draw.uniform(-2 * most / 15, most) for _ in range(4)]
        truth = [m / part + draw.gauss(0, error) for m in modelled]
        libc = draw.gauss(0, noise / 2**0.5)
        rows = [Row(t + libc + draw.gauss(0, noise / 2**0.5), noise * draw.uniform(0.8, 1.2), m) for t, m in zip(truth, modelled)]
        for i, said in enumerate(([r.measured for r in rows], modelled, drawn(rows))):
            sums[i] += sum((s - t) ** 2 for s, t in zip(said, truth))
    return [(s / 4 / number) ** 0.5 for s in sums]


@pytest.mark.parametrize(("noise", "error", "most", "of_runs"), [(3, 0.5, 1, 0.3), (3, 3, 15, 0.83), (3, 20, 15, 1.1), (0.3, 5, 15, 1.1)])
def test_both_together_are_nearer_to_the_truth_than_the_runs_and_hardly_ever_farther(noise, error, most, of_runs):
    runs, model, both = rms(random.Random(7), noise, error, most)
    assert both < of_runs * runs and both < 2 * model


def test_a_model_that_says_half_of_every_saving_is_not_followed():
    runs, model, both = rms(random.Random(7), 5, 1, most=20, part=0.5)
    assert both < runs < model


def test_runs_without_noise_stand_and_a_model_that_runs_cannot_refute_does():
    assert drawn([Row(5.0, 0.0, 1.0), Row(-3.0, 0.0, 2.0)]) == [5.0, -3.0]
    assert drawn([Row(3.0, 3.0, 0.0)] * 2) == [0.0, 0.0]  # the same three points in both rows: libc's runs
    (one, other), (near, _) = (drawn([Row(3.0 + said, 3.0, said), Row(4.0 + said, 3.0, said + 1)]) for said in (9.0, 1.0))
    assert 9.0 < one < 12.0 and other == one + 1 and near - 1.0 < one - 9.0  # or the model's, who says much and may err by as much in all rows
    assert drawn([Row(4.0, 3.0, 4.0), Row(2.0, 0.0, 2.0)]) == [4.0, 2.0] and drawn([Row(2.0, 0.0, 2.0)] * 2) == [2.0, 2.0]
    assert drawn([Row(9.0, 3.0, 1.0)]) == [9.0] and drawn([]) == []


def noisy(load):
    contest = contest_of(number=9, a=0.9, b=0.95)
    chance = random.Random(5)
    for runs in contest.runs.values():
        runs[:] = [run._replace(cpu_s=run.cpu_s * chance.gauss(1, 0.08)) for run in runs]
    contest.load = load
    return contest


def test_under_a_load_savings_are_drawn_to_the_model_and_their_intervals_stay():
    plain, loaded = noisy(None), noisy("a load")
    models = {"a": 480e6, "b": 490e6}
    alone, both = found_of(plain, **models), found_of(loaded, **models)
    for name in models:
        measured, said = alone.saving(name), both.saving(name)
        assert said.value != measured.value
        assert said.low == min(said.value, measured.low) and said.high == max(said.value, measured.high)
        assert both.measured_saving(name) == measured and both.model_error(name) == alone.model_error(name)
    far, near = (sum((found.saving(n).value - both.expected(n)) ** 2 for n in models) for found in (alone, both))
    assert near < far
    assert alone.drawn == {} and trynoise.drawn_text(alone) == []
    assert trynoise.drawn_text(both)[0].startswith("  Savings are drawn towards what the model says") and "a " in trynoise.drawn_text(both)[0]


def test_who_hardly_allocates_is_expected_to_gain_nothing_and_of_whom_nothing_is_known_the_runs_stand():
    contest = noisy("a load")
    idle, hurried = finding.Finding(contest, None, idle=True), finding.Finding(contest, None)
    assert idle.expected("a") == 0 and abs(idle.saving("a").value) < abs(hurried.saving("a").value)
    assert hurried.expected("a") is None and hurried.drawn == {} and hurried.saving("a") == hurried.measured_saving("a")


def test_a_row_of_few_rounds_is_drawn_as_one_that_scatters_as_the_others_do():
    contest = noisy("a load")
    del contest.runs["b"][1:], contest.turns["b"][1:]
    assert contest.noise_points("b") == pytest.approx(3 * contest.noise_points("a"))
    found = finding.Finding(contest, outcome_of(contest, a=480e6, b=490e6))
    apart, left = (abs(found.measured_saving("b").value - found.expected("b")), abs(found.saving("b").value - found.expected("b")))
    assert found.drawn.keys() == {"a", "b"} and left < apart / 3 and trytable.measured_saving(found, "b").count("%") == 3
    assert found.saving("b").low <= found.measured_saving("b").low and found.saving("b").high >= found.measured_saving("b").high


def test_where_every_row_has_few_rounds_each_stays_as_it_was_measured():
    contest = noisy("a load")
    for name in contest.runs:
        del contest.runs[name][4:], contest.turns[name][4:]
    found = finding.Finding(contest, outcome_of(contest, a=480e6, b=490e6))
    assert trytable.measured_saving(found, "b").count("%") == 2
    assert contest.noise_points("a") is None and found.drawn == {} and found.saving("b") == found.measured_saving("b")


def test_a_row_whose_noise_is_larger_is_believed_less():
    near, far = drawn([Row(12.0, 1.0, 2.0), Row(12.0, 10.0, 2.0), Row(-6.0, 1.0, 2.0)])[:2]
    assert 2.0 < far < near < 12.0


@pytest.mark.parametrize(("rounds", "most", "of_long", "of_short"), [((9, 1, 1, 1), 3, 0.8, 0.6), ((20, 1, 1, 1), 15, 1.15, 0.8), ((20, 9, 2, 1), 15, 1.0, 0.9)])
def test_rows_of_few_rounds_gain_and_those_of_many_lose_nothing_by_them(rounds, most, of_long, of_short):
    """Each round has a run of libc's malloc and one of each row's that was in it, as Yaws had: one malloc in all rounds, the others in the first."""
    draw, each = random.Random(3), 10.0
    sums = [[0.0, 0.0] for _ in rounds]
    for _ in range(1500):
        modelled = [draw.uniform(0, most) for _ in rounds]
        truth, libc = [m + draw.gauss(0, most / 5) for m in modelled], [draw.gauss(0, each / 2**0.5) for _ in range(max(rounds))]
        rows = [Row(t + sum(libc[:n]) / n + draw.gauss(0, each / 2**0.5 / n**0.5), each / n**0.5, m, n) for t, m, n in zip(truth, modelled, rounds)]
        for errors, row, said, true in zip(sums, rows, drawn(rows), truth):
            errors[0] += (row.measured - true) ** 2
            errors[1] += (said - true) ** 2
    ratios = [(after / before) ** 0.5 for before, after in sums]
    assert ratios[0] < of_long and ratios[-1] < of_short, ratios


def test_what_all_rows_share_is_kept_where_it_is_sure_whatever_the_model_says():
    """Of a server that hardly allocates the model says 0; page faults of a few large blocks can be a tenth of its time."""
    assert all(value > 11.5 for value in drawn([Row(12.0, 0.5, 0.0), Row(12.2, 0.5, 0.0), Row(11.8, 0.5, 0.0)]))
    contest = contest_of(number=12, a=0.88, b=0.885)
    contest.load = "a load"
    found = finding.Finding(contest, None, idle=True)
    assert found.saving("a").value == pytest.approx(12, abs=0.5) and found.verdict.verdict.word == "YES"


def test_one_row_alone_has_no_figure_of_the_model():
    contest = noisy("a load")
    found = finding.Finding(contest, outcome_of(contest, a=480e6))
    assert found.drawn == {} and found.saving("a") == found.measured_saving("a")


def test_a_scaled_model_is_said_to_be_scaled():
    both = finding.Finding(noisy("a load"), outcome_of(noisy("a load"), a=480e6, b=490e6), finding.Estimate(10.0, 9.0, 11.0))
    assert both.scale < 1 and f"(times {both.scale:.2f}, since" in trynoise.drawn_text(both)[0]


def test_drawn_by_programs_as_they_are_more_rows_hit_than_by_the_runs_alone():
    """doc/prediction.md's programs, with 40 draws of each set in place of shrinkage_trials.py's 400."""
    sets = shrinkage_trials.sets_of((ROOT / "doc" / "prediction.md").read_text(encoding="utf-8"))
    assert [len(programs) for programs in sets.values()] == [4, 9, 52]
    assert shrinkage_trials.usual(sets["programs"]) == pytest.approx((shrinkage.USUAL_POINTS, shrinkage.USUAL_PART), abs=0.05)
    for programs, (scatter, rounds), least in zip(sets.values(), [(16, 26), (10, 22), (10, 22)], [95, 82, 80]):
        runs, both = shrinkage_trials.hits(programs, scatter, rounds, draws=40)
        assert both > runs and both > least, (runs, both)
