# SPDX-License-Identifier: MIT
"""
trial.py - the last step of `try`: its page, beside the trace.

    PROGRAM.qtr -> PROGRAM.html, or PROGRAM.1.html ... : a page is never overwritten, but by -f, as its trace

Whatever is missing for the page, `try` still has its text: the reason becomes one note.
Not here: what is on the page (report/page.py).
"""

import contextlib
import itertools
import os

import outputs
import packages
import report.page as report_page
import report.subject as report_subject
import stops
import ui
from errors import QuireError


def keep(report, text, force):
    """The page beside the trace, whole or not at all: in the place of the one that was there (force), or in a file of its own."""
    stem = os.path.splitext(report.recording.path)[0]
    for number in itertools.count():
        path = f"{stem}.{number}.html" if number else f"{stem}.html"
        with contextlib.suppress(FileExistsError):
            outputs.write_whole(path, text.encode("utf-8", "replace"), force)
            report.page = path
            return


def write(report, args, folder):
    """Writes the page and tells the report its path; `folder` still has the files of this try."""
    missing = report_page.lacking()
    if missing:
        ui.note(f"no HTML report: that needs {', '.join(missing)}: {packages.install_line(missing)}")
        return
    ui.note("writing the report")
    try:
        text = report_page.page(report_subject.of_try(report, args.wrapper, folder))
        with stops.held():  # no half page
            keep(report, text, args.force)
    except Exception as error:  # whatever it is: the verdict is not to be lost for a picture
        said = error.text() if isinstance(error, QuireError) else getattr(error, "strerror", None) or repr(error)
        ui.note(f"no HTML report: {said}")
