# SPDX-License-Identifier: MIT
"""
inputs.py - what a file given to `report` is: a trace, or the JSON of `try`, `bench` or `map`.

    read(path) -> Input(kind, path, document)      kind: "trace", "try", "bench", "map"; document: the JSON, or None for a trace

Not here: what is in it (report/subject.py, report/diff.py).
"""

import json
import os
from collections import namedtuple

import tracefile
import ui
from errors import QuireError, UsageError

Input = namedtuple("Input", "kind path document")
# Without these a document was cut, or made by hand.
NEEDED = {"try": {"program", "trace", "verdict"}, "bench": {"table"}, "map": {"pages", "program", "process"}}
SCHEMAS = {kind: f"quire.{kind}/1" for kind in NEEDED}
TRACE_MAGIC = b"QTRACE\r\n"
PROFILE_MAGIC = b"heap profile:"
JSON_BYTES_MAX = 256 << 20


def is_profile(path):
    """Whether a file is a heap profile, which `profile` reads; a pipe is looked at once alone, by `read`."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(len(PROFILE_MAGIC)) == PROFILE_MAGIC


def refuse(path, why):
    """Not something that `report` takes."""
    return QuireError(
        f"{tracefile.shown(path)} is nothing that `report` reads: {why}",
        fix="give a trace (.qtr), or what `quire try --json`, `bench --json` or `map --json` printed",
        exit_code=2,
    )


def read(path):
    """The input, by what the file holds, not by its name."""
    try:
        with open(path, "rb") as file:
            head = file.read(len(TRACE_MAGIC))
            if head == TRACE_MAGIC:
                return Input("trace", path, None)
            data = head + file.read(JSON_BYTES_MAX)
    except IsADirectoryError as error:
        raise refuse(path, "a directory") from error
    except FileNotFoundError as error:
        raise UsageError(
            f"no such file: {path}", fix="record a trace: quire record -- PROGRAM ARGS"
        ) from error
    if data.startswith(PROFILE_MAGIC):
        raise UsageError(f"{tracefile.shown(path)} is a heap profile", "it has no page", f"quire profile {ui.word(path)}")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise refuse(path, "neither a trace nor JSON") from error
    schema = document.get("schema", "") if isinstance(document, dict) else ""
    for kind, newest in SCHEMAS.items():
        if str(schema).startswith(f"quire.{kind}/"):
            if schema != newest:
                raise refuse(path, f"it is {schema}, and this version of quire reads {newest}")
            lacks = sorted(NEEDED[kind] - document.keys())
            if lacks:
                raise refuse(path, f"{schema} without `{lacks[0]}`")
            return Input(kind, path, document)
    raise refuse(path, f"JSON with the schema {schema!r}" if schema else "JSON without a schema")
