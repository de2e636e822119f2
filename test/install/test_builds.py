# SPDX-License-Identifier: MIT
"""test_builds - the library builds where it is taken: as a packager does it, by the oldest CMake, as a part of other projects, with other compilers.

A copy of the source, so that no build can lean on this checkout.  Every compiler and every kind of build: QUIRE_TEST_LONG=1.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_install import HERE, STRICT, libraries_of, run

FILES = ["CMakeLists.txt", "meson.build", "pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"]
FOLDERS = ["include", "src", "cmake", "packaging", "tools", "bench", "scripts", "doc", "examples"]
LIBRARY_ALONE = ["-DQUIRE_BUILD_TOOLS=OFF"]
UNOPTIMISED = ["-DCMAKE_C_FLAGS_RELEASE=-O0", "-DQUIRE_DEBUG=-g1"]  # the same files, in a quarter of the time; the check preset has -O3's warnings
KINDS = ["Debug", "Release", "RelWithDebInfo", "MinSizeRel"]
LONG = os.environ.get("QUIRE_TEST_LONG", "0") != "0"
COMPILERS = [f"{name}-{n}" for name, first, last in (("gcc", 9, 14), ("clang", 13, 19)) for n in range(first, last + 1)]
FLAGS = ["-O0", "-O1", "-O2 -D_FORTIFY_SOURCE=3", "-O3 -march=native", "-O2 -flto"]
OLD_CMAKE = Path(sys.executable).with_name("cmake")


def copy(root, folder):
    for name in FOLDERS:
        shutil.copytree(root / name, folder / name)
    for name in FILES:
        shutil.copy(root / name, folder)
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return copy(HERE.parent.parent, tmp_path_factory.mktemp("source") / "quire")


def cmake(source, build, *options, program="cmake", targets=(), **environment):
    """Configured and built; what was printed. No launcher and no flags of the environment's: compilers' own words."""
    clean = {k: v for k, v in os.environ.items() if k not in ("CFLAGS", "CXXFLAGS", "LDFLAGS")} | environment
    said = run(program, "-S", source, "-B", build, "-G", "Ninja", *options, env=clean)
    said += run(program, "--build", build, *(["--target", *targets] if targets else []), env=clean)
    said = re.sub(r"lto-wrapper: warning: using serial compilation.*", "", said)  # -flto without a number: the caller's
    assert "warning" not in said.lower(), said
    return said


def works(program):
    assert run(program) == "arena works\n"


@pytest.fixture(scope="module")
def packaged(source, tmp_path_factory):
    """The folder of a packager's build by the oldest CMake: all there is; in the short form it is only configured."""
    assert re.search(r"\b3\.16\.", run(OLD_CMAKE, "--version"))
    build = tmp_path_factory.mktemp("packaged") / "build"
    targets = () if LONG else ("clean",)
    cmake(source, build, "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_C_COMPILER_LAUNCHER=", program=OLD_CMAKE, targets=targets)
    return build


@pytest.mark.by_turns("library alone")
def test_a_packagers_release_build_has_everything_and_no_warning_with_the_oldest_cmake(packaged, tmp_path):
    text = (packaged / "build.ninja").read_text()
    assert "-Werror" not in text and "quire-analyse" in text
    if LONG:
        run(OLD_CMAKE, "--install", packaged, "--prefix", tmp_path)
        assert (tmp_path / "bin/quire").exists() and list(tmp_path.rglob("libquire-malloc.so"))


@pytest.mark.parametrize("kind", KINDS if LONG else [])
def test_each_kind_of_build_has_no_warning(source, tmp_path, kind):
    cmake(source, tmp_path, f"-DCMAKE_BUILD_TYPE={kind}", *LIBRARY_ALONE)


@pytest.mark.parametrize("flags", FLAGS if LONG else [])
@pytest.mark.parametrize("compiler", [c for c in COMPILERS if shutil.which(c)])
def test_each_compiler_builds_it_with_each_flag(source, tmp_path, compiler, flags):
    if compiler in ("gcc-9", "gcc-10", "gcc-11"):
        flags = flags.replace("SOURCE=3", "SOURCE=2")  # they have no 3
    options = [f"-DCMAKE_C_COMPILER={compiler}", f"-DCMAKE_C_FLAGS={flags}", *LIBRARY_ALONE]
    if compiler.startswith("clang") and "-flto" in flags:
        linker = f"lld-{compiler[6:]}"
        if not shutil.which(f"ld.{linker}"):
            pytest.skip("clang's -flto needs its own linker")
        # Its own archiver may be of another version, which cannot read these objects; the system's does not have to.
        options += [f"-DCMAKE_{what}_LINKER_FLAGS=-fuse-ld={linker}" for what in ("SHARED", "EXE")]
        options += [f"-DCMAKE_{name.upper()}=/usr/bin/{name}" for name in ("ar", "ranlib", "objcopy")]
    cmake(source, tmp_path / "b", *options)
    program = tmp_path / "outside"
    run(compiler, "-I", source / "include", HERE / "outside.c", tmp_path / "b/libquire.a", "-pthread", "-o", program)
    works(program)
    preload = {**os.environ, "LD_PRELOAD": str(tmp_path / "b/libquire-malloc.so"), "QUIRE_CONF": "check:10"}
    assert run("sort", HERE / "outside.c", env=preload).count("\n") == (HERE / "outside.c").read_text().count("\n")


