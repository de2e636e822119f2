# SPDX-License-Identifier: MIT
"""
test_record_key - QUIRE_CONF=record: a process with the drop-in is recorded without ptrace, from its start to its end or between two signals.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import stat
import subprocess

import pytest
from attachkit import Process, Server, patched, programs, record, wait_until
from toolkit import BUILD, NOBODY, build, native_json, quire

LIBRARY = os.path.realpath(BUILD / "libquire-malloc.so")
SOURCE = pathlib.Path(__file__).parent / "programs" / "recorded.cc"
EACH = 3 * 700
FIGURES = ("count", "bytes", "freed", "reallocs", "realloc_bytes", "zeroed", "aligned")
ORDINARY = ["-Wl,-z,lazy"], ["-Wl,-z,now"], ["-fno-pie", "-no-pie", "-Wl,-z,lazy"]


def compiled(folder, *flags):
    """programs/recorded.cc; the path of the program."""
    path = folder / ("recorded" + "".join(flags).replace("/", ""))
    subprocess.run(["c++", "-std=c++17", "-O1", "-g", "-fno-builtin", "-pthread", *flags, SOURCE, "-o", path], check=True)
    return path


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("recorded"))


def environment(conf, **more):
    return {**os.environ, "LD_PRELOAD": LIBRARY, "QUIRE_CONF": conf, **more}


def run(program, *words, conf, **options):
    """The program under the drop-in, finished."""
    return subprocess.run([program, *words], env=environment(conf), capture_output=True, text=True, timeout=120, check=False, **options)


def told(path):
    """(facts of a trace, {function of the program, or the one that calls it, if it does no more than call malloc: figures of its sites})."""
    document = native_json("quire-analyse", path, "--sites", "-")
    sites = {}
    for site in document["sites"]:
        if os.path.basename(site["module"]).startswith("recorded"):
            sites.setdefault(site["function"], []).append(tuple(site[name] for name in FIGURES))
    return document["trace"], {name: sorted(figures) for name, figures in sites.items()}


def count(sites, name):
    """How many blocks a function made."""
    return sum(figures[0] for figures in sites.get(name, []))


FORKS_THREADS = """
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
enum { THREADS = 4 };
static pthread_barrier_t all;
static void *work(void *unused) {
    pthread_barrier_wait(&all);
    for (int i = 0; i < 2000; i++) free(malloc(100));
    return unused;
}
int main(void) {
    int bad = 0;
    for (int i = 0; i < 20; i++) {
        if (fork() == 0) {
            pthread_t thread[THREADS];
            pthread_barrier_init(&all, NULL, THREADS);
            for (int n = 0; n < THREADS; n++) pthread_create(&thread[n], NULL, work, NULL);
            for (int n = 0; n < THREADS; n++) pthread_join(thread[n], NULL);
            _exit(0);
        }
        int status = 0;
        wait(&status);
        bad += status != 0;
    }
    return bad;
}
"""


@pytest.mark.one_by_one
@pytest.mark.parametrize("flags", ORDINARY, ids=["lazy", "now", "no-pie"])
@pytest.mark.parametrize("conf", ["", "secure:1", "passthrough:1", "check:5000", "prof:64K,prof_exit:0", "guard:1/50", "limit:1G"])
def test_every_call_is_counted_as_in_an_ordinary_recording(tmp_path, flags, conf):
    program = compiled(tmp_path, *flags)
    assert quire(tmp_path, "record", "-o", "ordinary.qtr", "--", program, "all").returncode == 0
    done = run(program, "all", conf=f"{conf},record:{tmp_path}/key.qtr")
    assert (done.returncode, done.stdout, done.stderr) == (0, "sound\n", "")
    about, sites = told(tmp_path / "key.qtr")
    _, wanted = told(tmp_path / "ordinary.qtr")
    assert sum(len(figures) for figures in wanted.values()) == 7 and all(figures[0] == EACH for of in wanted.values() for figures in of)
    assert sites == wanted
    assert about["complete"] and about["exited"] and not about["attached"] and about["lost_events"] == 0 and about["unknown_stacks"] == 0
    assert sorted(p.suffix for p in tmp_path.glob("*.qtr*")) == [".qtr"] * 2


def test_a_program_of_one_thread_stays_one(tmp_path):
    done = run("/bin/cat", "/proc/self/status", conf=f"record:{tmp_path}/t.qtr")
    assert done.returncode == 0 and "Threads:\t1\n" in done.stdout


class Batches(Process):
    """`recorded batches` under the drop-in."""

    def __init__(self, program, folder, conf):
        super().__init__(program, "batches", env=environment(conf), cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.folder = folder

    def batch(self):
        self.popen.stdin.write("x\n")
        self.popen.stdin.flush()
        assert self.popen.stdout.readline() == "done\n"

    def toggle(self):
        """Recording begins, or ends."""
        before = patched(self.pid)
        self.popen.send_signal(signal.SIGUSR2)
        wait_until(lambda: bool(patched(self.pid)) != bool(before))

    def end(self):
        self.popen.stdin.close()
        assert self.popen.wait(timeout=20) == 0


@pytest.mark.by_turns
def test_between_two_signals_alone_and_again_with_files_that_are_numbered(program, tmp_path):
    with Batches(program, tmp_path, "record:t.%n.qtr,record_signal:USR2") as one:
        one.batch()
        for _ in range(2):
            one.toggle()
            one.batch()
            one.toggle()
            one.batch()
        assert patched(one.pid) == 0
        one.end()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.0.qtr", "t.1.qtr"]
    for path in tmp_path.iterdir():
        about, sites = told(path)
        assert about["complete"] and about["attached"] and not about["exited"] and about["lost_events"] == 0
        assert count(sites, "by_new") == EACH and all(figures[0] == EACH for of in sites.values() for figures in of)


def test_names_have_the_process_and_a_file_that_is_there_is_left_alone(program, tmp_path):
    (tmp_path / "t.qtr").write_text("keep me")
    done = run(program, "all", conf="record:t.qtr", cwd=tmp_path)
    assert done.returncode == 0 and (tmp_path / "t.qtr").read_text() == "keep me"
    (other,) = tmp_path.glob("t.qtr.*")
    assert told(other)[0]["pid"] == int(other.suffix[1:])
    assert run(program, "all", conf=f"record:{tmp_path}/%h.%p.trace").returncode == 0
    (path,) = tmp_path.glob("*.trace")
    assert path.name == f"{os.uname().nodename}.{told(path)[0]['pid']}.trace"


def test_a_forked_child_has_a_trace_of_its_own_and_an_executed_one_too(program, tmp_path):
    done = run(program, "fork", conf=f"record:{tmp_path}/%p.qtr")
    assert (done.returncode, done.stderr) == (0, "")
    found = {path.stem: told(path) for path in tmp_path.iterdir()}
    assert len(found) == 2 and all(str(about["pid"]) == name and about["exited"] for name, (about, _) in found.items())
    counts = sorted((count(sites, "parents"), count(sites, "childs")) for _, sites in found.values())
    assert counts == [(0, 500), (300, 0)]
    done = run("/bin/sh", "-c", f"{program} all; true", conf=f"record:{tmp_path}/sh.%p.qtr")
    assert done.returncode == 0 and EACH in [count(told(path)[1], "by_new") for path in tmp_path.glob("sh.*")]


@pytest.mark.long
def test_a_forked_child_whose_threads_all_begin_at_once_has_one_whole_trace(tmp_path):
    done = run(build(tmp_path, FORKS_THREADS, "forks", ["-pthread"]), conf=f"record:{tmp_path}/%p.qtr")
    assert (done.returncode, done.stderr) == (0, "")
    found = [told(path)[0] for path in tmp_path.glob("*.qtr*")]
    assert len(found) == 21 and all(about["complete"] and about["note"] == "" for about in found)
    assert sorted(about["allocations"] for about in found)[1:] == [8000] * 20


def test_a_child_of_a_process_that_is_not_recorded_now_begins_by_a_signal_of_its_own(tmp_path):
    script = 'my $pid = fork(); if (!$pid) { while (!-e "end") { my @a = map { "x" x $_ } 1 .. 50; select(undef, undef, undef, 0.002) } exit 0 } print "$pid\\n"; $| = 1; waitpid($pid, 0); exit $? >> 8'
    with Process("perl", "-e", f"$| = 1; {script}", env=environment("record:%p.qtr,record_signal:USR1"), cwd=tmp_path, stdout=subprocess.PIPE, text=True) as perl:
        child = int(perl.popen.stdout.readline())
        for wanted in (True, False):
            os.kill(child, signal.SIGUSR1)
            wait_until(lambda: bool(patched(child)) == wanted)
        assert patched(perl.pid) == 0
        (tmp_path / "end").touch()
        assert perl.popen.wait(timeout=20) == 0
    assert told(tmp_path / f"{child}.qtr")[0]["complete"] and not (tmp_path / f"{perl.pid}.qtr").exists()


def open_files(pid):
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # the server closed a connection
            yield os.readlink(f"/proc/{pid}/fd/{name}")


@pytest.mark.by_turns
def test_started_and_stopped_again_and_again_a_server_under_load_loses_no_request(tmp_path, monkeypatch):
    times = 20 if os.environ.get("QUIRE_TEST_LONG") else 6
    folder = programs(tmp_path)
    monkeypatch.setenv("LD_PRELOAD", LIBRARY)
    monkeypatch.setenv("QUIRE_CONF", f"record:{tmp_path}/t.%n.qtr,record_signal:USR2")
    with Server(folder) as server:
        monkeypatch.delenv("LD_PRELOAD")
        monkeypatch.delenv("QUIRE_CONF")
        with server.load() as load:
            for i in range(times):
                server.popen.send_signal(signal.SIGUSR2)
                wait_until(lambda i=i: (tmp_path / f"t.{i}.qtr").exists() and patched(server.pid) > 0)
                server.popen.send_signal(signal.SIGUSR2)
                wait_until(lambda: patched(server.pid) == 0)
        assert server.lives and load.failed == 0 and load.answered > 100
        assert not any(path.endswith(".qtr") for path in open_files(server.pid))
    for i in range(times):
        about, _ = told(tmp_path / f"t.{i}.qtr")
        assert about["complete"] and about["attached"] and about["allocations"] > 0 and about["lost_events"] == 0, i


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ("record:/nowhere/t.qtr", "record: the trace cannot be written to /nowhere/t.qtr: No such file or directory; nothing is recorded"),
        ("record:/dev/null/x", "record: the trace cannot be written to /dev/null/x: Not a directory; nothing is recorded"),
        ("record:/dev/full", "record: the trace cannot be written to /dev/full: File exists; nothing is recorded"),
        ("record:.", "record: the trace cannot be written to .: Is a directory; nothing is recorded"),
        ("recrod:t.qtr", 'there is no key "recrod"; did you mean "record"?; QUIRE_CONF=help prints all keys'),
        ("record", 'record cannot be ""; write record:FILE'),
        ("record:t.qtr,record_signal:KILL", 'record_signal cannot be "KILL"; write record_signal:USR1|USR2|N'),
        ("record_signal:USR1", "record_signal: there is no record:FILE; nothing is recorded"),
        ("record_limit:x", 'record_limit cannot be "x"; write record_limit:SIZE, such as 64K or 2G'),
        ("record:t.qtr,record_signal:32", "record_signal: this signal cannot be caught; nothing is recorded"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_one_line_and_the_program_goes_on(tmp_path, conf, said):
    done = run("/bin/echo", "on", conf=conf, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "on\n")
    assert done.stderr.splitlines()[0] == f"quire: QUIRE_CONF: {said}"
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.by_turns
def test_a_plan_and_a_library_without_the_recorder_are_told(program, tmp_path):
    assert quire(tmp_path, "record", "-o", "t.qtr", "--", program, "all").returncode == 0
    assert quire(tmp_path, "advise", "-o", "the.plan", "t.qtr").returncode == 0
    done = run(program, "all", conf=f"plan:{tmp_path}/the.plan,record:{tmp_path}/no.qtr")
    assert (done.returncode, done.stderr) == (0, "quire: QUIRE_CONF: record does not go with plan; nothing is recorded\n")
    alone = tmp_path / "alone" / os.path.basename(LIBRARY)
    alone.parent.mkdir()
    shutil.copy(LIBRARY, alone)
    env = {**environment(f"record:{tmp_path}/no.qtr"), "LD_PRELOAD": str(alone)}
    done = subprocess.run([program, "all"], env=env, capture_output=True, text=True, timeout=60, check=False)
    wanted = "record: libquire-attach.so, a part of the quire command, cannot be loaded: it is not where libquire-malloc.so has it; nothing is recorded"
    assert (done.returncode, done.stderr) == (0, f"quire: QUIRE_CONF: {wanted}\n")
    assert not (tmp_path / "no.qtr").exists()


def test_a_trace_that_is_large_enough_ends_and_the_program_goes_on(program, tmp_path):
    done = run(program, "all", conf=f"record:{tmp_path}/t.qtr,record_limit:200K")
    assert (done.returncode, done.stdout, done.stderr) == (0, "sound\n", "")
    assert (tmp_path / "t.qtr").stat().st_size <= 200 << 10 and "record_limit" in told(tmp_path / "t.qtr")[0]["note"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a program with more rights than its user")
def test_a_privileged_program_is_not_recorded_as_its_user_wants(tmp_path):
    """Linked rather than preloaded: the loader drops LD_PRELOAD there by itself."""
    folder = tmp_path / "open"
    folder.mkdir()
    (folder / "tools").mkdir()
    shutil.copy(LIBRARY, folder)
    shutil.copy(BUILD / "tools" / "libquire-attach.so", folder / "tools")
    source = "#include <stdlib.h>\n#include <unistd.h>\nint main(void) { free(malloc(100)); write(1, \"sound\\n\", 6); return 0; }"
    for name in {"libquire-malloc.so", os.readlink(BUILD / "libquire-malloc.so")} - {os.path.basename(LIBRARY)}:
        os.symlink(os.path.basename(LIBRARY), folder / name)
    program = build(folder, source, "linked", ["-Wl,--no-as-needed", f"-L{folder}", "-lquire-malloc", f"-Wl,-rpath,{folder}"])
    for parent in [folder, *list(folder.parents)[:4]]:
        parent.chmod(parent.stat().st_mode | stat.S_IXGRP | stat.S_IXOTH)
    traces = tmp_path / "traces"
    traces.mkdir()
    traces.chmod(0o777)
    for name, mode, is_recorded in (("plain", 0o755, True), ("setuid", 0o4755, False)):
        os.chown(program, NOBODY, -1)
        program.chmod(mode)
        env = {**os.environ, "QUIRE_CONF": f"record:{traces}/{name}.qtr"}
        done = subprocess.run([program], env=env, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "sound\n", "")
        assert (traces / f"{name}.qtr").exists() == is_recorded


@pytest.mark.by_turns
def test_record_pid_and_the_key_know_of_each_other(program, tmp_path):
    with Batches(program, tmp_path, "record:%n.qtr,record_signal:USR2") as one:
        one.batch()
        one.toggle()
        done = record(tmp_path, one.pid, "--duration", "100ms", "-o", "pid.qtr")
        assert done.returncode == 3 and "as its QUIRE_CONF=record says" in done.stderr and "record_signal" in done.stderr
        one.batch()
        one.toggle()
        done = record(tmp_path, one.pid, "--duration", "100ms", "-o", "pid.qtr")
        assert done.returncode == 0 and told(tmp_path / "pid.qtr")[0]["complete"], done.stderr
        one.toggle()
        one.batch()
        one.toggle()
        one.end()
    for name in ("0.qtr", "1.qtr"):
        about, sites = told(tmp_path / name)
        assert about["complete"] and count(sites, "by_new") == EACH, name


@pytest.mark.by_turns
@pytest.mark.one_by_one
@pytest.mark.parametrize("flags", ORDINARY, ids=["lazy", "now", "no-pie"])
@pytest.mark.parametrize("library", ["", LIBRARY], ids=["libc", "drop-in"])
def test_record_pid_sees_news_calls_that_were_not_bound_yet_and_those_of_programs_at_a_fixed_place(tmp_path, flags, library):
    with Process(compiled(tmp_path, *flags), "steady", env={**os.environ, "LD_PRELOAD": library}, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one:
        assert record(tmp_path, one.pid, "--duration", "300ms", "-o", "t.qtr").returncode == 0
        one.popen.stdin.close()
        assert one.popen.wait(timeout=20) == 0
    about, sites = told(tmp_path / "t.qtr")
    assert count(sites, "by_new") > 1000 and abs(count(sites, "by_new") - count(sites, "steady(void*)")) <= 100
    assert about["frees"] > 0.9 * about["allocations"] and about["lost_events"] == 0
