# SPDX-License-Identifier: MIT
"""In a container: a limit as a part of the cgroup's, memory pressure, SIGTERM, and names of reports (doc/containers.md)."""

import json
import os
import re
import select
import signal
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from preload_kit import LIBRARY, PYTHON, ROOT, environment, run

MIB = 1 << 20
LONG = os.environ.get("QUIRE_TEST_LONG", "0") != "0"
MEMINFO = "MemTotal:       1048576 kB\nMemFree:        100 kB\n"


def fake_root(folder, **files):
    """A directory with these files; __ in a name is a slash."""
    for name, text in {"proc__meminfo": MEMINFO, **files}.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@contextmanager
def started(*command, conf, preload=()):
    """A program under the library that has said "ready"."""
    env = environment(conf)
    env["LD_PRELOAD"] = ":".join([str(LIBRARY), *map(str, preload)])
    words = [str(word) for word in command]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            assert process.stdout.readline() == "ready\n", process.stderr.read()
            yield process
        finally:
            process.kill()


def ended_by_term(process):
    process.terminate()
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


# ---- SIGTERM ----


def test_sigterm_writes_the_report_and_ends_the_program_as_before(build, tmp_path):
    report = tmp_path / "r.json"
    with started(build("contained.c"), "idle", 10 * MIB, conf=f"stats:exit={report},stats_format:json,leaks") as process:
        time.sleep(0.1)
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert ended_by_term(process) == (-signal.SIGTERM, "", "")
    got = json.loads(report.read_text())
    assert got["pid"] == process.pid and got["program"].endswith("contained-c") and got["heap"]["live_blocks"] == got["leaked_blocks"] > 0
    resident = int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) * 1024
    assert abs(got["rss_peak_bytes"] - resident) < MIB, "of the program, not of the copy that writes"
    assert got["time_cpu_ns"] > 1e6


@pytest.mark.by_turns
def test_each_of_many_busy_threads_may_be_interrupted_anywhere(build, tmp_path):
    """The signal finds a thread inside the allocator more often than not; the report is whole each time."""
    program = build("contained.c", "-pthread")
    for i in range(200 if LONG else 12):
        report = tmp_path / f"{i}.json"
        with started(program, "busy", 1 + i % 4, conf=f"stats:exit={report},stats_format:json{',secure' * (i % 5 == 0)}") as process:
            time.sleep(0.02)
            began = time.monotonic()
            assert ended_by_term(process) == (-signal.SIGTERM, "", "")
            assert time.monotonic() - began < 8, "it did not wait for a lock until its time was up"
        got = json.loads(report.read_text())
        assert got["heap"]["live_blocks"] > 50 and sum(row["live_blocks"] for row in got["classes"]) > 0


def test_a_program_with_a_handler_of_its_own_keeps_it(build, tmp_path):
    report = tmp_path / "r"
    with started(build("contained.c"), "handler", conf=f"stats:exit={report}") as process:
        assert ended_by_term(process)[0] == 5
    assert not report.exists()


