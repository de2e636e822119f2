# SPDX-License-Identifier: MIT
"""Misuse stops the program; and no option of QUIRE_CONF weakens another: each pair of them, each kind."""

import itertools
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor

import pytest
from misuse_kit import CAUGHT, ENDS, SIGILL, SIGTRAP, ends, is_caught, said, try_kind
from preload_kit import ROOT, run

TRACES = tempfile.TemporaryDirectory(prefix="quire-misuse-")
KEYS = re.findall(r'^    X\("(\w+)", ', (ROOT / "src" / "preload" / "conf.c").read_text(), re.MULTILINE)
# Each key set to what does most; %p keeps the processes' files apart.  help and passthrough are no ways to be served by the heap.
ON = {
    "stats": "stats:exit", "stats_file": "stats_file:/dev/null", "stats_format": "stats_format:json", "leaks": "leaks:1", "limit": "limit:1G", "decay": "decay:0",
    "secure": "secure:1", "tags": "tags:1", "check": "check:1", "top": "top:1", "plan": "plan:/dev/null", "plan_control": "plan_control:1", "plan_timed": "plan_timed:1",
    "prof": "prof:1K,prof_exit:0", "prof_file": "prof_file:/dev/null", "prof_at": "prof_at:1G", "prof_signal": "prof_signal:USR2", "prof_exit": "prof_exit:0",
    "guard": "guard:1/5", "pressure": "pressure:1%", "record": f"record:{TRACES.name}/t", "record_signal": f"record:{TRACES.name}/t,record_signal:USR1", "record_limit": "record_limit:1G",
}  # fmt: skip
NOT_SERVED = {"help", "passthrough"}


def wrong(program, conf, caught, at_the_end=ENDS):
    """The kinds that came out otherwise."""
    with ThreadPoolExecutor(2) as pool:
        bad = [kind for kind, done in zip(caught, pool.map(lambda kind: try_kind(program, kind, conf), caught)) if not is_caught(done)]
        return bad + [kind for kind, done in zip(at_the_end, pool.map(lambda kind: try_kind(program, kind, conf), at_the_end)) if not ends(done)]


def test_every_key_has_its_place_in_the_matrix():
    assert set(KEYS) == set(ON) | NOT_SERVED


@pytest.mark.parametrize("kind", CAUGHT)
def test_secure_every_kind_is_caught(build, kind):
    done = try_kind(build("misuse.cc"), kind, "secure:1")
    assert is_caught(done), (done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("kind", [kind for kind in CAUGHT if kind.startswith(("twice_", "size_", "free_"))])
def test_secure_an_address_that_is_handed_to_us_is_told_in_a_line(build, kind):
    """We look at what lies around it, and that may be guarded: a fault of our own is no answer."""
    for _ in range(3):
        done = try_kind(build("misuse.cc"), kind, "secure:1")
        assert done.returncode in (-SIGILL, -SIGTRAP) and len(said(done)) == 1, (done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("kind", ENDS)
def test_secure_what_is_right_goes_on(build, kind):
    done = try_kind(build("misuse.cc"), kind, "secure:1")
    assert ends(done), (done.returncode, done.stdout, done.stderr)


# Without secure:1 no page is guarded, and no large block's memory is gone at its free.
NOT_BY_DEFAULT = [
    "read_of_no_bytes", "write_of_no_bytes", "read_of_no_aligned_bytes", "write_of_no_aligned_bytes", "overflow_large_1", "overflow_large_8", "underflow_large",
    "underflow_small", "read_after_free_large", "write_after_free_large", "write_after_free_large_reuse", "write_after_free_small_at_the_end",
]  # fmt: skip


def test_by_default_all_kinds_but_these_are_caught(build):
    """Small ones by samples: a thread's first blocks of each size are made as a secure heap's."""
    assert wrong(build("misuse.cc"), "", [kind for kind in CAUGHT if kind not in NOT_BY_DEFAULT], [kind for kind in ENDS if kind != "freed_large_is_not_reused_at_once"]) == []
    assert len(CAUGHT) - len(NOT_BY_DEFAULT) >= 22 / 30 * len(CAUGHT)


# What a pair might take away from secure:1 is what the other key does to the heap: these kinds see each part of it.
PARTS = [
    "write_of_no_bytes", "write_of_no_aligned_bytes", "overflow_small_1", "overflow_large_1", "twice_small_delayed", "twice_large", "read_after_free_large", "write_after_free_large_reuse",
    "write_after_free_small", "write_after_free_small_reuse", "write_after_free_small_at_the_end", "delete_with_too_small_a_size", "delete_with_a_larger_alignment",
    "size_of_a_freed_block",
]  # fmt: skip
RIGHT = ["string_to_the_end", "freed_small_reads_as_zero", "freed_large_is_not_reused_at_once", "freed_small_is_not_reused_at_once", "array_grows"]


NOT_TOGETHER = [("plan", "record"), ("plan", "record_signal")]  # said in a line: test_record_key.py


@pytest.mark.parametrize(("one", "other"), [pair for pair in itertools.combinations(sorted(ON), 2) if pair not in NOT_TOGETHER])
def test_no_option_weakens_another(build, one, other):
    conf = f"{ON[one]},{ON[other]}"
    if "secure" in (one, other):
        # A guarded or sampled block has pages of its own: it reads as zero after its free, or the read itself is stopped.
        has_pages = bool({"guard", "prof"} & {one, other})
        right = [kind for kind in RIGHT if kind != "freed_small_reads_as_zero" or not has_pages]
        assert wrong(build("misuse.cc"), conf, PARTS, right) == []
        if has_pages:
            done = try_kind(build("misuse.cc"), "freed_small_reads_as_zero", conf)
            assert ends(done) or is_caught(done), done
    else:
        assert wrong(build("misuse.cc"), conf, ["twice_small", "twice_large_delayed", "free_inside_small", "free_of_the_stack"], ["array_grows"]) == []


@pytest.mark.parametrize("other", sorted(set(ON) - {"guard"}))
def test_no_option_takes_guards_away(build, other):
    lines = {"read-freed": "G1", "write-before": "G3"} | ({} if other == "secure" else {"write-past": "G2"})  # a secure block has its canary there
    for what, line in lines.items():
        done = run(build("guard.c"), what, conf=f"guard:1/1,{ON[other]}")
        assert f"quire: heap: {line} " in done.stderr and done.returncode < 0, done


@pytest.mark.parametrize("document", ["malloc.md", "reliability.md", "adr/0027-secure-heaps.md"])
def test_documents_count_as_these_tests_do(document):
    pairs = len(list(itertools.combinations(ON, 2))) - len(NOT_TOGETHER)
    counted = {"kinds": len(CAUGHT), "by default": len(CAUGHT) - len(NOT_BY_DEFAULT), "of right use": len(ENDS), "pairs of options": pairs}
    lines = [line for line in (ROOT / "doc" / document).read_text(encoding="utf-8").splitlines() if "test_misuse.py" in line]
    said = [(int(number), words) for line in lines for number, words in re.findall(r"(\d+) (kinds|by default;|of right use|pairs of options)", line)]
    assert said and [(number, words) for number, words in said if counted[words.rstrip(";")] != number] == []


@pytest.mark.by_turns
@pytest.mark.parametrize("n", [1, 2, 1000])
def test_a_check_at_every_nth_call_leaves_all_of_secure_as_it_is(build, n):
    assert wrong(build("misuse.cc"), f"secure:1,check:{n}", CAUGHT) == []
