# SPDX-License-Identifier: MIT
"""test_env - quire env says what this machine has, what is missing, and how to get it, with the
standard library alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools" / "quire"))

import cmd_env  # noqa: E402


def env_of(**environment):
    command = [sys.executable, "-S", "-E", str(ROOT / "tools" / "quire"), "env", "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_it_runs_without_any_installed_package_and_names_the_machine():
    report = env_of()
    assert report["schema"] == "quire.env/1"
    assert report["facts"]["os_page_bytes"] == os.sysconf("SC_PAGE_SIZE")
    assert report["facts"]["cpus_usable"] == len(os.sched_getaffinity(0))


def test_every_thing_that_is_missing_has_a_reason_and_a_command():
    for missing in env_of(QUIRE_BUILD_DIR="/nonexistent")["missing"]:
        assert missing["why"] and missing["fix"]


def test_rseq_that_was_switched_off_is_said_to_be_off_and_by_what():
    if not env_of()["facts"]["rseq"].startswith("yes"):
        pytest.skip("no rseq here to switch off")
    report = env_of(GLIBC_TUNABLES="glibc.pthread.rseq=0")
    assert report["facts"]["rseq"] == "no (switched off by GLIBC_TUNABLES)"
    assert any(missing["what"] == "rseq" for missing in report["missing"])


def test_what_an_old_libc_or_kernel_takes_away_is_said_with_what_it_costs(monkeypatch):
    monkeypatch.setattr(cmd_env, "membarrier", lambda: "no (kernel, seccomp filter or emulator without it)")
    monkeypatch.setattr(cmd_env, "code_by_address", lambda: "by the loader's lock (glibc from 2.35 on needs none)")
    lost = {what: why for what, why, _ in cmd_env.lacks()}
    assert "slabs have no caches" in lost["membarrier"] and "profiles and plans wait" in lost["code by address"]


@pytest.mark.parametrize(
    ("name", "words", "keys", "tags"),
    [
        ("flags", "fpu pku ospke", "yes", "no (processor or kernel without it)"),
        ("flags", "fpu pku", "no (the kernel or hypervisor leaves them off)", "no (processor or kernel without it)"),
        ("flags", "fpu", "no (processor without them)", "no (processor or kernel without it)"),
        ("Features", "fp asimd mte", "no (processor without them)", "yes"),
    ],
)
def test_what_the_processor_can_do_to_keep_memory_apart_is_said(monkeypatch, name, words, keys, tags):
    monkeypatch.setattr(cmd_env, "_rows", lambda path: ["processor\t: 0", f"{name}\t\t: {words}"] if path == "/proc/cpuinfo" else [])
    assert (cmd_env.protection_keys(), cmd_env.memory_tagging()) == (keys, tags)


def test_the_tightest_cgroup_limit_on_the_way_up_is_the_one_shown(monkeypatch):
    lines = {
        "/proc/self/cgroup": ["0::/a/b"],
        "/sys/fs/cgroup/a/b/memory.max": ["max"],
        "/sys/fs/cgroup/a/memory.max": ["1000"],
        "/sys/fs/cgroup/memory.max": ["max"],
    }
    monkeypatch.setattr(cmd_env, "_rows", lambda path: lines.get(path, []))
    assert cmd_env._cgroup("memory.max") == "1000"


@pytest.mark.parametrize(
    ("setting", "fix"), [("always madvise [never]", "echo madvise >"), (None, "mount /sys here")]
)
def test_huge_pages_that_are_off_or_unseen_are_missing_with_what_mends_it(
    monkeypatch, setting, fix
):
    lines = {cmd_env.THP: [setting]} if setting else {}
    monkeypatch.setattr(cmd_env, "_rows", lambda path: lines.get(path, []))
    told = {what: text for what, _, text in cmd_env._system_lacks()}
    assert told["transparent huge pages"].startswith(fix)


def test_a_limit_of_the_address_space_is_said():
    import resource

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, resource.RLIM_INFINITY))

    command = [sys.executable, str(ROOT / "tools" / "quire"), "env"]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit)
    assert "missing: address space: RLIMIT_AS is set" in done.stdout
    assert "8 GiB" in done.stdout


@pytest.mark.parametrize(
    ("size", "text"),
    [(None, "none"), (512, "512 bytes"), (4096, "4 KiB"), (2 << 20, "2 MiB"), (24 << 30, "24 GiB")],
)
def test_sizes_are_shown_in_the_largest_unit_that_fits(size, text):
    assert cmd_env.size_text(size) == text


def test_text_has_a_line_for_each_fact_and_ends_with_what_is_missing(capsys):
    class Arguments:
        json = False

    assert cmd_env.run(Arguments()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line]) >= len(cmd_env.facts()) + 1
    assert any(line.startswith("missing:") for line in lines)
