# SPDX-License-Identifier: MIT
"""
test_core - core files: gdb finds every object and whose an address is, and draws the map that the process itself drew.

Of one core file the library was stripped, as packages have it; the other has debug information, which must change nothing.  LLDB has the same commands:
its tests are skipped where it is not installed.
"""

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
LONG = "QUIRE_TEST_LONG" in os.environ


def cores_go_beside_the_program():
    """Whether the kernel writes core files where the program is."""
    pattern = pathlib.Path("/proc/sys/kernel/core_pattern").read_text(encoding="utf-8").strip()
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    return not pattern.startswith(("|", "/")) and hard == resource.RLIM_INFINITY


def allow_core():
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def stripped(folder):
    """The program, libquire.so and libquire-malloc.so without debug information and symbols, in a folder."""
    for name in ("libquire.so", "libquire-malloc.so"):
        library = os.path.realpath(toolkit.BUILD / name)
        subprocess.run(["strip", "--strip-all", "-o", folder / os.path.basename(library), library], check=True)
        for link in (name, os.path.basename(library).rpartition(".")[0]):  # libquire.so.0.2: what programs ask for
            (folder / link).symlink_to(os.path.basename(library))
    program = live_kit.build(folder, folder)
    subprocess.run(["strip", "--strip-all", program], check=True)
    return program


def gdb(commands, *, core=None, pid=None):
    """What gdb prints for these commands."""
    if not shutil.which("gdb"):
        pytest.skip("needs gdb")
    words = ["gdb", "-nx", "-batch", "-iex", "set debuginfod enabled off", "-ex", f"source {SCRIPT}"]
    for command in commands:
        words += ["-ex", command]
    return said_by([*words, *((core.program, core.path) if core else ("-p", pid))])


def lldb(commands, *, core=None, pid=None):
    """The same of LLDB; Debian's looks for its own Python files in a folder that there is not."""
    if not shutil.which("lldb"):
        pytest.skip("needs lldb")
    own = pathlib.Path(shutil.which("lldb")).resolve().parents[1].glob("lib/python3*/*-packages")
    environment = {**os.environ, "PYTHONPATH": ":".join(map(str, own))}
    if "Traceback" in said_by(["lldb", "--no-lldbinit", "--batch", "-o", "script import lldb"], environment):
        pytest.skip("this LLDB cannot load its own Python module here")
    words = ["lldb", "--no-lldbinit", "--batch", "-o", f"command script import {SCRIPT}"]
    words += ["-o", f"target create {core.program} --core {core.path}" if core else f"process attach -p {pid}"]
    for command in commands:
        words += ["-o", command]
    return said_by(words, environment)


def said_by(words, environment=None):
    """What a debugger prints."""
    done = subprocess.run(
        list(map(str, words)), env=environment, capture_output=True, text=True, timeout=toolkit.HANGS_S, stdin=subprocess.DEVNULL
    )
    return done.stdout + done.stderr


def finds_the_owners(said, shown):
    """That a debugger has told whose each address is that the program has shown."""
    owner = {line.split(":")[0]: line for line in said.splitlines() if line.startswith("0x")}
    words = {"arena": "arena [red]query[/red]", "large": "heap strings (id 2): slot 0 of 1", "slab": "slab nodes (id 1): slot", "heap": "heap strings (id 2): slot", "nobody": "nobody's"}
    for kind, address, state in shown:
        assert words[kind] in owner[address], said
        if kind in ("slab", "heap", "large"):
            assert owner[address].endswith(f", {state}"), owner[address]


def by_address(pages):
    return sorted(pages, key=lambda p: int(p["address"], 16))


class Core:
    """A core file, what the program had said, and the map it had drawn of itself."""

    def __init__(self, folder, program, *words):
        self.program = program
        with Shown([self.program, *words], cwd=folder, preexec_fn=allow_core) as process:
            self.said = process.ready().said
            page = wait_until(process.page)
            self.map = json.loads(live_page.must_answer(page, "map"))
            if cores_go_beside_the_program():
                assert process.kill(signal.SIGABRT) == -signal.SIGABRT
            else:
                take_core(process.pid, folder / "core")
        self.path = next(f for f in folder.iterdir() if f.name.startswith("core"))


def take_core(pid, path):
    """PATH.PID, of a process that goes on."""
    command = ["gcore", "-o", str(path), str(pid)]
    subprocess.run(command, capture_output=True, check=True, timeout=toolkit.HANGS_S, stdin=subprocess.DEVNULL)


