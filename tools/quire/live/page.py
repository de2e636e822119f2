# SPDX-License-Identifier: MIT
"""
page.py - the pages of processes that show themselves (QUIRE_CONF=top:1): finding, reading, asking, tidying.

    /dev/shm/quire.UID/PID.json     the page                 src/look/live_place.c writes these
                       PID.ask      our question
                       PID.TOKEN    the answer

A program of one thread with QUIRE_CONF=prof has no thread that looks for questions: it gets SIGURG, which is ignored where nothing handles it.

A page is data that another process wrote: it is opened without following links or waiting, and only as a plain file of its directory's owner.
Invariants: L1  a page counts only while the process that it names runs and began when the page says.
            L2  a page is removed only when its process is gone and it is older than three of its intervals; one that is there
                after all writes it again.
Not here: what is shown of it (live/view.py, live/map.py).
"""

import contextlib
import glob
import json
import os
import re
import signal
import stat
import time

import follow
from errors import EnvironmentLacks, UsageError, kernel_thread
from lazily import secrets

PAGE_BYTES_MAX = 1 << 28
ANSWER_S = 5.0
ASK_AGAIN_S = 0.5
LOOK_S = 0.01
START_TIME_FIELD = 22
KERNEL_THREAD = 0x00200000  # of a process's flags
HOW_TO_START = "QUIRE_CONF=top:1 quire run -- PROGRAM   (linked with libquire: QUIRE_CONF=top:1 PROGRAM)"


class Page:
    """One process's page as it was read."""

    def __init__(self, path, document, age_s, outer_pid=None):
        self.path = path
        self.document = document
        self.age_s = max(0.0, age_s)
        self.pid = int(os.path.basename(path).split(".")[0])
        self.outer_pid = outer_pid or self.pid  # in our namespace
        self.program = str(document.get("program", ""))
        self.started_ticks = document.get("started_ticks")
        self.interval_s = document.get("interval_ns", 10**9) / 1e9

    @property
    def stats(self):
        """The process's statistics, quire.stats/1."""
        return self.document.get("stats", {})

    @property
    def written_s(self):
        """When, on the machine's monotonic clock."""
        return self.document.get("written_ns", 0) / 1e9

    def sibling(self, suffix):
        """Another file of the same process."""
        return self.path.removesuffix("json") + suffix


def read_small(path, errors="replace"):
    """(text, its file's status) of a plain file; None when it is not there, or none to be trusted."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > PAGE_BYTES_MAX:
            return None
        return file.read(PAGE_BYTES_MAX).decode("utf-8", errors), status


def read(path):
    """The page in a file, or None."""
    got = read_small(path)
    return None if got is None else of_text(path, got[0], time.time() - got[1].st_mtime)


def of_text(path, text, age_s, outer_pid=None):
    """The page in a text, or None; another user wrote it, who may want us to fail."""
    try:
        document = json.loads(text)
        if document.get("schema") != "quire.live/1" or not is_shaped(document.get("stats", {})):
            return None
        return Page(path, document, age_s, outer_pid)
    except (ValueError, AttributeError, TypeError, RecursionError):
        return None


def is_shaped(stats):
    """Whether statistics are lists of objects by kind, and sums."""
    objects = [o for things in stats.values() if isinstance(things, list) for o in things]
    return all(isinstance(o, dict) for o in [*objects, *stats.get("sums", {}).values()])


def is_private(folder, owner=None):
    """Whether a directory is of `owner`, or else of the user whose number it bears, and closed to others."""
    try:
        status = os.lstat(folder)
    except OSError:
        return False
    owner = folder.rpartition(".")[2] if owner is None else str(owner)
    closed = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
    return closed and owner == str(status.st_uid)


def folders():
    """Directories of pages that we may look into."""
    user = "*" if os.geteuid() == 0 else str(os.geteuid())
    bases = dict.fromkeys(["/dev/shm", os.environ.get("TMPDIR") or "/tmp", "/tmp"])
    found = [f for base in bases for f in sorted(glob.glob(f"{base}/quire.{user}"))]
    return [f for f in found if is_private(f)]


def folders_of(pid):
    """The same as a process in another mount namespace sees them; users may have other numbers there."""
    owner = os.stat(f"/proc/{pid}").st_uid
    found = [f for base in ("/dev/shm", "/tmp") for f in sorted(glob.glob(f"/proc/{pid}/root{base}/quire.*"))]
    return [f for f in found if is_private(f, owner)]


def started_ticks(pid):
    """When a process began, in the kernel's ticks; None: there is none, or it is a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            words = file.read().rpartition(")")[2].split()
        return None if words[0] in "ZX" else int(words[START_TIME_FIELD - 3])
    except (OSError, IndexError, ValueError):
        return None


