# SPDX-License-Identifier: MIT
"""test_sequential - intervals that hold although they are looked at again and again."""

import itertools
import random
import time

import pytest
import toolkit  # noqa: F401  (puts the tool into the path)

import sequential
from measure import Estimate


def test_what_all_looks_spend_is_five_percent():
    assert sum(sequential.SPENDS) <= sequential.ERROR
    assert sequential.spends(60, last=True) > 0
    for rounds in range(5, 61):
        place = sum(look < rounds for look in sequential.LOOKS)
        assert sum(sequential.SPENDS[:place]) + sequential.spends(rounds, last=True) == pytest.approx(sequential.ERROR)


@pytest.mark.parametrize("rounds", range(1, 11))
@pytest.mark.parametrize("error", [0.03125, 0.025, 0.1])
def test_the_cut_is_that_of_all_sign_patterns(rounds, error):
    sums = [sum(r for r, plus in enumerate(signs, 1) if plus) for signs in itertools.product((0, 1), repeat=rounds)]
    most = sequential.cut(rounds, error)
    if sum(s <= 0 for s in sums) <= error * 2**rounds:
        assert sum(s <= most for s in sums) <= error * 2**rounds < sum(s <= most + 1 for s in sums)
    else:
        assert most == 0


def test_a_saving_that_is_none_is_seldom_taken_for_one_however_often_it_is_looked_at():
    wrong = 0
    for seed in range(600):
        chance, values = random.Random(seed), []
        for number in range(1, 41):
            values.append(chance.gauss(0, 1) * (6 if chance.random() < 0.1 else 1))
            if sequential.is_look(number) and sequential.estimate(values).low > 0:
                wrong += 1
                break
    assert wrong <= 0.05 * 600 + 12


@pytest.mark.long
def test_hundreds_of_rounds_are_judged_as_often_as_a_report_asks():
    began_s = time.process_time()
    for _ in range(100):
        sequential.cut(400, 0.001)
    assert time.process_time() - began_s < 20  # one takes up to a second


def test_one_wild_round_moves_neither_middle_nor_interval_far():
    calm = [10 + i / 10 for i in range(18)]
    found, wild = sequential.estimate(calm), sequential.estimate(calm[:-1] + [500.0])
    assert abs(wild.value - found.value) < 0.3 and wild.high < 12
    assert found.low <= found.value <= found.high


def test_few_rounds_have_their_range_and_one_has_no_interval():
    assert sequential.estimate([7.0]) == Estimate(7.0, 7.0, 7.0)
    assert sequential.estimate([1.0, 3.0, 2.0]) == Estimate(2.0, 1.0, 3.0)
    assert "no interval" in sequential.kind(1) and "whole range" in sequential.kind(3) and "5 of 100" in sequential.kind(5)


def test_what_is_said_of_the_intervals_of_few_rounds_is_what_the_table_shows():
    for rounds in (1, 2):  # Contest.saved_percent adds what so few may be off: an interval is shown of one round, and more than the range of two
        assert ("as wide as rounds may lie apart" if rounds == 1 else "on each side as much more") in sequential.kind(rounds)


@pytest.mark.parametrize(
    "found, more",
    [(Estimate(5, 3.5, 6.5), 9), (Estimate(4, 2, 6), 46), (Estimate(3, 1, 5), None), (Estimate(30, 29, 31), 9)],
)
def test_how_many_rounds_would_settle_it(found, more):
    assert sequential.more_rounds(found, 3.0, 8) == more
