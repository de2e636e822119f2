# SPDX-License-Identifier: MIT
"""runner - one step of ./quire test: Debian's packages, Python's, a build, the checks, ctest in one preset, or
pytest in one directory.

A step runs commands with their output in build/log/STEP.txt and reads the counts from the runner's
own closing line.
Invariants: R1  status is None until the step has ended, then 0 or the status of what failed.
            R2  a step whose status is not 0 counts at least one failure, crash or not.
            R3  what a step starts has every signal at its default, none blocked, umask 022, and a Python that
                keeps what it compiled, whoever called ./quire (nohup, a shell's background, cron).
            R4  a second try replaces no first one: both logs stay, and what passed at the second is named at the end.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time

from frontdoor import build, say, venv

PATIENCE = 6 if os.environ.get("QUIRE_TEST_LONG", "0") != "0" else 1  # one test of the long form makes packages, or another libc's whole build
QUIET_S = PATIENCE * 540  # no test and no line of a log takes as long on a busy machine: it hangs
LIMIT_S = PATIENCE * 3600
LOOKS_S = 0.1
NOW = "QUIRE_TEST_NOW"  # the file in which test/conftest.py writes which test runs
FAILED = "QUIRE_TEST_FAILED"  # and which have failed, each name with a zero byte behind it
LOOP = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"  # ends with who started it, however that ends
AGAIN_MAX = 3  # more failures than that are no chance
_STARTED = re.compile(r"^ +Start +(\d+): (\S+)", re.MULTILINE)
_ENDED = re.compile(r"^ *\d+/\d+ Test +#(\d+):", re.MULTILINE)
_CTEST = re.compile(r"\d+% tests passed, (\d+) tests? failed out of (\d+)")
_APART = re.compile(r"^apart: (\d+) passed, (\d+) failed, (\d+) skipped$", re.MULTILINE)  # test/apart.cc
_CHECKS = re.compile(r"checks: (\d+) passed, (\d+) failed")
_PYTEST_COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed)")
_PYTEST_NONE_COLLECTED = 5


def begin_anew():
    """R3, for everything that is started from here on."""
    os.umask(0o022)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # the tool starts some thousand times: each would compile it
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE}:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)  # still ignored here; what is caught is at its default after an exec


@contextlib.contextmanager
def busy_loops(count):
    """So many processes that do nothing, as fast as they can, as long as the body runs."""
    loops = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


class Step:
    """What every step has; a kind of step says commands() and, when it counts tests,
    read_counts()."""

    runs_after_failure = False

    def __init__(self, root, name, after=()):
        self.root, self.name, self.after = root, name, list(after)
        self.status, self.closing, self.seconds, self.cpu_s, self.expression = None, "", 0.0, 0.0, None
        self.passed = self.failed = self.skipped = 0
        self.log = say.fresh_log(root, name.replace(" ", "-").replace("/", "-of-"))

    def run(self):
        broken = [step.name for step in self.after if step.status != 0]
        if broken and not self.runs_after_failure:
            self.closing, self.failed, self.status = f"not run: {broken[0]} failed", 1, 1
            return
        started = time.monotonic()
        status = self.carry_out()
        self.seconds = time.monotonic() - started
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        self.closing = "ok" if status == 0 else f"status {status}"
        status = self.read_counts(text, status)
        if status != 0 and self.failed == 0:
            self.failed = 1
        self.status = status

    def carry_out(self):
        """The status of the first command that fails; 0: none does."""
        status = 0
        for command in self.commands():
            try:
                status, cpu_s = _run_logged(command, self.root, self.log)
                self.cpu_s += cpu_s
            except OSError as problem:  # no .venv, because that step failed
                self.log.write_text(f"{problem.strerror}: {command[0]}\n", encoding="utf-8")
                status = 127
            if status != 0:
                break
        return status

    def read_counts(self, text, status):
        return status

    def again(self):
        """A step that tries anew what failed in this one; None: there is no second try."""
        return None

    def report(self):
        verdict = "ok  " if self.status == 0 else "FAIL"
        print(f"{verdict} {self.name:18} {self.closing}  ({self.seconds:.1f} s, {self.cpu_s:.1f} s of CPU)", flush=True)
        if self.status != 0 and self.log.exists():
            print(
                "-" * 80 + f"\n{self.log.read_text(encoding='utf-8', errors='replace')}" + "-" * 80,
                flush=True,
            )


class Packages(Step):
    """Debian's packages that tests need and builds do not."""

    def __init__(self, root, install):
        super().__init__(root, "packages")
        self._install = install

    def carry_out(self):
        try:
            self._install()
        except say.Stopped as stopped:
            self.log.write_text(f"{stopped}\n", encoding="utf-8")
            return stopped.status
        return 0


