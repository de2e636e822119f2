# SPDX-License-Identifier: MIT
"""test_core - core files: gdb finds every object and whose an address is, and draws the map that the process itself drew."""

import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess

import live_kit
import pytest
import toolkit
from live_kit import Shown, wait_until
from toolkit import quire

import live.corefile as corefile
import live.page as live_page

SCRIPT = toolkit.ROOT / "tools" / "gdb" / "quire_gdb.py"


def cores_go_beside_the_program():
    """Whether the kernel writes core files where the program is."""
    pattern = pathlib.Path("/proc/sys/kernel/core_pattern").read_text(encoding="utf-8").strip()
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    return not pattern.startswith(("|", "/")) and hard == resource.RLIM_INFINITY


def allow_core():
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


class Core:
    """A core file, what the program had said, and the map it had drawn of itself."""

    def __init__(self, folder, *words):
        self.program = live_kit.build(folder)
        with Shown([self.program, *words], cwd=folder, preexec_fn=allow_core) as process:
            self.said = process.ready().said
            page = wait_until(process.page)
            self.map = json.loads(live_page.must_answer(page, "map"))
            assert process.kill(signal.SIGABRT) == -signal.SIGABRT
        self.path = next(f for f in folder.iterdir() if f.name.startswith("core"))

    def gdb(self, *commands):
        """What gdb prints for these commands."""
        words = ["gdb", "-nx", "-batch", "-iex", "set debuginfod enabled off", "-ex", f"source {SCRIPT}"]
        for command in commands:
            words += ["-ex", command]
        done = subprocess.run(
            [*words, str(self.program), str(self.path)], capture_output=True, text=True, timeout=toolkit.HANGS_S, stdin=subprocess.DEVNULL
        )
        return done.stdout + done.stderr


@pytest.fixture(scope="module", params=["plain", "secure"])
def core(request, tmp_path_factory):
    if not shutil.which("gdb") or not cores_go_beside_the_program():
        pytest.skip("needs gdb, and core files beside their programs")
    return Core(tmp_path_factory.mktemp("core"), request.param)