def test_a_program_that_ignores_sigterm_goes_on(tmp_path):
    code = "import signal, time; print('ready', flush=True); time.sleep(0.5); print(signal.getsignal(15) == signal.SIG_IGN)"
    env = environment(f"stats:exit={tmp_path}/r")
    ignoring = ["sh", "-c", 'trap "" TERM; exec "$@"', "sh", PYTHON, "-S", "-c", code]
    with subprocess.Popen(ignoring, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.communicate(timeout=60)[0] == "True\n"
    assert process.returncode == 0 and (tmp_path / "r").stat().st_size > 500


def test_without_a_report_asked_for_sigterm_is_left_alone():
    code = "import signal; print(signal.getsignal(15) == signal.SIG_DFL)"
    assert run(PYTHON, "-S", "-c", code, conf="").stdout == "True\n"
    assert run(PYTHON, "-S", "-c", code, conf="stats:exit=/dev/null").stdout == "False\n", "the question is one that can be answered"


@contextmanager
def full_pipe(folder):
    """(a FIFO that takes no more, its descriptor): who writes waits until somebody reads."""
    os.mkfifo(folder / "fifo")
    pipe = os.open(folder / "fifo", os.O_RDWR | os.O_NONBLOCK)
    try:
        os.write(pipe, b" " * (1 << 20))
        yield folder / "fifo", pipe
    finally:
        os.close(pipe)


def test_the_program_sees_no_child_of_ours(build, tmp_path):
    """Its wait() finds none, and no SIGCHLD comes, while the copy writes into a FIFO that nobody reads yet."""
    with full_pipe(tmp_path) as (fifo, pipe), started(build("contained.c"), "children", conf=f"stats:exit={fifo}") as process:
        process.terminate()
        time.sleep(0.2)
        assert process.poll() is None, "it waits for the copy"
        said = b""
        while b"in memory (RSS)" not in said and process.poll() is None:
            said += os.read(pipe, 1 << 16) if select.select([pipe], [], [], 1)[0] else b""
        while select.select([pipe], [], [], 0)[0] and (more := os.read(pipe, 1 << 16)):  # what was written before it ended
            said += more
        assert b"in memory (RSS)" in said
        assert process.communicate(timeout=60) == ("", "") and process.returncode == -signal.SIGTERM


@pytest.mark.skipif(not LONG, reason="ten seconds of waiting; QUIRE_TEST_LONG=1 has it")
def test_a_report_that_cannot_be_written_holds_the_end_up_for_ten_seconds_at_most(build, tmp_path):
    with full_pipe(tmp_path) as (fifo, _), started(build("contained.c"), "idle", conf=f"stats:exit={fifo}") as process:
        code, _, said = ended_by_term(process)
    assert code == -signal.SIGTERM and said.startswith("quire: SIGTERM: there is no report: it took too long")


def test_a_file_that_cannot_be_written_is_a_line_and_the_end_is_the_same(build):
    with started(build("contained.c"), "idle", conf="stats:exit=/nowhere/at/all") as process:
        code, _, said = ended_by_term(process)
    assert code == -signal.SIGTERM and said.startswith("quire: the report cannot be written to /nowhere/at/all: ")


def test_where_no_process_can_be_made_a_line_says_so(build, tmp_path):
    """RLIMIT_NPROC does not hold for root."""
    program = build("contained.c")
    program.parent.chmod(0o755)
    words = ["setpriv", "--reuid=65534", "--clear-groups", "prlimit", "--nproc=1", str(program), "idle"] if os.geteuid() == 0 else ["prlimit", "--nproc=1", str(program), "idle"]
    if not all(os.access(parent, os.X_OK) and parent.stat().st_mode & 1 for parent in program.parents):
        pytest.skip("another user cannot reach the program here")
    with started(*words, conf="stats:exit") as process:
        code, _, said = ended_by_term(process)
    assert code == -signal.SIGTERM and "there is no report: Resource temporarily unavailable" in said


def test_a_profile_is_written_too(build, tmp_path):
    with started(build("contained.c"), "busy", 1, conf=f"prof:1K,stats:exit=/dev/null,prof_file:{tmp_path}/%p.%n.heap") as process:
        time.sleep(0.1)
        assert ended_by_term(process)[0] == -signal.SIGTERM
    text = (tmp_path / f"{process.pid}.0.heap").read_text()
    assert f"pid={process.pid} " in text or f"pid {process.pid} " in text or f"pid: {process.pid}" in text


# ---- names ----


def test_many_processes_write_into_one_directory(build, tmp_path):
    before = int(time.time())
    with started(build("contained.c"), "fork", conf=f"stats:exit={tmp_path}/%h-%t-%p-%%p.json,stats_format:json") as process:
        child = int(subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True).stdout)
        os.kill(child, signal.SIGTERM)
        assert process.wait(60) == 0
    found = {}
    for path in tmp_path.iterdir():
        host, moment, pid, literal = path.stem.rsplit("-", 3)
        assert host == socket.gethostname().replace("/", "_") and before <= int(moment) <= time.time() and literal == "%p"
        found[int(pid)] = json.loads(path.read_text())["pid"]
    assert found == {child: child, process.pid: process.pid}


# ---- limit ----


