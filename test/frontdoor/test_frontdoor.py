# SPDX-License-Identifier: MIT
"""test_frontdoor - ./quire sets up what a command needs and nothing more, says what it lacks, and
then gets out of the way."""

import os
import resource
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from minihouse import NOBODY, House

IS_ROOT = os.geteuid() == 0
as_root_only = pytest.mark.skipif(not IS_ROOT, reason="only root can become somebody else")


@pytest.fixture
def house(tmp_path):
    return House(tmp_path)


@pytest.fixture
def public_house():
    """A house where everybody may enter, for runs as another user."""
    folder = Path(tempfile.mkdtemp(prefix="quire-house-"))
    made = House(folder, python="/usr/bin/python3")  # the one that anybody may run
    made.open_to_everybody()
    yield made
    shutil.rmtree(folder)


def apt_lines(house):
    return [line for line in house.calls() if line.startswith("apt-get install")]


def test_a_command_runs_the_tool_with_its_arguments_and_its_status(house):
    done = house.run("try", "--json", "--", "five")
    assert (done.returncode, done.stdout) == (5, "tool: try --json -- five\n")


def test_a_missing_package_that_may_not_be_installed_is_one_line_and_status_3(house):
    house.uninstall("cmake", "libdw-dev")
    done = house.run("try", QUIRE_NO_INSTALL="1")
    assert (done.returncode, done.stdout) == (3, "")
    assert (
        done.stderr.splitlines()[-1] == "apt-get install -y --no-install-recommends cmake libdw-dev"
    )
    assert apt_lines(house) == []


@as_root_only
def test_somebody_without_root_and_sudo_gets_the_line_and_status_3(public_house):
    public_house.uninstall("gcc")
    public_house.flag("no-sudo")
    done = public_house.run("try", user=NOBODY)
    assert done.returncode == 3, done.stderr
    assert done.stderr.splitlines()[-1] == "apt-get install -y --no-install-recommends gcc"
    assert apt_lines(public_house) == []


@as_root_only
def test_somebody_with_sudo_installs_through_it(public_house):
    public_house.uninstall("gcc")
    done = public_house.run("try", user=NOBODY)
    assert (done.returncode, done.stdout) == (0, "tool: try\n"), done.stderr
    assert any(
        line.startswith("sudo -n env DEBIAN_FRONTEND=noninteractive apt-get install -y")
        for line in public_house.calls()
    )


@as_root_only
def test_root_installs_what_is_missing_by_name_and_nothing_else(house):
    house.uninstall("cmake", "libjemalloc2")
    done = house.run("try")
    assert (done.returncode, done.stdout) == (0, "tool: try\n"), done.stderr
    assert len(apt_lines(house)) == 1
    assert apt_lines(house)[0].startswith("apt-get install -y ")
    assert apt_lines(house)[0].endswith(" --no-install-recommends cmake libjemalloc2")


@as_root_only
def test_when_installing_fails_the_reason_and_the_line_are_shown(house):
    house.uninstall("cmake")
    house.flag("no-network")
    done = house.run("try")
    assert done.returncode == 3
    assert "Unable to fetch some archives" in done.stderr
    assert done.stderr.splitlines()[-1] == "apt-get install -y --no-install-recommends cmake"
    assert any(line.startswith("apt-get update") for line in house.calls())


@as_root_only
def test_a_peer_that_cannot_be_had_does_not_stop_the_command(house):
    house.uninstall("libjemalloc2")
    house.flag("no-network")
    assert house.run("try").stdout == "tool: try\n"


def test_a_missing_peer_that_may_not_be_installed_is_said_and_the_command_goes_on(house):
    house.uninstall("libjemalloc2")
    done = house.run("try", QUIRE_NO_INSTALL="1")
    assert (done.returncode, done.stdout) == (0, "tool: try\n")
    assert "going on without libjemalloc2" in done.stderr


@pytest.mark.parametrize(
    "arguments", [[], ["env"], ["check", "--help"], ["--help"], ["try", "--help"], ["tyr"]]
)
def test_what_needs_no_set_up_gets_none(house, arguments):
    house.uninstall("cmake", "gcc")
    shutil.rmtree(house.root / ".venv")
    done = house.run(*arguments, QUIRE_NO_INSTALL="1")
    assert (done.returncode, done.stdout) == (0, " ".join(["tool:", *arguments]) + "\n")
    assert done.stderr == ""
    assert house.calls() == []
    assert not (house.root / "build").exists()


def test_the_help_of_the_traced_program_is_not_the_help_of_try(house):
    assert house.run("try", "--", "jq", "--help").returncode == 0
    assert (house.root / "build" / "release" / "made").exists()


