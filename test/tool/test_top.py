# SPDX-License-Identifier: MIT
"""test_top - quire top: what a process shows of itself is right, is its user's alone, and goes when it goes."""

import glob
import json
import os
import pathlib
import re
import resource
import signal
import stat
import subprocess
import sys
import tempfile
import time
import types

import live_kit
import pytest
import toolkit
from live_kit import Shown, page_of, wait_until
from toolkit import quire

import live.page as live_page
import live.view as live_view

SAMPLE = re.compile(r'^quire_[a-z_]+(\{([a-z_]+="(\\.|[^"\\])*",?)*\})? \d+$')
PRELOAD = str(toolkit.BUILD / "libquire-malloc.so")
PYTHON = [sys.executable, "-c"]
WAIT = "import sys; print('ready', flush=True); sys.stdin.readline()"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if not (toolkit.BUILD / "libquire.so").exists():
        pytest.skip("libquire.so is not built")
    return tmp_path_factory.mktemp("top")


@pytest.fixture(scope="module")
def program(folder):
    return live_kit.build(folder)


@pytest.fixture(scope="module")
def shown(program):
    with Shown([program]) as process:
        yield process.ready()


def preloaded(code, conf="top:20ms", **options):
    """A Python program on Quire's malloc."""
    return Shown([*PYTHON, code], conf, environment={"LD_PRELOAD": PRELOAD}, **options)