def limit_of(tmp_path, build, limit, root=None):
    """(limit_bytes of the report, what was said)."""
    report = tmp_path / "limit.json"
    preload = [LIBRARY] + ([build("fake_root.c", "-shared", "-fPIC", f'-DFAKE_ROOT="{root}"')] if root else [])
    done = run("/bin/true", conf=f"limit:{limit},stats:exit={report},stats_format:json", env={"LD_PRELOAD": ":".join(map(str, preload))})
    assert done.returncode == 0
    return json.loads(report.read_text())["heap"]["limit_bytes"], done.stderr


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc__self__cgroup": "0::/pod/c\n", "sys__fs__cgroup__pod__c__memory.max": "max\n", "sys__fs__cgroup__pod__memory.max": f"{500 * MIB}\n"}, 500 * MIB),
        ({"proc__self__cgroup": "3:cpu,memory:/d\n", "sys__fs__cgroup__memory__d__memory.limit_in_bytes": f"{300 * MIB}\n"}, 300 * MIB),
        ({}, 1024 * MIB),
    ],
)
def test_a_limit_may_be_a_part_of_the_cgroups(tmp_path, build, files, expected):
    root = fake_root(tmp_path / "root", **files)
    assert limit_of(tmp_path, build, "80%", root) == (expected // 100 * 80, "")


def test_here_and_now_it_is_a_part_of_what_the_files_say(tmp_path, build):
    ram = int(re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text()).group(1)) * 1024
    got, said = limit_of(tmp_path, build, "50%")
    assert 0 < got <= ram // 100 * 50 and said == ""


MEMORY_CGROUPS = Path("/sys/fs/cgroup/memory")  # of the first version
EATS_ALL = "x = []\ntry:\n    while True: x.append(bytes(1 << 20))\nexcept MemoryError:\n    n = len(x); x = None; print(n)\n"


@pytest.fixture
def enter():
    """The beginning of a command that runs in a real cgroup of 100 MiB."""
    if os.geteuid() != 0 or not os.access(MEMORY_CGROUPS / "cgroup.procs", os.W_OK):
        pytest.skip("no cgroups of the first version that may be made here")
    group = MEMORY_CGROUPS / f"quire-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(100 * MIB))
        yield ["sh", "-c", f'echo $$ >{group}/cgroup.procs; exec "$@"', "sh"]
    finally:
        group.rmdir()


def test_in_a_real_cgroup_a_program_that_eats_all_gets_enomem_and_is_not_killed(enter, tmp_path):
    report = tmp_path / "report.json"
    done = run(*enter, PYTHON, "-S", "-c", EATS_ALL, conf=f"limit:80%,stats:exit={report},stats_format:json")
    assert done.returncode == 0 and 60 <= int(done.stdout) <= 80, done.stderr
    assert json.loads(report.read_text())["heap"]["limit_bytes"] == 80 * MIB


def stalled_us():
    """How long tasks of the machine have waited for memory: what is read where a cgroup has no count of its own."""
    file = Path("/proc/pressure/memory")
    return int(re.search(r"total=(\d+)", file.read_text())[1]) if file.exists() else 0


def test_in_a_real_cgroup_a_profile_is_there_before_the_kernel_kills(enter, tmp_path):
    """A program fills it with memory of its own, within a second: no count of the cgroup's says in time that memory is short."""
    fill = "import time\nx = []\nwhile True: x.append(b'x' * (1 << 20)); time.sleep(0.005)\n"
    before_us = stalled_us()
    done = run(*enter, PYTHON, "-S", "-c", fill, conf=f"prof:64K,pressure,prof_file:{tmp_path}/%p.%n.heap")
    assert done.returncode in (-9, 137), done
    live = sorted(int(re.match(r"heap profile: \d+: (\d+)", file.read_text())[1]) for file in tmp_path.glob("*.heap"))
    assert [sum(quarter <= mib < quarter + 25 for mib in (each / MIB for each in live)) > 0 for quarter in (25, 50, 75)] == [True] * 3, live
    for_stalls = stalled_us() - before_us > 100_000  # a tenth of the second between two looks
    assert 3 <= len(live) <= 3 + for_stalls, "at each quarter of the limit but the last; and one where what else the machine does waits for memory"


def test_a_system_that_does_not_say_gives_no_limit_and_a_line(tmp_path, build):
    (tmp_path / "root").mkdir()
    got, said = limit_of(tmp_path, build, "80%,prof_at:5%", tmp_path / "root")
    assert said.count("\n") == 2 and "quire: QUIRE_CONF: prof_at: this system does not say how much memory there is; it is not set\n" in said
    assert got == 0 and said.startswith("quire: QUIRE_CONF: limit: this system does not say how much memory there is")


