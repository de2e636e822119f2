# SPDX-License-Identifier: MIT
"""test_load - programs that do not end by themselves: readiness, the load, its figures, every way it can fail."""

import argparse
import json
import os
import signal
import socket
import subprocess
import time
from types import SimpleNamespace

import pytest
from toolkit import ROOT, build, native_json, quire

import advise.advice as advice
import launch
import load
import loadwords
import rounds
import sampling
import target as targets
import tracefile
import tryreport
from errors import EnvironmentLacks, UsageError

SERVER = """
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
int main(int argc, char **argv) {
    int s = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (long i = 0, end = argc > 2 ? atol(argv[2]) : 0; i < end; i++) free(malloc(100)); /* at start, before the load */
    if (bind(s, (void *)&a, sizeof a) || listen(s, 5)) { perror("bind"); return 1; }
    printf("now listening\\n"); fflush(stdout);
    for (;;) {
        char byte, *list[2500];
        int c = accept(s, 0, 0);
        while (c >= 0 && read(c, &byte, 1) == 1) {
            if (byte == 'q') { fprintf(stderr, "asked to go\\n"); exit(4); }
            for (int i = 0; i < 2500; i++) { list[i] = malloc(1000); memset(list[i], i, 1000); }
            for (int i = 0; i < 2500; i++) free(list[i]);
            if (write(c, &byte, 1) != 1) break;
        }
        close(c);
    }
}
"""
CLIENT = """
import socket, sys
c = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for i in range(int(sys.argv[2])):
    c.send(b"x"); c.recv(1)
print("requests:", sys.argv[2]); print("latency p50: 1.5 ms"); print("latency p99: 2 ms")
"""