def test_the_map_of_the_core_file_is_the_one_that_the_process_drew(tmp_path, core):
    done = quire(tmp_path, "map", core.path, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    by_address = lambda pages: sorted(pages, key=lambda p: int(p["address"], 16))  # noqa: E731
    assert os.path.realpath(document["program"]) == os.path.realpath(core.program)
    assert by_address(document["pages"]) == by_address(core.map["pages"])


def test_gdb_finds_every_object_and_the_owner_of_every_address(core):
    said = core.gdb("quire objects", *(f"quire owner {address}" for _, address, _ in core.said))
    for words in ("arena      1", "[red]query[/red] ?[31m", "arena      0", "slab       1", "nodes", "percpu     1", "counters", "heap       2", "strings"):
        assert words in said, said
    owner = {line.split(":")[0]: line for line in said.splitlines() if line.startswith("0x")}
    words = {"arena": "arena [red]query[/red]", "large": "heap strings (id 2): slot 0 of 1", "slab": "slab nodes (id 1): slot", "heap": "heap strings (id 2): slot", "nobody": "nobody's"}
    for kind, address, state in core.said:
        assert words[kind] in owner[address], owner[address]
        if kind in ("slab", "heap", "large"):
            assert owner[address].endswith(f", {state}"), owner[address]


def test_the_picture_of_a_core_file_is_text_too(tmp_path, core):
    done = quire(tmp_path, "map", core.path, "--object", "nodes")
    assert done.returncode == 0 and "slab nodes (id 1):" in done.stdout and "2,000 of " in done.stdout


def test_a_program_that_has_moved_is_asked_for_and_can_be_given(tmp_path, core):
    moved = core.program.with_name("moved")
    core.program.rename(moved)
    try:
        done = quire(tmp_path, "map", core.path)
        assert done.returncode == 2 and "is not here" in done.stderr and "--exe PROGRAM" in done.stderr
        done = quire(tmp_path, "map", core.path, "--exe", moved, "--object", "nodes")
        assert done.returncode == 0, done.stderr
    finally:
        moved.rename(core.program)


def test_another_program_than_that_of_the_core_file_is_refused(tmp_path, core):
    done = quire(tmp_path, "map", core.path, "--exe", "/bin/ls")
    assert done.returncode == 2 and "is no core file of /bin/ls" in done.stderr, done.stderr
    assert f"--exe {os.path.realpath(core.program)}" in done.stderr


@pytest.mark.parametrize("part", [0.0, 0.5])
def test_a_core_file_that_is_cut_off_is_said_to_be(tmp_path, core, part):
    cut = tmp_path / "cut"
    with open(core.path, "rb") as whole:
        cut.write_bytes(whole.read(4096 + int(part * min(core.path.stat().st_size, 1 << 20))))
    done = quire(tmp_path, "map", cut)
    assert done.returncode in (2, 3) and "the core file is cut off" in done.stderr, done.stderr


def test_where_gdb_is_missing_the_command_that_brings_it_is_said(tmp_path, core):
    done = quire(tmp_path, "map", core.path, environment={"PATH": str(tmp_path)})
    assert done.returncode == 3 and "apt-get install -y gdb" in done.stderr


def test_a_core_file_taken_of_a_running_process_is_small_and_as_good(tmp_path):
    if not shutil.which("gcore"):
        pytest.skip("needs gdb")
    program = live_kit.build(tmp_path)
    with Shown([program, "plain"], cwd=tmp_path) as process:
        process.ready()
        wanted = json.loads(live_page.must_answer(wait_until(process.page), "map"))
        command = ["gcore", "-o", str(tmp_path / "taken"), str(process.process.pid)]
        subprocess.run(command, capture_output=True, check=True, timeout=toolkit.HANGS_S, stdin=subprocess.DEVNULL)
    path = next(tmp_path.glob("taken.*"))
    assert path.stat().st_blocks * 512 < 256 << 20  # not what was only reserved: 64 GiB of addresses
    done = quire(tmp_path, "map", path, "--json")
    assert done.returncode == 0, done.stderr
    pages = lambda document: {page["address"]: page["live"] for page in document["pages"]}  # noqa: E731
    assert pages(json.loads(done.stdout)) == pages(wanted)


def test_a_core_file_of_a_program_without_quire_says_so(tmp_path):
    if not shutil.which("gdb") or not cores_go_beside_the_program():
        pytest.skip("needs gdb, and core files beside their programs")
    program = toolkit.build(tmp_path, "#include <stdlib.h>\nint main(void) { abort(); }")
    subprocess.run([program], cwd=tmp_path, preexec_fn=allow_core)
    done = quire(tmp_path, "map", next(tmp_path.glob("core*")))
    assert done.returncode == 3 and "no libquire in it" in done.stderr, done.stderr


@pytest.mark.parametrize("contents", [b"", b"text", b"\x7fELF\x02\x01" + bytes(58), b"\x7fELF\x01\x01" + bytes(100)])
def test_what_is_no_core_file_is_refused(tmp_path, contents):
    file = tmp_path / "file"
    file.write_bytes(contents)
    done = quire(tmp_path, "map", file)
    assert done.returncode == 2 and "is no core file" in done.stderr


def test_a_file_that_is_not_there_is_said_to_be_none(tmp_path):
    done = quire(tmp_path, "map", "./core.1")
    assert done.returncode == 2 and "there is no core file ./core.1" in done.stderr


def test_notes_that_end_too_early_are_no_harm():
    whole = b"\x05\0\0\0\x08\0\0\0\x06\0\0\0CORE\0\0\0\0" + bytes(8)
    assert corefile.notes_of(whole) == {6: bytes(8)}
    for cut in range(len(whole)):
        corefile.notes_of(whole[:cut])
