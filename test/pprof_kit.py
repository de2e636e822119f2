# SPDX-License-Identifier: MIT
"""
pprof_kit - Go's pprof for the tests of what it opens: the words that start it.

    the Go that is on the path     its own, where it was compiled with Go (before 1.25)
    another one, of Debian         /usr/lib/go-1.19/pkg/tool/linux_amd64/pprof
    QUIRE_TEST_LONG=1              go tool pprof, which Go compiles with all that it needs when it is first asked for: a minute

Not here: tests.
"""

import glob
import os
import shutil
import subprocess


def pprof_words():
    """["/.../pprof"] or ["go", "tool", "pprof"]; []: there is none."""
    go = shutil.which("go")
    found = sorted(glob.glob("/usr/lib/go-*/pkg/tool/*/pprof"))
    if go:
        tools = subprocess.run([go, "env", "GOTOOLDIR"], capture_output=True, text=True, check=False).stdout.strip()
        found.insert(0, os.path.join(tools, "pprof"))
    for path in found:
        if os.access(path, os.X_OK):
            return [path]
    return [go, "tool", "pprof"] if go and os.environ.get("QUIRE_TEST_LONG", "0") != "0" else []


PPROF = pprof_words()
WHY_NOT = "needs Go's pprof, compiled: apt-get install golang-go, or QUIRE_TEST_LONG=1"
