#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""packages - makes packages, in a copy of the tree.

    packages.py recipes INTO    packaging's folders with @VERSION@, @ABI@ and dates filled in: INTO/debian, rpm, alpine, vcpkg, conan
    packages.py deb INTO        INTO/*.deb, their source package, by dpkg-buildpackage

CMakeLists.txt alone says which version this is and what the SONAME ends with: CMake is asked, and writes packaging/names into its build directory.
Files that git ignores are not copied.  Dates are those of the last commit (or SOURCE_DATE_EPOCH), so that the same source makes the same packages.

Exit: 0; 1 what was called failed; 3 something is missing here.
Not here: whether they work (test/install/test_packaged.py), what is in them (packaging/).
"""

import argparse
import email.utils
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEEDED = {"cmake": "cmake", "ninja": "ninja-build", "dpkg-buildpackage": "dpkg-dev", "dh": "debhelper", "scdoc": "scdoc"}


def files(root):
    """Names of all files of the source."""
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"], capture_output=True, text=True)
    if listed.returncode == 0:
        return sorted(name for name in set(listed.stdout.split("\0")) if name and (root / name).is_file())
    left_out = {"build", ".git", ".venv", "__pycache__"}
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and not left_out & set(path.relative_to(root).parts))


def copy(root, into):
    """The source, and nothing else."""
    for name in files(root):
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, into / name, follow_symlinks=False)


def moment(root):
    """Seconds since 1970 of the source."""
    if os.environ.get("SOURCE_DATE_EPOCH"):
        return int(os.environ["SOURCE_DATE_EPOCH"])
    said = subprocess.run(["git", "-C", root, "log", "-1", "--format=%ct"], capture_output=True, text=True)
    return int(said.stdout) if said.returncode == 0 and said.stdout.strip() else int(time.time())


def names(root):
    """{"VERSION", "ABI", "DATE", "RPMDATE"}: what recipes have filled in."""
    with tempfile.TemporaryDirectory(prefix="quire-names-") as build:
        command = ["cmake", "-G", "Ninja", "-S", root, "-B", build, "-DQUIRE_BUILD_TOOLS=OFF", "-DBUILD_SHARED_LIBS=ON"]
        subprocess.run(command, check=True, stdout=sys.stderr)
        lines = (Path(build) / "packaging" / "names").read_text(encoding="utf-8").splitlines()
    when = moment(root)
    dates = {"DATE": email.utils.formatdate(when), "RPMDATE": time.strftime("%a %b %d %Y", time.gmtime(when))}
    return {**{word.upper(): value for word, value in (line.split() for line in lines if not line.startswith("#"))}, **dates}


def recipes(root, into, known):
    """packaging's folders in `into`, filled in."""
    for name in files(root):
        path = Path(name)
        if path.parts[0] != "packaging" or len(path.parts) < 3:
            continue
        target = into / path.relative_to("packaging")
        target.parent.mkdir(parents=True, exist_ok=True)
        text = (root / name).read_text(encoding="utf-8")
        for word, value in known.items():
            text = text.replace(f"@{word}@", value)
        target.write_text(text, encoding="utf-8")
        target.chmod((root / name).stat().st_mode)
    for kind in ("install", "lintian-overrides", "symbols"):
        (into / "debian" / f"libquire.{kind}").rename(into / "debian" / f"libquire{known['ABI']}.{kind}")


def source(root, into, known):
    """INTO/quire-VERSION with debian/ in it, and the tar of what it is without."""
    tree = into / f"quire-{known['VERSION']}"
    copy(root, tree)
    when = moment(root)

    def plain(member):
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        member.mtime = when
        return member

    with tarfile.open(into / f"quire_{known['VERSION']}.orig.tar.xz", "w:xz", preset=1) as tar:
        tar.add(tree, tree.name, filter=plain)
    with tempfile.TemporaryDirectory(prefix="quire-recipes-") as folder:
        recipes(root, Path(folder), known)
        shutil.copytree(Path(folder) / "debian", tree / "debian")
    return tree


def deb(root, into, known):
    """Builds them; the .deb files."""
    tree = source(root, into, known)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(moment(root)), "DEB_BUILD_OPTIONS": os.environ.get("DEB_BUILD_OPTIONS", f"parallel={os.cpu_count()}")}
    subprocess.run(["dpkg-buildpackage", "--no-sign", "--jobs=auto"], cwd=tree, env=environment, check=True, stdout=sys.stderr)
    return sorted(into.glob("*.deb"))


def main():
    parser = argparse.ArgumentParser(description="makes packages, in a copy of the tree")
    parser.add_argument("what", choices=["recipes", "deb"])
    parser.add_argument("into", type=Path, help="a directory that is not there yet, or is empty")
    options = parser.parse_args()
    wanted = NEEDED if options.what == "deb" else {"cmake": "cmake", "ninja": "ninja-build"}
    missing = [package for command, package in wanted.items() if not shutil.which(command)]
    if missing:
        print(f"packages: missing here: apt-get install -y {' '.join(missing)}", file=sys.stderr)
        return 3
    if options.into.exists() and any(options.into.iterdir()):
        print(f"packages: {options.into} is not empty", file=sys.stderr)
        return 1
    into = options.into.resolve()
    into.mkdir(parents=True, exist_ok=True)
    try:
        known = names(ROOT)
        if options.what == "recipes":
            recipes(ROOT, into, known)
            print("\n".join(sorted(str(path) for path in into.iterdir())))
        else:
            print("\n".join(str(path) for path in deb(ROOT, into, known)))
    except subprocess.CalledProcessError as error:
        print(f"packages: {' '.join(map(str, error.cmd))}: exit {error.returncode}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
