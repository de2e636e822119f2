# SPDX-License-Identifier: MIT
"""Memory tagging: `QUIRE_CONF=secure:1,tags:1` on an arm64 processor that has it (MTE), which qemu-user is one of.

    programs/tags.c           misuse that tags find, at the access; right use that they must not disturb
    programs/tags_inside.c    what only the library sees
    tags_cost.py              what it costs, in instructions
    QUIRE_TEST_LONG=1         each right use with each further option

qemu 7.2 takes an address with a tag for one that is not mapped when it is DC ZVA's (test_the_emulator_...); glibc's memset uses that for zeros, unless it is
told that the processor is one of a kind for which it has another.
"""
import os
import signal
import subprocess

import arm64_kit
import pytest
from arm64_percpu_test import CC, QEMU, needs
from record_kit import ROOT

pytestmark = pytest.mark.by_turns

PREFIX = "/usr/aarch64-linux-gnu"
PROGRAMS = ROOT / "test" / "native" / "programs"
MEMSET = ["-E", "GLIBC_TUNABLES=glibc.cpu.name=kunpeng920"]
ONLY_TAGS = ["read_after_free", "write_after_free", "write_after_reuse", "overflow", "underflow", "no_tag", "read_after_remote_free"]
REFUSED = ["free_twice", "free_after_reuse", "realloc_after_free"]
RIGHT = {"system_calls": "by the system\n", "child_of_a_fork": "both\n", "right_use": "done\n"}
LONG = os.environ.get("QUIRE_TEST_LONG", "0") != "0"
OPTIONS = ["", "check:1000", "guard:1/7", "leaks,stats:exit=/dev/null", "limit:1G,decay:0"]
BARE = r"""
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
int main(int count, char **words)
{
    (void)words;
    prctl(55, 1 | 2 | 0xfffeul << 3, 0, 0, 0);
    uintptr_t start = (uintptr_t)mmap(0, 4096, PROT_READ | PROT_WRITE | 0x20, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) | 1ul << 56;
    for (uintptr_t at = start; at < start + 4096; at += 16) {
        register uintptr_t x0 __asm__("x0") = at;
        __asm__ volatile(".inst 0xd9200800" : : "r"(x0) : "memory");
    }
    *(volatile char *)start = 1;
    if (count > 1)
        __asm__ volatile("dc zva, %0" : : "r"(start) : "memory");
    return 0;
}
"""


def must(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, timeout=1200, **options)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def drop_in(tmp_path_factory):
    """(the drop-in for arm64, the program)."""
    folder = tmp_path_factory.mktemp("tags")
    must(CC, "-std=gnu11", "-O1", "-fno-builtin", "-pthread", PROGRAMS / "tags.c", "-o", folder / "tags")
    return arm64_kit.built() / "libquire-malloc.so", folder / "tags"


def run(drop_in, kind, conf, *emulator):
    library, program = drop_in
    command = [QEMU, *emulator, "-L", PREFIX, *MEMSET, "-E", f"LD_PRELOAD={library}", program, kind]
    return subprocess.run(command, env={**os.environ, "QUIRE_CONF": conf}, capture_output=True, text=True, check=False, timeout=600)


@needs(CC, QEMU)
def test_without_tags_the_same_goes_unseen_at_the_access(drop_in):
    """Or the tests below show nothing."""
    for kind in ("write_after_reuse", "overflow", "read_after_free", "underflow", "no_tag", "read_after_remote_free")[: 6 if LONG else 2]:
        assert run(drop_in, kind, "secure:1").returncode == 1, kind


@needs(CC, QEMU)
@pytest.mark.parametrize("kind", ONLY_TAGS)
def test_with_tags_it_stops_at_the_access(drop_in, kind):
    done = run(drop_in, kind, "secure:1,tags:1")
    assert done.returncode == -signal.SIGSEGV, done
    assert done.stdout == ("again\n" if "reuse" in kind else "")
    assert "quire" not in done.stderr


