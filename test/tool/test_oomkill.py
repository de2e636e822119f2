# SPDX-License-Identifier: MIT
"""test_oomkill - a program that the kernel killed for want of memory is said to be one."""

import pytest
import toolkit  # noqa: F401  (makes the tool's modules importable)

import launch
import oomkill


@pytest.mark.parametrize(
    ("own", "file"),
    [
        ("0::/pod/c\n", "pod/c/memory.events"),
        ("0::/\n", "memory.events"),
        ("4:memory:/\n0::/\n", "unified/memory.events"),
        ("3:cpu,memory:/d\n", "memory/d/memory.oom_control"),
        ("3:memory:/docker/123\n", "memory/memory.oom_control"),
    ],
)
def test_a_kill_since_we_began_is_told_whatever_the_cgroups_version(monkeypatch, tmp_path, own, file):
    (tmp_path / "cgroup").write_text(own)
    monkeypatch.setattr(oomkill, "PROC", str(tmp_path / "cgroup"))
    monkeypatch.setattr(oomkill, "ROOT", str(tmp_path))
    assert oomkill.kills() == 0
    events = tmp_path / file
    events.parent.mkdir(parents=True, exist_ok=True)
    events.write_text("under_oom 0\noom_kill 2\n")
    monkeypatch.setattr(oomkill, "_before", None)
    assert launch.describe(-9) == "ended by SIGKILL"  # nothing was started: nobody knows since when
    oomkill.begin()
    assert oomkill.kills() == 2 and launch.describe(-9) == "ended by SIGKILL"
    events.write_text("under_oom 0\noom_kill 3\n")
    oomkill.begin()  # of the next program: the first one's end is told all the same
    assert launch.describe(-9) == "ended by SIGKILL" + oomkill.SAID and launch.describe(-15) == "ended by SIGTERM"


def test_where_nobody_tells_nothing_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(oomkill, "PROC", str(tmp_path / "none"))
    assert oomkill.kills() == 0 and launch.describe(-9).startswith("ended by SIGKILL")