@pytest.fixture(scope="module", params=["plain", "secure"])
def core(request, tmp_path_factory):
    if not shutil.which("gdb") or not (LONG or cores_go_beside_the_program()):
        pytest.skip("needs gdb, and core files beside their programs, or the long run (QUIRE_TEST_LONG=1), which takes them by gcore")
    folder = tmp_path_factory.mktemp("core")
    return Core(folder, (stripped if request.param == "plain" else live_kit.build)(folder), request.param)


def test_the_map_of_the_core_file_is_the_one_that_the_process_drew(tmp_path, core):
    done = quire(tmp_path, "map", core.path, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert os.path.realpath(document["program"]) == os.path.realpath(core.program)
    assert by_address(document["pages"]) == by_address(core.map["pages"])


def test_gdb_finds_every_object_and_the_owner_of_every_address(core):
    said = gdb(["quire objects", *(f"quire owner {address}" for _, address, _ in core.said)], core=core)
    for words in ("arena      1", "[red]query[/red] ?[31m", "arena      0", "slab       1", "nodes", "percpu     1", "counters", "heap       2", "strings"):
        assert words in said, said
    finds_the_owners(said, core.said)


def test_lldb_says_what_gdb_says(tmp_path, core):
    commands = ["quire objects", *(f"quire owner {address}" for _, address, _ in core.said)]
    said = lldb([*commands, f"quire map --json {tmp_path}/map"], core=core)
    finds_the_owners(said, core.said)
    objects = [line for line in gdb(commands[:1], core=core).splitlines() if line.startswith(("arena", "slab", "percpu", "heap"))]
    assert len(objects) == 6 and all(line in said for line in objects), said
    assert by_address(json.loads((tmp_path / "map").read_text())["pages"]) == by_address(core.map["pages"])


@pytest.mark.parametrize("debugger", [gdb, lldb])
def test_of_a_process_that_runs_all_libraries_are_looked_at_though_they_are_stripped(tmp_path, debugger):
    preload = {"LD_PRELOAD": str(tmp_path / "libquire-malloc.so")}
    with Shown([stripped(tmp_path), "plain"], conf=None, page=False, environment=preload, cwd=tmp_path) as process:
        process.ready()
        said = debugger(["quire objects", *(f"quire owner {address}" for _, address, _ in process.said)], pid=process.pid)
    finds_the_owners(said, process.said)
    default = [line.split() for line in said.splitlines() if line.endswith("  default")]
    assert len(default) == 2 and sum(int(row[4]) > 0 for row in default) == 1, said  # the program's own is not used, that of malloc is


@pytest.mark.skipif(not LONG, reason="a part of the long run: QUIRE_TEST_LONG=1")
@pytest.mark.parametrize("debugger", [gdb, lldb])
def test_a_static_program_keeps_the_layout_when_the_linker_drops_what_nothing_refers_to(tmp_path, debugger):
    library = [str(toolkit.BUILD / "libquire.a"), "-lpthread", "-Wl,--gc-sections", "-s"]
    program = live_kit.compile_c(tmp_path, live_kit.SOURCE, live_kit.NAME, library)
    with Shown([program, "secure"], conf=None, page=False, cwd=tmp_path) as process:
        process.ready()
        finds_the_owners(debugger([f"quire owner {address}" for _, address, _ in process.said], pid=process.pid), process.said)


@pytest.mark.skipif(not LONG, reason="a part of the long run: QUIRE_TEST_LONG=1")
def test_a_library_of_another_version_than_the_script_is_said_to_be_one(tmp_path):
    program = stripped(tmp_path)
    library = pathlib.Path(os.path.realpath(tmp_path / "libquire.so"))
    assert library.read_bytes().count(b"slab_page.span_steps\0") == 1
    library.write_bytes(library.read_bytes().replace(b"slab_page.span_steps\0", b"slab_page.span_width\0"))
    with Shown([program, "plain"], conf=None, page=False, cwd=tmp_path) as process:
        process.ready()
        said = gdb(["quire objects"], pid=process.pid)
    assert "libquire is of another version than this script: it has no slab_page.span_steps" in said, said


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


@pytest.mark.by_turns
def test_a_core_file_taken_of_a_running_process_is_small_and_as_good(tmp_path):
    if not shutil.which("gcore"):
        pytest.skip("needs gdb")
    program = live_kit.build(tmp_path)
    with Shown([program, "plain"], cwd=tmp_path) as process:
        process.ready()
        wanted = json.loads(live_page.must_answer(wait_until(process.page), "map"))
        take_core(process.pid, tmp_path / "taken")
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
