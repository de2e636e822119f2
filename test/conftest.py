# SPDX-License-Identifier: MIT
"""conftest - for the runner of ./quire test: which test runs now, in the file that it names."""

import os
from pathlib import Path

NOW = os.environ.get("QUIRE_TEST_NOW")


def pytest_runtest_logstart(nodeid):
    if NOW:
        Path(NOW).write_text(nodeid, encoding="utf-8")


def pytest_unconfigure():
    if NOW:
        Path(NOW).unlink(missing_ok=True)
