# SPDX-License-Identifier: MIT
"""test_target - programs that cannot be run or traced are refused at once, each with its reason and its exit status."""

import json
import shlex
import subprocess

import pytest
import toolkit
from toolkit import build, quire

import peers

OWN_MALLOC = """
#include <stddef.h>
static char pool[1 << 20]; static size_t used;
void *malloc(size_t n) { void *p = pool + used; used += (n + 15) & ~15ul; return p; }
void free(void *p) { if (p) *(char *)p = 1; }
int main(void) { return malloc(10) == NULL; }
"""


@pytest.mark.parametrize("command", ["try", "record"])
def test_a_static_binary_without_symbols_is_refused_with_the_reason(tmp_path, command):
    program = build(tmp_path, "int main(void) { return 0; }", flags=["-static", "-s"])
    done = quire(tmp_path, command, "--", program)
    assert done.returncode == 3
    assert "static binary" in done.stderr and "it has no symbols" in done.stderr and "before strip(1)" in done.stderr
    assert list(tmp_path.glob("*.qtr*")) == []


def test_a_program_whose_own_malloc_cannot_be_seen_is_refused_with_the_functions_name(tmp_path):
    program = build(tmp_path, OWN_MALLOC.replace("void free(void *p) { if (p) *(char *)p = 1; }", '__asm__(".globl free\\n.type free, @function\\nfree: loop free\\nret\\n.size free, 3");'))
    for command in ("try", "record"):
        done = quire(tmp_path, command, "--", program)
        assert done.returncode == 3 and "calls of free cannot be seen" in done.stderr
    assert list(tmp_path.glob("*.qtr*")) == []


@pytest.mark.parametrize("flags", [[], ["-s"]])
def test_a_program_with_its_own_malloc_inside_is_recorded(tmp_path, flags):
    program = build(tmp_path, OWN_MALLOC, flags=flags)
    done = quire(tmp_path, "record", "-o", "t.qtr", "--", program)
    assert done.returncode == 0 and "its own malloc is inside" in done.stderr and (tmp_path / "t.qtr").exists()


