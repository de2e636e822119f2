# SPDX-License-Identifier: MIT
"""
conftest - what runs in the short form, and, for the runner of ./quire test, which test runs now, and which have failed, in the files that it names.

    @pytest.mark.long          seconds of CPU time for what other tests show in part: with QUIRE_TEST_LONG=1, or asked for by -k, only
    @pytest.mark.by_turns      most of a second of CPU time or more: in every fourth run of ./quire test, which says whose turn it is (QUIRE_TEST_TURN); always otherwise
    @pytest.mark.by_turns(NAME) the same; those of one name in the same run, since they share what is dear
    @pytest.mark.one_by_one    of the combinations of its parameters those alone, otherwise, in which at most one is not the first of its list
"""

import os
import zlib
from pathlib import Path

import pytest

NOW = os.environ.get("QUIRE_TEST_NOW")
FAILED = os.environ.get("QUIRE_TEST_FAILED")
TURN = os.environ.get("QUIRE_TEST_TURN")
LONG = os.environ.get("QUIRE_TEST_LONG", "0") != "0"


def pytest_configure(config):
    config.addinivalue_line("markers", "long: not in the short form")
    config.addinivalue_line("markers", "by_turns: in every fourth run")
    config.addinivalue_line("markers", "one_by_one: not every combination in the short form")


def is_long(item):
    if item.get_closest_marker("long"):
        return True
    return bool(item.get_closest_marker("one_by_one")) and sum(index > 0 for index in item.callspec.indices.values()) > 1


def turn_of(item):
    """Of a hash of its name, so that a new test moves no other; None: every run's."""
    mark = item.get_closest_marker("by_turns")
    return (zlib.crc32((mark.args or [item.nodeid])[0].encode()) >> 4) % 4 if mark else None


def pytest_collection_modifyitems(config, items):
    if LONG or config.option.keyword:
        return
    for item in items:
        if is_long(item):
            item.add_marker(pytest.mark.skip(reason="QUIRE_TEST_LONG=1: the long form"))
        elif TURN and turn_of(item) not in (None, int(TURN) % 4):
            item.add_marker(pytest.mark.skip(reason=f"QUIRE_TEST_TURN={turn_of(item)}: another run's"))


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
