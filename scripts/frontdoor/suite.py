# SPDX-License-Identifier: MIT
"""suite - ./quire test: every test there is, on four lanes, with one closing line a step and the sum
at the end.

    lane 1   build release -> build check -> build asan, or tsan -> (helps lane 2)
    lane 2   packages -> python packages -> frontdoor -> checks -> ctest of what is built -> install, tool, native, preload
    lane 3   helps: tests often wait
    lane 4   (idle while something is built)

Builds stand in a queue of their own, one at a time; a test step starts when what it needs has been
built.  What is found: the house-rule checks, each directory of test/ with *_test.cc in it (by
ctest, in `check` and in a sanitizer's preset: the two take turns) and each with test_*.py or *_test.py in it (by pytest).  A passing step
shows its closing line; a failing one its whole log.

A few failures of pytest are tried once more when all else has ended, one step after the other: the
tool's tests measure CPU time, which what runs beside them disturbs.  What passes then is named as
unsteady.  QUIRE_TEST_LONG and --times leave no second try, and ctest has none.

--times N --beside N: again and again, beside so many endless loops, for tests that fail on a busy
machine only.

Not here: how a single step runs and is counted (runner.py).
"""

import argparse
import difflib
import os
import threading
import time

from frontdoor import build, needs, runner, say, venv

SANITIZERS = ("asan", "tsan")
PRESETS = ("check", *SANITIZERS)
PART_FILES = 8  # a suite of more files is several steps: else one lane would end long after the other
TURN = os.environ.get("QUIRE_TEST_TURN", "")  # which of the tests that take turns run (test/apart.cc); by chance when nobody says
LONGEST = ("install", "tool", "native")  # in this order: what is begun last is short
HELP = """Runs the tests: all of them, or those named.

WORD is a directory of test/ (unit, model, tool, ...), a preset (check, asan, tsan) or checks."""


def main(root, arguments):
    kinds, suites = kinds_and_suites(root)
    options = _parse(arguments, {*kinds, *suites, *PRESETS, "checks"})
    packages = {**venv.TOOL, **venv.TEST}
    at_once = needs.BUILD + needs.BUILD_TESTS + needs.FRONTDOOR + venv.packages_missing(root, packages)
    optional = needs.optional_for_tests()
    install = needs.ensure(root, at_once + needs.TEST, optional, needs.TEST + optional)
    runner.begin_anew()
    with build.lock(root), runner.busy_loops(options.beside):
        results = [_round(root, options, packages, None if number else install) for number in range(options.times or 1)]
    if options.times:
        print(f"{results.count(0)} of {len(results)} rounds passed beside {options.beside} busy loops")
    return max(results)


def _round(root, options, packages, install):
    """Every step once; the exit status.  `install` brings the packages that builds can do without; None: all are here."""
    started = time.monotonic()
    turn = int(TURN if TURN.isdigit() else time.time()) % 1000
    os.environ["QUIRE_TEST_TURN"] = str(turn)
    steps = plan(root, options, [command for command, _ in venv.commands(root, packages)], turn, install)
    _run_on_lanes(root, steps)
    unsteady = [] if os.environ.get("QUIRE_TEST_LONG") or options.times else _try_again(steps)
    return _close(steps, time.monotonic() - started, turn, unsteady)


def kinds_and_suites(root):
    """(directories with GoogleTest programs, directories with pytest files) under test/."""
    folders = sorted(p for p in (root / "test").iterdir() if p.is_dir())
    kinds = [p.name for p in folders if any(p.glob("*_test.cc"))]
    return kinds, [p.name for p in folders if runner.pytest_files(p)]


