# SPDX-License-Identifier: MIT
"""
warm.py - runs of the tool from a process that has loaded it already: a start is a tenth of a second, and the tests start it a thousand times.

    run(command) -> words, folder, environment and files, by a socket -> the warm process -> fork -> tools/quire/__main__.py with these
                 <- the status, by a pipe of its own                                      <-  ends

The warm process loads modules and does nothing else, so that what it forks is as a Python that has just been started, but for what an
environment says to Python itself; can() says for which runs that is so.
Not here: what is run (toolkit.py); tests of a start as such, which start Python themselves.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import io
import json
import os
import pathlib
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading

TOOL = str(pathlib.Path(__file__).resolve().parents[2] / "tools" / "quire")
FILES = 4  # standard input, output and error, and where the status goes
MESSAGE_BYTES = 1 << 20
PYTHONS = ("PYTHON", "LC_", "LANG")  # what Python reads when it starts


def can(environment, options):
    """Whether a run with these is the same here: nothing for Python's own start, nothing but standard input is asked for."""
    there = {k: v for k, v in environment.items() if k.startswith(PYTHONS)}
    here = {k: v for k, v in os.environ.items() if k.startswith(PYTHONS)}
    return there == here and set(options) <= {"stdin", "input"} and _has_pidfds()


@functools.cache
def _has_pidfds():
    """Linux has them from 5.3 on; containers may forbid them."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def run(words, folder, environment, timeout, stdin=None, input=None):
    """As subprocess.run([python, TOOL, *words], capture_output=True, text=True)."""
    ours, theirs = zip(*(os.pipe() for _ in range(3)))
    feed, said = None, {}
    if input is not None:
        feed, fed = os.pipe()
    elif not hasattr(stdin, "fileno"):
        feed = os.open(os.devnull, os.O_RDONLY)

    def read(name, fd):
        with open(fd, encoding="utf-8") as file:
            said[name] = file.read()

    _ask({"words": words, "folder": str(folder), "environment": environment}, [stdin.fileno() if feed is None else feed, *theirs])
    for fd in theirs if feed is None else (feed, *theirs):
        os.close(fd)
    readers = [threading.Thread(target=read, args=pair, daemon=True) for pair in zip(("out", "err", "status"), ours)]
    for reader in readers:
        reader.start()
    if input is not None:
        with contextlib.suppress(BrokenPipeError), open(fed, "w", encoding="utf-8") as file:
            file.write(input)
    for reader in readers:
        reader.join(timeout)
        if reader.is_alive():
            raise subprocess.TimeoutExpired(words, timeout)
    return subprocess.CompletedProcess([TOOL, *words], int(said["status"]), said["out"], said["err"])


def _ask(what, files):
    message = json.dumps(what).encode("utf-8", "surrogateescape")
    socket.send_fds(_server(), [message], files)


@functools.cache
def _server():
    """The socket to the warm process, which ends when that is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_BYTES)
    process = subprocess.Popen([sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    theirs.close()

    def end():
        ours.close()
        process.wait()  # what its children used counts as ours

    atexit.register(end)
    return ours


def serve(asked):
    """Forks for every request and tells its status; returns in the child, with the request."""
    looks = selectors.DefaultSelector()
    looks.register(asked, selectors.EVENT_READ)
    while True:
        for key, _ in looks.select():
            if key.fileobj is not asked:
                pid, status = key.data
                with contextlib.suppress(BrokenPipeError):  # whoever asked has lost patience
                    os.write(status, str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
                looks.unregister(key.fileobj)
                os.close(key.fileobj)
                os.close(status)
                continue
            message, files, _, _ = socket.recv_fds(asked, MESSAGE_BYTES, FILES)
            if not message:
                for left in looks.get_map().values():
                    if left.data:
                        os.kill(left.data[0], signal.SIGTERM)  # who asked has gone without its status; it ends its programs
                sys.exit()
            request = json.loads(message.decode("utf-8", "surrogateescape"))
            if request["words"][:1] == ["report"] or (request["words"][:1] == ["try"] and "--no-report" not in request["words"]):
                load_pictures()
            pid = os.fork()
            if pid == 0:
                for number, file in enumerate(files[:3]):
                    os.dup2(file, number)
                os.closerange(3, os.sysconf("SC_OPEN_MAX"))
                return request
            for file in files[:3]:
                os.close(file)
            looks.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, files[3]))


def load():
    """Every module that a run may use, those of the standard library that it loads late among them."""
    sys.path.insert(0, TOOL)
    import lazily

    for late in [value for value in vars(lazily).values() if isinstance(value, lazily.Lazy)]:
        importlib.import_module(late._name)
    for path in pathlib.Path(TOOL).glob("*.py"):
        if path.stem != "__main__":
            with contextlib.suppress(ImportError):  # what needs a package that is not here
                importlib.import_module(path.stem)
    sys.path.remove(TOOL)


@functools.cache
def load_pictures():
    """What draws a report's pictures: a second, most of it at the first of them."""
    with contextlib.suppress(ImportError):
        import jinja2  # noqa: F401
        from matplotlib.figure import Figure

        Figure().subplots().plot([1])[0].figure.savefig(io.BytesIO(), format="svg")
        gc.freeze()


def begin(request):
    """This process as Python would have started it."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.modules["random"].seed()
    sys.argv = [TOOL, *request["words"]]
    for name, number, mode, errors in (("stdin", 0, "r", "strict"), ("stdout", 1, "w", "strict"), ("stderr", 2, "w", "backslashreplace")):
        file = open(number, mode, errors=errors, closefd=False, buffering=1 if name == "stderr" else -1)
        setattr(sys, name, file)
        setattr(sys, f"__{name}__", file)


def run_tool():
    """Runs it; the exit status, as Python would have it."""
    try:
        runpy.run_path(TOOL, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def leave(status):
    """Ends this process without taking all modules down, each of which would be copied for that."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr):
        file.flush()
    os._exit(status & 0xFF)


if __name__ == "__main__":
    load()
    gc.collect()
    gc.freeze()  # a child that looks for cycles would copy all of it
    begin(serve(socket.socket(fileno=int(sys.argv[1]))))
    leave(run_tool())
