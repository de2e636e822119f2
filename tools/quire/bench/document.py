# SPDX-License-Identifier: MIT
"""
document.py - `quire bench document`: saved runs and prose become doc/performance.md and the pages behind it.

    doc/performance/ template.md.in     prose, with {{seeds arena}}, {{scale threads}}, {{machine}}, ... where figures go
                     arena.md.in ...    the same, of the pages
                     seeds.json ...     runs that `quire bench TABLE --save` wrote
        -> doc/performance.md, doc/performance/*.md, and doc/performance/*.svg

The text is made of the saved runs alone: whoever changes a figure by hand changes it until the next run of this.
Not here: measuring (cmd_bench.py), the tables' words (bench/*_text.py), pictures (bench/plots.py).
"""

import importlib.util
import json
import os
import re
import sys

import bench.apps as bench_apps
import bench.arena as bench_arena
import bench.heap as bench_heap
import bench.micro as bench_micro
import bench.more_text as bench_more_text
import bench.percpu_text as bench_percpu_text
import bench.pictures as bench_pictures
import bench.scale as bench_scale
import bench.scale_text as bench_scale_text
import bench.slab_text as bench_slab_text
import outputs
import packages
import ui
from cmd_env import size_text
from errors import EXIT_OK, UsageError

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.normpath(os.path.join(HERE, "..", "..", "..", "doc", "performance"))
TEMPLATE = "template.md.in"
FOLDER = "performance"  # beside the document: its pages and pictures
RUNS = ["seeds", "micro", "apps", "scale", "secure"]  # NAME.json; secure: SECURE
SECURE = {"table": "apps", "lines": "jq,perl,sqlite3", "secure": True}
LICENCE = "<!-- SPDX-License-Identifier: MIT -->\n"  # of the template: a source
ELSEWHERE = "another place: -o /tmp/performance.md"
DIGITS = 8
PAGE_COLUMNS = 100  # whatever terminal it is made on
MARK = re.compile(r"\{\{([^{}]+)\}\}")


def run(args):
    """Writes the document and its pictures."""
    data = args.data or DATA
    output = args.output or os.path.join(data, "..", "performance.md")
    text, pages = document(data), {name: document(data, name) for name in page_names(data)}
    if output == "-":
        sys.stdout.write(text)
        return EXIT_OK
    pictures = [f"{name}.svg" for name in shown_pictures(data)]
    check(output, [*pictures, *(f"{name}.md" for name in pages)], args.force)
    draw(data, beside(output))
    for path, words in [(output, text), *((os.path.join(beside(output), f"{name}.md"), pages[name]) for name in pages)]:
        outputs.write(path, words, True, ELSEWHERE)
        ui.note(f"written: {os.path.normpath(path)}")
    return EXIT_OK


def beside(output):
    """Where the document's links lead."""
    return os.path.join(os.path.dirname(output) or ".", FOLDER)


def page_names(data):
    """Names of the pages behind the document."""
    found = [name.removesuffix(".md.in") for name in os.listdir(data) if name.endswith(".md.in") and name != TEMPLATE]
    return sorted(found)


def check(output, pictures, force):
    """Whether the document and its pictures may be written."""
    outputs.check_file(os.path.normpath(output), force, ELSEWHERE)
    outputs.check_folder(os.path.normpath(beside(output)), pictures, force)


def check_before_measuring(args):
    """The same before there is anything to draw, and of the runs."""
    data = args.data or DATA
    output = args.output or os.path.join(data, "..", "performance.md")
    outputs.check_folder(data, [f"{name}.json" for name in RUNS], args.force)
    if output != outputs.STDOUT:
        every = [file for table in RUNS if table != "secure" for file in bench_pictures.files(table)]
        pages = [f"{name}.md" for name in page_names(data)] if os.path.isdir(data) else []
        check(output, every + pages, args.force)


def draw(data, folder):
    """Into the folder the pictures that the template shows."""
    if importlib.util.find_spec("matplotlib") is None:
        ui.note(f"no matplotlib: the pictures stay as they are; {packages.install_line(['matplotlib'])}")
        return
    import bench.plots as bench_plots

    shown = shown_pictures(data)
    os.makedirs(folder, exist_ok=True)
    for name in RUNS:
        if name == "secure":
            continue
        for picture in bench_plots.pictures(load(data, name)):
            if picture.name in shown:
                outputs.write(os.path.join(folder, f"{picture.name}.svg"), picture.file(), True, ELSEWHERE)


def shown_pictures(data):
    """Names of the pictures that the document and its pages show."""
    texts = [document(data), *(document(data, name) for name in page_names(data))]
    return {name for text in texts for name in re.findall(rf"\]\((?:{FOLDER}/)?([\w-]+)\.svg\)", text)}


