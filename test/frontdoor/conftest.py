# SPDX-License-Identifier: MIT
"""conftest - what the tests of the house share: the root of the checkout, and small trees to break
rules in."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))


@pytest.fixture
def root():
    return ROOT


@pytest.fixture
def tree(tmp_path):
    """tree({"src/os/os.c": "text", ...}) writes a small source tree and returns its root."""

    def write(texts):
        for name, text in texts.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return tmp_path

    return write