def cpu_seconds(run):
    """What the machine spent on a run, whatever else it did meanwhile; the finished process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = run()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done


def test_the_second_run_takes_under_a_second_and_fetches_nothing(house):
    """A second where Python itself starts in 10 ms: of the machine, of which others may have a part."""
    house.be_quiet()
    house.run("try")
    house.flag("no-network")
    bare = ["/usr/bin/python3", "-S", "-c", "pass"]
    bare_s, best_s = (
        min(cpu_seconds(run)[0] for _ in range(3))
        for run in (lambda: subprocess.run(bare, check=True), lambda: house.run("try"))
    )
    assert best_s < 100 * max(0.010, bare_s)
    seconds, done = cpu_seconds(lambda: house.run("try"))
    assert (done.returncode, done.stderr) == (0, "")
    assert house.calls() == ["dpkg-query"] * 5


def test_a_changed_source_is_built_again(house):
    house.run("try")
    made = house.root / "build" / "release" / "made"
    before = made.stat().st_mtime_ns
    (house.root / "input").write_text("changed")
    os.utime(house.root / "input", ns=(before + 10**7, before + 10**7))
    house.run("try")
    assert made.stat().st_mtime_ns > before


def test_a_checkout_that_was_moved_builds_again_in_its_new_place(house):
    house.run("try")
    house.root = house.root.rename(house.root.parent / "elsewhere")
    done = house.run("try")
    assert (done.returncode, done.stdout) == (0, "tool: try\n"), done.stderr


def test_a_build_that_fails_shows_why_and_where_the_log_is(house):
    house.write(
        "CMakeLists.txt",
        (house.root / "CMakeLists.txt")
        .read_text()
        .replace("COMMAND cmake -E touch made", "COMMAND cmake -E cat absent"),
    )
    done = house.run("try")
    assert (done.returncode, done.stdout) == (1, "")
    assert "absent" in done.stderr
    assert "the whole log is build/log/build-release.txt" in done.stderr


@as_root_only
def test_a_checkout_that_may_not_be_written_to_is_said_with_status_3(public_house):
    public_house.root.chmod(0o755)
    done = public_house.run("try", user=NOBODY)
    assert done.returncode == 3
    assert "use a checkout that you may write to" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unfinished_venv_is_made_again(house, monkeypatch):
    from frontdoor import say, venv

    (house.root / ".venv" / "bin" / "python").unlink()
    commands = []
    monkeypatch.setattr(
        say,
        "run",
        lambda command, title, log: commands.append([str(word) for word in command]) or 0,
    )
    venv.ensure(house.root, venv.TEST)
    assert commands[0][1:4] == ["-m", "venv", "--clear"]


def test_only_the_package_that_is_missing_is_fetched_into_the_venv(house, monkeypatch):
    from frontdoor import say, venv

    shutil.rmtree(
        house.root / ".venv" / "lib" / "python3.11" / "site-packages" / "rich-1.0.dist-info"
    )
    commands = []
    monkeypatch.setattr(say, "run", lambda command, title, log: commands.append(command) or 0)
    venv.ensure(house.root, {"rich": "rich>=13", **venv.TEST})
    assert [command[-1] for command in commands] == ["rich>=13"]


def unpack(house, name):
    shutil.rmtree(next((house.root / ".venv").glob(f"lib/python3*/site-packages/{name}-*")))


def test_try_goes_on_without_its_pictures(house):
    unpack(house, "matplotlib")
    done = house.run("try", "jq", QUIRE_NO_INSTALL="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "tool: try jq\n"
    assert "so without pictures" in done.stderr


def test_report_is_nothing_without_its_packages_and_says_how_to_get_them(house):
    unpack(house, "jinja2")
    done = house.run("report", "jq.qtr", QUIRE_NO_INSTALL="1")
    assert done.returncode == 3
    assert ".venv/bin/pip install 'jinja2>=3.1,<4'" in done.stderr
    assert done.stdout == ""


def test_run_and_record_ask_for_no_python_package(house):
    unpack(house, "rich")
    for command in ("run", "record", "advise"):
        done = house.run(command, QUIRE_NO_INSTALL="1")
        assert done.returncode == 0 and "rich" not in done.stderr


def test_without_a_python_that_makes_environments_debians_is_asked_for(house, monkeypatch):
    from frontdoor import venv

    shutil.rmtree(house.root / ".venv")
    monkeypatch.setattr(venv, "_CAN_MAKE_ONE", "raise SystemExit(1)")
    assert venv.packages_missing(house.root, venv.TEST) == ["python3-venv"]
    assert venv.packages_missing(house.root, {}) == []


def test_a_python_that_is_too_old_is_refused_with_the_way_out(house, monkeypatch):
    from frontdoor import say, venv

    unpack(house, "rich")
    monkeypatch.setattr(venv, "VERSION_MIN", (99, 0))
    with pytest.raises(say.Stopped) as stopped:
        venv.tool_python(house.root)
    assert "needs Python 99.0 or later" in str(stopped.value)


def test_two_front_doors_take_turns(house):
    from frontdoor import build

    with build.lock(house.root), pytest.raises(subprocess.TimeoutExpired):
        house.run("try", timeout=1, QUIRE_LOCK_HELD="")
    assert house.run("try").returncode == 0


def test_a_front_door_that_a_test_run_started_does_not_wait_for_it(house):
    house.write(
        "test/tool/test_a.py",
        "import subprocess\n\n\ndef test_a():\n    assert subprocess.run(['./quire', 'try'],"
        " timeout=200).returncode == 0\n",
    )
    done = house.run("test", "tool")
    assert done.returncode == 0, done.stdout


def test_the_cross_compiler_is_left_out_where_apt_would_remove_a_package_for_it(house, monkeypatch):
    from frontdoor import needs

    monkeypatch.setenv("PATH", f"{house.bin}:/usr/bin:/bin")
    monkeypatch.setenv("HOUSE", str(house.state))
    monkeypatch.delenv("QUIRE_TEST_LONG", raising=False)
    monkeypatch.setattr(needs.platform, "machine", lambda: "x86_64")
    assert needs.optional_for_tests() == needs.PEERS + needs.PROGRAMS + needs.ABI + needs.CROSS
    monkeypatch.setenv("QUIRE_TEST_LONG", "1")
    assert needs.optional_for_tests() == [*needs.PEERS, *needs.PROGRAMS, *needs.ABI, *needs.CROSS, *needs.CROSS_LONG, *needs.LONG]
    monkeypatch.delenv("QUIRE_TEST_LONG")
    with open(house.state / "installed", "a") as installed:
        installed.write("gcc-multilib\n")
    assert needs.optional_for_tests() == needs.PEERS + needs.PROGRAMS + needs.ABI
    monkeypatch.setattr(needs.platform, "machine", lambda: "aarch64")
    assert needs.optional_for_tests() == needs.PEERS + needs.PROGRAMS + needs.ABI
    monkeypatch.setenv("QUIRE_TEST_LONG", "1")
    assert needs.optional_for_tests() == [*needs.PEERS, *needs.PROGRAMS, *needs.ABI, *needs.LONG]


@as_root_only
def test_an_environment_that_leads_into_somebody_elses_home_counts_as_none(public_house, tmp_path):
    python = public_house.root / ".venv" / "bin" / "python"
    python.unlink()
    tmp_path.chmod(0o700)
    python.symlink_to(tmp_path / "python3")
    done = public_house.run("env", user=NOBODY)
    assert (done.returncode, done.stdout, done.stderr) == (0, "tool: env\n", "")


@pytest.mark.parametrize("words", [["try"], ["try", "five"]])
@pytest.mark.parametrize("stderr", ["2>&-", "2>/dev/full", "0<&- 2>&-"])
def test_a_status_does_not_change_when_stderr_cannot_be_written(house, words, stderr):
    command = " ".join(map(str, house.command(*words)))
    done = subprocess.run(
        f"{command} {stderr}", shell=True, stdout=subprocess.PIPE, text=True, env=house.environment()
    )
    assert (done.returncode, done.stdout) == (5 if "five" in words else 0, f"tool: {' '.join(words)}\n")


def test_something_missing_is_status_3_also_when_it_cannot_be_said(house):
    house.uninstall("cmake")
    command = " ".join(map(str, house.command("try")))
    done = subprocess.run(f"{command} 2>/dev/full", shell=True, env=house.environment(QUIRE_NO_INSTALL="1"))
    assert done.returncode == 3


@pytest.mark.parametrize("before", ["from pathlib import ", "from frontdoor import ("])
def test_an_interrupt_before_there_is_anybody_to_catch_it_is_no_traceback(house, before):
    text = (house.root / "quire").read_text()
    early = text.replace(before, f"os.kill(os.getpid(), signal.SIGINT)\n{before}", 1)
    assert early != text
    (house.root / "quire").write_text(early)
    was = signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell started behind itself ignores it, and so would the child
    try:
        done = house.run("try")
    finally:
        signal.signal(signal.SIGINT, was)
    assert done.returncode == -2 and done.stderr == ""