ASK_TO_GO = """
import pathlib, socket, sys
def of_port(process):
    words = (process / "cmdline").read_bytes().split(b"\\0")
    return words[0].endswith(b"/server") and words[1] == sys.argv[1].encode()
def is_running(process):
    try:
        return (process / "stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False
served = []
for process in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        served += [process] if of_port(process) else []
    except (OSError, IndexError):
        pass
assert served
c = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
c.send(b"q")
while any(is_running(process) for process in served):  # its connection ends before it has
    c.recv(1)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    (folder / "client.py").write_text(CLIENT)
    return build(folder, SERVER, name="server"), folder / "client.py"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def load_of(**options):
    names = {"load": None, "duration": None, "ready_port": None, "ready_line": None, "ready_cmd": None}
    return load.of(argparse.Namespace(**{**names, **options}))


def one_run(program, port, driver, *more):
    target = targets.resolve([str(program), str(port), *more])
    return launch.hidden(target, launch.Input(), dict(os.environ), driver)


@pytest.mark.by_turns
def test_a_server_gets_a_verdict_from_what_it_did_under_the_load(tmp_path, server):
    port = free_port()
    words = ("--rounds", 2, "--time-limit", 2, "--ready-port", port, "--load", f"python3 {server[1]} {port} 40")
    done = quire(tmp_path, "try", "--json", "--no-report", *words, "--", server[0], port)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["program"]["status"] == 0 and document["trace"]["allocations"] >= 40 * 2500
    rows = {row["name"]: row for row in document["allocators"]}
    for name in ("libc", "drop-in", "steered"):
        under = rows[name]["under_load"]
        assert under["requests_per_cpu_s"] > 100 and under["latency_ms"] == {"p50": 1.5, "p99": 2.0}, name
    assert subprocess.run(["pgrep", "-f", f"{server[0]} {port}"], capture_output=True).stdout == b""


@pytest.mark.long
def test_what_a_server_calls_before_its_load_is_in_no_figure(server, tmp_path):
    """It would be said to save what is not spent under the load: YES, 100 %."""
    port, calls = free_port(), 3000000
    words = ["--once", "-o", "t.qtr", "--ready-port", port, "--load", f"python3 {server[1]} {port} 20", "--", server[0], port, calls]
    done = quire(tmp_path, "try", "--json", "--no-report", *words)
    document = json.loads(done.stdout)
    assert 49900 < document["trace"]["allocations"] < 60000 and document["trace"]["events_outside"] >= 2 * calls, document["trace"]
    (tmp_path / "try.json").write_text(done.stdout)
    paged = quire(tmp_path, "report", "try.json")
    assert paged.returncode == 0 and "of another run" not in paged.stderr, paged.stderr
    libc = next(row for row in document["allocators"] if row["name"] == "libc")
    assert libc["cpu_ns_per_op"]["value"] * document["trace"]["events"] < 1e9 * document["program"]["traced_cpu_s"], "more than all it took"


def test_looks_at_a_server_before_and_after_its_load_do_not_count():
    driven, looked = SimpleNamespace(mark=None), iter([(900, 800), (1000, 801), (5000, 4800)])

    def run_once(row):
        with open(row.dress({})["QUIRE_SAMPLE"], "r+b") as file:
            for step, counted in enumerate(looked):  # its start, its load, its end
                file.seek(0)
                file.write(sampling.COUNTERS.pack(*counted))
                file.flush()
                if step < 2:
                    driven.mark()
        return launch.Ran(0, 100, 1, 0, "", 1, load.Served(1, 1, 1, None, None, (1, 2)))

    looks = sampling.Looks(SimpleNamespace(load=driven, run_once=run_once)).run(1)
    assert (looks.all, looks.inside, driven.mark) == (100, 1, None)


def test_a_server_without_a_handler_that_was_ended_after_its_load_has_a_whole_trace():
    no_exit = "the program has no exit mark: it crashed, was killed, became another program, or still runs"
    for note, ended, missing in [
        (no_exit, True, ""),
        (no_exit, False, no_exit),
        (f"{no_exit}; at least 3 events were lost", True, "at least 3 events were lost"),
        (None, False, ""),
    ]:
        assert tracefile.Recording("x.qtr", {"trace": {"note": note}}, None).missing(ended) == missing


@pytest.mark.by_turns
def test_only_what_is_used_during_the_load_counts(server):
    port = free_port()
    driver = load_of(load=f"python3 {server[1]} {port} 5", ready_port=port)
    ran = one_run(server[0], port, driver, "30000000")
    assert ran.status == 0 and ran.served.requests == 5
    assert ran.cpu_s < 0.1  # the start alone takes more


@pytest.mark.by_turns
def test_a_faster_loads_cpu_time_is_for_as_many_requests_as_the_first_one_made(server):
    port = free_port()
    driver = load_of(load=f"python3 {server[1]} {port} 40", ready_port=port)
    first = one_run(server[0], port, driver)
    driver.command = driver.command.removesuffix(" 40") + " 400"  # the port may begin like that too
    second = one_run(server[0], port, driver)
    assert driver.requests == 40 and second.served.requests == 400
    assert 0.2 < second.cpu_s / first.cpu_s < 5


@pytest.mark.parametrize("ready", [{"ready_line": "now listening"}, {"ready_cmd": "true"}, {}])
def test_readiness_is_seen_by_a_line_by_a_command_or_not_at_all(server, ready):
    port = free_port()
    command = f"for i in 1 2 3 4 5 6 7 8 9; do python3 {server[1]} {port} 3 2>/dev/null && exit 0; sleep 1; done; exit 1"
    ran = one_run(server[0], port, load_of(load=command, **ready))
    assert ran.status == 0 and ran.served.requests == 3


def test_without_a_load_the_time_ends_it():
    began_s = time.monotonic()
    ran = launch.hidden(targets.resolve(["sleep", "1000"]), launch.Input(), dict(os.environ), load_of(duration=0.2))
    assert ran.status == 0 and ran.wall_s >= 0.2 and time.monotonic() - began_s < 60
    assert ran.served.requests is None and ran.served.latency_ms == {}


def test_of_a_program_that_ends_before_its_time_is_up_all_counts(tmp_path):
    program = tmp_path / "busy.py"
    for settles_s in (0, 0.4):  # it has ended before the time begins, or ends during it
        program.write_text(f"import time\ntime.sleep({settles_s})\nwhile time.process_time() < 0.1: pass\n")
        ran = launch.hidden(targets.resolve(["python3", str(program)]), launch.Input(), dict(os.environ), load_of(duration=3))
        assert 0.1 <= ran.served.cpu_s < 1 and 0.1 <= ran.served.wall_s < 2.5, ran.served


@pytest.mark.parametrize("used_s, command, open", [(0.95, None, True), (0.5, None, False), (0.95, "wrk", False)])
def test_a_program_that_used_up_its_time_is_not_told_no_for_what_it_did_was_not_counted(used_s, command, open):
    report = tryreport.Report(targets.Target(["p"], "/p", "/p"))
    report.recording = SimpleNamespace(facts={})
    report.contest = rounds.Contest(report.target, None, load=SimpleNamespace(command=command))
    report.contest.first, report.contest.runs = SimpleNamespace(cpu_s=used_s, wall_s=1.0), {rounds.LIBC: range(9)}
    judged = SimpleNamespace(verdict=advice.Verdict(advice.NO, "nothing gained"), name="", saving=None)
    report.finding = SimpleNamespace(measured=True, by_replays=False, verdict=judged)
    report.settle(None)
    assert (report.verdict.word, "nobody counts" in report.verdict.reason) == ((advice.INCONCLUSIVE, True) if open else (advice.NO, False))


def test_the_command_for_the_other_processes_of_a_server_has_its_load(monkeypatch):
    monkeypatch.setattr(tryreport.workers, "text", lambda report: "")
    report = tryreport.Report(targets.Target(["nginx", "-c", "x y"], "/p", "/p"))
    report.process_count = 3
    for driven, said in (
        (load_of(load="wrk -d 1 http://x", ready_line="up"), "record --load 'wrk -d 1 http://x' --ready-line up -- nginx -c 'x y' keeps"),
        (load_of(duration=2.5), "record --duration 2.5s -- nginx -c 'x y' keeps"),
        (None, "record -- nginx -c 'x y' keeps"),
    ):
        report.contest = rounds.Contest(report.target, None, load=driven)
        assert said in report._process_text()[1], report._process_text()


def test_a_program_that_ends_otherwise_than_by_our_signal_keeps_its_status(server, tmp_path):
    port = free_port()
    (tmp_path / "ask.py").write_text(ASK_TO_GO)
    with pytest.raises(EnvironmentLacks) as caught:
        one_run(server[0], port, load_of(load=f"python3 {tmp_path}/ask.py {port}; true", ready_port=port))
    assert "ended under the load" in caught.value.what and "asked to go" in caught.value.why


@pytest.mark.parametrize("ends, status", [("exit(30)", 0), ("raise(SIGHUP)", 0), ("abort()", -signal.SIGABRT)])
def test_how_a_program_answers_our_signal_is_no_failure_but_a_crash_is(server, tmp_path, ends, status):
    port = free_port()
    takes = "#include <signal.h>\n#include <unistd.h>\nstatic void end(int n) { (void)n; _%s; }\n"
    begins = "int main(int argc, char **argv) {"
    takes = takes % ends if ends.startswith("exit") else takes.replace("_%s", ends)
    program = build(tmp_path, "#include <stdlib.h>\n" + takes + SERVER.replace(begins, begins + " signal(SIGTERM, end);"))
    driver = load_of(load=f"python3 {server[1]} {port} 3", ready_port=port)
    assert one_run(program, port, driver).status == status


def test_what_is_never_ready_or_ends_before_and_loads_that_fail_are_told_in_one_line(server, monkeypatch):
    monkeypatch.setattr(load, "READY_S", 0.3)
    port = free_port()
    for options, what, why in (
        ({"load": "true", "ready_line": "nobody says this"}, "was not ready", "nobody says this"),
        ({"load": "true", "ready_port": free_port()}, "was not ready", "nothing listens"),
        ({"load": "true", "ready_cmd": "false"}, "was not ready", "did not succeed"),
        ({"load": "echo sorry >&2; exit 9", "ready_port": port}, "the load failed", "exit status 9: sorry"),
        ({"load": "echo requests: 5; kill -9 $$", "ready_port": port}, "the load failed", "ended by SIGKILL: requests: 5"),
    ):
        with pytest.raises(EnvironmentLacks) as caught:
            one_run(server[0], port, load_of(**options))
        assert what in caught.value.what and why in caught.value.why
        assert subprocess.run(["pgrep", "-f", f"{server[0]} {port}"], capture_output=True).stdout == b""
    with pytest.raises(EnvironmentLacks) as caught:
        launch.hidden(targets.resolve(["echo", "bye"]), launch.Input(), dict(os.environ), load_of(load="true", ready_line="never"))
    assert "ended before it was ready" in caught.value.what and caught.value.why == "bye"


@pytest.mark.parametrize("said", ["  0 requests in 2.00s, 0.00B read", "Error distribution: [900] connection refused"])
def test_a_load_without_a_request_is_no_row_that_needed_no_time(server, said):
    port = free_port()
    driver = load_of(load="echo '  70 requests in 2.00s'", ready_port=port)
    assert one_run(server[0], port, driver).served.requests == 70
    driver.command = f"echo '{said}'"
    with pytest.raises(EnvironmentLacks, match="the load failed: echo") as caught:
        one_run(server[0], port, driver)
    assert caught.value.why == "no request was answered"


def named(mark):
    """Processes with that in their command line."""
    return subprocess.run(["pgrep", "-f", mark], capture_output=True, text=True).stdout.split()


@pytest.mark.parametrize("command", ["sleep {0} & true", "setsid sleep {0} & true", "sleep {0} & false", "setsid sh -c 'trap : TERM; sleep {0}; sleep {0}' & false"])
def test_what_a_load_leaves_running_neither_keeps_us_nor_stays(server, command):
    port = free_port()
    mark = f"1000.{port}"  # seconds, too
    began_s = time.monotonic()
    driver = load_of(load=command.format(mark), ready_port=port)
    if command.endswith("true"):
        assert one_run(server[0], port, driver).status == 0
    else:
        with pytest.raises(EnvironmentLacks):
            one_run(server[0], port, driver)
    assert time.monotonic() - began_s < 60 and not named(mark)


def test_a_readiness_command_that_hangs_is_ended_with_all_that_it_started(server, monkeypatch):
    monkeypatch.setattr(load, "READY_S", 0.3)
    port = free_port()
    mark = f"1000.{port}"
    with pytest.raises(EnvironmentLacks) as caught:
        one_run(server[0], port, load_of(load="true", ready_cmd=f"sleep {mark} | cat; true"))
    assert "was not ready" in caught.value.what and not named(mark)


def test_a_load_that_does_not_see_that_the_program_has_ended_is_ended(server, monkeypatch):
    monkeypatch.setattr(load, "ENDS_S", 0.3)
    port = free_port()
    mark = f"1000.{port}"
    ask = f"python3 -c \"import socket; c = socket.create_connection(('127.0.0.1', {port})); c.send(b'q'); c.recv(1)\""
    with pytest.raises(EnvironmentLacks) as caught:
        one_run(server[0], port, load_of(load=f"{ask}; sleep {mark}; true", ready_port=port))
    assert "ended under the load" in caught.value.what and "asked to go" in caught.value.why and not named(mark)


@pytest.mark.parametrize("ready", [{"ready_line": "never said"}, {}])
def test_a_server_that_goes_to_the_background_is_told_so_and_ended(ready):
    mark = f"1000.{free_port()}"
    target = targets.resolve(["sh", "-c", f"setsid sh -c 'sleep {mark}; sleep {mark}' & exit 0"])
    with pytest.raises(EnvironmentLacks) as caught:
        launch.hidden(target, launch.Input(), dict(os.environ), load_of(load="true", **ready))
    assert caught.value.what == "sh went to the background" and "foreground" in caught.value.fix and not named(mark)


def test_a_probe_that_meets_itself_on_a_port_that_nobody_serves_has_found_nobody(monkeypatch):
    class Lucky(socket.socket):
        def connect_ex(self, address):
            self.bind(address)  # what the system does once in some thousand times
            return super().connect_ex(address)

    port = free_port()
    monkeypatch.setattr(load.socket, "socket", Lucky)
    assert load_of(load="true", ready_port=port).port == port  # else it is refused as taken


def test_a_port_that_is_taken_is_refused_before_anything_runs():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        with pytest.raises(EnvironmentLacks) as caught:
            load_of(load="true", ready_port=taken.getsockname()[1])
    assert "is taken already" in caught.value.what


@pytest.mark.parametrize(
    "options",
    [{"ready_port": 80}, {"load": "x", "duration": 1.0}, {"load": "x", "ready_port": 1, "ready_line": "y"}, {"load": "x", "ready_port": 70000}],
)
def test_options_that_make_no_sense_together_are_refused(options):
    with pytest.raises(UsageError):
        load_of(**options)
    assert load_of() is None


@pytest.mark.parametrize(
    "text, requests, latency",
    [
        ("  1,2\n  53211 requests in 2.00s, 43MB read\n     50%  635.00us\n     99%    1.20ms\n", 53211, {"p50": 0.635, "p99": 1.2}),
        (" 50.000%    1.06ms\n 90.000%    1.60ms\n 99.000%    2.02ms\n 99.900%    2.31ms\n 99.990%    9.00ms\n  9000 requests in 1.00s, 7MB read\n", 9000, {"p50": 1.06, "p99": 2.02, "p99.9": 2.31}),
        ("Complete requests:      1000\n  50%      2\n  99%     11\n", 1000, {"p50": 2.0, "p99": 11.0}),
        ("number of transactions actually processed: 12345\n", 12345, {}),
        ("requests: 100 total, 100 started\n", 100, {}),
        (
            "====== SET ======\n  500 requests completed in 0.02 seconds\n  latency summary (msec):\n          avg       min       p50       p95       p99       max\n"
            "        0.150     0.016     0.063     0.223     2.607     5.767\n====== GET ======\n  500 requests completed in 0.02 seconds\n  latency summary (msec):\n"
            "          avg       min       p50       p95       p99       max\n        0.158     0.016     0.061     0.527     3.095     5.759\n",
            1000,
            {"p50": 0.063, "p99": 3.095},
        ),
        (
            "====== SET ======\n  20000 requests completed in 0.37 seconds\n\nLatency by percentile distribution:\n0.000% <= 0.023 milliseconds (cumulative count 13)\n"
            "99.805% <= 0.175 milliseconds (cumulative count 19963)\n99.902% <= 0.327 milliseconds (cumulative count 19981)\n100.000% <= 4.631 milliseconds (cumulative count 20000)\n\n"
            "Cumulative distribution of latencies:\n100.000% <= 5.103 milliseconds (cumulative count 20000)\n",
            20000,
            {"p99.9": 0.327},
        ),
        ('"test","rps","avg_latency_ms","p50_latency_ms","p99_latency_ms"\n"SET","16353.23","0.172","0.055","3.399"\n"GET","16778.52","0.167","0.056","3.2"\n', None, {"p50": 0.056, "p99": 3.399}),
        ("  50% in 0.0015 secs\n  99% in 0.0102 secs\n\nStatus code distribution:\n  [200]\t300 responses\n  [404]\t2 responses\n", 302, {"p50": 1.5, "p99": 10.2}),
        ("Time to set            4000 keys:                     1.281 seconds.\nTime to start             4 threads:                  0.000 seconds.\nTime to get           16000 keys by    4 threads:     0.393 seconds.\n", 16000, {}),
        ("cmd_get: 36000\n\nRun time: 0.7s Ops: 40000 TPS: 56628 Net_rate: 63.4M/s\n", 40000, {}),
        ("requests: 7\nlatency p99.9: 3 s\n", 7, {"p99.9": 3000.0}),
        ("SET: 20325.20 requests per second, p50=0.123 msec                   \n", None, {}),  # redis-benchmark -q: how many there were is not told
        ("nothing that is known\n", None, {}),
    ],
)
def test_what_known_loads_print_is_understood(text, requests, latency):
    assert loadwords.requests(text) == requests
    assert loadwords.latencies(text) == pytest.approx(latency)


def test_the_documents_examples_of_redis_benchmark_print_what_is_read():
    text = (ROOT / "doc" / "advice.md").read_text(encoding="utf-8")
    examples = [line for line in text.splitlines() if "--load 'redis-benchmark" in line]
    assert examples and not [line for line in examples if " -q" in line or "--csv" in line]


def test_what_a_load_writes_of_single_requests_gives_the_percentiles_and_their_number(server):
    port = free_port()
    logs = [
        'seq 1 2000 | sed "s/.*/0 & &000 0 1795410913 132161/" >$QUIRE_LATENCIES/pgbench_log.1',  # pgbench -l
        'echo "0 7 skipped 0 1795410913 132161" >>$QUIRE_LATENCIES/pgbench_log.1',
        'seq 2001 3000 | sed "s/.*/1795410913132161\t200\t&000/" >$QUIRE_LATENCIES/h2load.log',
        "seq 3001 4000 | sed 's/$/000/' >$QUIRE_LATENCIES/mine",
        "mkdir $QUIRE_LATENCIES/folder; mkfifo $QUIRE_LATENCIES/fifo",
    ]
    ran = one_run(server[0], port, load_of(load="; ".join(logs), ready_port=port))
    assert ran.served.requests == 4000
    assert ran.served.latency_ms == {"p50": 2000.0, "p99": 3960.0, "p99.9": 3996.0}
    assert loadwords.latencies("", [5.0] * 999) == {"p50": 5.0, "p99": 5.0}, "a share of which no whole request lies above"


BURNS = """
import os, time
def burn():
    end = time.process_time() + 0.3
    while time.process_time() < end: pass