@pytest.mark.parametrize(("conf", "said"), [("limit:0%", 'limit cannot be "0%"; write limit:SIZE|N%, such as 64K, 2G or 80%'), ("limit:101%", "limit cannot be"), ("limit:-1%", "limit cannot be"), ("pressure:0%", "pressure cannot be"), ("pressure:5", "pressure cannot be"), ("prof_at:0%", 'prof_at cannot be "0%"; write prof_at:SIZE|N%'), ("prof_at:101%", "prof_at cannot be")])
def test_parts_are_1_to_100(conf, said):
    done = run("/bin/true", conf=conf)
    assert done.stderr.startswith("quire: QUIRE_CONF: " + said) and done.stderr.count("\n") == 1


# ---- pressure ----


def resident_mib(process):
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text()).group(1)) / 1024


def wait_until(holds, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end and not holds():
        time.sleep(0.05)
    return holds()


def stalled_root(tmp_path, build):
    """(a root whose cgroup has waited for memory for a millisecond, the library that shows it)."""
    root = fake_root(tmp_path / "root", **{"proc__self__cgroup": "0::/pod\n", "sys__fs__cgroup__pod__memory.pressure": STALLED.format(1000)})
    return root, build("fake_root.c", "-shared", "-fPIC", f'-DFAKE_ROOT="{root}"')


class Stall:
    """Tasks wait for memory a quarter of the time, from its first call on; what a call comes too late for has been no stall: it would be all of a second."""

    LATE_S = 0.2

    def __init__(self, root):
        self.root, self.stalled_us, self.last_s = root, 1000, time.monotonic()

    def __call__(self):
        now_s = time.monotonic()
        self.stalled_us += int(min(now_s - self.last_s, self.LATE_S) * 1e6 / 4)
        self.last_s = now_s
        draft = self.root / "draft"
        draft.write_text(STALLED.format(self.stalled_us))
        draft.rename(self.root / "sys/fs/cgroup/pod/memory.pressure")


LOOKS_S = 3.5  # the library looks once a second: what it has not seen until then it does not act on
LATE_S = 60  # and what it acts on it has seen by then, on however busy a machine


STALLED = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"


@pytest.mark.parametrize("asked", ["pressure", "pressure:60%"])
def test_under_memory_pressure_idle_memory_goes_back_at_once(build, tmp_path, asked):
    """40 MiB are idle, with a decay of an hour; tasks begin to wait for memory a quarter of the time: 10 % is exceeded, 60 % is not."""
    root, shim = stalled_root(tmp_path, build)
    with started(build("contained.c"), "idle", 40 * MIB, conf=f"decay:3600s,{asked}", preload=[shim]) as process:
        assert not wait_until(lambda: resident_mib(process) < 25, 1.2), "nothing waits yet"
        stall = Stall(root)
        is_asked = asked == "pressure"
        assert wait_until(lambda: stall() or resident_mib(process) < 25, LATE_S if is_asked else LOOKS_S) == is_asked


# ---- a profile before the kernel kills ----


@pytest.mark.parametrize(("asked", "is_there"), [("pressure", True), ("pressure:60%", False), ("pressure:0", False)][: 3 if LONG else 1])
def test_a_profile_is_written_when_memory_falls_short_though_nothing_is_idle(build, tmp_path, asked, is_there):
    """Tasks wait a quarter of the time: once, not at each look."""
    root, shim = stalled_root(tmp_path, build)

    def found():
        return list(tmp_path.glob("*.heap"))

    with started(build("profile.c"), "wait", conf=f"prof:16K,prof_exit:0,prof_file:{tmp_path}/%p.%n.heap,{asked}", preload=[shim]) as process:
        assert not wait_until(found, 1.2), "nothing waits yet"
        stall = Stall(root)
        assert bool(wait_until(lambda: stall() or found(), LATE_S if is_there else LOOKS_S)) == is_there
        for _ in range(25):
            stall()
            time.sleep(0.05)
        assert [path.name for path in found()] == [f"{process.pid}.0.heap"] * is_there


EVENTS = "low 0\nhigh {}\nmax {}\noom 0\noom_kill 0\noom_group_kill 0\n"


@pytest.mark.parametrize("version", [1, 2])
def test_a_profile_is_written_when_the_cgroup_is_at_its_limit_though_nobody_waits(build, tmp_path, version):
    """Once, when it begins; a system without PSI says no more than this."""
    group = {1: ("7:memory:/pod\n", "memory__pod__memory.failcnt", "{1}\n"), 2: ("0::/pod\n", "pod__memory.events.local", EVENTS)}[version]
    root = fake_root(tmp_path / "root", **{"proc__self__cgroup": group[0], f"sys__fs__cgroup__{group[1]}": group[2].format(3, 3)})
    shim = build("fake_root.c", "-shared", "-fPIC", f'-DFAKE_ROOT="{root}"')

    def found():
        return list(tmp_path.glob("*.heap"))

    def hit(hits):
        (root / "draft").write_text(group[2].format(hits, hits))
        (root / "draft").rename(root / "sys/fs/cgroup" / group[1].replace("__", "/"))

    with started(build("profile.c"), "wait", conf=f"prof:16K,prof_exit:0,prof_file:{tmp_path}/%p.%n.heap,pressure", preload=[shim]) as process:
        assert not wait_until(found, 2.2), "what was before the program is not its own"
        hit(4)
        assert wait_until(found, LATE_S)
        for hits in range(5, 30):
            hit(hits)
            time.sleep(0.05)
        assert [path.name for path in found()] == [f"{process.pid}.0.heap"]


@pytest.mark.parametrize(("limit_mib", "asked", "files"), [(16, "prof_at:25%", True), (16, "pressure", True), (16, "pressure,prof_at:1G", False), (1024, "prof_at:25%", False)])
def test_a_profile_is_written_at_each_part_of_the_cgroups_limit(build, tmp_path, limit_mib, asked, files):
    """Some 9 MiB are live: two quarters of 16 MiB."""
    root = fake_root(tmp_path / "root", **{"proc__self__cgroup": "0::/pod\n", "sys__fs__cgroup__pod__memory.max": f"{limit_mib * MIB}\n"})
    shim = build("fake_root.c", "-shared", "-fPIC", f'-DFAKE_ROOT="{root}"')
    with started(build("profile.c"), "wait", conf=f"prof:16K,{asked},prof_exit:0,prof_file:{tmp_path}/%p.%n.heap", preload=[shim]):
        assert bool(wait_until(lambda: list(tmp_path.glob("*.heap")), LATE_S if files else 0.3)) == files


# ---- the document ----


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / "doc/containers.md").read_text(), re.MULTILINE | re.DOTALL)


