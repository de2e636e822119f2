# SPDX-License-Identifier: MIT
"""test_measure - intervals, and the rules that turn figures into a verdict."""

import pathlib
import random

import pytest
import toolkit  # noqa: F401  (puts the tool into the path)

import advise.advice as advice
import measure
import advise.mix as mix
import native
import render
import trytable
from errors import QuireError
from measure import Estimate, estimate


def test_a_median_lies_inside_its_interval():
    value = estimate([5.0, 1.0, 3.0])
    assert value == Estimate(3.0, 1.0, 5.0)


def test_the_interval_of_few_rounds_is_their_whole_range():
    values = [1, 2, 3, 4, 5, 6, 7]
    assert estimate(values) == Estimate(4, 1, 7)


@pytest.mark.parametrize("rounds, said", [(1, "no interval"), (2, "whole range"), (5, "whole range"), (6, "95 %"), (31, "95 %")])
def test_an_interval_is_called_what_it_is(rounds, said):
    assert said in measure.interval_kind(rounds)
    values = [chance.random() for chance in [random.Random(rounds)] for _ in range(rounds)]
    assert (" to " in render.interval(estimate(values), str)) == (rounds > 1)


def test_the_interval_of_many_rounds_leaves_out_outliers():
    values = list(range(1, 15)) + [1000]
    assert estimate(values).high < 1000


def test_the_interval_covers_the_true_median_nearly_always():
    chance = random.Random(5)
    covered = 0
    for _ in range(1000):
        found = estimate([chance.expovariate(1.0) for _ in range(15)])
        covered += found.low <= 0.6931 <= found.high
    assert 940 <= covered <= 985


@pytest.mark.parametrize(
    "saving, memory_percent, word",
    [
        (Estimate(15, 14, 16), 0, advice.YES),
        (Estimate(3.5, 3.0, 4), 0, advice.YES),
        (Estimate(3.5, 2.9, 4), 0, advice.INCONCLUSIVE),
        (Estimate(1.6, 0, 3.1), 0, advice.INCONCLUSIVE),
        (Estimate(0.2, -1, 3.1), 0, advice.NO),
        (Estimate(0, -20, 20), 0, advice.INCONCLUSIVE),
        (Estimate(1.0, 0.5, 2.9), 0, advice.NO),
        (Estimate(-5, -6, -4), 0, advice.NO),
        (Estimate(0.1, 0, 0.2), 12, advice.YES),
        (Estimate(0.1, 0, 0.2), 9.9, advice.NO),
        (Estimate(-5, -6, -4), 50, advice.NO),
        (Estimate(-5, -12, 1), 50, advice.NO),
        (Estimate(10, 9, 11), -100, advice.YES),
    ],
)
def test_the_verdict_follows_the_lower_end_of_the_interval(saving, memory_percent, word):
    assert advice.verdict(saving, memory_percent).word == word


def run_of(cpu_ns, peak=1_000_000):
    return {
        "cpu_ns": cpu_ns,
        "peak_rss_bytes": peak,
        "ops": 1000,
        "malloc_library": "libc.so.6",
        "failures": 0,
    }


def series_of(libc, null, mix, mix_null):
    chosen = measure.backends([], "plan")
    series = measure.Series(chosen)
    for name, costs in zip(("libc", "null", "mix", "mix-null"), (libc, null, mix, mix_null)):
        series.runs[name] = [run_of(c) for c in costs]
    return series


def test_allocation_is_told_without_the_replayer_and_a_saving_with_the_way_to_what_is_freed():
    outcome = advice.Outcome(
        series_of([500e6] * 5, [100e6] * 5, [250e6] * 5, [50e6] * 5), [1.0] * 5
    )
    assert outcome.share_percent.value == pytest.approx(40)
    assert outcome.saving_percent.value == pytest.approx(25)
    assert outcome.program_with("mix") == pytest.approx(0.75)
    assert outcome.ns_per_op("libc").value == pytest.approx(400e3)


def test_nobody_saves_more_than_all_of_the_run_time():
    # A program as quick as its own malloc: noise alone would put the interval past all of it.
    outcome = advice.Outcome(series_of([900e6, 1100e6, 1300e6], [0] * 3, [1e6] * 3, [0] * 3), [1.0, 0.9, 1.1])
    assert outcome.share_percent.high == 100 and outcome.saving_percent == (100, outcome.saving_percent.low, 100)
    assert 80 < outcome.saving_percent.low < 100


