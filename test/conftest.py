# SPDX-License-Identifier: MIT
"""
conftest - what runs in the short form, and, for the runner of ./quire test, which test runs now, and which have failed, in the files that it names.

    @pytest.mark.long          seconds of CPU time for what other tests show in part: with QUIRE_TEST_LONG=1, or asked for by -k, only
    @pytest.mark.one_by_one    of the combinations of its parameters those alone, otherwise, in which at most one is not the first of its list
"""

import os
from pathlib import Path

import pytest

NOW = os.environ.get("QUIRE_TEST_NOW")
FAILED = os.environ.get("QUIRE_TEST_FAILED")
LONG = os.environ.get("QUIRE_TEST_LONG", "0") != "0"


def pytest_configure(config):
    config.addinivalue_line("markers", "long: not in the short form")
    config.addinivalue_line("markers", "one_by_one: not every combination in the short form")


def is_long(item):
    if item.get_closest_marker("long"):
        return True
    return bool(item.get_closest_marker("one_by_one")) and sum(index > 0 for index in item.callspec.indices.values()) > 1


def pytest_collection_modifyitems(config, items):
    if LONG or config.option.keyword:
        return
    for item in items:
        if is_long(item):
            item.add_marker(pytest.mark.skip(reason="QUIRE_TEST_LONG=1: the long form"))


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
