# SPDX-License-Identifier: MIT
"""test_odd - odd programs: allocators whose file is gone, callers that block signals, names with spaces, many threads, mallocs that a server does not bear."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest
import toolkit
from attachkit import Process, record
from test_load import CLIENT, free_port
from toolkit import build, native_json, quire

import peers

PROGRAMS = pathlib.Path(__file__).parent / "programs"
X = "int x(int i) { return i; }\n"
USES_X = "#include <stdlib.h>\nint x(int);\nint main(void) { for (int i = 0; i < 300000; i++) free(malloc(50 + x(i) % 100)); return 0; }\n"
LONG = os.environ.get("QUIRE_TEST_LONG", "0") != "0"
CHATTY = """import socket, sys, time
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(5)
sys.stdout.write("server ready\\n" + "".join(f"debug: setting {i} is 0\\n" for i in range(400))); sys.stdout.flush()
while True: time.sleep(1)
"""
CHURN = "#include <stdlib.h>\nint main(int n, char **v) { for (int i = 0; i < (n > 1 ? atoi(v[1]) : 100000); i++) free(malloc(50 + i % 100)); return 0; }\n"


def source(name):
    return (PROGRAMS / f"{name}.c").read_text()


def progress(path):
    before = path.read_text()
    time.sleep(1)
    return path.read_text() != before


@pytest.mark.by_turns
def test_a_process_whose_allocators_file_is_gone_is_never_entered_within_it(tmp_path):
    library = build(tmp_path, source("lock_malloc"), "gone.so", ("-shared", "-fPIC", "-O0", "-fno-omit-frame-pointer"))
    program, told = build(tmp_path, source("counter")), tmp_path / "told"
    with open(told, "wb") as out, Process(program, stdout=out, env={**os.environ, "LD_PRELOAD": str(library)}) as process:
        while not told.stat().st_size:
            time.sleep(0.1)
        library.unlink()
        for _ in range(3 if LONG else 1):
            record(tmp_path, process.pid, "--duration", "200ms", "-o", "t.qtr", "-f")
            assert progress(told)


def test_a_caller_that_blocks_the_signal_of_ended_children_gets_the_status(tmp_path):
    words = [sys.executable, str(toolkit.TOOL), "record", "--", "sh", "-c", "sleep 1; exit 9"]
    done = subprocess.run(words, cwd=tmp_path, env={**os.environ, "QUIRE_BUILD_DIR": str(toolkit.BUILD)}, timeout=60, preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD]))
    assert done.returncode == 9


@pytest.mark.parametrize("name", ["my programs", b"caf\xe9"])
def test_a_library_in_a_folder_of_any_name_is_no_hindrance(tmp_path, name):
    folder = pathlib.Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), os.fsencode(name))))
    folder.mkdir()
    build(tmp_path, X, "libx.so", ("-shared", "-fPIC"))
    program = build(tmp_path, USES_X, "usesx", (f"-L{tmp_path}", "-lx", "-Wl,-rpath,$ORIGIN"))
    shutil.move(tmp_path / "libx.so", folder)
    shutil.move(program, folder)
    done = quire(tmp_path, "record", "-o", "t.qtr", "--", folder / "usesx")
    assert done.returncode == 0, done.stderr
    assert native_json("quire-analyse", tmp_path / "t.qtr", "--sites", "-")["trace"]["allocations"] >= 300000


@pytest.mark.by_turns
def test_a_malloc_that_a_server_does_not_bear_is_left_out_with_the_reason(tmp_path):
    if "jemalloc" not in {peer.name for peer in peers.installed()}:
        pytest.skip("needs jemalloc")
    (tmp_path / "client.py").write_text(CLIENT)
    program, port = build(tmp_path, source("picky")), free_port()
    done = quire(tmp_path, "try", "--json", "--no-report", "--rounds", 2, "--time-limit", 2, "--ready-port", port, "--load", f"{sys.executable} client.py {port} 50", "--", program, port)
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)["allocators"]}
    assert "cannot run with this malloc" in rows["jemalloc"]["error"] and rows["drop-in"]["rounds"] == 2


@pytest.mark.by_turns
def test_a_program_of_more_threads_than_can_be_replayed_is_run_with_each_malloc(tmp_path):
    program = build(tmp_path, source("many_threads"), flags=("-pthread",))
    done = quire(tmp_path, "try", "--json", "--no-report", "--rounds", 1, "--", program, 600)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["verdict"]["word"] and document["measured"] and len(document["allocators"]) > 1


def test_a_line_is_seen_also_where_much_comes_at_once_behind_it(tmp_path):
    (tmp_path / "chatty.py").write_text(CHATTY)
    done = quire(tmp_path, "record", "-o", "t.qtr", "--ready-line", "server ready", "--load", "true", "--", sys.executable, "chatty.py")
    assert done.returncode == 0, done.stderr


@pytest.mark.by_turns
def test_programs_of_different_names_in_one_folder_with_a_space_are_not_alike(tmp_path):
    (tmp_path / "two words").mkdir()
    program = build(tmp_path, CHURN)
    for name in ("alpha", "beta"):
        shutil.copy(program, tmp_path / "two words" / name)
    (tmp_path / "script").write_text(f"#!/bin/sh\n'{tmp_path}/two words/alpha' 200000\n'{tmp_path}/two words/beta'\nexit 0\n")
    (tmp_path / "script").chmod(0o755)
    done = quire(tmp_path, "try", "--json", "--no-report", "--rounds", 1, "--", "./script")
    assert json.loads(done.stdout)["trace"]["alike"] == 1, done.stdout


def test_a_file_whose_table_of_sections_lies_nowhere_is_tried(tmp_path):
    program = build(tmp_path, CHURN)
    data = bytearray(program.read_bytes())
    data[40:48] = b"\xff" * 8
    program.write_bytes(data)
    done = quire(tmp_path, "record", "-o", "t.qtr", "--", program)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr


def test_a_size_that_comes_late_and_often_is_among_the_most_frequent(tmp_path):
    quire(tmp_path, "record", "-o", "t.qtr", "--", build(tmp_path, source("late_size")))
    sites = native_json("quire-analyse", tmp_path / "t.qtr", "--sites", "-")["sites"]
    assert sites[0]["sizes"]["top"][0] == {"bytes": 77, "count": 300000}


def test_the_report_of_a_run_is_json_that_strict_readers_take(tmp_path):
    done = quire(tmp_path, "run", "--stats=json:o.json", "--", build(tmp_path, CHURN), b"1\xff".decode("utf-8", "surrogateescape"))
    assert done.returncode == 0 and "\\udcff" not in (tmp_path / "o.json").read_text()


@pytest.mark.by_turns
def test_a_program_that_ends_by_quick_exit_was_seen_wholly(tmp_path):
    done = quire(tmp_path, "try", "--no-report", "--rounds", 1, "--", build(tmp_path, source("quick_exit")))
    assert done.returncode == 0 and "Nothing worth looking at" in done.stdout, done.stderr


@pytest.mark.by_turns
def test_a_server_that_does_not_bear_to_be_looked_at_is_tried_all_the_same(tmp_path):
    (tmp_path / "client.py").write_text(CLIENT)
    program, port = build(tmp_path, source("picky").replace('"jemalloc"', '"libquire-sample"')), free_port()
    done = quire(tmp_path, "try", "--no-report", "--rounds", 1, "--time-limit", 2, "--ready-port", port, "--load", f"{sys.executable} client.py {port} 50", "--", program, port)
    assert done.returncode == 0 and "the program was not looked at" in done.stdout, done.stderr
