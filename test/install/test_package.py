# SPDX-License-Identifier: MIT
"""test_package - the tool as a Python package: in an environment of its own `pip install` gives a command that needs no checkout.

It builds the native helpers and fetches what the tool imports: QUIRE_TEST_LONG=1.
"""

import json
import os
import sys
import tomllib

import pytest
from test_builds import copy
from test_install import HERE, run

ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
from frontdoor import venv  # noqa: E402 - after the path

LONG = os.environ.get("QUIRE_TEST_LONG", "0") != "0"
PROGRAM = """
#include <stdlib.h>
int main(void)
{
    for (int i = 0; i < 2000000; i++) {
        char *volatile p = malloc((size_t)i % 200 + 1);
        p[0] = 1;
        free(p);
    }
    return 0;
}
"""


def test_the_package_asks_for_what_a_checkout_gives_the_tool():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert sorted(project["dependencies"]) == sorted(venv.TOOL.values())
    assert project["requires-python"] == ">=" + ".".join(map(str, venv.VERSION_MIN))


@pytest.mark.skipif(not LONG, reason="QUIRE_TEST_LONG=1: a whole build, and packages from an index")
def test_an_installed_package_checks_and_tries_programs(tmp_path):
    source = copy(ROOT, tmp_path / "source")
    pip = [tmp_path / "v/bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run(sys.executable, "-m", "venv", tmp_path / "v")
    run(*pip, "wheel", "--no-deps", "-w", tmp_path / "wheels", source)
    (wheel,) = (tmp_path / "wheels").iterdir()
    run(*pip, "install", wheel)
    assert not (source / "build").exists()
    source.rename(tmp_path / "gone")
    home = tmp_path / "home"
    home.mkdir()
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("QUIRE", "PYTHON"))} | {"PATH": "/usr/bin:/bin"}
    quire = tmp_path / "v/bin/quire"
    assert str(tmp_path / "v") in run(quire, "check", "--", "true", cwd=home, env=clean)
    (home / "tiny.c").write_text(PROGRAM)
    run("gcc", "-g", "-O1", home / "tiny.c", "-o", home / "tiny")
    said = json.loads(run(quire, "try", "--json", "--rounds", "5", "--", home / "tiny", cwd=home, env=clean))
    assert said["schema"] == "quire.try/1" and said["verdict"], said
    pages = list(home.glob("*.html"))
    assert len(pages) == 1 and "<svg" in pages[0].read_text()
    run(*pip, "install", "pipx")
    once = clean | {"HOME": str(home), "PIPX_HOME": str(tmp_path / "pipx")}
    said = run(tmp_path / "v/bin/pipx", "run", "--spec", wheel, "quire", "check", "--", "/bin/true", cwd=home, env=once)
    assert f"served by {tmp_path / 'pipx'}" in said
