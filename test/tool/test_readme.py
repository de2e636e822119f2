# SPDX-License-Identifier: MIT
"""test_readme - the sample in README.md is what the command prints now: the same words, sites and counts, and figures whose intervals meet.

It tries the program for as long as the README says: QUIRE_TEST_LONG=1.  Figures are those of one processor: elsewhere only words and counts are compared.
"""

import os
import re
import sys

import pytest
from toolkit import ROOT, TOOL

sys.path.insert(0, str(ROOT / "scripts"))
import readme  # noqa: E402 - after the path

LONG = os.environ.get("QUIRE_TEST_LONG", "0") != "0"
ROW = re.compile(r"^  (\S.*?)  +[\d.]+ m?s +(?:(-?[\d.]+) % \((-?[\d.]+) % to (-?[\d.]+) %\))?", re.MULTILINE)


def facts(sample):
    """What no two runs may say differently: allocations, bytes, the verdict's word, allocators, call sites without what they save."""
    opening = re.search(r"([\d,]+) allocations in .*? (\d+) threads?, at most (.*?) live", sample).groups()
    sites = [re.sub(r" ~? ?-?[\d.]+ %$", "", " ".join(line.split())) for line in sample.split("Where\n")[1].splitlines()]
    names = [row[0] for row in ROW.findall(sample) if row[0] != "advice carried out"]  # it is where the model expects something of it
    return opening, re.search(r"^  (YES|NO|INCONCLUSIVE)", sample, re.MULTILINE)[1], names, sites


def intervals(sample):
    return {name: (float(low), float(high)) for name, middle, low, high in ROW.findall(sample) if middle}


def test_the_readmes_sample_can_be_read():
    sample = readme.SAMPLE.search(readme.README.read_text(encoding="utf-8")).group()
    (allocations, threads, _), verdict, names, sites = facts(sample)
    assert (threads, verdict) == ("1", "YES") and int(allocations.replace(",", "")) > 10**7
    assert {"libc", "mimalloc", "drop-in"} <= set(names) and {"mimalloc", "drop-in"} <= set(intervals(sample)) and any("tree_malloc.c" in site for site in sites)


def test_what_the_legend_explains_with_a_figure_stands_in_the_sample():
    text = readme.README.read_text(encoding="utf-8")
    legend = text.split("What these words mean:")[1].split("\n\nBeside this")[0]
    explained = [words for row in legend.splitlines() for words in re.findall(r"\*([^*]*\d[^*]*)\*", row.partition(" | ")[0])]
    assert len(explained) >= 2 and [words for words in explained if words not in readme.SAMPLE.search(text).group()] == []


@pytest.mark.skipif(not LONG, reason="QUIRE_TEST_LONG=1: the whole try, two minutes")
def test_the_readmes_sample_is_what_the_command_prints_now(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    sample = readme.SAMPLE.search(readme.README.read_text(encoding="utf-8")).group()
    now = readme.tried(tmp_path, (sys.executable, TOOL))
    assert facts(now) == facts(sample.removesuffix("\n```\n")), "python3 scripts/readme.py --run writes it again"
    if readme.PROCESSOR.search(readme.README.read_text(encoding="utf-8"))[2] != readme.processor():
        pytest.skip("the sample's figures are of another processor")
    was, is_now = intervals(sample), intervals(now)
    apart = {name: (was[name], is_now[name]) for name in was if not (was[name][0] <= is_now[name][1] and is_now[name][0] <= was[name][1])}
    assert apart == {}, "python3 scripts/readme.py --run writes it again"
