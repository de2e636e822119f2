# SPDX-License-Identifier: MIT
"""test_install - programs outside the tree build against an installed Quire, and the installed tool
finds its helpers."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
HANGS_S = 500  # a whole build took 300 on two cores beside twenty other compilers; below the runner's own limit
if os.environ.get("QUIRE_TEST_LONG", "0") != "0":
    HANGS_S *= 6  # packages are several builds: they took more than 500 beside sixty other processes; the runner's limit grows likewise


def run(*command, **options):
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=HANGS_S, **options
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def libdir(prefix):
    return next(prefix.rglob("libquire.so")).parent


def libraries_of(program):
    return re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", program))


def pkg_config(prefix, *options):
    path = next(prefix.rglob("quire.pc")).parent
    return run(
        "pkg-config", *options, "quire", env={**os.environ, "PKG_CONFIG_PATH": str(path)}
    ).split()


@pytest.fixture(scope="module")
def outside(prefix, tmp_path_factory):
    """The outside CMake project, built."""
    build = tmp_path_factory.mktemp("outside")
    run("cmake", "-S", HERE, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", build)
    return build


def test_a_cmake_project_builds_and_runs_with_the_shared_library(outside):
    assert run(outside / "outside_quire") == "arena works\n"
    assert "libquire.so.0.2" in libraries_of(outside / "outside_quire")


def test_a_cmake_project_builds_and_runs_with_the_static_library(outside):
    assert run(outside / "outside_static") == "arena works\n"
    assert not any("quire" in name for name in libraries_of(outside / "outside_static"))


def test_a_cmake_project_that_links_quire_malloc_has_its_malloc_replaced(outside):
    program = outside / "outside_malloc"
    assert "libquire-malloc.so.0.2" in libraries_of(program)
    done = subprocess.run([program], env={**os.environ, "QUIRE_CONF": "stats:exit"}, capture_output=True, text=True, check=True)
    assert done.stdout == "arena works\n"
    assert "quire: heap:" in done.stderr


def test_pkg_config_tells_what_to_preload(prefix):
    library = Path(pkg_config(prefix, "--variable=malloc_library")[0])
    done = subprocess.run(["/bin/echo", "hello"], env={**os.environ, "LD_PRELOAD": str(library), "QUIRE_CONF": "stats:exit"}, capture_output=True, text=True, check=True)
    assert (done.stdout, "quire: echo[" in done.stderr) == ("hello\n", True)


def test_pkg_config_builds_and_runs_with_the_shared_library(prefix, tmp_path):
    program = tmp_path / "outside"
    run(
        "gcc", *STRICT, HERE / "outside.c", "-o", program, *pkg_config(prefix, "--cflags", "--libs")
    )
    assert "libquire.so.0.2" in libraries_of(program)
    assert (
        run(program, env={**os.environ, "LD_LIBRARY_PATH": str(libdir(prefix))}) == "arena works\n"
    )


def test_pkg_config_builds_and_runs_a_fully_static_program(prefix, tmp_path):
    program = tmp_path / "outside"
    run(
        "gcc",
        *STRICT,
        "-static",
        HERE / "outside.c",
        "-o",
        program,
        *pkg_config(prefix, "--static", "--cflags", "--libs"),
    )
    assert run(program) == "arena works\n"


def test_a_static_program_may_have_functions_named_like_our_inner_ones(prefix, tmp_path):
    inner = set(re.findall(r" [tT] (\w+)$", run("nm", libdir(prefix) / "libquire.a"), re.MULTILINE))
    clashing = sorted(
        name for name in inner if not name.startswith(("quire_", "onewayalloc_", "aral_", "_"))
    )
    assert "panic" in clashing
    own = tmp_path / "own.c"
    own.write_text(
        "".join(f"int {name}(void);\nint {name}(void) {{ return 0; }}\n" for name in clashing)
    )
    program = tmp_path / "outside"
    run(
        "gcc",
        "-static",
        HERE / "outside.c",
        own,
        "-o",
        program,
        *pkg_config(prefix, "--static", "--cflags", "--libs"),
    )
    assert run(program) == "arena works\n"


@pytest.mark.by_turns
def test_the_examples_of_the_cpp_page_build_and_run(prefix, root, tmp_path):
    """A block that begins with a struct stands outside; each other one is a function's body."""
    blocks = re.findall(r"^```cpp\n(.*?)^```", (root / "doc/cpp.md").read_text(), re.DOTALL | re.MULTILINE)
    outside = [block for block in blocks if block.startswith("struct")]
    inside = [f"{{\n{block}}}\n" for block in blocks if block not in outside]
    includes = "".join(f"#include <{name}>\n" for name in ("list", "map", "set", "string", "vector", "quire/quire.hpp"))
    (tmp_path / "a.cpp").write_text(f"{includes}{''.join(outside)}int main()\n{{\n{''.join(inside)}}}\n")
    flags = pkg_config(prefix, "--cflags", "--libs")
    run("g++", "-std=c++20", *STRICT, tmp_path / "a.cpp", "-o", tmp_path / "a", "-pthread", *flags)
    run(tmp_path / "a", env={**os.environ, "LD_LIBRARY_PATH": str(libdir(prefix))})
    assert len(inside) >= 6


