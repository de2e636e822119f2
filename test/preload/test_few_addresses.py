# SPDX-License-Identifier: MIT
"""Processes that limit their addresses, or lock their memory, while they run: what is reserved and not used is not counted against them."""

import pytest
from preload_kit import PYTHON, assert_sound, run


def assert_sound_or_skip(done):
    if done.stdout == "not here\n":
        pytest.skip("the kernel has not, or does not allow, what this needs")
    assert_sound(done)


@pytest.mark.by_turns
@pytest.mark.parametrize("conf", [None, "secure:1", "check:1", "decay:0", "prof"])
@pytest.mark.parametrize("what", [["as", 600 << 20], ["as", 4 << 30], ["lock"]])
def test_a_limit_that_a_process_gives_itself_leaves_it_what_is_not_used(build, what, conf, tmp_path):
    assert_sound(run(build("few_addresses.c"), *what, conf=conf, cwd=tmp_path))


@pytest.mark.parametrize("conf", [None, "secure:1", "check:1"])
def test_a_limit_of_a_hundred_megabytes_leaves_most_of_it(build, conf):
    """Nothing but what is used is counted, the page map's tables neither."""
    assert_sound(run(build("few_addresses.c"), "tight", 100 << 20, conf=conf))


def test_the_child_of_a_vfork_limits_itself_and_not_its_parents_memory(build):
    assert_sound_or_skip(run(build("copies.c"), "cut"))


def test_locked_memory_goes_back_too(build):
    assert_sound_or_skip(run(build("few_addresses.c"), "lock", "all", conf="decay:100ms"))


@pytest.mark.by_turns
def test_python_limits_its_addresses_and_goes_on():
    lines = [
        "import resource, threading",
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))",
        "import decimal, sqlite3, mmap",
        "thread = threading.Thread(target=lambda: None); thread.start(); thread.join()",
        "mmap.mmap(-1, 50 << 20)",
        "blocks = []",
        "try:",
        "    while len(blocks) < 5000: blocks.append(bytearray(1 << 20))",
        "except MemoryError: count = len(blocks); del blocks; print('limited', 200 < count < 1024)",
    ]
    done = run(PYTHON, "-c", "\n".join(lines))
    assert (done.stdout, done.returncode) == ("limited True\n", 0), done.stderr