def test_rounds_go_on_only_while_the_verdict_is_open_and_there_is_time():
    free, fixed = measure.Limits(None, 100), measure.Limits(7, 0.001)
    settled, open_still = (lambda: True), (lambda: False)

    def rounds(limits, is_settled, round_s):
        number = 0
        while measure.wants_more(number, number * round_s, limits, is_settled):
            number += 1
        return number

    assert rounds(free, settled, 0.1) == measure.ROUNDS_USUAL
    assert rounds(free, open_still, 0.1) == measure.ROUNDS_MAX
    assert rounds(free, open_still, 25) == measure.ROUNDS_MIN
    assert rounds(free, open_still, 50) == 4 and rounds(free, open_still, 500) == 1
    assert rounds(free, open_still, 5) == 20
    assert rounds(fixed, settled, 50) == 7


def test_noise_of_the_program_itself_widens_the_interval():
    outcome = advice.Outcome(
        series_of([500e6] * 5, [100e6] * 5, [250e6] * 5, [50e6] * 5), [0.8, 1.0, 1.0, 1.0, 1.25]
    )
    assert outcome.saving_percent.low == pytest.approx(20)
    assert outcome.saving_percent.high == pytest.approx(31.25)


def test_a_program_with_an_allocator_of_its_own_is_judged_against_that():
    series = series_of([500e6] * 5, [100e6] * 5, [250e6] * 5, [50e6] * 5)
    against_malloc = advice.judge(advice.Outcome(series, [1.0] * 5), 10_000_000)
    against_its_own = advice.judge(advice.Outcome(series, [1.0] * 5, [0.7] * 5), 10_000_000)
    assert against_malloc.word == advice.YES
    assert against_its_own.word == advice.NO