def top_json(folder, *words):
    done = quire(folder, "top", "--json", *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# ---- the page ----


def test_the_page_is_its_users_alone(shown):
    page = wait_until(shown.page)
    assert stat.S_IMODE(os.stat(page.path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(page.path)).st_mode) == 0o700
    assert os.stat(page.path).st_uid == os.geteuid()


def test_whoever_reads_the_page_while_it_is_written_has_a_whole_one(program):
    with Shown([program], "top:10ms") as process:
        process.ready()
        path, moments = wait_until(process.page).path, set()

        def many_reads():
            for _ in range(500):
                with open(path, encoding="utf-8") as file:
                    moments.add(json.load(file)["written_ns"])
            return len(moments) > 9

        wait_until(many_reads)


def test_every_object_is_there_with_sums_that_add_up(folder, shown):
    document = top_json(folder, shown.pid)
    assert document["schema"] == "quire.top/1"
    (process,) = document["processes"]
    stats = process["stats"]
    assert (process["process"], process["program"]) == (shown.pid, shown.process.args[0])
    names = {kind: [o["name"] for o in stats[kind]] for kind in ("arenas", "slabs", "percpu", "heaps")}
    assert names["arenas"] == ["[red]query[/red] \x1b[31m"]
    assert (names["slabs"], names["percpu"], names["heaps"]) == (["nodes"], ["counters"], ["strings", "default"])
    for kind in ("arenas", "slabs", "percpu", "heaps"):
        for o in stats[kind]:
            assert o["mapped_bytes"] == o["live_bytes"] + sum(o.get(part, 0) for part in ("free_bytes", "meta_bytes", "rest_bytes")), o
    assert stats["arenas"][0]["live_bytes"] == 1008 + 9008
    assert stats["slabs"][0]["live_elements"] == 2000
    assert stats["heaps"][0]["live_blocks"] == 4001


def test_names_can_do_nothing_to_a_terminal_or_to_markup(folder, shown):
    done = quire(folder, "top", shown.pid, "--once")
    assert done.returncode == 0 and "\x1b" not in done.stdout
    assert "[red]query[/red] ?[31m" in done.stdout


def test_prometheus_text_is_what_the_library_writes_and_says_the_same_as_json(folder, shown):
    done = quire(folder, "top", shown.pid, "--prom")
    assert done.returncode == 0, done.stderr
    values = {}
    for line in done.stdout.splitlines():
        if not line.startswith("# "):
            assert SAMPLE.match(line), line
            key, _, value = line.rpartition(" ")
            assert key not in values
            values[key] = int(value)
        else:
            assert re.match(r"# (HELP|TYPE) quire_[a-z_]+ .+", line)
    stats = top_json(folder, shown.pid)["processes"][0]["stats"]
    slab = stats["slabs"][0]
    assert values['quire_slab_bytes{name="nodes",id="1",state="live"}'] == slab["live_bytes"]
    assert values['quire_slab_live_elements{name="nodes",id="1"}'] == slab["live_elements"]
    assert any(k.startswith('quire_arena_bytes{name="[red]query[/red] ?[31m"') for k in values)


def test_the_list_has_the_process_and_a_name_finds_it(folder, shown):
    assert str(shown.pid) in quire(folder, "top").stdout
    assert shown.pid in [p["process"] for p in top_json(folder)["processes"]]
    assert f"{live_kit.NAME}[{shown.pid}]" in quire(folder, "top", live_kit.NAME, "--once").stdout


@pytest.mark.parametrize("title", ["", " *:6379"])
def test_a_program_that_was_started_by_a_link_is_found_by_its_name(folder, program, title):
    link = folder / f"linked-{os.getpid()}-{len(title)}"
    link.symlink_to(program)
    with Shown([f"{link}{title}"], executable=link) as shown:  # redis-server gives itself such a title
        shown.ready()
        for name in (link.name, shown.pid):
            assert f"[{shown.pid}]" in quire(folder, "top", name, "--once").stdout, name


def test_rates_are_of_what_changed_between_two_pages(shown):
    page = wait_until(shown.page)
    later = live_page.Page(page.path, json.loads(json.dumps(page.document)), 0)
    later.document["written_ns"] += 2 * 10**9
    later.stats["slabs"][0]["live_elements"] += 100
    later.stats["slabs"][0]["mapped_bytes"] += 8192
    row = next(r for r in live_view.rows(later, page) if r.kind == "slabs")
    assert (row.count_per_s, row.held_per_s) == (50, 4096)
    assert all(r.count_per_s is None for r in live_view.rows(later))


# ---- off, and what must not be ----


@pytest.mark.parametrize("conf", [None, "", "top:0", "limit:2G", "top:20ms"])
def test_only_with_top_there_is_a_page_and_a_thread(folder, conf):
    load = f"import ctypes; ctypes.CDLL({str(toolkit.BUILD / 'libquire.so')!r})\n"
    on = conf == "top:20ms"
    with Shown([*PYTHON, load + WAIT], conf, page=on) as process:
        process.ready()
        assert len(os.listdir(f"/proc/{process.pid}/task")) == 1 + on
        assert (page_of(process.pid) is not None) == on
        assert process.end() == 0


def test_without_top_no_system_call_is_about_it(folder, program):
    strace = subprocess.run(["sh", "-c", "command -v strace"], capture_output=True, text=True).stdout.strip()
    if not strace:
        pytest.skip("strace is not installed")
    traces = {}
    for conf in ("limit:2G", "top:20ms"):
        log = folder / f"strace-{conf[:3]}"
        with Shown([strace, "-f", "-o", log, program], conf, page=False) as process:
            process.ready()
            (traced,) = live_kit.children_of(process.pid)
            if conf == "top:20ms":
                wait_until(lambda: page_of(traced))  # noqa: B023 - called here only
            assert process.end() == 0
        traces[conf] = log.read_text()
    assert "/quire." in traces["top:20ms"]
    assert not re.search(r"/quire\.|/dev/shm|mkdir|rename|/proc/self/(stat|exe)", traces["limit:2G"])


def test_a_mistake_in_top_is_one_line_and_the_program_runs_on(program):
    with Shown([program], "top:soon", page=False, stderr=subprocess.PIPE) as process:
        process.ready()
        assert process.end() == 0
        assert process.process.stderr.read().count("\n") == 1


def test_the_drop_in_complains_of_a_mistake_as_of_others():
    with preloaded(WAIT, "top:soon", page=False, stderr=subprocess.PIPE) as process:
        process.ready()
        assert process.end() == 0
        assert 'quire: QUIRE_CONF: top cannot be "soon"; write top:0|1|TIME, such as 100ms' in process.process.stderr.read()


def test_a_program_with_more_rights_than_its_user_shows_nothing(program):
    if os.geteuid() != 0:
        pytest.skip("only root can make one")
    with tempfile.TemporaryDirectory(dir="/tmp") as open_folder:
        os.chmod(open_folder, 0o755)
        private = live_kit.build_static(pathlib.Path(open_folder))
        os.chmod(private, 0o4755)
        with Shown([private], page=False, user=65534, group=65534) as process:
            process.ready()
            if os.stat(f"/proc/{process.pid}").st_uid != 0:
                pytest.skip("programs in /tmp may not be setuid here")
            time.sleep(0.15)
            assert page_of(process.pid) is None and len(os.listdir(f"/proc/{process.pid}/task")) <= 2


# ---- ends, forks, other programs ----


def test_the_page_goes_when_the_program_ends(program):
    with Shown([program]) as process:
        process.ready()
        path = wait_until(process.page).path
        assert process.end() == 0
        assert not os.path.exists(path)


def test_what_a_killed_process_leaves_is_not_listed_and_goes(folder, program):
    with Shown([program]) as process:
        process.ready()
        path = wait_until(process.page).path
        process.kill()
        assert process.pid not in [p["process"] for p in top_json(folder)["processes"]]

        def goes():
            quire(folder, "top")
            return not os.path.exists(path)

        wait_until(goes)  # not before it is older than three intervals


def test_an_answer_that_nobody_took_goes_when_its_process_has(folder, program):
    with Shown([program]) as process:
        process.ready()
        path = wait_until(process.page).sibling("0abc")
        live_page.put_question(process.page(), "stats", "0abc")
        wait_until(lambda: os.path.exists(path))
        quire(folder, "top")
        assert os.path.exists(path)
        assert process.end() == 0
    quire(folder, "top")
    assert not os.path.exists(path)


@pytest.mark.parametrize("question", ["", "map", "map ../x", "map json", "map ask", "map new", "stats " + "a" * 99, "MAP 1", "\0", "what 1f"])
def test_a_question_that_is_none_is_not_answered(program, question):
    with Shown([program], "top:10ms") as process:
        process.ready()
        page = wait_until(process.page)
        draft = page.sibling("ask-draft")
        pathlib.Path(draft).write_text(question, encoding="ascii")
        os.rename(draft, page.sibling("ask"))
        wait_until(lambda: not os.path.exists(page.sibling("ask")))
        before = process.page().written_s
        wait_until(lambda: process.page().written_s > before)
        folder = os.path.dirname(page.path)
        names = {f.partition(".")[2] for f in os.listdir(folder) if f.startswith(f"{process.pid}.")}
        assert names <= {"json", "new"}
        assert process.end() == 0


def test_a_number_that_is_used_again_is_not_taken_for_the_process(shown):
    page = wait_until(shown.page)
    other = live_page.Page(page.path, {**page.document, "started_ticks": page.started_ticks + 1}, 0)
    assert live_page.is_alive(page) and not live_page.is_alive(other)


def test_the_child_of_a_fork_has_a_page_of_its_own_and_the_parent_keeps_its():
    code = "import os, sys\nchild = os.fork()\nif not child: sys.stdin.readline(); os._exit(0)\nprint(child, flush=True)\n" + WAIT
    with preloaded(code) as process:
        process.ready()
        child = int(process.said[0][0])
        page = wait_until(lambda: page_of(child))
        assert page.stats["process"] == child
        assert wait_until(process.page).stats["process"] == process.pid
        assert process.end() == 0


def test_a_daemon_shows_itself_when_its_parent_has_ended():
    code = "import os, sys, time\nif os.fork(): os._exit(0)\nos.setsid(); print(os.getpid(), flush=True); time.sleep(60)"
    with preloaded(code, page=False) as process:
        child = int(process.process.stdout.readline())
        try:
            wait_until(lambda: page_of(child))
        finally:
            os.kill(child, signal.SIGKILL)


def test_programs_that_are_started_by_one_that_shows_itself_run(folder):
    code = "import subprocess; print(sum(subprocess.call(['sh', '-c', 'ls / | wc -l >/dev/null']) for _ in range(5)), flush=True)\n" + WAIT
    with preloaded(code) as process:
        process.ready()
        assert process.said == [["0"]]
        assert process.end() == 0


def test_a_program_may_close_every_descriptor():
    with preloaded("import os; print('ready', flush=True); os.closerange(0, 4096)\nwhile True: __import__('time').sleep(1)") as process:
        process.ready()
        before = wait_until(process.page).written_s
        wait_until(lambda: process.page().written_s > before)
        assert process.process.poll() is None


def test_a_program_may_have_another_user_or_another_root_by_now(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can change its user")
    with preloaded("import os, sys; sys.stdin.readline(); os.setuid(65534)\n" + WAIT) as process:
        process.tell("it may leave: it has a page")
        process.ready()
        wait_until(lambda: (page := process.page()) and page.path.endswith(f"quire.65534/{process.pid}.json"))
        assert process.end() == 0
    leave = f"import os, sys; sys.stdin.readline(); os.chroot({str(tmp_path)!r}); os.chdir('/')\n"
    with preloaded(leave + WAIT, stderr=subprocess.PIPE) as process:
        process.tell("it may leave: it has a page")
        said = process.complaint()
        assert process.end() == 0
        said += process.process.stderr.read()
        assert said.count("quire: top: this process cannot show itself") == 1


def test_a_program_without_descriptors_shows_itself_again_when_it_has_some():
    none, as_before = (f"sys.stdin.readline(); resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, hard))\n" for soft in ("3", "soft"))
    begin = "import resource, sys; soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
    with preloaded(begin + none + as_before + WAIT, stderr=subprocess.PIPE) as process:
        process.tell("it has a page: none any more")
        said = process.complaint()
        assert "in /dev/shm/quire." in said and "Too many open files" in said and "raise ulimit -n" in said and "TMPDIR" not in said
        process.tell("some again")
        path = process.ready().page().path
        assert process.end() == 0 and not os.path.exists(path)


def test_no_room_for_the_page_is_one_line_and_the_program_runs_on(program):
    small = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))  # noqa: E731
    with Shown([program], page=False, preexec_fn=small, stderr=subprocess.PIPE) as process:
        process.ready()
        said = process.complaint()
        assert process.end() == 0
        said += process.process.stderr.read()
        assert said.count("\n") == 1 and "cannot show itself in /dev/shm/quire." in said and "File too large" in said