def test_the_documents_kubernetes_example_is_yaml_with_limits_and_a_configuration_that_is_understood(tmp_path):
    (text,) = blocks("yaml")
    pod = yaml.safe_load(text)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    variables = {entry["name"]: entry["value"] for entry in container["env"]}
    assert variables["LD_PRELOAD"] == LIBRARY.name and container["resources"]["limits"]["memory"] == "1Gi"
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    done = run("/bin/true", conf=variables["QUIRE_CONF"].replace("/reports", str(tmp_path)))
    assert (done.returncode, done.stderr) == (0, "")
    assert len(list(tmp_path.iterdir())) == 1


def test_the_documents_dockerfiles_have_a_configuration_that_is_understood_and_install_what_there_is():
    debian, alpine = blocks("dockerfile")
    assert "FROM debian:" in debian and "FROM alpine:" in alpine
    done = run("/bin/true", conf=re.search(r'QUIRE_CONF="([^"]*)"', debian).group(1))
    assert (done.returncode, done.stderr) == (0, "")
    assert f"LD_PRELOAD={LIBRARY.name} " in debian and "QUIRE_BUILD_TOOLS" in alpine
    assert f"LD_PRELOAD={LIBRARY.name} " in alpine and re.search(rf"COPY .*/{LIBRARY.name}\* /usr/lib/", alpine)


def test_the_documents_commands_for_ci_are_ones_that_the_tool_knows():
    (text,) = [text for text in blocks("sh") if "--fail-on" in text]
    made, compared = [line.split() for line in text.splitlines()]
    assert made[:3] == ["quire", "try", "--json"] and made[-1] == ">after.json" and "-o" not in made, "-o is where the trace is kept"
    assert compared[:4] == ["quire", "report", "before.json", "after.json"]
