# SPDX-License-Identifier: MIT
"""test_glibc_needed - scripts/glibc_needed.py: which glibc programs and libraries ask for."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "glibc_needed.py"
# gettid came with glibc 2.30, malloc with the first there was.
SOURCES = {"old": "#include <stdlib.h>\nint main(void) { return malloc(1) == 0; }\n", "new": "int gettid(void);\nint main(void) { return gettid() == 0; }\n"}


def needed(version, folder):
    return subprocess.run([sys.executable, str(SCRIPT), version, str(folder)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name, version, status", [("new", "2.28", 1), ("new", "2.34", 0), ("old", "2.1", 1), ("old", "2.34", 0)])
def test_a_program_that_asks_for_a_newer_glibc_fails_by_name(tmp_path, name, version, status):
    (tmp_path / "source.c").write_text(SOURCES[name])
    subprocess.run(["cc", "-w", "-o", tmp_path / name, tmp_path / "source.c"], check=True)
    done = needed(version, tmp_path)
    assert done.returncode == status, done.stdout
    assert f"1 files, {status} of them" in done.stdout and f"{name}: 2." in done.stdout


def test_what_is_no_program_is_passed_over_and_a_folder_without_any_is_no_success(tmp_path):
    (tmp_path / "notes.txt").write_text("no program")
    done = needed("2.28", tmp_path)
    assert done.returncode != 0 and "no programs or libraries" in done.stderr