@needs(CC, QEMU)
@pytest.mark.parametrize("option", ["check:100", "guard:1/7", "prof:4K,prof_exit:0", "stats:exit=/dev/null,leaks", "decay:0"][: 5 if LONG else 2])
def test_no_further_option_takes_tags_away(drop_in, option):
    for kind in ("read_after_free", "underflow")[: 1 + LONG]:
        assert run(drop_in, kind, "secure:1,tags:1," + option).returncode == -signal.SIGSEGV, kind


@needs(CC, QEMU)
@pytest.mark.parametrize("kind", REFUSED)
def test_with_tags_a_call_with_an_address_from_before_is_refused(drop_in, kind):
    """A second free of a block that has been handed out again is another's free without tags."""
    done = run(drop_in, kind, "secure:1,tags:1")
    assert done.returncode == -signal.SIGTRAP
    assert "quire: heap: E1 the block is free already" in done.stderr


@needs(CC, QEMU)
@pytest.mark.parametrize(("kind", "option"), [(kind, option) for option in OPTIONS for kind in RIGHT if LONG or not option])
def test_with_tags_right_use_goes_on(drop_in, kind, option):
    done = run(drop_in, kind, "secure:1,tags:1," + option)
    assert (done.returncode, done.stdout) == (0, RIGHT[kind]), done.stderr


@needs(CC, QEMU)
def test_all_tags_but_0_are_used_and_neighbours_differ(drop_in):
    """Slots take even and odd ones by turns."""
    assert run(drop_in, "tags_of_blocks", "secure:1,tags:1").stdout == "fffe\n"
    assert run(drop_in, "tags_of_blocks", "secure:1").stdout == "1\n"
    assert run(drop_in, "tags_of_blocks", "tags:1").stdout == "1\n"


@needs(CC, QEMU)
def test_where_there_are_no_tags_one_line_says_so_and_all_goes_on(drop_in):
    done = run(drop_in, "system_calls", "secure:1,tags:1", "-cpu", "cortex-a57")
    assert (done.returncode, done.stdout) == (0, RIGHT["system_calls"])
    assert done.stderr == "quire: QUIRE_CONF: tags: this processor or its system has no memory tagging; no block has one\n"
    done = run(drop_in, "system_calls", "tags:1")
    assert (done.returncode, done.stderr) == (0, "quire: QUIRE_CONF: tags go with secure:1; no block has one\n")
    assert run(drop_in, "system_calls", "secure:1", "-cpu", "cortex-a57").stderr == ""


@needs(CC, QEMU)
def test_bookkeeping_cannot_be_reached_and_what_is_given_back_has_no_tags(drop_in, tmp_path):
    flags = ["-std=gnu11", "-O1", "-D_GNU_SOURCE", "-DQUIRE_CHECK=0", "-I", ROOT / "src", "-I", ROOT / "include"]
    must(CC, *flags, PROGRAMS / "tags_inside.c", *arm64_kit.objects(), "-pthread", "-static", "-o", tmp_path / "inside")
    found = must(QEMU, *MEMSET, tmp_path / "inside")
    assert found == "a walk: 303000\nowns: 1 1\nusable: 100\ntagged: 1\ngiven back: 1, without tags: 1\ncheck: sound\n"
    done = subprocess.run([QEMU, *MEMSET, tmp_path / "inside", "header"], capture_output=True, check=False, timeout=60)
    assert done.returncode == -signal.SIGSEGV


@needs(CC, QEMU)
def test_the_emulator_takes_a_tag_for_a_part_of_the_address_in_one_instruction(tmp_path):
    """Where it no longer does, MEMSET can go."""
    (tmp_path / "bare.c").write_text(BARE)
    must(CC, "-O1", "-static", tmp_path / "bare.c", "-o", tmp_path / "bare")
    assert subprocess.run([QEMU, tmp_path / "bare"], check=False).returncode == 0
    version = must(QEMU, "--version").split()[2]
    if version.startswith("7.2."):
        assert subprocess.run([QEMU, tmp_path / "bare", "zva"], capture_output=True, check=False).returncode == -signal.SIGSEGV