def _parse(arguments, known):
    parser = argparse.ArgumentParser(
        prog="quire test", description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="what to run; nothing: everything")
    parser.add_argument(
        "-k", dest="expression", metavar="EXPR", help="only tests whose name matches EXPR"
    )
    parser.add_argument("--times", type=int, metavar="N", help="so many rounds, with no second try; says how many passed")
    parser.add_argument("--beside", type=int, default=0, metavar="N", help="beside so many endless loops")
    options = parser.parse_args(arguments)
    for word in options.words:
        if word not in known:
            near = difflib.get_close_matches(word, sorted(known), 1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {' '.join(sorted(known))}"
            raise say.Stopped(f"test: nothing is named {word}; {hint}", status=2)
    return options


def presets_of(words, turn=None):
    """Those that are named; else all, but when everything runs in the short form one of the sanitizers: the other's turn is the next run's."""
    named = [preset for preset in PRESETS if preset in words]
    if named or words or turn is None or os.environ.get("QUIRE_TEST_LONG"):
        return named or list(PRESETS)
    return ["check", SANITIZERS[turn // 2 % 2]]  # turn % 2 says which tests of `race` are ThreadSanitizer's


def plan(root, options, packages=(), turn=None, install=None):
    """The steps to run, each with the steps it waits for: what installs packages, the commands that fill .venv, if
    any, and builds first, then tests in the order they should start."""
    kinds, suites = kinds_and_suites(root)
    words = set(options.words)
    chosen_kinds = [k for k in kinds if k in words] or ([] if words - set(PRESETS) else kinds)
    presets = presets_of(words, turn)
    chosen_suites = [s for s in suites if s in words or not words]
    python = [runner.Environment(root, packages)] if packages else []
    first = [runner.Packages(root, install)] * bool(install) + python
    builds = {}
    if not words or set(chosen_suites) - {"frontdoor"} or "checks" in words:
        builds["release"] = runner.Build(root, "release")
    if chosen_kinds:
        builds |= {preset: runner.Build(root, preset, build.takes_objects(preset, presets)) for preset in presets}
    tests = []
    if (not words and not options.expression) or "checks" in words:
        tests.append(runner.Checks(root, [*python, builds["release"]]))
    for name in sorted(chosen_suites, key=lambda name: LONGEST.index(name) if name in LONGEST else len(LONGEST)):
        after = python if name == "frontdoor" else [*first, builds["release"]]
        count = -(-len(runner.pytest_files(root / "test" / name)) // PART_FILES) or 1
        tests += [runner.Pytest(root, name, after, (index, count)) for index in range(count)]
    if chosen_kinds:  # before the others, as soon as they are built: each is one long step, which leaves a core idle if it is the last
        labels = chosen_kinds if chosen_kinds != kinds else []
        tests[:0] = [runner.Ctest(root, preset, [builds[preset]], labels) for preset in presets]
    for test in tests:
        test.expression = options.expression
    return [*first, *builds.values(), *tests]


def _run_on_lanes(root, steps):
    waiting, running, turn = list(steps), [], threading.Condition()
    count = max(2, (os.cpu_count() or 2) // 2) + 2  # of tests, many wait

    def next_step():
        """The first step that can start now; None when nothing is left.  The caller holds the
        lock."""
        while waiting:
            builds_now = any(isinstance(step, runner.Build) for step in running)
            for step in waiting if len(running) < count - builds_now else ():
                if isinstance(step, runner.Build) and builds_now:
                    continue
                if all(other.status is not None for other in step.after):
                    return step
            turn.wait()
        return None

    def lane():
        while True:
            with turn:
                step = next_step()
                if step is None:
                    return
                waiting.remove(step)
                running.append(step)
            try:
                step.run()
            finally:
                with turn:
                    step.status = 1 if step.status is None else step.status
                    running.remove(step)
                    turn.notify_all()
                    step.report()

    lanes = [threading.Thread(target=lane, daemon=True) for _ in range(count)]
    for thread in lanes:
        thread.start()
    for thread in lanes:
        thread.join()


def _try_again(steps):
    """The tests that failed beside others and pass alone; their steps have passed then."""
    unsteady = []
    for step in steps:
        again = step.again()
        if again is None:
            continue
        again.run()
        again.report()
        if again.status == 0:
            step.passed, step.failed, step.status = step.passed + again.passed, 0, 0
            unsteady += again.files
    return unsteady


def _close(steps, seconds, turn, unsteady=()):
    passed, failed, skipped = (
        sum(getattr(step, count) for step in steps) for count in ("passed", "failed", "skipped")
    )
    bad = [step.name for step in steps if step.status != 0]
    if not passed and not failed and not bad:
        say.line("no test of that name")
        return 2
    print(f"took {seconds:.0f} s, {sum(step.cpu_s for step in steps):.0f} s of CPU; QUIRE_TEST_TURN={turn}")
    for name in unsteady:
        print(f"unsteady: {name} failed beside others and passed alone")
    if bad:
        print(f"failed steps: {', '.join(bad)}")
    note = f", {skipped} skipped" if skipped else ""
    print(f"{passed} passed, {failed} failed{note}")
    return 1 if bad or failed else 0