def document(data, page=None):
    """The whole text of the document, or of one page behind it."""
    runs, template = {}, f"{page}.md.in" if page else TEMPLATE

    def saved(name):
        if name not in runs:
            runs[name] = load(data, name)
        return runs[name]

    def replaced(mark):
        words = mark.group(1).split()
        if words[0] not in BLOCKS:
            raise UsageError(
                f"{template} asks for {mark.group()}",
                why=f"there are: {', '.join(BLOCKS)}",
                fix=f"mend {os.path.join(data, template)}",
            )
        return BLOCKS[words[0]](saved, words[1:])

    text = read(os.path.join(data, template)).removeprefix(LICENCE)
    with ui.columns(PAGE_COLUMNS):
        made = MARK.sub(replaced, text)
    return made.replace(f"]({FOLDER}/", "](") if page else made  # a page lies beside the pictures


def load(data, name):
    """One saved run."""
    path = os.path.join(data, f"{name}.json")
    try:
        saved = json.loads(read(path))
    except ValueError as problem:
        raise UsageError(
            f"{path} is no saved run", why=str(problem), fix=f"quire bench {name} --save {path} -f"
        ) from None
    if saved.get("time_limit_s"):
        raise UsageError(
            f"{path} is not a whole run", why="it was cut by --time-limit", fix=f"quire bench {name} --save {path} -f"
        )
    return saved


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as problem:
        name = os.path.basename(path).removesuffix(".json")
        table = "apps --lines jq,perl,sqlite3 --secure" if name == "secure" else name
        raise UsageError(
            f"cannot read {path}",
            why=problem.strerror,
            fix=f"quire bench {table} --save {path}" if path.endswith(".json") else "the templates are in a checkout of Quire alone: run it there, or name one's doc/performance by --data DIR",
        ) from None


def saved_text(result):
    """JSON for people's differences: an innermost object a line, eight digits."""
    text = json.dumps(rounded(result), indent=1)
    return re.sub(r"\{[^{}\[\]]*\}", lambda m: " ".join(m.group().split()), text) + "\n"


def rounded(value):
    """Numbers with the digits that mean something."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


# ---- what stands for a mark; saved(NAME) is a run ----


def peers_of(m):
    """The libraries of a machine that were measured beside ours."""
    found = re.findall(r"(\S+) \((\S+)\)", m["peers"])
    return ", ".join(f"{name} ({os.path.basename(path)})" for name, path in found) or "none"


def by_machine(saved, say):
    """What is to be said of the machine; where the runs are of several, of each, with their names."""
    said = {}
    for name in RUNS:
        said.setdefault(say(saved(name)["machine"]), []).append(name)
    return next(iter(said)) if len(said) == 1 else "; ".join(f"{', '.join(names)}: {what}" for what, names in said.items())


def machine(saved, _):
    """{{machine}}: a table of what was measured where."""
    facts = [
        ("processor", lambda m: f"{m['cpu_model']}, {m['cpus_usable']} CPUs"),
        ("memory", lambda m: f"{size_text(m['memory_bytes'])}, OS pages of {size_text(m['os_page_bytes'])}"),
        ("system", lambda m: f"{m['system']}, {m['kernel']}, {m['libc']}"),
        ("huge pages", lambda m: f"`{m['thp_enabled']}`"),
        ("peers", peers_of),
    ]
    rows = [
        ("dates", ", ".join(sorted({saved(name)["date"] for name in RUNS}))),
        *((name, by_machine(saved, say)) for name, say in facts),
        ("load before", ", ".join(f"{n} {saved(n)['machine']['load_average_before']}" for n in RUNS)),
    ]
    return "| | |\n|---|---|\n" + "\n".join(f"| {a} | {b} |" for a, b in rows)


def provenance(result):
    """Where a block's figures are from."""
    load = result["machine"]["load_average_before"]
    return (
        f"`{result['command']}`, {result['date']}, {result['seconds']:.0f} s, {result['rounds']} rounds,"
        f" load {load} before"
    )


def come_from(saved, words):
    """{{from seeds apps}}: where the figures of some sentences are from."""
    return f"From {'; '.join(provenance(saved(name)) for name in words)}."


def block(result, text):
    """A table as printed, and its source."""
    return f"{provenance(result)}:\n\n```text\n{text.rstrip()}\n```"


def seeds(saved, words):
    """{{seeds arena}}: one part of `bench seeds`; {{seeds more slab}}: its smaller tables of that name."""
    result = saved("seeds")
    parts = {
        "arena": lambda: bench_arena.text(result),
        "slab": lambda: bench_slab_text.text(result["array_allocator"]),
        "percpu": lambda: bench_percpu_text.text(result["percpu"]),
        "heap": lambda: bench_heap.text(result["heap"]),
        "more": lambda: bench_more_text.text(result["more"], words[1]),
    }
    return block(result, parts[words[0]]())


