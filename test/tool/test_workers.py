# SPDX-License-Identifier: MIT
"""
test_workers - servers that fork workers before they serve: the busiest stands for all of them, which is said, and the verdict is that of the group.

A server of the world with two workers (nginx): QUIRE_TEST_LONG=1.
"""

import contextlib
import json
import os
import shutil
import socket
import struct
import sys
from collections import namedtuple

import pytest
from test_load import CLIENT, SERVER
from toolkit import build, quire

import tracefile
import workers

LONG = pytest.mark.skipif(os.environ.get("QUIRE_TEST_LONG", "0") == "0", reason="QUIRE_TEST_LONG=1 runs it")

# Three workers on one socket; each connection is one worker's.
PREFORK = SERVER.replace("for (;;) {\n", "for (int i = 0; i < 2 && fork() != 0; i++) { }\n    for (;;) {\n", 1)
NGINX = """daemon off; user root; worker_processes 2; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{ access_log off; gzip on; gzip_types *; server {{ listen 127.0.0.1:{port} reuseport; root {folder}; }} }}
"""

Fake = namedtuple("Fake", "path events facts")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def trace(folder, name, command, size):
    """A file with a trace's header, as far as it says whose it is."""
    path = folder / name
    path.write_bytes((b"QTRACE\r\n" + struct.pack("<I", 1)).ljust(152, b"\0") + command.encode() + bytes(size))
    return str(path)


def test_processes_of_one_program_are_a_group_also_under_a_servers_titles_for_its_workers(tmp_path):
    commands = [["/usr/sbin/nginx", "-c", "x"], ["nginx: worker process"], ["/bin/sh", "-c", "true"]]
    recordings = [Fake(trace(tmp_path, f"t.{i}", words[0], 1000), 900 // (i + 1), {"command": words}) for i, words in enumerate(commands)]
    unread = trace(tmp_path, "t.9", "/usr/sbin/nginx", 1000)
    group = workers.of(recordings, [r.path for r in recordings] + [unread])
    assert (group.name, group.number, group.events) == ("nginx", 3, 900 + 450 + 900) and group.times == 2.5
    assert workers.of(recordings[2:] + recordings[:2], [r.path for r in recordings]) == workers.ALONE


def block(kind, thread, length, stream_bytes):
    """A block of a trace with so many bytes of a thread's stream, of which only the heads are true; live ones are of part 1."""
    raw = stream_bytes if kind == tracefile.PACKED else 0
    return (struct.pack("<7I20xQ", tracefile.BLOCK_MAGIC, kind, length, thread, 0, 0, raw, 1 << 32 | stream_bytes)).ljust(length, b"\0")


def recorded(folder, name, packed_bytes):
    """A trace of 60,000 bytes of stream in two parts, the first of which was packed so far; beside it 50,000 of stacks."""
    path = folder / name
    blocks = [(tracefile.PACKED, 0, 8000, 50000), (tracefile.PACKED, 1, packed_bytes, 40000), (tracefile.LIVE, 1, 65536, 20000)]
    head = (b"QTRACE\r\n" + struct.pack("<2I", 1, 4096)).ljust(152, b"\0") + b"nm"
    path.write_bytes(head.ljust(4096, b"\0") + b"".join(block(*one) for one in blocks))
    return str(path)


def test_processes_that_did_the_same_count_alike_however_well_their_traces_were_packed(tmp_path):
    paths = [recorded(tmp_path, f"t.qtr.{i}", length) for i, length in enumerate([39984, 4000, 4000, 9600])]
    assert [tracefile.stream_bytes(path) for path in paths] == [60000] * 4
    group = workers.of([Fake(paths[0], 5000, {"command": ["nm"]})], paths)
    assert (group.number, group.events, group.times) == (4, 20000, 4.0)


def tried(folder, load, *words):
    done = quire(folder, "try", "--no-report", "--json", "--load", load, *words)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)


@pytest.mark.by_turns
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="of one machine")
def test_a_prefork_servers_verdict_is_that_of_all_its_workers(tmp_path):
    (tmp_path / "client.py").write_text(CLIENT)
    program, port = build(tmp_path, PREFORK), free_port()
    one = f"{sys.executable} -S client.py {port} 8"
    document = tried(tmp_path, f"{one} & {one} & {one}; wait", "--ready-port", port, "--once", "--time-limit", 1, "--", program, port)
    trace_facts = document["trace"]
    events = [p["events"] for p in trace_facts["processes"] if p["events"]]
    assert trace_facts["process_count"] == len(trace_facts["processes"]) >= 2, trace_facts
    assert trace_facts["alike"] == len(events) and trace_facts["alike_events"] == sum(events) >= 3 * 8 * 5000
    assert document["verdict"]["word"]


