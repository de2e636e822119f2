#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""pictures - the drawings of a report as files of their own, for the README and the documents.

    ./quire try -o jq.qtr -- jq . big.json          writes jq.qtr and jq.html
    .venv/bin/python scripts/pictures.py jq.html doc/pictures

Drawn again from the figures in the page, so that a picture is of the run that the page is of.
Not here: drawing (tools/quire/report/plots.py, report/figures.py), benchmarks (`quire bench --svg`).
"""

import argparse
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools" / "quire"))
import report.figures as figures  # noqa: E402 - after the path

EMBEDDED = re.compile(r'<script type="application/json"[^>]*>(.*?)</script>', re.DOTALL)


def document_of(page):
    """The figures inside an HTML report."""
    found = EMBEDDED.search(page.read_text(encoding="utf-8"))
    if not found:
        raise SystemExit(f"{page} is no report of `quire report` or `quire try`")
    return json.loads(found.group(1))


def main():
    parser = argparse.ArgumentParser(description="the drawings of a report as SVG files")
    parser.add_argument("page", type=Path, help="an HTML report")
    parser.add_argument("folder", type=Path, help="where to")
    options = parser.parse_args()
    document = document_of(options.page)
    drawn = {
        "try-time": figures.time_bars(document["findings"]),
        "try-live": figures.live_areas(document["profile"]),
    }
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, picture in drawn.items():
        if picture:
            (options.folder / f"{name}.svg").write_text(picture.file(), encoding="utf-8")


if __name__ == "__main__":
    main()