if os.fork() == 0:                       # gone when it is looked at
    burn()
    os._exit(0)
os.wait()
for elsewhere in (False, True):
    if os.fork() == 0:
        if elsewhere: os.setsid()        # as PostgreSQL's backends do
        break
burn()
print("x", flush=True)
time.sleep(60)
"""


@pytest.mark.by_turns
def test_the_cpu_time_of_a_server_is_that_of_all_its_processes_those_of_other_sessions_and_those_that_are_gone_too():
    child = subprocess.Popen(["python3", "-c", BURNS], stdout=subprocess.PIPE, start_new_session=True)
    try:
        for _ in range(3):
            child.stdout.readline()
        assert 1.18 <= load.cpu_s(child.pid) <= 1.6
    finally:
        for pid in load.family(child.pid):
            os.kill(pid, signal.SIGKILL)
        child.wait()


@pytest.mark.by_turns
def test_record_takes_a_load_and_its_trace_is_whole(server, tmp_path):
    program, client = server
    port = free_port()
    words = ["record", "-o", tmp_path / "served.qtr", "--ready-port", port, "--load", f"python3 {client} {port} 3", "--", program, port]
    done = quire(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    about = native_json("quire-analyse", tmp_path / "served.qtr", "--sites", "-")["trace"]
    assert about["allocations"] >= 3 * 2500 and about["unknown_frees"] == 0
    gone = quire(tmp_path, "record", "-o", tmp_path / "none.qtr", "--ready-line", "never said", "--", program, port)
    assert gone.returncode == 2 and "add --load CMD" in gone.stderr
    for words in (["record"], ["try", "--once", "--no-report"]):
        failed = quire(tmp_path, *words, "-o", tmp_path / "half.qtr", "--ready-cmd", "true", "--load", "exit 9", "--", "sleep", 100)
        assert failed.returncode == 3 and "fix:" in failed.stderr and not (tmp_path / "half.qtr").exists(), failed.stderr


@pytest.mark.long
def test_a_trace_that_is_there_when_a_later_load_fails_is_named(server, tmp_path):
    program, client = server
    port = free_port()
    fails_later = f"echo x >>count; python3 {client} {port} 3 && test $(wc -l <count) -lt 3"
    done = quire(tmp_path, "try", "--no-report", "-o", "kept.qtr", "--ready-port", port, "--load", fails_later, "--", program, port)
    assert done.returncode == 3 and "the load failed" in done.stderr, done.stderr
    assert "the trace so far is kept: " in done.stderr and "advise kept.qtr" in done.stderr and (tmp_path / "kept.qtr").exists()