@pytest.mark.skipif(not LONG, reason="QUIRE_TEST_LONG=1: another whole build")
def test_link_time_optimisation_leaves_the_archive_usable(source, tmp_path):
    cmake(source, tmp_path / "b", "-DCMAKE_C_FLAGS=-O1 -flto", "-DBUILD_SHARED_LIBS=OFF", *LIBRARY_ALONE)
    program = tmp_path / "outside"
    run("gcc", "-I", source / "include", HERE / "outside.c", tmp_path / "b/libquire.a", "-pthread", "-o", program)
    works(program)
    inner = re.findall(r" [TDB] (\w+)$", run("nm", tmp_path / "b/libquire.a"), re.MULTILINE)
    assert [name for name in inner if not name.startswith(("quire_", "onewayalloc_", "aral_"))] == []


@pytest.fixture(scope="module")
def alone(source, tmp_path_factory):
    """The folder of a build of the library alone, of a copy of the source that lies there too, without a C++ compiler. There are spaces in the names."""
    place = tmp_path_factory.mktemp("alone") / "a/much longer/one of them"
    place.mkdir(parents=True)
    copied = copy(source, place / "source")
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_C_COMPILER_LAUNCHER=", *([] if LONG else [*UNOPTIMISED, "-DQUIRE_TOGETHER=ON"])]
    cmake(copied, place / "build", *options, *LIBRARY_ALONE, CXX="/nonexistent")
    return place / "build"


@pytest.mark.by_turns
def test_configurations_that_are_built_at_once_make_their_archives_in_folders_of_their_own(root, tmp_path):
    """Each through a quire.o: in one folder both archives had the object that was written last, or the build failed."""
    kinds = ["-DCMAKE_CONFIGURATION_TYPES=Debug;Release", "-DCMAKE_CROSS_CONFIGS=all", "-DBUILD_SHARED_LIBS=OFF", "-DQUIRE_BUILD_BENCH=OFF"]
    run("cmake", "-S", root, "-B", tmp_path, "-G", "Ninja Multi-Config", *kinds, *LIBRARY_ALONE)
    commands = run("ninja", "-C", tmp_path, "-t", "commands", "quire_static:all")
    assert sorted(set(re.findall(r"cd (\S+) && \S+ -D ARCHIVE=", commands))) == [str(tmp_path / kind) for kind in ("Debug", "Release")]


@pytest.mark.by_turns("library alone")
def test_the_library_alone_builds_and_installs_without_a_cpp_compiler(alone, tmp_path):
    run("cmake", "--install", alone, "--prefix", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"include", "lib", "share"}


@pytest.mark.by_turns("library alone")
def test_an_installation_removes_nothing_of_folders_whose_names_begin_like_its_own(alone, tmp_path):
    mine = alone.parent.parent.parent / "much" / "mine"
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("my own")
    run("cmake", "--install", alone, "--prefix", tmp_path / "a prefix")
    assert mine.read_text() == "my own"
    assert bool(list((tmp_path / "a prefix").rglob("quire-arena.3"))) == bool(shutil.which("scdoc"))


@pytest.mark.by_turns
def test_folders_that_are_given_in_full_are_those_that_pkg_config_names(source, tmp_path):
    given = {"LIBDIR": "/opt/a/lib64", "INCLUDEDIR": "/opt/b/include"}
    run("cmake", "-S", source, "-B", tmp_path, "-G", "Ninja", *(f"-DCMAKE_INSTALL_{k}={v}" for k, v in given.items()), *LIBRARY_ALONE)
    path = {**os.environ, "PKG_CONFIG_PATH": str(tmp_path / "packaging")}
    for name, folder in given.items():
        assert run("pkg-config", f"--variable={name.lower()}", "quire", env=path).strip() == folder


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="its compiler has no 32 bits")
def test_32_bits_are_refused_with_a_word_why(source, tmp_path):
    options = ["-DCMAKE_C_FLAGS=-m32", "-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY", *LIBRARY_ALONE]
    done = subprocess.run(["cmake", "-S", source, "-B", tmp_path, "-G", "Ninja", *options], capture_output=True, text=True)
    assert done.returncode != 0 and "Quire needs a 64-bit system" in done.stderr
    done = subprocess.run(["gcc", "-U__LP64__", "-fsyntax-only", "-I", source / "include", HERE / "outside.c"], capture_output=True, text=True)
    assert done.returncode != 0 and "Quire needs a 64-bit system" in done.stderr


