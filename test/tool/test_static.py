# SPDX-License-Identifier: MIT
"""
test_static - static programs: refused where they cannot be recorded, each in one line with a fix; a verdict by replays where they can.

The recorder's side is test/native/static_test.py.  C++ and Rust with an allocator inside: test_linked.py.
"""

import errno
import json
import os

import pytest
import toolkit
from toolkit import build, quire

import statics
import target as targets

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="static programs are entered on x86-64 alone")

PROGRAM = """
#include <stdlib.h>
int main(void) { for (int i = 0; i < 3000; i++) free(malloc(100 + i % 50)); return 0; }
"""


def test_a_static_program_that_something_else_starts_is_refused_with_its_name(tmp_path):
    program = build(tmp_path, PROGRAM, flags=["-static"])
    with pytest.raises(targets.Unfit) as refused:
        targets.resolve(["env", str(program)])
    assert "something else starts" in refused.value.reason and f"quire record -- {program}" in refused.value.fix


def test_where_tracing_is_forbidden_the_line_that_allows_it_is_said():
    target = targets.Target(["p"], "/p", "/p")
    error = statics.not_entered(target, -errno.EPERM)
    assert error.exit_code == 3 and "forbidden" in str(error) and "ptrace_scope=0" in error.fix and "SYS_PTRACE" in error.fix
    assert "laid out" in statics.not_entered(target, -errno.ENOTSUP).why


def test_a_static_programs_verdict_is_by_replays_against_the_malloc_that_it_has(tmp_path):
    document = tried(tmp_path, build(tmp_path, PROGRAM, flags=["-static"]), "--rounds", 1, "--time-limit", 1)
    assert document["program"]["today_allocator"] == "glibc's malloc" and document["program"]["today_static"] and not document["measured"]
    assert {"libc", "drop-in"} <= {row["name"] for row in document["allocators"]}
    assert "predicted, for no other malloc can run in a static program" in document["verdict"]["reason"]


def tried(folder, program, *more):
    """`try --json` of a program: its document, with a verdict."""
    done = quire(folder, "try", "--no-report", "--json", *more, "--", program)
    assert done.returncode == 0, done.stderr + done.stdout
    document = json.loads(done.stdout)
    assert document["verdict"]["word"] in ("YES", "NO, leave it alone", "INCONCLUSIVE") and "not compared" not in document["verdict"]["reason"]
    return document
