# SPDX-License-Identifier: MIT
"""touched_test.py - of a large block that the program hardly uses a replay touches no more: from the recorder to the replay."""
import json
import os
import resource
import subprocess
import sys

import pytest
from record_kit import BUILD, HERE, ROOT, analyse, analyse_raw, build, program_ops, record, site

sys.path.insert(0, str(ROOT / "test" / "tool"))
import qrp  # noqa: E402  (it lies beside the path set above)

pytestmark = pytest.mark.skipif(bool(HERE.prefix), reason="the pages of an emulated program are its emulator's")
MIB = 1 << 20
UNTOUCHED_SHIFT, FILLS = 8, (qrp.ALLOC, qrp.CALLOC, qrp.REALLOC)

PROGRAM = r"""
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
enum { BYTES = 1 << 20 };
static void part(void) { char *p = malloc(BYTES); p[5000] = 1; free(p); }
static void shrunk(void) { char *p = malloc(BYTES); p[0] = 1; p = realloc(p, 100); free(p); }
static void small(void) { char *p = malloc(60000); p[0] = 1; free(p); }
static void whole(void) { char *p = malloc(BYTES); memset(p, 1, BYTES); free(p); }
int main(int n, char **v) {
    if (n > 1 && setrlimit(RLIMIT_NOFILE, &(struct rlimit){3, 3})) return 1;
    void (*const each[])(void) = {part, shrunk, small, whole};
    for (int i = 0; i < 80; i++) {
        errno = 77;
        each[i / 20]();
        if (errno != 77) return 2;
    }
    return n > 1 && open("/dev/null", O_RDONLY) >= 0 ? 3 : 0;
}
"""


def untouched(tmp_path, *words):
    """{function: the 256ths that are marked as never touched, of each op of its site that fills a slot}, and the report."""
    done, trace = record(tmp_path, [build(tmp_path, PROGRAM), *words])
    assert done.returncode == 0 and done.stderr == "", done
    report = analyse(trace)
    assert analyse_raw(trace, "--program", tmp_path / "p.qrp").returncode == 0
    ops = program_ops(tmp_path / "p.qrp")[2][0]
    names = ["part", "shrunk", "small", "whole"]
    numbers = {site(report, name)["id"]: name for name in names}
    found = {name: [] for name in names}
    for kind, _, flags, number, _, size in ops:
        if kind in FILLS and number in numbers and size > 100:
            found[numbers[number]].append(flags >> UNTOUCHED_SHIFT)
    return found, report


def test_pages_of_large_blocks_that_are_never_written_are_known_site_by_site(tmp_path):
    found, report = untouched(tmp_path)
    for name in ("part", "shrunk"):
        assert len(found[name]) == 20 and min(found[name]) >= 250, (name, found[name])
    for name in ("small", "whole"):
        assert found[name] == [0] * 20, (name, found[name])
    assert report["trace"]["allocations"] == 80 and report["trace"]["frees"] == 80 and report["trace"]["complete"]
    assert report["trace"]["events"] == 200  # a look is no call of the program's


def test_where_pages_cannot_be_looked_at_blocks_count_as_touched_and_the_program_goes_on(tmp_path):
    found, report = untouched(tmp_path, "no descriptors")
    assert not any(any(of) for of in found.values()) and report["trace"]["complete"]


def replayed(tmp_path, marked):
    """What a replay grows by of 50 blocks of 4 MiB, each of which becomes one of 8."""
    program = qrp.Program()
    for _ in range(50):
        slot = program.alloc(0, size=4 * MIB)
        program.realloc(0, slot, 8 * MIB)
    program.ops[0] = [(kind, align, flags | marked << UNTOUCHED_SHIFT, *rest) for kind, align, flags, *rest in program.ops[0]]
    program.write(tmp_path / "p.qrp")
    limited = lambda: resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))  # noqa: E731
    done = subprocess.run([BUILD / "tools" / "quire-replay", tmp_path / "p.qrp"], capture_output=True, text=True, env={**os.environ}, preexec_fn=limited, check=True)
    figures = json.loads(done.stdout)
    assert figures["failures"] == 0 and figures["ops"] == 100
    return figures["peak_rss_bytes"] - figures["base_rss_bytes"]


def test_a_replay_touches_of_a_block_what_the_program_did(tmp_path):
    assert replayed(tmp_path, 0) > 390 * MIB
    assert 50 * 4096 < replayed(tmp_path, 254) < 10 * MIB