DAEMON = """
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
int main(int n, char **v) {
    if (fork() != 0) {
        for (int i = 0; n > 1 && i < 400000; i++) free(malloc(50));
        return 0;
    }
    setsid();
    for (int i = 0; i < 3000; i++) { free(malloc(100)); if (i % 100 == 0) nanosleep(&(struct timespec){0, 50000000}, NULL); }
    return 0;
}
"""


@pytest.mark.by_turns
def test_a_program_that_ends_before_what_it_has_started_is_not_judged(tmp_path):
    build(tmp_path, DAEMON, flags=("-fno-builtin",))
    done = quire(tmp_path, "try", "--no-report", "--rounds", 1, "--time-limit", 1, "--", "./program")
    assert done.returncode == 3 and not done.stdout
    assert "program cannot be judged: it ended, and program, which it had started, went on" in done.stderr


@pytest.mark.long
def test_what_a_process_uses_that_nobody_waits_for_is_said_to_be_in_no_figure(tmp_path):
    build(tmp_path, DAEMON, flags=("-fno-builtin",))
    done = quire(tmp_path, "try", "--no-report", "--rounds", 1, "--time-limit", 1, "--", "./program", "more")
    assert done.returncode == 0 and "When it had ended, 1 of them went on: program (" in done.stdout, done.stderr + done.stdout


SLEEPER = """
#include <stdlib.h>
#include <unistd.h>
int main(int n, char **v) {
    for (int i = 0; i < 3000; i++) free(malloc(100 + i % 9));
    if (n > 1) return daemon(1, 0) != 0 || sleep(321);
    if (fork() == 0) { setsid(); execlp("sleep", "sleep", "321.5", NULL); }
    return 0;
}
"""