class Environment(Step):
    """.venv, filled while what needs none of it is built."""

    def __init__(self, root, commands):
        super().__init__(root, "python packages")
        self._commands = commands

    def commands(self):
        return self._commands


class Build(Step):
    def __init__(self, root, preset, takes=False):
        super().__init__(root, f"build {preset}")
        self.preset, self.takes = preset, takes

    def commands(self):
        return [command for command, _ in build.commands(self.root, self.preset, self.takes)]


class Checks(Step):
    runs_after_failure = True  # most rules can be checked on a tree that does not build

    def __init__(self, root, after):
        super().__init__(root, "checks", after)

    def commands(self):
        return [[venv.python_of(self.root), self.root / "scripts" / "check.py"]]

    def read_counts(self, text, status):
        found = _CHECKS.search(text)
        if found:
            self.closing, self.passed, self.failed = (
                found.group(),
                int(found.group(1)),
                int(found.group(2)),
            )
        return status


def pytest_files(folder):
    return sorted({*folder.glob("test_*.py"), *folder.glob("*_test.py")})


class Ctest(Step):
    def __init__(self, root, preset, after, labels):
        super().__init__(root, f"ctest {preset}", after)
        self.preset, self.labels = preset, labels

    def commands(self):
        prefix = build.without_aslr() if self.preset == "tsan" else []
        # While the check preset is tested others are built or tested; later the machine is the tests' own, of which
        # some only wait: for a clock, or for children.
        cpus = os.cpu_count() or 2
        jobs = str(max(1, cpus // 2) if self.preset == "check" else cpus + cpus // 2)
        command = [
            *prefix,
            "ctest",
            "--test-dir",
            self.root / "build" / self.preset,
            "-j",
            jobs,
            "--output-on-failure",
        ]
        may_be_none = self.expression or (self.preset != "check" and self.labels)
        command += ["--timeout", "300", "--no-tests=" + ("ignore" if may_be_none else "error")]
        command += ["-L", f"^({'|'.join(self.labels)})$"] if self.labels else []
        if self.preset == "tsan" and not self.labels:
            command += ["-LE", "^death$"]  # a process that stops itself has no races to show
        if not self.expression:
            return [command]
        # A part chooses among its tests by itself (test/apart.cc).
        return [["env", f"QUIRE_TEST_ONLY={self.expression}", *command, "-R", rf"({self.expression})|[.]apart_"]]

    def read_counts(self, text, status):
        found = _CTEST.search(text)
        if found:
            failed, total = int(found.group(1)), int(found.group(2))
            skipped = text.count("***Skipped") + text.count("(Disabled)")
            # A line of ctest's may be a part of the tests, of which each has counted its own.
            parts = [list(map(int, counts)) for counts in _APART.findall(self._said())]
            failed -= sum(part[1] > 0 for part in parts)
            self.passed = total - len(parts) - failed - skipped + sum(part[0] for part in parts)
            self.failed = failed + sum(part[1] for part in parts)
            self.skipped = skipped + sum(part[2] for part in parts)
            self.closing = found.group() + (f", which are {self.passed} passed, {self.failed} failed" if parts else "")
        return status

    def _said(self):
        """What ctest keeps of every test's output, whether it passed or not."""
        kept = self.root / "build" / self.preset / "Testing/Temporary/LastTest.log"
        return kept.read_text(encoding="utf-8", errors="replace") if kept.exists() else ""


class Pytest(Step):
    def __init__(self, root, suite, after, part=(0, 1)):
        """`part` (index, of how many) of the suite's files, in the order of their names: what begins alike shares what it makes once a process."""
        index, count = part
        super().__init__(root, f"pytest {suite}" + (f" {index + 1}/{count}" if count > 1 else ""), after)
        files = pytest_files(root / "test" / suite)
        self.files = files[index * len(files) // count : (index + 1) * len(files) // count]

    def failures(self):
        """The tests that failed, each once."""
        noted = self.log.with_suffix(".failed")
        names = noted.read_text(encoding="utf-8").split("\0") if noted.exists() else []
        return list(dict.fromkeys(name for name in names if name))

    def again(self):
        """
        A step of the few tests that failed here, for when nothing else runs; None where that would prove nothing. What
        measures CPU time is disturbed by what runs beside it; a race or a fault is not what this suite is there for:
        those have theirs under ctest, which has no second try.
        """
        names = self.failures()
        if self.status != 1 or not 0 < len(names) <= AGAIN_MAX or len(names) != self.failed:
            return None
        step = Pytest(self.root, self.name.split()[1], [])
        step.name, step.files = f"{self.name}, again", names
        step.log = say.fresh_log(self.root, f"{self.log.stem}-again")
        return step

    def commands(self):
        command = [
            venv.python_of(self.root),
            "-m",
            "pytest",
            "-q",
            "-rs",
            "--durations=60",  # in the log: where the time went
            "--durations-min=1",
            "--color=no",
            "-p",
            "no:cacheprovider",
            "--confcutdir",
            self.root / "test",
            "--rootdir",  # what the names of tests begin at
            self.root,
        ]
        return [command + (["-k", self.expression] if self.expression else []) + self.files]

    def read_counts(self, text, status):
        lines = [
            line for line in text.splitlines() if _PYTEST_COUNT.search(line) and " in " in line
        ]
        if status == _PYTEST_NONE_COLLECTED and self.expression:
            self.closing = "no test of that name"
            return 0
        if lines:
            self.closing = lines[-1].strip("= ")
            counts = {
                word.rstrip("s") if word.startswith("error") else word: int(n)
                for n, word in _PYTEST_COUNT.findall(lines[-1])
            }
            self.passed = counts.get("passed", 0) + counts.get("xfailed", 0)
            self.failed = (
                counts.get("failed", 0) + counts.get("error", 0) + counts.get("xpassed", 0)
            )
            self.skipped = counts.get("skipped", 0)
        return status


def _run_logged(command, root, log):
    """
    Runs a command in a process group of its own, stopped when it stands still for QUIET_S; returns its status and the
    CPU seconds of it and all that it waited for.
    """
    with open(log, "ab") as output:
        output.write(f"$ {' '.join(map(str, command))}\n".encode())
        output.flush()
        process = subprocess.Popen(
            command,
            cwd=root,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, NOW: str(log.with_suffix(".now")), FAILED: str(log.with_suffix(".failed"))},
        )
        began, nap_s = time.time(), 0.001
        while True:
            ended, cpu_s = _ended(process)
            if ended:
                return process.returncode, cpu_s
            still_s, all_s = time.time() - _moved_last(log), time.time() - began
            if still_s > QUIET_S or all_s > LIMIT_S:
                break
            nap_s = min(2 * nap_s, LOOKS_S)
            time.sleep(nap_s)
        os.killpg(process.pid, signal.SIGKILL)
        _, cpu_s = _ended(process, wait=True)
        output.write(f"\nstopped: took longer than {LIMIT_S if all_s > LIMIT_S else QUIET_S} s; {running_in(log)}\n".encode())
        return 124, cpu_s


def _ended(process, wait=False):
    """(whether it has ended, CPU seconds of it and of all that it waited for); a thread may not ask for RUSAGE_CHILDREN, which is everybody's."""
    pid, status, used = os.wait4(process.pid, 0 if wait else os.WNOHANG)
    if pid:
        process.returncode = os.waitstatus_to_exitcode(status)
    return bool(pid), used.ru_utime + used.ru_stime


def _moved_last(log):
    """When the log or the note of the test that runs was written last."""
    notes = (path.stat().st_mtime for path in (log, log.with_suffix(".now")) if path.exists())
    return max(notes)


def running_in(log):
    """Which tests ran when a step was stopped, in words."""
    now = log.with_suffix(".now")
    if now.exists():
        return f"the test that ran: {now.read_text(encoding='utf-8')}, for {time.time() - now.stat().st_mtime:.0f} s"
    text = log.read_text(encoding="utf-8", errors="replace")
    ended = set(_ENDED.findall(text))
    names = [name for number, name in _STARTED.findall(text) if number not in ended]
    return f"the tests that ran: {', '.join(names)}" if names else "its last line stands above"