def site_with(klass, ops):
    return advice.Site(1, "f", "", [], klass, None, None, ops // 2, 0, 1, ops, 0)


def pilot_of(**costs):
    """A pilot of five rounds: CPU milliseconds of each variant."""
    series = measure.Series([measure.Backend(name, None, None, False) for name in costs])
    for name, cost in costs.items():
        series.runs[name] = [run_of(1e6 * cost + wobble) for wobble in (0, 1000, 2000, -1000, 500)]
    return series


OPS = {"arena": 1000, "slab": 500, "recycling slot": 100, "heap": 50}


def test_a_part_of_the_plan_is_in_the_mix_when_it_gains():
    series = pilot_of(libc=20, base=12, slab=10, slot=13)
    parts = mix.weigh(series, ["arena", "slab", "slot"], OPS)
    assert {name for name, part in parts.items() if part.gains} == {"arena", "slab"}
    assert parts["arena"].saved_ns.value == pytest.approx(8e6)
    assert parts["slab"].saved_ns.value == pytest.approx(2e6)
    assert parts["recycling slot"].saved_ns.value == pytest.approx(-1e6)


@pytest.mark.parametrize("faster, gains", [(2, True), (1, False), (3, True), (0, False)])
def test_a_part_gains_when_two_thirds_of_its_rounds_are_faster(faster, gains):
    series = pilot_of(libc=20, slab=20)
    for name in series.runs:
        series.runs[name] = series.runs[name][:3]
    for i, run in enumerate(series.runs["slab"]):
        run["cpu_ns"] += -3e6 if i < faster else 1e6
    assert mix.weigh(series, ["slab"], OPS)["slab"].gains == gains


def test_without_arenas_slabs_are_compared_with_libc():
    parts = mix.weigh(pilot_of(libc=20, slab=15), ["slab"], OPS)
    assert parts["slab"].saved_ns.value == pytest.approx(5e6)


def test_what_the_mix_saves_is_divided_as_the_pilot_measured_it():
    parts = mix.weigh(pilot_of(libc=20, base=12, slab=10, slot=13), ["arena", "slab", "slot"], OPS)
    mixed = mix.Mix({}, None, parts)
    half_the_slab, whole_arena = site_with("slab", 250), site_with("arena", 1000)
    assert mixed.saving_ns(half_the_slab) == pytest.approx(1e6)
    assert mixed.saving_ns(half_the_slab, total_ns=20e6) == pytest.approx(2e6)
    assert mixed.saving_ns(whole_arena, total_ns=20e6) == pytest.approx(16e6)
    assert mixed.saving_ns(site_with("recycling slot", 100)) is None
    assert mixed.saving_ns(site_with("heap", 50)) is None


def test_a_site_that_saves_much_is_shown_however_few_its_calls():
    parts = mix.weigh(pilot_of(libc=20, base=12, slab=11), ["arena", "slab"], OPS)
    mixed = mix.Mix({}, None, parts)
    rare = site_with("arena", 1000)._replace(name="rare", allocs=1)
    busy = site_with("heap", 4000)._replace(name="busy", allocs=9999)
    small = site_with("slab", 5)._replace(name="small", allocs=1)
    shown = "".join(
        render.sites_text([busy, rare, small], render.saves_time(mixed), 8, render.saves_much(mixed))
    )
    assert "busy" in shown and "rare" in shown and "small" not in shown


def test_a_loss_is_divided_by_operations():
    parts = mix.weigh(pilot_of(libc=10, base=12), ["arena"], OPS)
    parts["arena"] = parts["arena"]._replace(gains=True)
    assert mix.Mix({}, None, parts).saving_ns(site_with("arena", 500), -3e6) == -1.5e6


def test_sites_of_a_part_that_lost_are_shown_with_no_gain_whatever_one_run_of_the_program_saved():
    parts = mix.weigh(pilot_of(libc=10, base=12), ["arena"], OPS)
    mixed = mix.Mix({}, None, {"arena": parts["arena"]._replace(gains=True)})
    site = site_with("arena", 1000)
    assert render.saves_percent(mixed, 0.015, 0.5)(site) == "no gain"
    assert render.LOSES in "".join(render.classes_text([site], mixed))
    assert render.sites_json([site], mixed, (0.015, 0.5))[0]["saving_percent"] <= 0


def test_a_plan_in_parts_keeps_its_slabs(tmp_path):
    text = "quire-plan 1\nslab 0 bytes 64\nsite 1 arena 0\nsite 2 slab 0\nsite 3 slot 0\n"
    path = mix.write_part(text, {"arena", "slot"}, tmp_path / "part")
    kept = "quire-plan 1\nslab 0 bytes 64\nsite 1 arena 0\nsite 3 slot 0\n"
    assert path.read_text() == kept


@pytest.mark.parametrize(
    "klass, arena, slab, said",
    [("arena", 3, None, "arena 3"), ("slab", None, 2, "slab 2"), ("heap", None, None, "heap")]
    + [("recycling slot", None, 7, "slot of slab 7")],
)
def test_each_site_is_told_what_serves_it(klass, arena, slab, said):
    assert render.fits(site_with(klass, 2)._replace(arena=arena, slab=slab)) == said


@pytest.mark.parametrize(
    "choice, said", [("always [madvise] never\n", False), ("always madvise [never]\n", True), (None, True)]
)
def test_missing_huge_pages_are_among_the_things_that_figures_cannot_show(tmp_path, choice, said):
    path = tmp_path / "enabled"
    if choice:
        path.write_text(choice)
    assert (render.NO_HUGE_PAGES in render.blind_spots(path)) == said


@pytest.mark.parametrize(
    ("saving", "words"),
    [
        (Estimate(1.5, 0.5, 2.5), "at most 1.5 % (0.5 % to 2.5 %) of the CPU time is saved, by jemalloc"),
        (Estimate(-4.9, -6.0, -3.0), "none saves, at best -4.9 % (-6.0 % to -3.0 %) of the CPU time, by jemalloc"),
    ],
)
def test_what_loses_least_is_not_said_to_save_most(saving, words):
    assert trytable.best_text("jemalloc", saving) == words


def test_a_malloc_whose_replay_takes_too_long_is_left_out_and_the_others_go_on(monkeypatch):
    asked = []

    def run_once(program, backend, verify=False, most_s=None):
        asked.append((backend.name, most_s))
        if backend.name == "slow":
            raise QuireError("quire-replay was ended", why="it took more than 6 s")
        return {"cpu_ns": 1e9}

    monkeypatch.setattr(measure, "run_once", run_once)
    chosen = [measure.Backend("libc", None, None, False), measure.Backend("null", None, None, True)]
    chosen += [measure.Backend(name, f"/{name}.so", None, False) for name in ("slow", "quick")]
    series = measure.replay("p", chosen, measure.Limits(3, 60, each_s=6))
    assert series.failed == {"slow": "it took more than 6 s"} and not series.has("slow")
    assert series.rounds == 3 and len(series.runs["quick"]) == 3
    assert dict(asked) == {"libc": None, "null": None, "slow": 6, "quick": 6} and [name for name, _ in asked].count("slow") == 1


def test_a_helper_that_takes_too_long_is_ended_and_says_so(tmp_path, monkeypatch):
    sleeper = tmp_path / "sleeper"
    sleeper.write_text("#!/bin/sh\necho $$ > %s/pid\nexec sleep 100\n" % tmp_path)
    sleeper.chmod(0o755)
    monkeypatch.setattr(native, "helper", lambda name: str(sleeper))
    with pytest.raises(QuireError) as raised:
        native.call("sleeper", [], most_s=0.5)
    assert raised.value.why == "it took more than 0.5 s"
    assert not pathlib.Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()
