# SPDX-License-Identifier: MIT
"""Programs allocate on small stacks: those of threads with 16 KiB, and of coroutines with less."""

import pytest
from preload_kit import assert_sound, run

BOUND = {"LD_BIND_NOW": "1"}  # what the loader does at a function's first call takes 3 KiB for itself


PROFILE = "prof:4K,prof_exit:0"
CALLS = [(1792, ""), (1792, "secure:1"), (1792, "check:100000"), (3072, PROFILE), (3072, "guard:1/10"), (3072, f"secure:1,{PROFILE},guard:1/100")]
ENDS = ["stats:exit={0}", "stats:exit={0},stats_format:json", "stats:exit={0},stats_format:prom", "leaks:1,stats:exit={0}", "prof:1K,prof_file:{0}"]


@pytest.mark.parametrize("most, conf", CALLS)
def test_a_call_takes_little_of_the_stack(build, most, conf):
    assert_sound(run(build("stack_depth.c"), "calls", most, conf=conf, env=BOUND))


@pytest.mark.parametrize("what, kib", [("end", 6), ("end", 16), ("end_in_thread", 6), ("end_in_thread", 16), ("end_in_child", 8)])
@pytest.mark.parametrize("conf", [*ENDS, "stats:exit={0},prof:1K,prof_file:{0}.heap,leaks:1,check:10,secure:1"])
def test_the_program_may_end_on_a_small_stack_and_what_was_asked_for_is_written(build, tmp_path, what, kib, conf):
    report = tmp_path / "report"
    ran = run(build("stack_depth.c"), what, kib << 10, conf=conf.format(report), env=BOUND)
    assert ran.returncode == 0, ran.stderr
    assert report.stat().st_size > 100