@pytest.mark.skipif(not LONG, reason="QUIRE_TEST_LONG=1: both builds whole")
def test_two_builds_in_two_folders_are_the_same_bytes(packaged, alone):
    """Neither the place of the source nor that of the build is in them, nor which CMake it was and what else was built."""
    sums = []
    for build in (packaged, alone):
        made = ["libquire.a", *(f"libquire{kind}.so" for kind in ("", "-malloc"))]
        sums.append({name: hashlib.sha256((build / name).read_bytes()).hexdigest() for name in made})
    assert sums[0] == sums[1]


TAKEN_BY = {
    "add_subdirectory": "add_subdirectory(@SOURCE@ quire)",
    "FetchContent": "include(FetchContent)\nFetchContent_Declare(quire URL file://@ARCHIVE@)\nFetchContent_MakeAvailable(quire)",
}
PROJECT = """
cmake_minimum_required(VERSION 3.16)
project(outside LANGUAGES C)
option(BUILD_TESTING "an outer project's own" ON)
set(CMAKE_UNITY_BUILD ON)
set(CMAKE_COMPILE_WARNING_AS_ERROR ON)
add_compile_options(-Wall -Wextra -Wpedantic -Wconversion -Werror)
@TAKE@
add_executable(outside @HERE@/outside.c)
target_link_libraries(outside PRIVATE quire::quire)
install(TARGETS outside)
"""


@pytest.mark.by_turns
@pytest.mark.parametrize("way, shared", [("FetchContent", None)] + [("add_subdirectory", "ON"), ("add_subdirectory", "OFF")] * LONG)
def test_a_project_that_takes_the_source_gets_the_library_alone(source, tmp_path, way, shared):
    archive = shutil.make_archive(str(tmp_path / "quire"), "gztar", source.parent, source.name) if way == "FetchContent" else ""
    text = PROJECT.replace("@TAKE@", TAKEN_BY[way]).replace("@SOURCE@", str(source)).replace("@ARCHIVE@", archive)
    (tmp_path / "CMakeLists.txt").write_text(text.replace("@HERE@", str(HERE)))
    build = tmp_path / "b"
    program, few = (OLD_CMAKE, 100) if LONG else ("cmake", 10)  # the oldest knows no groups of files: three times the compiler's time
    cmake(tmp_path, build, "-DQUIRE_DEBUG=-g1", "-DQUIRE_TOGETHER=ON", *([f"-DBUILD_SHARED_LIBS={shared}"] if shared else []), program=program)
    works(build / "outside")
    assert ("libquire.so.0.2" in libraries_of(build / "outside")) == (shared == "ON")
    assert len(list(build.rglob("libquire.so*"))) == (3 if shared == "ON" else 0)
    run(program, "--install", build, "--prefix", tmp_path / "p")
    assert [p.name for p in (tmp_path / "p").rglob("*") if p.is_file()] == ["outside"]
    assert not (build / "compile_commands.json").exists()
    flags = [line for line in (build / "build.ninja").read_text().splitlines() if "-Werror" in line]
    assert len(flags) > few
    for line in flags:  # the outer project's for its own code
        assert line.rindex("-Wno-error") > line.rindex("-Werror") if "-fvisibility=hidden" in line else "-Wno" not in line
    assert f"-isystem {source / 'include'}" in run("ninja", "-C", build, "-t", "commands", "outside") or way == "FetchContent"