def running(*words):
    """Processes with this command line."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
            found += [pid] * (file.read() == "".join(f"{word}\0" for word in words))
    return found


@pytest.mark.by_turns
@pytest.mark.parametrize(("words", "status", "says"), [
    (["daemon"], 3, "program cannot be judged: it ended, and program, which it had started, went on"),
    ([], 0, "1 of them went on: sleep ("),
])  # fmt: skip
def test_what_a_run_leaves_behind_is_ended_with_it_and_a_daemon_that_still_sleeps_is_refused(tmp_path, words, status, says):
    program = build(tmp_path, SLEEPER, flags=("-fno-builtin",))
    done = quire(tmp_path, "try", "--no-report", "--rounds", 1, "--time-limit", 1, "--", program, *words)
    assert done.returncode == status and says in done.stderr + done.stdout, done.stderr + done.stdout
    assert not running(program, "daemon") + running("sleep", "321.5")


@pytest.mark.by_turns
@pytest.mark.parametrize(("first", "says"), [("true", "cannot be judged: "), ("./program more", "")])
def test_processes_that_no_preload_reaches_are_said_to_be_unseen(tmp_path, first, says):
    build(tmp_path, "#include <stdlib.h>\nint main(int n, char **v) { for (int i = 0; i < 2000 + (n > 1 ? 8000 : 8000000); i++) free(malloc(50)); return 0; }\n", flags=("-fno-builtin",))
    (tmp_path / "script").write_text(f"#!/bin/sh\n{first}\nenv -i ./program\nexit 0\n")
    (tmp_path / "script").chmod(0o755)
    done = quire(tmp_path, "try", "--no-report", "--rounds", 1, "--time-limit", 1, "--", "./script")
    assert done.returncode == (3 if says else 0), done.stderr
    assert f"{says}9" in done.stderr + done.stdout and "of its CPU time is of processes that were not recorded" in done.stderr + done.stdout


BUSY = """
#include <stdlib.h>
int main(void) {
    for (int i = 0; i < 20000; i++) free(malloc(50));
    for (volatile long n = 0;; n++) {}
}
"""


@pytest.mark.by_turns
def test_what_timeout_ends_was_recorded_though_its_trace_has_no_end(tmp_path):
    build(tmp_path, BUSY, flags=("-fno-builtin",))
    done = quire(tmp_path, "try", "--no-report", "--rounds", 1, "--time-limit", 1, "--", "timeout", "0.5", "./program")
    assert done.returncode == 124 and "INCONCLUSIVE" in done.stdout and "not recorded" not in done.stderr + done.stdout, done.stderr + done.stdout


BY_WORD = """
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
int main(int n, char **v) {
    if (n > 1 && strcmp(v[1], "limit") == 0) setrlimit(RLIMIT_FSIZE, &(struct rlimit){4096, 4096});
    for (int i = 0; i < 100; i++) free(malloc(50));
    if (n > 1 && strcmp(v[1], "exec") == 0) execle(v[0], v[0], NULL, (char *[]){NULL});
    for (int i = 0; n == 1 && i < 2000000; i++) memset(malloc(50), 1, 50);
    return 0;
}
"""


@pytest.mark.by_turns
@pytest.mark.parametrize(("words", "status", "says"), [
    (["env", "-i", "./program"], 3, "of its CPU time is of processes that were not recorded"),
    (["./program", "exec"], 3, "of its CPU time is of processes that were not recorded"),
    (["./program", "limit"], 3, "a program that sets it itself (setrlimit) cannot be recorded"),
])  # fmt: skip
def test_why_few_calls_were_seen_is_told_by_what_the_program_did(tmp_path, words, status, says):
    build(tmp_path, BY_WORD, flags=("-fno-builtin",))
    done = quire(tmp_path, "try", "--no-report", "--rounds", 1, "--time-limit", 1, "--", *words)
    assert done.returncode == status and says in done.stderr, done.stderr + done.stdout


def test_a_small_program_that_became_another_one_is_said_not_to_be_wholly_seen(tmp_path):
    build(tmp_path, BY_WORD.replace("2000000", "20000"), flags=("-fno-builtin",))
    done = quire(tmp_path, "try", "--no-report", "--", "./program", "exec")
    assert done.returncode == 0 and "The trace is not whole: " in done.stdout and "became another program" in done.stdout, done.stderr + done.stdout


@LONG
@pytest.mark.skipif(not (shutil.which("nginx") and shutil.which("wrk")), reason="needs nginx and wrk")
def test_nginx_with_two_workers_has_a_verdict_for_both(tmp_path):
    port = free_port()
    tmp_path.chmod(0o755)
    (tmp_path / "nginx.conf").write_text(NGINX.format(folder=tmp_path, port=port))
    (tmp_path / "index.html").write_text("".join(f"line {n} of a page\n" for n in range(400)))
    load = f"wrk -d 1 -t 2 -c 8 --latency -H 'Accept-Encoding: gzip' http://127.0.0.1:{port}/index.html"
    document = tried(tmp_path, load, "--ready-port", port, "--time-limit", 60, "--", "nginx", "-c", tmp_path / "nginx.conf")
    assert document["trace"]["alike"] >= 2 and document["verdict"]["word"] and document["measured"], document["trace"]
    row = next(row for row in document["allocators"] if row["name"] == "drop-in")
    assert row["under_load"]["requests_per_cpu_s"] and row["under_load"]["latency_ms"]["p99"]


@pytest.mark.parametrize(("words", "name"), [
    (["nginx: master process /usr/sbin/nginx -c /etc/nginx/nginx.conf"], "nginx"),
    (["postgres: checkpointer "], "postgres"),
    (["/opt/a:b/server", "-c", "x: y"], "server"),
    (["/opt/my server"], "my server"),
])  # fmt: skip
def test_a_process_that_has_a_title_is_called_by_its_program(words, name):
    one = tracefile.Recording.__new__(tracefile.Recording)
    one.facts = {"command": words}
    assert one.executable == name


@pytest.mark.by_turns
def test_python_that_a_script_starts_keeps_its_own_allocator_and_that_is_said(tmp_path):
    """It has it when the user starts it: a saving against another setting would be nobody's."""
    code = "import os; open('seen', 'a').write(os.environ.get('PYTHONMALLOC', 'unset') + ' '); [str(i) for i in range(300000)]"
    done = quire(tmp_path, "try", "--no-report", "--rounds", 1, "--time-limit", 0.2, "-o", "t.qtr", "--", "sh", "-c", f'"{sys.executable}" -c "{code}"; true')
    assert set((tmp_path / "seen").read_text().split()) == {"unset"}, done.stderr
    assert "serves small blocks by CPython's own allocator, which no malloc replaces" in done.stdout
    done = quire(tmp_path, "record", "-o", "r.qtr", "--", "sh", "-c", f'"{sys.executable}" -c pass; true')
    assert "they are seen with PYTHONMALLOC=malloc before this command" in done.stderr


@pytest.mark.long
def test_what_a_script_of_python_starts_is_compared_as_the_script_is_started_today(tmp_path):
    """The script allocates little: to leave CPython's allocator would change nothing of what is looked at, and nobody would do it."""
    build(tmp_path, "#include <stdlib.h>\nint main(void) { for (int i = 0; i < 300000; i++) free(malloc(9 + i % 50)); return 0; }")
    script = "import os, subprocess; open('seen', 'a').write(os.environ.get('PYTHONMALLOC', 'unset') + ' '); subprocess.run(['./program'])"
    done = quire(tmp_path, "try", "--no-report", "--json", "--rounds", 1, "--time-limit", 0.2, "-o", "t.qtr", "--", sys.executable, "-c", script)
    assert done.returncode == 0, done.stderr
    seen, program = (tmp_path / "seen").read_text().split(), json.loads(done.stdout)["program"]
    assert seen[:2] == ["malloc"] * 2 and set(seen[2:]) == {"unset"}  # alone, recorded, then what was recorded is known
    assert (program["python_malloc_set"], program["today_allocator"], program["own_allocator_cpu_s"]) == (False, None, None)