def test_a_library_that_is_closed_goes_on_showing_its_process(folder):
    code = f"import ctypes, _ctypes\n_ctypes.dlclose(ctypes.CDLL({str(toolkit.BUILD / 'libquire.so')!r})._handle)\n" + WAIT
    with Shown([*PYTHON, code]) as process:
        process.ready()
        before = wait_until(process.page).written_s
        wait_until(lambda: process.page().written_s > before)
        assert process.end() == 0


@pytest.mark.parametrize("kind", ["arena", "slab"])
def test_a_program_with_the_static_library_and_one_kind_of_object_shows_itself(tmp_path, kind):
    create = {"arena": 'quire_arena_create(&(struct quire_arena_opts){.name = "one"})', "slab": 'quire_slab_create(9, &(struct quire_slab_opts){.name = "one"})'}
    source = tmp_path / "one.c"
    source.write_text(f'#include <quire/{kind}.h>\n#include <stdio.h>\nint main(void) {{ struct quire_{kind} *p = {create[kind]}; puts("ready"); fflush(stdout); getchar(); return !p; }}\n')
    with Shown([live_kit.build_static(tmp_path, source, "one")]) as process:
        process.ready()
        assert [o["name"] for o in wait_until(process.page).stats[f"{kind}s"]] == ["one"]
        assert process.end() == 0


