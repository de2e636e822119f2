# SPDX-License-Identifier: MIT
"""On a kernel as old as 4.18, by scripts/old_kernel.py, which refuses all system calls that came later: all works, slower where `quire env` says so.

    always               env, run, check and record of one program
    QUIRE_TEST_LONG=1    all unit, model, fault, race, death and orders tests; the recorder's, the tool's and the drop-in's own tests
"""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("QUIRE_BUILD_DIR", ROOT / "build" / "release")).resolve()
OLD_KERNEL = [sys.executable, str(ROOT / "scripts" / "old_kernel.py")]
KINDS = ("unit", "model", "fault", "race", "death", "orders")
APART = ("unit", "race")  # these count what the process has: each test in a process of its own
COUNTS_POPULATED = "test_a_child_of_one_thread_begins_with_few_copied_pages"  # its pages come one by one on such a kernel
SKIPPED = 77
LONG = pytest.mark.skipif(not os.environ.get("QUIRE_TEST_LONG"), reason="five minutes; QUIRE_TEST_LONG=1")
PROGRAM = "import sys; x = [str(i) * 9 for i in range(20000)]; print('ready', flush=True); sys.stdin.read()"


def on_old_kernel(*command, **options):
    env = {**os.environ, "QUIRE_BUILD_DIR": str(BUILD), "PYTHONMALLOC": "malloc", "NO_COLOR": "1"}
    env.pop("QUIRE_TEST_LONG", None)
    options = {"env": env, "stdin": subprocess.DEVNULL, "timeout": 3000, **options}
    done = subprocess.run([*OLD_KERNEL, *map(str, command)], capture_output=True, text=True, errors="replace", check=False, **options)
    if done.returncode == SKIPPED:
        pytest.skip(done.stderr.strip())
    return done


def quire(*words, **options):
    return on_old_kernel(sys.executable, ROOT / "tools" / "quire", *words, **options)


def test_env_says_what_such_a_kernel_lacks_and_what_that_costs():
    told = json.loads(quire("env", "--json").stdout)
    assert all(told["facts"][name].startswith("no (kernel") for name in ("rseq", "membarrier", "vma_names", "populate"))
    assert {"rseq", "membarrier", "populate"} <= {lack["what"] for lack in told["missing"]}


@pytest.mark.by_turns
def test_run_check_and_record_serve_a_program(tmp_path):
    program = ["--", sys.executable, "-c", PROGRAM]
    ran, checked, recorded = quire("run", *program), quire("check", *program), quire("record", "-o", tmp_path / "t.qtr", *program)
    assert (ran.returncode, ran.stdout) == (0, "ready\n") and "heap: " in ran.stderr and "quire: " not in ran.stderr, ran.stderr
    assert checked.returncode == 0 and "malloc is served by" in checked.stdout
    assert (recorded.returncode, recorded.stdout) == (0, "ready\n"), recorded.stderr
    found = json.loads(subprocess.run([BUILD / "tools" / "quire-analyse", tmp_path / "t.qtr", "--sites", "-"], capture_output=True, check=True).stdout)
    assert found["trace"]["allocations"] > 20000 and found["trace"]["unknown_frees"] == 0


@LONG
@pytest.mark.parametrize("kind", KINDS)
def test_the_tests_of_a_kind_pass(kind):
    programs = [folder / "test" / f"test_{kind}" for folder in (BUILD, ROOT / "build" / "check")]
    found = [program for program in programs if program.exists()]
    if not found:
        pytest.skip(f"test_{kind} is not built: cmake --preset check && cmake --build --preset check")
    apart = ["--apart=0/1"] if kind in APART else []
    done = on_old_kernel(found[0], "--gtest_brief=1", *apart)
    assert done.returncode == 0, done.stdout[-3000:]


@LONG
@pytest.mark.parametrize("what", ["native/record_test.py", "native/record_robust_test.py", "tool/test_record.py", "tool/test_run.py", "tool/test_check.py",
                                  "tool/test_stretch.py", "tool/test_attach.py", "tool/test_top.py", "tool/test_map.py", "tool/test_steering.py", "preload"])
def test_the_tools_and_the_drop_ins_own_tests_pass(what):
    done = on_old_kernel(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", f"not {COUNTS_POPULATED}", ROOT / "test" / what)
    assert done.returncode == 0, done.stdout[-4000:]