def micro(saved, _):
    result = saved("micro")
    return block(result, bench_micro.text(result["micro"], result["allocators"]))


def apps(saved, words):
    """{{apps}}, or {{apps secure}}: the run with the secure heap beside the others."""
    result = saved(words[0] if words else "apps")
    return block(result, bench_apps.text(result["apps"], result["allocators"]))


def scale(saved, words):
    """{{scale threads}}: the pictures of one axis, and our figures as a table."""
    result, axis = saved("scale"), words[0]
    table, points = result["scale"], result["scale"]["points"][axis]
    parts = [f"{provenance(result)}:"]
    for part in bench_scale.AXES[axis]:
        title = bench_scale_text.title(axis, part)
        parts.append(f"![{title}]({FOLDER}/scale-{axis}-{part}.svg)")
    head = [bench_scale_text.OVER[axis], *(f"{at:,}" for at in points), "last / first", "of libc's"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for part in bench_scale.AXES[axis]:
        for name, rows in bench_scale_text.series(table, axis, part).items():
            cells = [f"{row[bench_scale.NS]['median']:.1f}" for row in rows]
            cells += [f"{rows[-1][key]['median']:.2f}" for key in ("ratio_to_first", "ratio_to_libc")]
            lines.append(f"| {part}: {bench_scale_text.NAMES.get(name, name)} | {' | '.join(cells)} |")
    return "\n\n".join([*parts, "\n".join(lines)])


def picture(_, words):
    """{{picture seeds-arena A query}}: a picture by name, and its words."""
    return f"![{' '.join(words[1:])}]({FOLDER}/{words[0]}.svg)"


def value(saved, words):
    """{{value arena-1-libc}}: one figure within a sentence or a table."""
    return VALUES[words[0]](saved)


def arena_ratio(callers, field):
    """Ours at so many callers."""

    def figure(saved):
        (row,) = (
            r
            for r in saved("seeds")["rows"]
            if (r["allocator"], r["callers"]) == (bench_arena.OURS, callers)
        )
        return f"{row[field]['median']:.3f}" if field in row else "no peer here"

    return figure


def mean(table, kind, name=bench_micro.OURS):
    """A geometric mean of a table."""
    return lambda saved: f"{saved(table)[table]['means'][name][kind]:.2f}"


def best_peer(saved):
    """The other malloc with which the programs took the least CPU time."""
    means = saved("apps")["apps"]["means"]
    peers = [name for name in means if name not in (bench_micro.OURS, "libc")]
    if not peers:
        return "no peer here"
    name = min(peers, key=lambda one: means[one]["cpu"])
    return f"{name}, {means[name]['cpu']:.2f} and {means[name]['rss']:.2f}"


def in_row(rows, field, **wanted):
    """The median of one figure of the row that has these words."""
    (row,) = (row for row in rows if all(row[key] == value for key, value in wanted.items()))
    return f"{row[field]['median']:.2f}" if field in row else "no peer here, so none"


def slab_remote(saved):
    return in_row(saved("seeds")["more"]["rows"], "ratio_to_base", table="slab_remote", line="4, by 256", allocator="quire-slab")


def slab_threads(saved):
    return in_row(saved("seeds")["array_allocator"]["rows"], "ratio_to_best_peer", threads=16, allocator="quire-slab")


def slab_random(saved):
    table = saved("scale")["scale"]
    return in_row(table["rows"], "ratio_to_libc", axis="objects", part="slab", at=1_000_000, allocator="quire-slab")


def add(name):
    """What an add costs."""
    return lambda saved: f"{saved('seeds')['percpu']['add'][name]['median']:.2g}"


BLOCKS = {
    "machine": machine,
    "from": come_from,
    "seeds": seeds,
    "micro": micro,
    "apps": apps,
    "scale": scale,
    "picture": picture,
    "value": value,
}
VALUES = {
    "arena-1-libc": arena_ratio(1, "cpu_ratio_to_libc"),
    "arena-1-best": arena_ratio(1, "cpu_ratio_to_best_peer"),
    "arena-8-libc": arena_ratio(8, "cpu_ratio_to_libc"),
    "arena-8-best": arena_ratio(8, "cpu_ratio_to_best_peer"),
    "micro-cpu": mean("micro", "cpu"),
    "micro-memory": mean("micro", "rss"),
    "apps-cpu": mean("apps", "cpu"),
    "apps-memory": mean("apps", "rss"),
    "apps-lines": lambda saved: str(saved("apps")["apps"]["means"][bench_micro.OURS]["lines"]),
    "apps-peer": best_peer,
    "slab-remote": slab_remote,
    "slab-16-best": slab_threads,
    "slab-random": slab_random,
    "percpu-add": add("quire-percpu"),
    "percpu-atomic": add("shared-atomic"),
}