def test_a_process_in_a_container_is_found_by_its_number_outside(folder, program):
    inside = ["unshare", "--pid", "--mount", "--fork", "--mount-proc", "sh", "-c", f"mount -t tmpfs none /dev/shm && exec {program}"]
    if subprocess.run([*inside[:5], "mount", "-t", "tmpfs", "none", "/dev/shm"], capture_output=True).returncode != 0:
        pytest.skip("namespaces may not be made here")
    with Shown(inside, page=False) as process:
        process.ready()
        (pid,) = live_kit.children_of(process.pid)
        inner = os.path.join("/proc", str(pid), "root", f"dev/shm/quire.{os.geteuid()}/1.json")  # as its own mounts have it
        wait_until(lambda: (page := live_page.read(inner)) and page.written_s > process.ready_s)
        (found,) = top_json(folder, pid)["processes"]
        assert found["stats"]["process"] == 1 and [o["name"] for o in found["stats"]["slabs"]] == ["nodes"]


@pytest.mark.parametrize("words", [["--json"], ["--once"], ["--prom"]])
def test_a_process_of_another_pid_namespace_is_looked_at_from_the_host(folder, program, words):
    """As `unshare -p -f --mount-proc` makes it: the directory of pages is the host's, and the number in it is not."""
    inside = ["unshare", "--pid", "--fork", "--mount-proc", program]
    if subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], capture_output=True).returncode != 0:
        pytest.skip("namespaces may not be made here")
    with Shown(inside, page=False) as process:
        process.ready()
        (pid,) = live_kit.children_of(process.pid)
        wait_until(lambda: any(page and page.written_s > process.ready_s for page in (live_page.read(f"{place}/1.json") for place in live_page.folders_of(pid))))
        done = quire(folder, "top", "--pid", pid, *words)
        assert done.returncode == 0 and "nodes" in done.stdout, done.stderr
        process.end()