@pytest.mark.by_turns
def test_an_installed_static_library_is_found_by_both_ways_and_needs_no_more_words(source, tmp_path):
    """Also one that was built where libraries are linked without the sections that nobody needs."""
    prefix = tmp_path / "p"
    options = ["-DBUILD_SHARED_LIBS=OFF", "-DCMAKE_POSITION_INDEPENDENT_CODE=OFF", "-DCMAKE_SHARED_LINKER_FLAGS=-Wl,--gc-sections -static-pie"]
    kind = [] if LONG else ["-DCMAKE_BUILD_TYPE=Release", *UNOPTIMISED]
    cmake(source, tmp_path / "b", *(kind or ["-DQUIRE_DEBUG=-g1"]), "-DQUIRE_TOGETHER=ON", *options, *LIBRARY_ALONE)
    run("cmake", "--install", tmp_path / "b", "--prefix", prefix)
    assert list(prefix.rglob("*.so*")) == []
    assert "-fPIC" not in (tmp_path / "b/build.ninja").read_text()
    user = tmp_path / "user"
    user.mkdir()
    text = PROJECT.replace("@TAKE@", "find_package(quire REQUIRED COMPONENTS quire static)\nfind_package(quire QUIET COMPONENTS malloc)\nmessage(STATUS \"malloc: ${quire_malloc_FOUND}.\")")
    (user / "CMakeLists.txt").write_text(text.replace("@HERE@", str(HERE)))
    assert "malloc: ." in cmake(user, user / "b", f"-DCMAKE_PREFIX_PATH={prefix}"), "a drop-in is a shared library, and there is none"
    works(user / "b/outside")
    path = {**os.environ, "PKG_CONFIG_PATH": str(next(prefix.rglob("quire.pc")).parent)}
    words = run("pkg-config", "--cflags", "--libs", "quire", env=path).split()
    run("gcc", *STRICT, "-no-pie", HERE / "outside.c", "-o", user / "outside", *words)
    works(user / "outside")


@pytest.mark.by_turns
@pytest.mark.parametrize("kind", ["static", "shared"][: 1 + LONG])
def test_a_meson_project_takes_it_by_a_wrap(source, tmp_path, kind):
    meson = [sys.executable, "-m", "mesonbuild.mesonmain"]  # the script names the folder that it was installed in
    archive = shutil.make_archive(str(tmp_path / "quire"), "gztar", source.parent, source.name)
    (tmp_path / "subprojects").mkdir()
    digest = hashlib.sha256(Path(archive).read_bytes()).hexdigest()
    (tmp_path / "subprojects/quire.wrap").write_text(
        f"[wrap-file]\ndirectory = quire\nsource_url = file://{archive}\nsource_filename = quire.tar.gz\nsource_hash = {digest}\n"
        "[provide]\ndependency_names = quire\n"
    )
    shutil.copy(HERE / "outside.c", tmp_path)
    (tmp_path / "meson.build").write_text(
        "project('outside', 'c')\nexecutable('outside', 'outside.c', dependencies: dependency('quire'))\n"
    )
    said = run(*meson, "setup", tmp_path / "b", tmp_path, "-Dbuildtype=plain", f"-Ddefault_library={kind}", "-Dunity=on", "-Dwerror=true", "-Dwarning_level=3")
    said += run("ninja", "-C", tmp_path / "b")
    link = run("ninja", "-C", tmp_path / "b", "-t", "commands", "outside").splitlines()[-1]
    assert ("-z,nodelete" in link) == (kind == "static")  # a plugin with a copy of its own needs it
    assert "warning:" not in said, said
    works(tmp_path / "b/outside")


def test_meson_and_cmake_say_the_same_version(root):
    said = [re.search(pattern, (root / name).read_text()).group(1) for name, pattern in
            (("CMakeLists.txt", r"VERSION ([\d.]+) DESCRIPTION"), ("meson.build", r"version: '([\d.]+)'"))]
    assert said[0] == said[1]


def test_meson_and_cmake_take_the_same_folders(root):
    """A static library lets a missing one pass as long as the program does not need it.  The order is that of the code."""
    cmake_says = re.search(r"^set\(layers (.*)\)", (root / "src/CMakeLists.txt").read_text(), re.MULTILINE).group(1).split()
    meson_says = re.findall(r"'(\w+)'", re.search(r"^layers = \[(.*)\]", (root / "meson.build").read_text(), re.MULTILINE).group(1))
    assert meson_says == cmake_says


@pytest.mark.parametrize("standard", ["c++11", "c++14", "c++17", "c++20"])
def test_the_c_headers_serve_cpp_from_11_on(root, tmp_path, standard):
    headers = sorted(p.relative_to(root / "include") for p in (root / "include").rglob("*.h"))
    file = tmp_path / "all.cpp"
    file.write_text("".join(f"#include <{h}>\n" for h in headers) + "int main() { return 0; }\n")
    run("g++", f"-std={standard}", *STRICT, "-fsyntax-only", "-I", root / "include", file)


