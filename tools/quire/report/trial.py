# SPDX-License-Identifier: MIT
"""
trial.py - the last step of `try`: its page, beside the trace.

    PROGRAM.qtr -> PROGRAM.html, or PROGRAM.1.html ... : a page is never overwritten, but by -f, as its trace

Whatever is missing for the page, `try` still has its text: the reason becomes one note.
Not here: what is on the page (report/page.py).
"""

import os

import outputs
import packages
import report.page as report_page
import report.subject as report_subject
import stops
import ui
from errors import QuireError


def place(trace):
    """A file of its own beside the trace, opened for writing."""
    stem, number = os.path.splitext(trace)[0], 0
    while True:
        path = f"{stem}.{number}.html" if number else f"{stem}.html"
        try:
            return open(path, "x", encoding="utf-8", errors="replace")
        except FileExistsError:
            number += 1


def replace(report, text):
    """The page in the place of the one that was beside the trace."""
    report.page = os.path.splitext(report.recording.path)[0] + ".html"
    outputs.write_whole(report.page, text.encode("utf-8", "replace"), True)


def keep(report, text):
    """The page into a file of its own, whole or not at all."""
    with place(report.recording.path) as file:
        try:
            file.write(text)
            file.flush()
        except OSError:
            os.unlink(file.name)
            raise
        report.page = file.name


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
            (replace if args.force else keep)(report, text)
    except Exception as error:  # whatever it is: the verdict is not to be lost for a picture
        said = error.text() if isinstance(error, QuireError) else getattr(error, "strerror", None) or repr(error)
        ui.note(f"no HTML report: {said}")
