# SPDX-License-Identifier: MIT
"""
wrappers.py - commands that execute, or start, the command among their arguments: which words of theirs that is.

    env -C /tmp A=1 nice -n 5 jq .      options as the manual has them, operands, assignments     -> nice -n 5 jq .
    timeout -k 1 5 rustc x.rs           `forks`: it starts that beside itself                     -> rustc x.rs
    setarch --unheard-of jq             an option that is not known here                          -> None: only a run tells

Not here: what a found command leads to (follow.py), the text after sh -c (shelltext.py).
"""

import os
import re
import shlex
from collections import namedtuple

from shellwords import UNKNOWN

# `options`: one or more letters each, with : those that take a value, with ? those that may have one attached; `before`: operands that come
# before the command; `ends`: options with which no command is executed.
Spec = namedtuple("Spec", "options before forks ends", defaults=("", 0, False, ""))
SAYS = ("help", "version", "h", "V")  # of nearly every command: it tells of itself alone
# `words`: the command, [] where there is none; loses: it is started without our LD_PRELOAD, or with another.
Inner = namedtuple("Inner", "words loses forks")

_ARCH = Spec("R addr-no-randomize F fdpic-funcptrs Z mmap-page-zero L addr-compat-layout X read-implies-exec B 32bit I short-inode S whole-seconds T sticky-timeouts 3 3gb 4gb uname-2.6 v verbose")
_LD = Spec("library-path: inhibit-cache inhibit-rpath: audit: preload: argv0: glibc-hwcaps-prepend: glibc-hwcaps-mask: list verify list-tunables list-diagnostics", ends="list verify list-tunables list-diagnostics")
ARCHES = ("linux32", "linux64", "i386", "i486", "i586", "i686", "athlon", "x86_64", "uname26", "aarch64", "arm")
WRAPPERS = {
    "env": Spec("i 0 v u: C: S: a: ignore-environment null debug unset: chdir: split-string: argv0: block-signal? default-signal? ignore-signal? list-signal-handling"),
    "nice": Spec("n: adjustment:"),
    "nohup": Spec(),
    "setsid": Spec("c f w ctty fork wait"),
    "stdbuf": Spec("i: o: e: input: output: error:"),
    "ionice": Spec("c: n: t p: P: u: class: classdata: ignore pid: pgid: uid:", ends="p pid P pgid u uid"),
    "taskset": Spec("a p c all-tasks pid cpu-list", 1, ends="p pid"),
    "chrt": Spec("a b d f i o r R m p v T: P: D: all-tasks batch deadline fifo idle other rr reset-on-fork max pid verbose sched-runtime: sched-period: sched-deadline:", 1, ends="p pid m max"),
    "setarch": _ARCH,
    **dict.fromkeys(ARCHES, _ARCH),
    "prlimit": Spec(
        "p: o: noheadings raw verbose pid: output: c? d? e? f? i? l? m? n? q? r? s? t? u? v? x? y?"
        " core? data? nice? fsize? sigpending? memlock? rss? nofile? msgqueue? rtprio? stack? cpu? nproc? as? locks? rttime?",
        ends="p pid",
    ),
    "unshare": Spec(
        "m u i n p U C T f r c h w: S: G: l: mount? uts? ipc? net? pid? user? cgroup? time? fork kill-child? mount-proc? map-user: map-group: map-users: map-groups:"
        " map-root-user map-current-user map-auto propagation: setgroups: keep-caps wd: setuid: setgid: monotonic: boottime:"
    ),
    "choom": Spec("n: p: adjust: pid:", ends="p pid"),
    "numactl": Spec("i: p: P: C: N: m: l a interleave: preferred: physcpubind: cpunodebind: membind: localalloc all"),
    "timeout": Spec("k: s: v foreground preserve-status kill-after: signal: verbose", 1, True),
    "time": Spec("a f: o: p q v append format: output: portability quiet verbose", 0, True),
    "flock": Spec("s x e u n w: E: o F shared exclusive unlock nonblock nb wait: timeout: conflict-exit-code: close no-fork verbose", 1, True),
    "watch": Spec("b c d? e g n: p q: t w x beep color differences? errexit chgexit interval: precise equexit: no-title no-wrap exec", 0, True),
    "xargs": Spec(
        "0 a: d: E: e? I: i? L: l? n: o P: p r s: t x null arg-file: delimiter: eof? replace? max-lines? max-args: open-tty max-procs: interactive"
        " no-run-if-empty max-chars: verbose show-limits exit process-slot-var:",
        0, True,
    ),
    "strace": Spec(
        "a: A b: c C d D DD DDD e: E: f ff F h i I: k n o: O: p: P: q qq qqq r s: S: t tt ttt T u: U: v w x xx X: y yy Y z Z argv0: attach: columns: output-append-mode"
        " detach-on: summary-only summary debug daemonize? trace: abbrev: verbose: raw: quiet? inject: fault: env: follow-forks output-separately instruction-pointer"
        " interruptible: stack-traces syscall-number output: summary-syscall-overhead: trace-path: relative-timestamps? string-limit: summary-sort-by: absolute-timestamps?"
        " syscall-times? user: summary-columns: no-abbrev summary-wall-clock strings-in-hex? const-print-style: decode-fds? decode-pids: successful-only failed-only status: signal: seccomp-bpf tips?",
        0, True, "p attach",
    ),
    "ltrace": Spec("a: A: b c C D: e: f i l: L n: o: r s: S t tt ttt T u: w: x: align: no-signals demangle debug: indent: library: output:", 0, True),
}  # fmt: skip
# What these start is in another place, with another environment, or told to them in words of their own.
UNCLEAR = ("sudo", "su", "doas", "runuser", "pkexec", "chroot", "nsenter", "parallel", "setpriv", "capsh", "systemd-run", "start-stop-daemon")
LOADER = re.compile(r"ld(-linux.*|64)?\.so(\.\d+)?|ld-\d.*\.so")
PRELOAD = re.compile(r"LD_PRELOAD(=.*)?|QUIRE_CONF=.*passthrough.*", re.DOTALL)  # what may take a preload away, or what it does
ENVIRONMENT = ("E", "env")  # of strace