@pytest.mark.parametrize("names", [["malloc", "free", "calloc", "realloc"], ["aligned", "visibility", "format", "printf", "always_inline"]], ids=lambda names: names[0])
def test_names_that_a_program_gives_another_meaning_do_not_reach_into_the_headers(root, tmp_path, names):
    """As gnulib's `#define malloc rpl_malloc` does."""
    headers = sorted(p.relative_to(root / "include") for p in (root / "include/quire").glob("*.h"))
    file = tmp_path / "all.c"
    system = "".join(f"#include <{name}>\n" for name in ("stdarg.h", "stdbool.h", "stddef.h", "stdint.h", "stdio.h", "stdlib.h", "string.h"))
    file.write_text(system + "".join(f"#define {name} another_{name}\n" for name in names) + "".join(f"#include <{h}>\n" for h in headers) + "int main(void) { return 0; }\n")
    run("gcc", "-std=c11", *STRICT, "-fsyntax-only", "-I", root / "include", file)


CPP_WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"]
CPP_COMPILERS = ["g++", "clang++", *(name.replace("gcc", "g++").replace("clang-", "clang++-") for name in COMPILERS)]


@pytest.mark.parametrize("standard", ["c++17", "c++20"] if LONG else [])  # check_headers.py looks at g++'s c++17
@pytest.mark.parametrize("compiler", [c for c in CPP_COMPILERS if shutil.which(c)])
def test_the_cpp_header_compiles_without_a_warning(root, tmp_path, compiler, standard):
    """With every class template made, and where nobody may throw."""
    file = tmp_path / "all.cpp"
    made = ["slab<int>", "percpu<long>", "arena_allocator<int>", "slab_allocator<int>", "heap_allocator<int>", "slab_element<64, quire::nodes>"]
    file.write_text("#include <quire/quire.hpp>\n" + "".join(f"template {'struct' if 'element' in m else 'class'} quire::{m};\n" for m in made))
    for flags in ([], ["-fno-exceptions", "-fno-rtti"]):
        run(compiler, f"-std={standard}", *CPP_WARNINGS, *flags, "-fsyntax-only", "-I", root / "include", file)


WITHOUT_MEMORY = """
#include <quire/quire.hpp>
#include <cstdio>
#include <sys/resource.h>
struct element : quire::slab_element<64, quire::nodes> { char bytes[64]; };
struct block : quire::heap_element { char bytes[64]; };
int main()
{
    rlimit limit = {64u << 20, 64u << 20};
    setrlimit(RLIMIT_AS, &limit);
    while (new (std::nothrow) block)
        continue;
    while (new (std::nothrow) element)
        continue;
    std::puts("null");
}
"""


@pytest.mark.by_turns
@pytest.mark.parametrize("flags", [[], ["-fno-exceptions"]], ids=["", "no exceptions"])
def test_a_new_that_does_not_throw_is_null_without_memory(root, tmp_path, flags):
    (tmp_path / "program.cc").write_text(WITHOUT_MEMORY)
    built = [root / "build/release/libquire.a", "-pthread"]
    run("g++", "-std=c++17", *flags, "-I", root / "include", tmp_path / "program.cc", *built, "-o", tmp_path / "program")
    assert run(tmp_path / "program") == "null\n"


@pytest.mark.skipif(not LONG, reason="QUIRE_TEST_LONG=1: the peers' templates take long")
def test_the_benchmark_of_containers_builds_and_says_a_figure_for_each(root, tmp_path):
    cmake(root, tmp_path, "-DCMAKE_BUILD_TYPE=Release", "-DQUIRE_BUILD_BENCH=ON", *LIBRARY_ALONE)
    run("cmake", "--build", tmp_path, "--target", "bench_containers")
    rows = json.loads(run(tmp_path / "bench/containers", "--json", "--rounds", 1))["rows"]
    assert {(row["table"], row["container"]) for row in rows if row["allocator"] == "quire" and row["ns"] > 0} == {
        (table, container) for table in ("request", "living") for container in ("map", "unordered_map", "list", "string")
    }


@pytest.mark.by_turns
def test_without_what_the_tools_need_it_is_the_library_alone(root, tmp_path):
    """No pkg-config, no C++ compiler: a line says what is left out, and the build goes on."""
    said = run("cmake", "-S", root, "-B", tmp_path, "-G", "Ninja", "-DPKG_CONFIG_EXECUTABLE=/nowhere/pkg-config")
    assert "the library alone" in said
    targets = run("cmake", "--build", tmp_path, "--target", "help")
    assert "quire_static" in targets and "quire-record" not in targets


@pytest.mark.by_turns
def test_warnings_are_errors_for_developers(root, tmp_path):
    subprocess.run(["cmake", "--preset", "release", "-B", tmp_path], cwd=root, check=True, capture_output=True)
    assert "-Werror" in (tmp_path / "build.ninja").read_text()