def is_alive(page):
    """L1."""
    return page.started_ticks == started_ticks(page.pid)


def tidy(page):
    """L2: removes what a process that was killed left."""
    if page.age_s <= 3 * page.interval_s:
        return
    for path in glob.glob(glob.escape(page.sibling("")) + "*"):
        unlink(path)


def unlink(path):
    """Removes a file if it is there and may be removed."""
    try:
        os.unlink(path)
    except OSError:
        pass


def sweep(folder):
    """Answers that nobody took, of processes that are gone."""
    for path in glob.glob(f"{folder}/*.*"):
        pid = os.path.basename(path).split(".")[0]
        if not path.endswith(".json") and pid.isdigit() and started_ticks(pid) is None:
            unlink(path)


def all_pages():
    """Pages of all processes that run, by number; pages of others are tidied away."""
    found = {}
    for folder in folders():
        sweep(folder)
        for path in glob.glob(f"{folder}/*.json"):
            page = read(path) if os.path.basename(path)[:-5].isdigit() else None
            if page and is_alive(page):
                known = found.get(page.pid)
                found[page.pid] = known if known and known.age_s < page.age_s else page
            elif page:
                tidy(page)
    return [found[pid] for pid in sorted(found)]


def inner_pid(pid):
    """A process's number in its own namespace."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            line = next((x for x in file if x.startswith("NSpid:")), "")
        return int(line.split()[-1])
    except (OSError, IndexError, ValueError):
        return pid


def newest(places, number, pid):
    """The newest page of a process among directories; who has another user by now has two."""
    pages = [read(f"{folder}/{number}.json") for folder in places]
    ours = [p for p in pages if p and p.started_ticks == started_ticks(pid)]
    return min(ours, key=lambda p: p.age_s, default=None)


def is_kernels(pid):
    """Whether it is a thread of the kernel."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        return bool(int(file.read().rpartition(")")[2].split()[6]) & KERNEL_THREAD)
    return False


def of_pid(pid, start=HOW_TO_START):
    """The page of one process, also of a container's; an error that says why there is none, and how a process is started that has one."""
    if not os.path.exists(f"/proc/{pid}"):
        raise EnvironmentLacks(f"there is no process {pid}", "it has ended, or never was", "quire top   (lists those that show themselves)")
    page = newest(folders(), pid, pid)
    if not page and is_kernels(pid):
        raise kernel_thread(pid)
    if not page and os.geteuid() not in (0, os.stat(f"/proc/{pid}").st_uid):
        raise EnvironmentLacks(
            f"process {pid} may not be looked at",
            why="it is another user's, and only that user and root may read its page",
            fix="the same command with sudo",
        )
    page = page or newest(folders_of(pid), inner_pid(pid), pid) or wake(pid)
    if not page:
        raise EnvironmentLacks(
            f"process {pid} does not show itself",
            why=f"it was not started with {start.split()[0]}, does not use Quire, is another program by now (exec), or keeps SIGURG, by which it is asked, to itself",
            fix=start,
        )
    page.outer_pid = pid
    return page