def test_the_version_is_the_same_everywhere(prefix, root):
    wanted = re.search(
        r"project\(quire VERSION ([\d.]+)", (root / "CMakeLists.txt").read_text()
    ).group(1)
    assert pkg_config(prefix, "--modversion") == [wanted]
    assert run(prefix / "bin" / "quire", "--version").split()[-1] == wanted
    assert (libdir(prefix) / f"libquire.so.{wanted}").exists()


def test_the_shared_library_needs_libc_and_nothing_else(prefix):
    assert set(libraries_of(libdir(prefix) / "libquire.so")) <= {
        "libc.so.6",
        "ld-linux-x86-64.so.2",
        "ld-linux-aarch64.so.1",
    }


def test_every_public_header_is_installed_and_no_private_one(prefix, root):
    public = {p.relative_to(root / "include") for p in (root / "include").rglob("*.h*")}
    public |= {p.relative_to(pools) for pools in [root / "tools" / "native" / "pools" / "include"] for p in pools.rglob("*.h")}
    assert {p.relative_to(prefix / "include") for p in (prefix / "include").rglob("*.h*")} == public


def test_nothing_installed_names_the_place_it_was_built_or_installed_in(prefix, root):
    texts = [
        p
        for p in prefix.rglob("*")
        if p.is_file()
        and p.suffix in {".cmake", ".pc", ".py", ".h", ""}
        and b"\0" not in p.read_bytes()[:4096]
    ]
    assert [p for p in texts if str(root) in p.read_text() or "/first" in p.read_text()] == []


@pytest.fixture
def settings(tmp_path):
    path = tmp_path / "settings"
    path.write_text("colour=blue\nnot a pair\nsize=4=4\n")
    return path


@pytest.mark.parametrize("standard", ["-std=c11", "-std=gnu17"])
def test_the_arena_example_compiles_and_prints_what_it_read(
    prefix, root, tmp_path, settings, standard
):
    program = tmp_path / "arena"
    run(
        "gcc",
        standard,
        *STRICT,
        root / "examples" / "arena.c",
        "-o",
        program,
        *pkg_config(prefix, "--cflags", "--libs"),
    )
    output = run(program, settings, env={**os.environ, "LD_LIBRARY_PATH": str(libdir(prefix))})
    assert output == "colour is blue\nsize is 4=4\n"


def test_the_arena_example_is_short(root):
    assert (root / "examples" / "arena.c").read_text().count("\n") <= 40


@pytest.mark.by_turns
def test_the_installed_tool_tries_a_program(prefix, tmp_path):
    if not shutil.which("jq"):
        pytest.skip("jq is not installed")
    (tmp_path / "x.json").write_text(
        json.dumps([{"name": f"n{i}", "values": list(range(20))} for i in range(2000)])
    )
    done = subprocess.run(
        [prefix / "bin" / "quire", "try", "--json", "--rounds", "2", "--time-limit", "0.3", "--", "jq", ".", "x.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["schema"] == "quire.try/1"


def test_the_installed_tool_starts_programs_by_its_own_helpers(prefix, tmp_path):
    words = ["run", "--stats=json:report.json", "--", "sh", "-c", "echo ran; kill -9 $$"]
    done = subprocess.run(
        [prefix / "bin" / "quire", *words], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (137, "ran\n"), done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert 0 < report["peak_rss_bytes"] < 10 << 20  # the shell's; Python alone holds more


def test_the_manual_is_installed_where_man_looks(prefix):
    done = subprocess.run(
        ["man", "-M", prefix / "share" / "man", "quire_slab_create"], capture_output=True, text=True
    )
    assert "quire-slab - elements of one size" in done.stdout
    for page in ("man1/quire-try.1", "man7/quire-conf.7", "man3/quire-arena.3"):
        assert (prefix / "share" / "man" / page).is_file()


def test_the_installed_documents_lead_to_each_other(prefix):
    folder = prefix / "share" / "doc" / "quire"
    documents = [folder / "README.md", *(folder / "doc").rglob("*.md")]
    assert len(documents) > 30
    for document in documents:
        prose = re.sub(r"`[^`\n]*`|^```.*?^```", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
        for target in re.findall(r"\]\(([^)#\s]+)", prose):
            assert "://" in target or (document.parent / target).exists(), f"{document.name}: {target}"


def test_the_installed_tool_finds_its_script_for_gdb(prefix):
    tool = prefix / "share" / "quire" / "tool"
    asked = "import live.corefile as corefile, os; print(os.path.isfile(corefile.SCRIPT))"
    assert run(sys.executable, "-B", "-c", asked, env={**os.environ, "PYTHONPATH": str(tool)}) == "True\n"
