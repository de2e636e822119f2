# SPDX-License-Identifier: MIT
"""test_examples - the programs of examples/ that count: they build against an installed Quire, and what they print is right."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from test_install import STRICT, libdir, pkg_config, run

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from manual import examples  # noqa: E402 - after the path

# One line of Prometheus' text format: a comment, or name{labels} value.
METRIC = re.compile(r'# (HELP|TYPE) \w+ .+|[a-z_]+(\{\w+="[^"]*"(,\w+="[^"]*")*\})? [0-9.]+')
LONG = os.environ.get("QUIRE_TEST_LONG", "0") != "0"
COUNTED = re.compile(r"8 threads added (\d+), the counters say (\d+): (\d+) of 100000 are exact")


@pytest.fixture(params=["-std=c11", "-std=gnu17"][: 1 + LONG])
def build(request, prefix, root, tmp_path):
    """Compiles an example; the program with the environment it runs in."""

    def compile_one(name):
        program = tmp_path / name
        source = root / "examples" / f"{name}.c"
        flags = pkg_config(prefix, "--cflags", "--libs")
        run("gcc", request.param, "-O2", *STRICT, source, "-o", program, "-pthread", *flags)
        return program

    return compile_one


@pytest.fixture
def environment(prefix):
    return {**os.environ, "LD_LIBRARY_PATH": str(libdir(prefix))}


def alike(text):
    """What must be equal where numbers depend on the machine: CPUs, page sizes, process numbers."""
    return re.sub(r" +|-{2,}", " ", re.sub(r"\d+", "0", text))


@pytest.mark.parametrize("name", [what[:-2] for kind, what, _ in examples.blocks() if kind == "code"])
def test_an_example_prints_what_its_page_says(build, environment, name):
    (command, shown), *more = [
        (what, text) for kind, what, text in examples.blocks() if kind == "output" and f"./{name}" in what
    ]
    printed = examples.output_of(command, build(name).parent, environment)
    if name in ("stats", "heap"):
        printed, shown = alike(printed), alike(shown)
    assert (printed, more) == (shown, [])


@pytest.mark.by_turns
@pytest.mark.parametrize("tunable", ["", "glibc.pthread.rseq=0"])
def test_the_stats_server_reads_itself_and_every_counter_is_exact(build, environment, tunable):
    environment["GLIBC_TUNABLES"] = tunable
    output = run(build("stats_server"), "--seconds", "1", "--selftest", env=environment)
    assert int(re.match(r"read (\d+) times over the socket", output).group(1)) > 0
    added, counted, exact = COUNTED.search(output).groups()
    assert added == counted and int(added) > 0
    assert exact == "100000"


@pytest.mark.by_turns
def test_the_stats_server_speaks_prometheus_while_it_counts_and_ends_when_asked(build, environment):
    command = [build("stats_server")]
    server = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        url = server.stderr.readline().strip()
        pages = [fetch(url)]
        first = next_page(url, pages, more_than=0)
        second = next_page(url, pages, more_than=total(first))
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(url.replace("/metrics", "/"), timeout=300)
        server.send_signal(signal.SIGTERM)
        output = server.communicate(timeout=300)[0]
    finally:
        server.kill()
    assert [line for line in first if not METRIC.fullmatch(line)] == []
    count = f"stats_server_request_seconds_count {len(pages) - 1}"
    assert count in second, "the times of the requests before are in the last"
    assert "stats_server_pool_objects 100001" in second
    added, counted, exact = COUNTED.search(output).groups()
    assert (counted, exact) == (added, "100000")
    assert server.returncode == 0


def test_the_stats_server_says_what_it_can_be_told(build, environment):
    done = subprocess.run([build("stats_server"), "--what"], env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "usage: stats_server [--port N] [--seconds N] [--selftest]\n"


def test_the_page_has_every_small_example_as_it_is_and_each_is_short(root):
    shown = {what: text for kind, what, text in examples.blocks() if kind == "code"}
    small = {path.name for path in (root / "examples").glob("*.c")} - {"stats_server.c"}
    assert set(shown) == small
    for name, text in shown.items():
        assert text == examples.code_of(name), f"python3 scripts/manual/examples.py writes {name} again"
        assert text.count("\n") < 40, name


def test_the_heap_example_keeps_its_budget(build, environment):
    lines = run(build("heap"), env=environment).splitlines()
    assert lines[0] == "4499 characters"
    blocks = int(re.fullmatch(r"(\d+) blocks of 1000 bytes, then the budget is used up: within it", lines[1]).group(1))
    assert 800 < blocks < 1024
    assert lines[2] == "the text is the session's"


def test_the_stats_example_shows_its_objects_in_each_format(build, environment):
    program = build("stats")
    text = run(program, env=environment).splitlines()
    assert [line for line in text if line.endswith('"connections"')] != []
    values = json.loads(run(program, "json", env=environment))
    (slab,), (pool,) = values["slabs"], values["percpu"]
    assert (slab["name"], slab["live_elements"]) == ("connections", 1000)
    assert (pool["name"], pool["live_objects"]) == ("counters", 1000)
    metrics = run(program, "prometheus", env=environment).splitlines()
    assert [line for line in metrics if not METRIC.fullmatch(line)] == []
    assert 'quire_slab_live_elements{name="connections",id="1"} 1000' in metrics
    done = subprocess.run([program, "xml"], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")


def fetch(url):
    with urllib.request.urlopen(url, timeout=300) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return answer.read().decode().splitlines()


def next_page(url, pages, more_than):
    """The first page with a larger total; the threads that count may have to wait for a CPU."""
    until_s = time.monotonic() + 60
    while total(pages[-1]) <= more_than:
        assert time.monotonic() < until_s, "it does not count"
        pages.append(fetch(url))
    return pages[-1]


def total(lines):
    values = [int(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("demo_requests_total{")]
    assert len(values) == 100000
    return sum(values)