def knock(pid):
    """SIGURG to a process that handles it; whether it does."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            caught = next((int(x.split()[1], 16) for x in file if x.startswith("SigCgt:")), 0)
        if not caught >> (signal.SIGURG - 1) & 1:
            return False
        os.kill(pid, signal.SIGURG)
        return True
    except (OSError, ValueError, IndexError):
        return False


def has_profile(pid):
    """Whether a process was started with QUIRE_CONF=prof."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return any(re.search(rb"^QUIRE_CONF=(.*,)?\s*prof\b", x) for x in file.read().split(b"\0"))
    except OSError:
        return False


def wake(pid):
    """The page of a process that writes none unasked."""
    end_s = time.monotonic() + ANSWER_S
    found = has_profile(pid) and knock(pid)
    while found and time.monotonic() < end_s:
        page = newest(folders(), pid, pid) or newest(folders_of(pid), inner_pid(pid), pid)
        if page:
            page.outer_pid = pid
            return page
        time.sleep(LOOK_S)
    return None


def is_called(pid, name):
    """Whether a process's program has this name, or was started by it: a link, as redis-server is on Debian."""
    try:
        program = os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return False  # of another user, or gone
    return name in map(os.path.basename, (program, follow.called(f"/proc/{pid}", program)))


def pids_called(name):
    """Processes of this name."""
    return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and is_called(pid, name)]


def find(word, start=HOW_TO_START):
    """The page of a process by its number or by its program's name. start: what is to be typed where there is none."""
    if word.isdecimal():  # what int() reads; `²` is a digit, too
        return of_pid(int(word), start)
    pages = [p for p in all_pages() if os.path.basename(p.program) == word or is_called(p.outer_pid, word)]
    pages = pages or [p for p in map(wake, pids_called(word)) if p]
    if len(pages) == 1:
        return pages[0]
    if pages:
        numbers = " ".join(str(p.pid) for p in pages)
        raise UsageError(f"{len(pages)} processes are called {word}: {numbers}", fix=f"quire top {pages[0].pid}")
    raise EnvironmentLacks(f"no process called {word} shows itself", fix=start)


def put_question(page, kind, token):
    """PID.ask, in one step; the process's user is to read it, also when root asks."""
    draft = page.sibling(f"ask-{token}")
    owner = os.stat(os.path.dirname(draft))
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(f"{kind} {token}\n")
        if os.geteuid() == 0 and owner.st_uid != 0:
            os.fchown(file.fileno(), owner.st_uid, owner.st_gid)  # not by name: whose directory it is may change it
    os.rename(draft, page.sibling("ask"))


def ask(page, kind, patience_s=ANSWER_S, errors="replace"):
    """
    What the process answers to `stats`, `prom` or `map`; None when it does not in time. Whoever was stopped meanwhile
    looks once more when the time is over: the answer may be there.
    """
    token = secrets.token_hex(8)
    path, began_s, asked_s = page.sibling(token), time.monotonic(), None
    while True:
        is_over = time.monotonic() - began_s >= patience_s
        got = read_small(path, errors)
        if got is not None:
            unlink(path)
            return got[0]
        if is_over:
            unlink(page.sibling("ask"))  # nobody would read the answer
            return None
        if asked_s is None or time.monotonic() - asked_s > ASK_AGAIN_S:
            put_question(page, kind, token)
            if page.document.get("answers_by_signal"):
                knock(page.outer_pid)
            asked_s = time.monotonic()
        time.sleep(LOOK_S)


def must_answer(page, kind):
    """`ask`, or an error."""
    said = ask(page, kind)
    if said is None:
        raise EnvironmentLacks(
            f"process {page.pid} does not answer",
            why="it is stopped, has ended, or has no CPU",
            fix=f"kill -CONT {page.pid}   or try again",
        )
    return said


def refresh(page, patience_s=1.0):
    """The page as of now; the last one that was written where the process does not answer; None when it has ended."""
    text = ask(page, "stats", patience_s)
    fresh = (text and of_text(page.path, text, 0.0, page.outer_pid)) or read(page.path)
    return fresh if fresh and (text or is_alive(fresh)) else None
