# SPDX-License-Identifier: MIT
"""test_preloaded - a program that LD_PRELOAD gives another malloc today is compared with that, and it is named."""

import json
import os

import pytest
from toolkit import build, quire

import peers
import preloaded

JEMALLOC = next((p.path for p in peers.installed() if p.name == "jemalloc"), None)
TCMALLOC = next((p.path for p in peers.installed() if p.name == "tcmalloc"), None)
needs_both = pytest.mark.skipif(not (JEMALLOC and TCMALLOC), reason="needs libjemalloc2, libtcmalloc-minimal4")

BUSY = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <stdio.h>
int main(void) {
    FILE *log = fopen("log", "a");
    fputc(dlsym(RTLD_DEFAULT, "mallctl") ? 'j' : 'l', log);
    fclose(log);
    for (int i = 0; i < 3000; i++) free(malloc(24));
    return 0;
}"""


@needs_both
def test_the_loader_says_which_preloaded_library_serves_malloc(tmp_path):
    harmless = build(tmp_path, "int harmless(void) { return 0; }", "harmless.so", ["-shared", "-fPIC"])
    environment = {"PATH": os.environ["PATH"], "LD_PRELOAD": f"{harmless} libjemalloc.so.2:{TCMALLOC}"}
    found = preloaded.mallocs("/bin/sh", environment)
    assert list(map(os.path.realpath, found)) == list(map(os.path.realpath, (JEMALLOC, TCMALLOC)))
    assert preloaded.without(environment, found) == {"PATH": os.environ["PATH"], "LD_PRELOAD": str(harmless)}


@pytest.mark.parametrize("environment", [{}, {"LD_PRELOAD": ""}, {"LD_PRELOAD": "/nowhere/libjemalloc.so"}])
def test_what_preloads_no_malloc_is_left_as_it_is(environment):
    assert preloaded.mallocs("/bin/sh", environment) == []
    assert preloaded.entries(preloaded.without(environment, [])) == preloaded.entries(environment)


@pytest.mark.by_turns
@needs_both
def test_a_program_on_another_malloc_is_compared_with_that_and_it_is_said(tmp_path):
    program = build(tmp_path, BUSY, flags=["-ldl"])
    words = ("try", "--no-report", "--rounds", 1, "--time-limit", 0.05, "--", program)
    done = quire(tmp_path, *words, environment={"LD_PRELOAD": "libjemalloc.so.2"})
    assert done.returncode == 0, done.stderr
    assert "LD_PRELOAD gives it libjemalloc.so.2: all other runs were without that" in done.stdout
    assert "With libjemalloc.so.2, as it runs today, it takes" in done.stdout
    runs = (tmp_path / "log").read_text()
    assert runs.count("j") == 2 and runs.count("l") >= 3  # one run as it is, one with the installed library; else on libc's


@pytest.mark.by_turns
@pytest.mark.parametrize("conf", ["passthrough:1", "Passthrough, secure:1"])
def test_the_drop_ins_row_and_its_replay_are_not_libcs_whatever_quire_conf_says(tmp_path, conf):
    program = build(tmp_path, BUSY, flags=["-ldl"])
    reports = f"stats:exit,stats_format:json,stats_file:{tmp_path}/said.%p"
    done = quire(tmp_path, "try", "--no-report", "--rounds", 1, "--", program, environment={"QUIRE_CONF": f"{conf},{reports}"})
    assert done.returncode == 0, done.stderr
    said = [json.loads(path.read_text()) for path in tmp_path.glob("said.*")]
    assert {os.path.basename(report["program"]) for report in said} == {"program", "quire-replay"}
    assert [report["program"] for report in said if report["passthrough"]] == []