# ---- what is said when it cannot be ----


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["99999999"], 3, "there is no process 99999999"),
        (["1"], 3, "process 1 "),
        (["no-such-program"], 3, "no process called no-such-program shows itself"),
        (["--prom"], 2, "--prom needs a process"),
        (["--pid", "name"], 2, "--pid takes one process's number"),
        (["--pid", "1", "2"], 2, "--pid takes one process's number"),
        (["--pid", "99999999"], 3, "there is no process 99999999"),
        (["1", "--prom", "--json"], 2, "not both"),
        (["--sort", "colour"], 2, "there is no key `colour`"),
        (["--interval", "0"], 2, "--interval can be"),
    ],
)
def test_what_cannot_be_is_said_with_what_mends_it(folder, words, status, said):
    done = quire(folder, "top", *words)
    assert (done.returncode, done.stdout) == (status, "")
    assert said in done.stderr


def test_another_users_process_is_said_to_be_that(shown, monkeypatch):
    wait_until(shown.page)
    monkeypatch.setattr(live_page.os, "geteuid", lambda: 54321)
    with pytest.raises(live_page.EnvironmentLacks) as refused:
        live_page.of_pid(shown.pid)
    assert "another user's" in refused.value.why and refused.value.fix == "the same command with sudo"


def test_a_directory_that_others_may_enter_is_not_believed(tmp_path):
    ours = tmp_path / f"quire.{os.geteuid()}"
    ours.mkdir(mode=0o700)
    assert live_page.is_private(str(ours))
    ours.chmod(0o755)
    assert not live_page.is_private(str(ours))
    (tmp_path / "link").symlink_to(ours)
    assert not live_page.is_private(str(tmp_path / "link"))


@pytest.mark.parametrize("stats", ["[" * 200000, "[1]", '{"slabs": [1]}', '{"sums": {"slabs": 1}}'])
def test_a_page_that_another_made_up_is_none(stats):
    head = '{"schema": "quire.live/1", "stats": '
    assert live_page.of_text("/1.json", head + "{}}", 0) and live_page.of_text("/1.json", head + stats + "}", 0) is None


def test_a_name_of_digits_that_are_no_number_is_a_name(folder):
    done = quire(folder, "top", "²")
    assert (done.returncode, done.stderr.splitlines()[0]) == (3, "quire: no process called ² shows itself")


def test_a_process_that_is_stopped_shows_its_last_page(folder, program):
    with Shown([program]) as process:
        process.ready()
        process.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: live_kit.is_stopped(process.pid))
        page = process.page()
        assert live_page.ask(page, "map", 0.3) is None
        with pytest.raises(live_page.EnvironmentLacks, match=f"process {process.pid} does not answer"):
            live_page.must_answer(page, "map")
        assert not os.path.exists(page.sibling("ask"))
        assert live_page.refresh(page, 0.2).stats == page.stats
        assert process.end() == 0


def test_an_answer_that_came_while_the_asker_was_stopped_is_taken(shown, monkeypatch):
    page = wait_until(shown.page)

    def long_sleep(_):
        """As if nothing of ours had run until long after our patience."""
        wait_until(lambda: glob.glob(page.sibling("?" * 16)))
        clock.monotonic = lambda: time.monotonic() + 100

    clock = types.SimpleNamespace(sleep=long_sleep, monotonic=time.monotonic)
    monkeypatch.setattr(live_page, "time", clock)
    assert json.loads(live_page.ask(page, "map"))["schema"] == "quire.map/1"
    assert not glob.glob(page.sibling("?" * 16))


def test_under_the_drop_in_a_program_linked_with_the_library_has_one_page_with_all_of_its_objects(program):
    drop_in = {"LD_PRELOAD": str(toolkit.BUILD / "libquire-malloc.so")}
    with Shown([program], environment=drop_in) as process:
        process.ready()
        wait_until(process.page)
        seen = set()
        for _ in range(40):
            page = process.page()
            seen.add(json.dumps(sorted(s["name"] for s in page.stats["slabs"])))
            time.sleep(0.01)
    assert seen == {'["nodes"]'}
