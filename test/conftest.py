# SPDX-License-Identifier: MIT
"""conftest - for the runner of ./quire test: which test runs now, and which have failed, in the files that it names."""

import os
from pathlib import Path

NOW = os.environ.get("QUIRE_TEST_NOW")
FAILED = os.environ.get("QUIRE_TEST_FAILED")


def pytest_runtest_logstart(nodeid):
    if NOW:
        Path(NOW).write_text(nodeid, encoding="utf-8")


def pytest_runtest_logreport(report):
    if FAILED and report.failed:
        with open(FAILED, "a", encoding="utf-8") as file:
            file.write(report.nodeid + "\0")


def pytest_unconfigure():
    if NOW:
        Path(NOW).unlink(missing_ok=True)
