# SPDX-License-Identifier: MIT
"""test_packaged - what packaging/ holds is whole: recipes that their linters take; and, with QUIRE_TEST_LONG=1, .deb files that are built, installed in
a bare Debian and used there, by hand and by autopkgtest, and a Conan package.

Not here: what `cmake --install` does (test_install.py).
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_install import run

ROOT = Path(__file__).resolve().parents[2]
LONG = pytest.mark.skipif(os.environ.get("QUIRE_TEST_LONG", "0") == "0", reason="packages are built and a machine is made; QUIRE_TEST_LONG=1 has it")
TESTS = ROOT / "packaging" / "debian" / "tests"
sys.path.insert(0, str(ROOT / "scripts"))
import fresh_machine  # noqa: E402 - after the path
import packages  # noqa: E402


def needs(*commands):
    """Skips where one of them is missing."""
    return pytest.mark.skipif(not all(shutil.which(command) for command in commands), reason=f"needs {', '.join(commands)}")


@pytest.fixture(scope="module")
def recipes(tmp_path_factory):
    into = tmp_path_factory.mktemp("recipes")
    run(sys.executable, ROOT / "scripts/packages.py", "recipes", into)
    return into


@pytest.fixture(scope="module")
def known(prefix):
    """The version and the SONAME as the installed library has them."""
    library = next(prefix.rglob("libquire.so"))
    soname = re.search(r"SONAME.*\[libquire\.so\.(.*)\]", run("readelf", "-d", library)).group(1)
    return {"version": library.resolve().name.removeprefix("libquire.so."), "abi": soname}


@pytest.mark.by_turns
def test_versions_and_names_are_the_librarys_and_nothing_is_left_to_fill_in(recipes, known):
    left = [str(path) for path in recipes.rglob("*") if path.is_file() and re.search(r"@[A-Z]+@", path.read_text())]
    assert left == []
    control, changelog = ((recipes / "debian" / name).read_text() for name in ("control", "changelog"))
    assert f"\nPackage: libquire{known['abi']}\n" in control and changelog.startswith(f"quire ({known['version']}-1) ")
    assert (recipes / f"debian/libquire{known['abi']}.install").read_text() == "usr/lib/*/libquire.so.*\n"
    assert f"Version:        {known['version']}\n" in (recipes / "rpm/quire.spec").read_text()
    assert json.loads((recipes / "vcpkg/vcpkg.json").read_text())["version"] == known["version"]
    assert re.search(r"^pkgver=(.*)$", (recipes / "alpine/APKBUILD").read_text(), re.M).group(1) == known["version"]


@needs("dpkg-gensymbols")
def test_debians_list_of_symbols_is_what_the_library_has(recipes, prefix, known, tmp_path):
    """Who adds or loses one changes packaging/debian/libquire.symbols, with the release that it came with."""
    package = f"libquire{known['abi']}"
    (tmp_path / "debian").mkdir()
    shutil.copy(recipes / "debian/control", tmp_path / "debian")
    library = next(prefix.rglob("libquire.so")).resolve()
    command = ["dpkg-gensymbols", f"-p{package}", f"-I{recipes}/debian/{package}.symbols", "-c4", f"-v{known['version']}", f"-e{library}", "-Onothing"]
    run(*command, cwd=tmp_path)


def test_every_installed_file_is_in_one_debian_package_and_one_of_the_specs(recipes, prefix):
    patterns = [line for path in (recipes / "debian").glob("*.install") for line in path.read_text().split("\n") if line]
    spec = (recipes / "rpm/quire.spec").read_text()
    macros = {"libdir": "usr/lib/*", "includedir": "usr/include", "datadir": "usr/share", "bindir": "usr/bin", "libexecdir": "usr/libexec", "mandir": "usr/share/man", "docdir": "usr/share/doc"}
    listed = [re.sub(r"%\{_(\w+)\}", lambda m: macros[m[1]], line.split()[-1]).rstrip("/") for line in spec.split("\n%files", 1)[1].split("%changelog")[0].splitlines() if line.startswith("%{_") or line.startswith("%doc")]
    version = {"version": re.search(r"Version: *(\S+)", spec)[1], "abi": re.search(r"%global abi (\S+)", spec)[1]}
    listed = [re.sub(r"%\{(\w+)\}", lambda m: version[m[1]], pattern) for pattern in listed]
    left_out = {"usr/share/doc/quire/LICENSE", "usr/share/doc/quire/CHANGELOG.md"}
    library = next(prefix.rglob("libquire.so")).parent.relative_to(prefix)
    for path in prefix.rglob("*"):
        name = str(Path("usr") / path.relative_to(prefix))
        name = name.replace(f"usr/{library}/", "usr/lib/any/")
        if path.is_dir() or name in left_out or "/libexec/quire/bench" in name:  # packages are built without bench
            continue
        for kind, wanted in (("deb", patterns), ("rpm", listed)):
            owners = [pattern for pattern in wanted if owns(pattern, name)]
            assert len(owners) == 1, (kind, name, owners)


def owns(pattern, name):
    """Whether a file is meant by a pattern, or lies below a directory that is."""
    text = re.escape(pattern).replace(r"\*", "[^/]*")
    return re.fullmatch(f"{text}(/.*)?", name) is not None


@pytest.mark.parametrize("name, said", [("build-by-pkg-config", "arena works: "), ("build-by-cpp", "containers work: ")])
def test_programs_of_the_packages_tests_build_and_run_with_what_is_installed(prefix, known, tmp_path, name, said):
    library = next(prefix.rglob("libquire.so")).parent
    environment = {**os.environ, "PKG_CONFIG_PATH": str(library / "pkgconfig"), "LD_LIBRARY_PATH": str(library), "AUTOPKGTEST_TMP": str(tmp_path)}
    assert run(TESTS / name, env=environment) == 2 * f"{said}{known['version']}\n"


@needs("shellcheck")
def test_shell_in_recipes_passes_shellcheck(recipes):
    scripts = [path for path in (recipes / "debian/tests").iterdir() if os.access(path, os.X_OK)]
    assert len(scripts) == 5
    run("shellcheck", *scripts, recipes / "alpine/APKBUILD")


def test_the_apkbuild_is_shell_and_has_what_abuild_asks_for(recipes):
    run("sh", "-n", recipes / "alpine/APKBUILD")
    names = "pkgname pkgver pkgrel pkgdesc url arch license source"
    said = run("sh", "-c", f'. "$1"; for name in {names}; do eval "[ -n \\"\\${{name}}\\" ]" || echo "$name"; done; for name in build check package; do command -v $name; done', "sh", recipes / "alpine/APKBUILD")
    assert said.split() == ["build", "check", "package"]


# abuild's way with subpackages: in turn, each by the recipe's function of its name; -dev, which has none here, takes every *.so that is a link.
APK_SPLIT = r"""
. "$1" && cd "$2/pkg" || exit
amove() { for f in $@; do mkdir -p "$subpkgdir/${f%/*}" && mv "$f" "$subpkgdir/$f"; done; }
links() { for f in usr/lib/*.so; do [ -L "$f" ] && amove "$f"; done; }
for each in $subpackages; do
    subpkgdir=$2/$each
    case ${each#"$pkgname-"} in
        dev) links ;;
        *) command -v "${each#"$pkgname-"}" >/dev/null && "${each#"$pkgname-"}" ;;
    esac
done
find "$2" -name "*.so*" | sed "s,$2/,," | sort
"""


def test_alpines_drop_in_is_preloaded_by_its_name_without_the_development_package(recipes, tmp_path):
    (tmp_path / "pkg/usr/lib").mkdir(parents=True)
    for name in ("libquire.so", "libquire-malloc.so"):
        (tmp_path / f"pkg/usr/lib/{name}.0.2").touch()
        (tmp_path / f"pkg/usr/lib/{name}").symlink_to(f"{name}.0.2")
    said = run("sh", "-c", APK_SPLIT, "sh", recipes / "alpine/APKBUILD", tmp_path)
    assert said.split() == [f"{where}/usr/lib/{name}" for where, name in
                            (("pkg", "libquire.so.0.2"), ("quire-dev", "libquire.so"), ("quire-malloc", "libquire-malloc.so"), ("quire-malloc", "libquire-malloc.so.0.2"))]


# Threads, fork, and libc's own calls, over a preloaded malloc.
CHURN = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static void *work(void *arg) {
    char *p[1000];
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 1000; i++) { size_t bytes = (size_t)(i * 7 % 3000) + 1; p[i] = malloc(bytes); memset(p[i], i, bytes); }
        for (int i = 0; i < 1000; i++) { if (p[i][0] != (char)i) abort(); free(p[i]); }
    }
    return arg;
}
int main(void) {
    pthread_t t[4];
    for (int i = 0; i < 4; i++) pthread_create(&t[i], 0, work, 0);
    for (int i = 0; i < 4; i++) pthread_join(t[i], 0);
    char *word = strdup("x"), *large = realloc(malloc(10), 5000000), *page = aligned_alloc(4096, 8192);
    if (!large || (size_t)page % 4096) return 1;
    free(large); free(page); free(word);
    int status;
    if (fork() == 0) { work(0); _exit(0); }
    wait(&status);
    printf("done %d\n", status);
    return status;
}
"""


@LONG
@needs("musl-gcc")
def test_the_library_builds_with_musl_as_on_alpine_and_a_program_runs_with_it(tmp_path):
    """The kernel's headers are glibc's neighbours on Debian."""
    machine = os.uname().machine
    for name, place in (("linux", "linux"), ("asm-generic", "asm-generic"), ("asm", f"{machine}-linux-gnu/asm")):
        (tmp_path / "kernel").mkdir(exist_ok=True)
        (tmp_path / "kernel" / name).symlink_to(f"/usr/include/{place}")
    build = tmp_path / "build"
    environment = {**os.environ, "CC": "musl-gcc", "CFLAGS": f"-idirafter {tmp_path}/kernel"}
    run("cmake", "-S", ROOT, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=MinSizeRel", "-DQUIRE_BUILD_TOOLS=OFF", env=environment)
    assert "warning" not in run("cmake", "--build", build)
    program = [TESTS / "program.c", "-I", ROOT / "include"]
    run("musl-gcc", *program, "-static", build / "libquire.a", "-Wl,-z,nodelete", "-o", tmp_path / "static")
    run("musl-gcc", *program, f"-L{build}", "-lquire", f"-Wl,-rpath,{build}", "-o", tmp_path / "shared")
    assert "arena works" in run(tmp_path / "static") and "arena works" in run(tmp_path / "shared")
    (tmp_path / "churn.c").write_text(CHURN)
    run("musl-gcc", "-O1", "-fno-builtin", tmp_path / "churn.c", "-o", tmp_path / "churn")
    for conf in ("stats:exit", "check:100", "secure:1", f"prof:4096,prof_file:{tmp_path}/churn.heap"):
        environment = {**os.environ, "LD_PRELOAD": str(build / "libquire-malloc.so"), "QUIRE_CONF": conf}
        done = subprocess.run([tmp_path / "churn"], env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert (done.returncode, done.stdout) == (0, "done 0\n"), done.stderr
        assert "quire: heap: " in done.stderr or conf != "stats:exit"
    assert "heap profile" in (tmp_path / "churn.heap").read_text(errors="replace")


@needs("rpmspec")
def test_rpm_reads_the_spec(recipes):
    said = run("rpmspec", "-P", recipes / "rpm/quire.spec")
    assert "%{" not in said.split("%prep")[0]
    names = run("rpmspec", "-q", "--qf", "%{name}\n", recipes / "rpm/quire.spec").split()
    assert {"quire-libs", "quire-malloc", "quire-devel", "quire-tools"} <= set(names)


@needs("rpmlint")
def test_rpmlint_has_nothing_to_say(recipes):
    said = run("rpmlint", "-c", recipes / "rpm/rpmlint.toml", recipes / "rpm/quire.spec")
    assert "0 errors, 0 warnings" in said


# ---- Debian ----


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The .deb files, by their package's name."""
    into = tmp_path_factory.mktemp("packages") / "built"
    run(sys.executable, ROOT / "scripts/packages.py", "deb", into)
    return {path.name.split("_")[0]: path for path in into.glob("*.deb")}


@LONG
@needs(*packages.NEEDED)
def test_debian_packages_are_built_and_are_those_that_are_promised(built, known):
    assert set(built) >= {f"libquire{known['abi']}", "libquire-dev", "libquire-malloc", "quire-tools", f"libquire{known['abi']}-dbgsym", "libquire-malloc-dbgsym", "quire-tools-dbgsym"}


@LONG
@needs("lintian", *packages.NEEDED)
def test_lintian_has_nothing_to_say(built):
    (changes,) = next(iter(built.values())).parent.glob("*.changes")
    assert run("lintian", "--allow-root", "--fail-on", "error,warning", changes) == ""


@contextlib.contextmanager
def bare_debian(folder, include):
    """A bare Debian in a folder, where apt finds packages as it does here."""
    if os.geteuid() != 0:
        pytest.skip("a machine needs root")
    command = ["debootstrap", "--variant=minbase", f"--include={include}", fresh_machine.CODENAME, folder, *fresh_machine.package_source()]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"no machine can be made here: {done.stdout[-300:]}")
    for name in fresh_machine.COPIED:
        if os.path.exists(name):
            Path(f"{folder}{name}").parent.mkdir(parents=True, exist_ok=True)  # a minimal machine has no certificates
            shutil.copyfile(name, f"{folder}{name}")
    run("mount", "-t", "proc", "proc", folder / "proc")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder / "proc"], check=True)
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def machine(built, tmp_path_factory):
    """A bare Debian with the packages in it, installed by dpkg, and their tests in /tests."""
    include = "gcc,g++,libc6-dev,make,cmake,pkg-config,python3,libdw1,libunwind8"
    with bare_debian(tmp_path_factory.mktemp("debian") / "machine", include) as folder:
        for name, path in built.items():
            if not name.endswith("-dbgsym"):
                shutil.copy(path, folder / "tmp")
        shutil.copytree(TESTS, folder / "tests")
        run("chroot", folder, "sh", "-c", "dpkg -i /tmp/*.deb")
        yield folder


@LONG
@needs("debootstrap", *packages.NEEDED)
@pytest.mark.parametrize("name", ["build-by-pkg-config", "build-by-cmake", "build-by-cpp", "preload", "check"])
def test_the_packages_own_tests_pass_in_a_bare_debian(machine, name):
    environment = {"PATH": fresh_machine.PATH, "HOME": "/root", "LC_ALL": "C.UTF-8"}
    said = run("chroot", machine, f"/tests/{name}", env=environment)
    assert {"build-by-pkg-config": "arena works", "build-by-cmake": "quire: heap:", "build-by-cpp": "containers work", "preload": "quire: heap:", "check": "served"}[name] in said


@LONG
@needs("autopkgtest", "debootstrap", *packages.NEEDED)
def test_autopkgtest_installs_what_each_test_depends_on_and_runs_it(built, tmp_path):
    """Debian's own runner, in a bare Debian: nothing but what debian/tests/control asks for is there."""
    debs = [path for name, path in built.items() if not name.endswith("-dbgsym")]
    (tree,) = (path for path in debs[0].parent.iterdir() if path.is_dir())
    settings = [f"--env={name}={os.environ[name]}" for name in fresh_machine.SETTINGS if name in os.environ]
    with bare_debian(tmp_path / "machine", "ca-certificates") as folder:
        command = ["autopkgtest", "--no-built-binaries", "--apt-upgrade", *settings, *debs, f"{tree}/", f"--output-dir={tmp_path}/said", "--", "chroot", folder]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        said = (tmp_path / "said/summary").read_text()
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert re.findall(r"^(\S+) +PASS$", said, re.MULTILINE) == ["build-by-pkg-config", "build-by-cmake", "build-by-cpp", "preload", "check"], said


@LONG
@needs("cargo", "rustc", "debootstrap", *packages.NEEDED)
def test_rust_programs_build_and_run_with_the_packages(machine):
    """Their crates find the installed library by pkg-config. Debian 12's own Rust is too old for them, so this machine's is copied there."""
    crates, rust = machine / "crates", machine / "opt/rust"
    for name in ("quire-sys", "quire"):
        shutil.copytree(ROOT / "bindings/rust" / name, crates / name, ignore=shutil.ignore_patterns("vendor"))
    text = (ROOT / "bindings/rust/Cargo.toml").read_text()
    (crates / "Cargo.toml").write_text(re.sub(r"(?m)^members = .*$", 'members = ["quire-sys", "quire"]', text))
    (crates / ".cargo").mkdir()
    (crates / ".cargo/config.toml").write_text(run("cargo", "vendor", "vendored", cwd=crates))
    sysroot = Path(run("rustc", "--print", "sysroot").strip())
    for name in ("bin", "lib"):
        shutil.copytree(sysroot / name, rust / name, symlinks=True)
    environment = {"PATH": f"/opt/rust/bin:{fresh_machine.PATH}", "HOME": "/root", "LC_ALL": "C.UTF-8"}
    words = "cd /crates && cargo test --offline --tests -F quire-sys/pkg-config -F quire/pkg-config 2>&1"
    said = run("chroot", machine, "sh", "-c", words, env=environment)
    shutil.rmtree(rust)
    assert sum(int(n) for n in re.findall(r"test result: ok. (\d+) passed", said)) >= 25, said


@LONG
@needs("debootstrap", *packages.NEEDED)
def test_manual_pages_are_in_the_packages_and_removing_them_leaves_nothing(machine):
    listed = run("chroot", machine, "sh", "-c", "dpkg -L libquire-dev libquire-malloc quire-tools", env={"PATH": fresh_machine.PATH})
    for page in ("man1/quire-try.1.gz", "man3/quire-arena.3.gz", "man7/quire-conf.7.gz"):
        assert f"/usr/share/man/{page}" in listed
    names = [path.name.split("_")[0] for path in (machine / "tmp").glob("*.deb")]
    run("chroot", machine, "dpkg", "--purge", *names, env={"PATH": fresh_machine.PATH})
    assert [path for path in (machine / "usr").rglob("*quire*") if re.search(r"(^|[^a-z])(lib)?quire", path.name)] == []


# ---- Conan ----


@LONG
@pytest.mark.parametrize("shared", ["True", "False"])
def test_conan_makes_the_package_and_a_program_with_it(tmp_path_factory, tmp_path, shared):
    folder = tmp_path_factory.getbasetemp() / "conan-venv"
    if not folder.exists():
        run(sys.executable, "-m", "venv", folder)
        done = subprocess.run([folder / "bin/pip", "install", "-q", "conan"], capture_output=True, text=True)
        if done.returncode != 0:
            shutil.rmtree(folder)
            pytest.skip(f"conan cannot be had: {done.stderr[-200:]}")
    environment = {**os.environ, "CONAN_HOME": str(tmp_path / "home")}
    tree = tmp_path / "tree"
    packages.copy(ROOT, tree)
    run(folder / "bin/conan", "profile", "detect", env=environment)
    done = subprocess.run([folder / "bin/conan", "create", tree / "packaging/conan", "-o", f"quire/*:shared={shared}"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "arena works: " in done.stdout + done.stderr
