# SPDX-License-Identifier: MIT
"""test_ends - how a program ends is its own, whatever QUIRE_CONF has written of it, and wherever that goes."""

import os
import subprocess

import pytest
from preload_kit import environment, run


@pytest.mark.by_turns
@pytest.mark.parametrize("conf", ["stats:exit=REPORT", "stats:exit=REPORT,leaks", "prof:64K,prof_file:REPORT"])
def test_exit_in_a_signals_handler_ends_the_program_with_its_report(build, tmp_path, conf):
    program, report = build("exit_in_handler.c"), tmp_path / "report"
    for turn in range(30):  # without a copy one in three waited for a lock of its own thread
        done = run(program, 20000 + turn * 137 % 5000, conf=conf.replace("REPORT", str(report)), timeout=30)
        assert (done.returncode, done.stderr) == (3, "")
        assert report.stat().st_size > 100
        report.unlink()


def test_a_report_goes_behind_what_the_program_wrote_into_the_same_file(tmp_path):
    log = tmp_path / "log"
    log.write_text("from before\n")
    for name, stream in (("/dev/stderr", "stderr"), (log, "stdout")):
        with open(log, "ab") as file:
            script = f"print {stream.upper()} qq(said on {stream}\\n)"
            subprocess.run(["perl", "-e", script], env=environment(f"stats:exit={name}"), check=True, **{stream: file})
    text = log.read_text()
    assert text.startswith("from before\nsaid on stderr\nquire: perl[") and text.count("quire: perl[") == 2 and "said on stdout\n" in text


@pytest.mark.parametrize("closed", ["1", "2", "1 2"])
def test_a_program_that_closed_its_output_leaves_its_report(tmp_path, closed):
    report = tmp_path / "report"
    code = f"import os; [os.close(fd) for fd in map(int, '{closed}'.split())]"
    assert run("python3", "-S", "-c", code, conf=f"stats:exit={report}").returncode == 0
    assert report.read_text().startswith("quire: python3")


@pytest.mark.parametrize("conf", ["no_key", "stats:exit", "stats:exit,leaks", "stats:exit=/nowhere/x", "stats:exit=/dev/full", "prof,prof_file:/nowhere/x"])
def test_lines_that_nobody_reads_end_no_program(conf):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(["perl", "-e", "exit 3"], env=environment(conf), stderr=writer, preexec_fn=lambda: __import__("signal").signal(13, 0))
    os.close(writer)
    assert done.returncode == 3


@pytest.mark.parametrize("conf", ["stats:exit=PIPE", "prof:1K,prof_file:PIPE", "plan:PIPE"])
def test_a_pipe_that_nobody_is_at_is_not_waited_for(tmp_path, conf):
    os.mkfifo(tmp_path / "pipe")
    done = run("perl", "-e", "my @a = map { 'x' x $_ } 1 .. 500; exit 3", conf=conf.replace("PIPE", str(tmp_path / "pipe")), timeout=20)
    assert done.returncode == 3 and "quire: " in done.stderr