LINKED = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    Dl_info info;
    dladdr((void *)dlsym(RTLD_DEFAULT, "malloc"), &info);
    FILE *f = fopen("served", "a");
    fprintf(f, "%s\\n", info.dli_fname);
    fclose(f);
    for (int i = 0; i < 5000; i++) free(malloc(100));
    return 0;
}
"""


@pytest.mark.by_turns
def test_a_program_linked_with_another_allocator_is_tried_on_libcs_malloc_and_as_it_is(tmp_path):
    library = next(p.path for p in peers.installed() if p.name == "jemalloc")
    program = build(tmp_path, LINKED, flags=["-Wl,--no-as-needed", library])
    done = quire(tmp_path, "record", "--", program)
    assert done.returncode == 0, done.stderr
    (tmp_path / "served").unlink()
    done = quire(tmp_path, "try", "--no-report", "--json", "--rounds", 1, "--time-limit", 0.2, "--", program)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert "libjemalloc" in document["program"]["today_allocator"]
    rows = {row["name"] for row in document["allocators"] if "error" not in row}
    assert {"libc", "today", "mimalloc", "jemalloc", "drop-in"} <= rows
    served = (tmp_path / "served").read_text()
    assert "libc.so" in served and "mimalloc" in served and served.count("jemalloc") == 2


def advised(done):
    """The command that a refusal advises."""
    return next(line.strip().removeprefix("fix: ").split("   ")[0] for line in done.stderr.splitlines() if line.startswith("  fix: "))


def test_the_command_that_is_advised_can_be_typed_where_names_have_spaces(tmp_path):
    (tmp_path / "no exec").write_text("true\n")
    assert advised(quire(tmp_path, "check", "--", "./no exec")) == "chmod +x './no exec'"
    for name, text, command in (("no program", "true\n", "file"), ("no interpreter", "#!/none\n", "head -1")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
        assert advised(quire(tmp_path, "check", "--", f"./{name}")) == f"{command} './{name}'"


def test_the_copy_of_a_setuid_program_that_is_advised_can_be_typed_where_its_folder_has_spaces(tmp_path):
    folder = tmp_path / "my programs"
    folder.mkdir()
    program = toolkit.setuid_of_another(folder, "int main(void) { return 0; }")
    done = quire(tmp_path, "record", "--", program)
    assert done.returncode == 3
    words = shlex.split(advised(done))
    assert words[:2] == ["cp", str(program)] and len(words) == 3, done.stderr
    subprocess.run(words, cwd=tmp_path, check=True)
    assert quire(tmp_path, "check", "--", words[2]).returncode == 0


def test_a_setuid_program_is_refused(tmp_path):
    program = toolkit.setuid_of_another(tmp_path, "int main(void) { return 0; }")
    done = quire(tmp_path, "try", "--", program)
    assert done.returncode == 3 and "setuid" in done.stderr and "LD_PRELOAD" in done.stderr


def test_a_script_is_judged_by_its_interpreter(tmp_path):
    interpreter = build(
        tmp_path, "int main(void) { return 0; }", name="interpreter", flags=["-static"]
    )
    script = tmp_path / "script"
    script.write_text(f"#!{interpreter}\n")
    script.chmod(0o755)
    done = quire(tmp_path, "try", "--", script)
    assert done.returncode == 3 and "static binary" in done.stderr


def test_a_program_that_does_not_exist_is_127(tmp_path):
    done = quire(tmp_path, "try", "--", "no-such-program-here")
    assert done.returncode == 127 and "not found" in done.stderr


def test_a_servers_program_that_path_leaves_out_is_named_with_its_place(tmp_path):
    done = quire(tmp_path, "run", "--", "ldconfig", environment={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 127 and "sbin is not in PATH" in done.stderr and "sbin/ldconfig" in done.stderr.split("fix:")[1], done.stderr


def test_a_file_that_may_not_be_executed_is_126(tmp_path):
    (tmp_path / "data").write_text("hello")
    done = quire(tmp_path, "try", "--", "./data")
    assert done.returncode == 126 and "chmod +x ./data" in done.stderr


def test_a_file_that_is_no_program_is_126(tmp_path):
    (tmp_path / "data").write_text("hello, this is no program at all\n" * 9)
    (tmp_path / "data").chmod(0o755)
    done = quire(tmp_path, "record", "--", "./data")
    assert done.returncode == 126 and "neither" in done.stderr


def test_a_program_that_is_cut_off_is_126(tmp_path):
    with open("/bin/sh", "rb") as whole:
        (tmp_path / "cut").write_bytes(whole.read(100))
    (tmp_path / "cut").chmod(0o755)
    done = quire(tmp_path, "try", "--", "./cut")
    assert done.returncode == 126 and "is cut off" in done.stderr


def test_a_script_whose_interpreter_is_missing_is_named(tmp_path):
    (tmp_path / "script").write_text("#!/nowhere/interpreter\n")
    (tmp_path / "script").chmod(0o755)
    done = quire(tmp_path, "try", "--", "./script")
    assert done.returncode == 127 and "cannot execute ./script" in done.stderr and "names /nowhere/interpreter" in done.stderr


def test_a_directory_is_126(tmp_path):
    done = quire(tmp_path, "try", "--", str(tmp_path))
    assert done.returncode == 126 and "directory" in done.stderr and f"fix: ls {tmp_path} " in done.stderr


@pytest.mark.by_turns
def test_a_program_that_maps_its_memory_itself_is_found_out_after_the_run(tmp_path):
    source = """
    #include <string.h>
    #include <stdlib.h>
    #include <sys/mman.h>
    int main(void) {
        free(malloc(10));
        char *p = mmap(0, 100 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(p, 1, 100 << 20);
        return 0;
    }"""
    done = quire(tmp_path, "try", "--", build(tmp_path, source))
    assert done.returncode == 3 and "maps its memory itself" in done.stderr
