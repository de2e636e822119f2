# SPDX-License-Identifier: MIT
"""
profile.py - the heap profile of a process that shows itself and runs with QUIRE_CONF=prof: asked for, and kept in a file.

Not here: what is in it (heapprofile.py).
"""

import itertools
import os

import live.page as live_page
import outputs
from errors import EnvironmentLacks, QuireError

HOW_TO_START = "QUIRE_CONF=prof:512K quire run -- PROGRAM"


def text_of(page, patience_s=live_page.ANSWER_S):
    """The profile as the process says it, or an error that says why there is none."""
    text = live_page.ask(page, "profile", patience_s, "surrogateescape")
    if text is None:
        refused = live_page.ask(page, "stats", 1.0) is not None
        raise EnvironmentLacks(
            f"process {page.pid} has no profile" if refused else f"process {page.pid} does not answer",
            why="it was not started with QUIRE_CONF=prof" if refused else "it is stopped, has ended, or has no CPU",
            fix=HOW_TO_START if refused else f"kill -CONT {page.pid}   or try again",
        )
    return text


def save(page, patience_s=live_page.ANSWER_S):
    """The path of a new file in the working directory with the profile in it, named as the process names its own; nothing is overwritten."""
    text = text_of(page, patience_s)
    for number in itertools.count():
        path = os.path.abspath(f"quire.{page.pid}.{number}.heap")
        try:
            outputs.write_whole(path, text.encode("utf-8", "surrogateescape"), False)
        except FileExistsError:
            continue
        except OSError as error:
            raise QuireError(f"the profile cannot be written to {path}: {error.strerror}", fix="quire top from a directory that can be written to") from error
        return path