def is_wrapper(name):
    """Whether a program of that name is here."""
    return name in WRAPPERS or name in UNCLEAR or bool(LOADER.fullmatch(name))


def inner(name, words):
    """The Inner of a wrapper's words, its own name left out; None where only a run tells."""
    spec = _LD if LOADER.fullmatch(name) else WRAPPERS.get(name)
    words = list(words)
    if name in UNCLEAR and words and words[0] in {f"--{option}" for option in SAYS}:
        return Inner([], False, False)
    if name == "setarch" and words and not words[0].startswith("-"):
        words.pop(0)  # it may be left out
    if name == "nice":
        words = words[bool(words and re.fullmatch(r"-[-+]?\d+", words[0])) :]
    split = _split(words, spec) if spec else None
    if split is None:
        return None
    options, words = split
    if any(option in spec.ends.split() or option in SAYS for option, _ in options):
        return Inner([], False, False)
    if name == "env":
        return _of_env(options, words)
    loses = name == "strace" and any(option in ENVIRONMENT and PRELOAD.fullmatch(value) for option, value in options)
    if UNKNOWN in words[: spec.before + 1]:
        return None
    words = _operands(name, words, spec, options)
    folders = [value for option, value in options if option in ("w", "wd")] if name == "unshare" else []
    return Inner(_from(folders, words), loses, spec.forks)


def _operands(name, words, spec, options):
    """The command behind a wrapper's operands; those that a shell is to execute are its text."""
    words = words[spec.before :]
    names = {option for option, _ in options}
    if name == "flock" and words[:1] in (["-c"], ["--command"]):
        return ["/bin/sh", "-c", *words[1:]]
    if name == "watch" and words and not names & {"x", "exec"}:
        return ["/bin/sh", "-c", " ".join(words)]
    return words + [UNKNOWN] * (name == "xargs" and bool(words))


def _of_env(options, words):
    """env: assignments come before the command, and -S is more of its words."""
    loses = any(option in ("i", "ignore-environment") or option in ("u", "unset") and value == "LD_PRELOAD" for option, value in options)
    for option, value in options:
        if option in ("S", "split-string"):
            if "$" in value or "\\" in value:
                return None
            try:
                more = inner("env", [*shlex.split(value), *words])
            except ValueError:
                return None
            return more and more._replace(loses=more.loses or loses, words=_from([v for o, v in options if o in ("C", "chdir")], more.words))
    if words[:1] == ["-"]:
        loses = bool(words.pop(0))
    while words and re.match(r"[^=]+=", words[0]):
        loses |= bool(PRELOAD.fullmatch(words.pop(0)))
    if UNKNOWN in words[:1]:
        return None
    return Inner(_from([value for option, value in options if option in ("C", "chdir")], words), loses, False)


def _from(folders, words):
    """The command where it is started in another folder."""
    if folders and words and "/" in words[0]:
        return [os.path.join(folders[-1], words[0]), *words[1:]]
    return words


def _split(words, spec):
    """([(option, its value)], what comes behind them), or None."""
    known = dict.fromkeys(SAYS, "") | dict(re.fullmatch(r"([^:?]+)([:?]?)", word).groups() for word in spec.options.split())
    options, words = [], list(words)
    while words and words[0].startswith("-") and len(words[0]) > 1:
        word = words.pop(0)
        if word == "--":
            break
        found = _long(word[2:], words, known) if word.startswith("--") else _short(word[1:], words, known)
        if found is None:
            return None
        options += found
    return None if any(UNKNOWN in value for _, value in options) else (options, words)


def _long(text, words, known):
    """[(option, value)] of a long option, which may be cut where that is clear."""
    name, is_attached, value = text.partition("=")
    fits = [name] if name in known else [option for option in known if len(option) > 1 and option.startswith(name)]
    if len(fits) != 1:
        return None
    kind = known[fits[0]]
    if kind == ":" and not is_attached:
        if not words:
            return None
        value = words.pop(0)
    return None if is_attached and not kind else [(fits[0], value)]


def _short(text, words, known):
    """[(option, value)] of the letters behind one -; longer names of letters, as -ff, are the same letter again."""
    found = []
    while text:
        letter, text = text[0], text[1:]
        kind = known.get(letter)
        if kind is None or kind == ":" and not text and not words:
            return None
        value = text or (words.pop(0) if kind == ":" else "") if kind else ""
        found.append((letter, value))
        text = "" if kind else text
    return found
