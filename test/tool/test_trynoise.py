# SPDX-License-Identifier: MIT
"""test_trynoise - what a `try` says where its runs lie far apart."""

import pytest
import toolkit  # noqa: F401  (puts the tool into the path)

import trynoise


@pytest.fixture(autouse=True)
def two_cpus(monkeypatch):
    monkeypatch.setattr(trynoise.os, "cpu_count", lambda: 2)


def test_a_busy_machine_is_named_and_a_quiet_one_is_not():
    assert "14 tasks ready on 2 CPUs" in trynoise.others(14.2)
    assert trynoise.others(0.7) == "" and trynoise.others(None) == ""


def test_a_crowd_is_the_load_of_each_cpu():
    assert trynoise.crowd(14.0) == 7.0 and trynoise.crowd(0.3) == trynoise.crowd(None) == 1.0


def test_the_load_is_that_of_all_cpus_although_we_may_have_some_alone(monkeypatch):
    monkeypatch.setattr(trynoise.os, "cpu_count", lambda: 64)
    monkeypatch.setattr(trynoise.os, "sched_getaffinity", lambda pid: {0, 1})
    assert trynoise.others(14.2) == "" and trynoise.crowd(14.2) == 1.0
    assert "100 tasks ready on 64 CPUs" in trynoise.others(100.0)


def test_runs_that_agree_need_no_line():
    assert trynoise.text(None, 14.0) == [] and trynoise.text(1.2, 14.0) == []
    assert trynoise.text(12.0, 0.3) == ["  Two runs with one and the same malloc differ by 12 % here (median)."]
    assert "14 tasks" in trynoise.text(12.0, 14.0)[0]


@pytest.mark.parametrize("load, word", [(14.0, "a quieter machine"), (0.3, "its own runs")])
def test_an_open_verdict_says_whose_noise_it_is(load, word):
    said = trynoise.open_reason("-1.2 % (-11 % to 8 %)", 12.0, load)
    assert said.startswith("-1.2 % (-11 % to 8 %) saved") and "differ by 12 %" in said and word in said


def test_the_system_tells_its_load_or_nothing(monkeypatch):
    assert trynoise.load_before() >= 0
    monkeypatch.setattr(trynoise.os, "getloadavg", lambda: (_ for _ in ()).throw(OSError))
    assert trynoise.load_before() is None
