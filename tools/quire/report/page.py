# SPDX-License-Identifier: MIT
"""
page.py - the document of a report as one HTML file that needs nothing else.

    quire.report/1 -> view (strings, pictures, rows) -> templates/report.html (autoescaped) -> text of the file

Every name comes from somebody's program: `clean` makes its control characters visible, the template escapes the rest.
Not here: the figures (report/subject.py), the pictures (report/figures.py, report/flame.py, report/map.py).
"""

import base64
import gzip
import json
import math
import os
import re
from types import SimpleNamespace

import advise.advice as advice
import cxxnames
import measure
import packages
import render
import report.figures as figures
import report.depth as report_depth
import report.flame as flame
import report.map as report_map
import report.rss as report_rss
import tracefile
import trytable
import ui
from errors import EnvironmentLacks
from lazily import unicodedata

TEMPLATES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "templates")
SHARE_SHOWN_MIN_PERCENT = 0.1  # of the allocations; call sites below that, which save nothing (or 0.0 %) either, are folded
DOWNLOAD_PLAIN_BYTES_MAX = 500_000
VERDICT_CLASSES = {"YES": "yes", "NO, leave it alone": "no", "INCONCLUSIVE": "open"}
NEEDED = ("jinja2", "matplotlib", "numpy")


def lacking():
    """The Python packages that a page needs and that are not here."""
    from importlib.util import find_spec

    return [name for name in NEEDED if find_spec(name) is None]


def need_packages():
    """Ends with a message when a page cannot be made."""
    missing = lacking()
    if missing:
        raise EnvironmentLacks(
            f"no page without the Python package{'s' * (len(missing) > 1)} {', '.join(missing)}",
            fix=f"{packages.install_line(missing)}   (./quire in a checkout does this by itself)",
        )


def clean(value):
    """A text whose control characters, and those that turn the direction of writing, show as signs."""
    if not isinstance(value, str) or hasattr(value, "__html__") or value.isprintable():
        return value
    out = []
    for c in value:
        if ord(c) < 0x20:
            out.append(chr(0x2400 + ord(c)))
        elif unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            out.append("\ufffd")
        else:
            out.append(c)
    return "".join(out)


def json_text(document):
    """JSON that may stand inside a page: nothing in it ends or begins an element."""
    text = json.dumps(document, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def download(document):
    """(file name, data: address) of the raw figures; packed when they are many."""
    raw = json.dumps(document, separators=(",", ":")).encode()
    name, kind = "report.json", "application/json"
    if len(raw) > DOWNLOAD_PLAIN_BYTES_MAX:
        raw, name, kind = gzip.compress(raw, mtime=0), "report.json.gz", "application/gzip"
    return name, f"data:{kind};base64,{base64.b64encode(raw).decode()}"


def interval(value, form):
    """`12 %` with its interval below; one round has none."""
    ends = f"{form(value['low'])} to {form(value['high'])}" if value["low"] < value["high"] else ""
    return {"value": form(value["value"]), "range": ends}


def replays(findings):
    """How the bars of replays came about, in words."""
    number = figures.replay_rounds(findings)
    if number == 1:
        return "in 1 round. Bars are what it took: one round has no interval."
    kind = "95 % interval" if number >= measure.ROUNDS_95_MIN else f"whole range of the {number}"
    return f"in {number} interleaved rounds. Bars are medians; the line at a bar's end is the {kind}."


def nanoseconds(value):
    """A cost of one operation."""
    return f"{value:.1f} ns"


def tiles(document):
    """The figures at the top: [(figure, what it is, its interval)]."""
    findings, facts = document["findings"], document["facts"]
    rows = []
    if facts.get("allocations") is not None:
        rows.append((ui.count(facts["allocations"]), "allocations", ""))
    if facts.get("peak_live_bytes") is not None:
        rows.append((ui.size(facts["peak_live_bytes"]), "live at the peak", ""))
    if "program" in findings:
        rows.append((ui.seconds(findings["program"]["cpu_s"]), "CPU time, untraced", ""))
    for key, name in (
        ("allocation_share_percent", "of it is allocation"),
        ("saving_percent", f"saved by {saver(findings)}"),
    ):
        if findings.get(key):
            both = interval(findings[key], ui.percent)
            rows.append((both["value"], name, both["range"]))
    if own_allocator_s(findings) is not None and findings.get("saving_today_percent"):
        both = interval(findings["saving_today_percent"], ui.percent)
        rows.append((both["value"], f"against {today_allocator(findings)}", both["range"]))
    threads = facts.get("threads")
    if threads:
        rows.append((ui.count(threads), "thread" + "s" * (threads != 1), ""))
    return rows


def saver(findings):
    """Whose saving it is that the verdict stands on; results of versions that only replayed stood on the mix."""
    name = findings.get("saving_of") or "mix"
    return "the " * (name in figures.OURS_BY_NAME) + figures.shown_name(name, findings)


def own_allocator_s(findings):
    """CPU time with the allocator that the program has today, CPython's own or a preloaded one; None for other programs."""
    return findings.get("program", {}).get("own_allocator_cpu_s")


def today_allocator(findings):
    """Its name; results of versions that knew CPython's alone have none."""
    return findings.get("program", {}).get("today_allocator") or "CPython's own allocator"


def circumstances(document):
    """Sentences about the run that a reader of the figures must know."""
    findings, facts, said = document["findings"], document["facts"], []
    if tracefile.begun_late(facts):
        said.append(f"The trace holds {tracefile.begun_late(facts)}.")
    if facts.get("note"):
        said.append(f"The trace is not whole: {facts['note']}.")
    if own_allocator_s(findings) is not None:
        name = today_allocator(findings)
        why = f"LD_PRELOAD gives the program {name}: all other runs were without that."
        if name == "CPython's own allocator":
            why = "PYTHONMALLOC=malloc was set for all other runs: CPython's own allocator would hide what the program does."
        if findings["program"].get("today_inside"):
            why = f"The program has {name} inside: other mallocs were put in its place by patched entries of its functions, and it ran by them too."
        row = next((row for row in figures.with_figures(findings) if row["name"] == "today"), {})
        today_s = figures.program_s(row, findings) or own_allocator_s(findings)
        said.append(
            f"{why} With {name}, as it runs today, it takes {ui.seconds(today_s)}: "
            "the verdict compares with it."
        )
    count = findings.get("trace", {}).get("process_count") or 1
    if count > 1:
        said.append(f"It ran {count} processes; this is the one that allocates most.")
    if findings.get("program", {}).get("status"):
        said.append(f"The program ended with {findings['program']['status_text']}.")
    return said


def verdict(findings):
    """The verdict's word, class and reason; what to run when there is none."""
    found = findings.get("verdict")
    if not found or not found["word"]:
        reason = found["reason"] if found else "a trace alone does not know the program's own time"
        return {"word": "No verdict", "class": "none", "reason": reason}
    return {
        "word": found["word"],
        "class": VERDICT_CLASSES.get(found["word"], "none"),
        "reason": found["reason"],
    }


def allocator_rows(findings):
    """The table under the bars."""
    rows = []
    for row in findings.get("allocators", []):
        name = figures.shown_name(row["name"], findings)
        if "error" in row:
            rows.append({"name": name, "error": row["error"]})
            continue
        program_s, saving, cost = figures.program_s(row, findings), row.get("saving_percent"), row.get("cpu_ns_per_op")
        memory_bytes = row.get("peak_rss_bytes") if figures.was_run(findings) else row.get("replay_peak_rss_bytes")
        error = row.get("model_error_percent")
        rows.append(
            {
                "name": name,
                "cost": interval(cost, nanoseconds) if cost else None,
                "cost_ns": cost["value"] if cost else 1e98,
                "program_s": program_s or 0,
                "saving_key": saving["value"] if saving else 0,
                "memory_bytes": memory_bytes or 0,
                "program": ui.seconds(program_s) if program_s is not None else "",
                "wall_s": row.get("program_wall_s") or 0,
                "wall": ui.seconds(row["program_wall_s"]) if row.get("program_wall_s") else "",
                "saving": interval(saving, ui.percent) if saving and name != "libc" else None,
                "memory": ui.size(memory_bytes) if memory_bytes else "",
                "library": row.get("library") or "",
                "source": source(row, error),
                "error_key": abs(error) if error is not None else -1,
            }
        )
    return rows


def meanings(findings):
    """What the rows with names of our own are."""
    carried_out, names = findings.get("steered"), [row["name"] for row in findings.get("allocators", [])]
    written = carried_out and SimpleNamespace(sites=carried_out["sites"], memory_bytes=carried_out["expected_bytes"])
    return [trytable.meaning(name, written) for name in trytable.WORDS if name in names]


def source(row, error):
    """Where a row's saving comes from, and how far the model is off."""
    if row.get("measured"):
        return "measured" if error is None else f"measured; the model was off by {error:+.1f} points"
    return "modelled" if error is None else f"modelled, ±{abs(error):.1f} points"


def fits(site):
    """What serves a site."""
    if site.get("arena") is not None:
        return f"arena {site['arena']}"
    return f"slab {site['slab']}" if site.get("slab") is not None else ""


def site_saving(site):
    """(what is shown, what is sorted by) of a site's saving."""
    if site.get("saving_percent") is not None:
        return "~ " + ui.percent(site["saving_percent"]), site["saving_percent"]
    if site.get("saving_cpu_s") is not None:
        return "~ " + ui.seconds(site["saving_cpu_s"]), site["saving_cpu_s"]
    return "", -1e9


def share(value):
    """A share in percent, never rounded up to all or down to nothing."""
    if 0 < value < 0.05:
        return "< 0.1 %"
    return f"{math.floor(value * 10) / 10:.1f} %" if 99.5 <= value < 100 else ui.percent(value)


def classes_of(findings):
    """How much each class serves; an earlier version said so of the call sites that it listed alone."""
    if "classes" in findings:
        return findings["classes"]
    listed = findings.get("sites", [])
    return [{"class": name, "call_sites": len(same), "allocations": sum(site["allocations"] for site in same)}
            for name in render.HOW if (same := [site for site in listed if site["class"] == name])]  # fmt: skip


def served_by_all(findings):
    """Allocations of all call sites, at least 1."""
    return max(1, sum(row["allocations"] for row in classes_of(findings)))


def unlisted(findings):
    """What the call sites that are not listed do, in words; nothing where all are."""
    sites, served = findings.get("sites", []), served_by_all(findings)
    number = sum(row["call_sites"] for row in classes_of(findings)) - len(sites)
    part = 100 * (1 - sum(site["allocations"] for site in sites) / served)
    return f"{number:,} more call sites, with {share(part)} of the allocations" if number > 0 else ""


def site_rows(document):
    """The table of call sites."""
    sites = document["findings"].get("sites", [])
    total = served_by_all(document["findings"])
    rows = []
    for site in sites:
        saving, saving_key = site_saving(site)
        mean = site.get("mean_bytes") or site["bytes"] / max(1, site["allocations"])  # of an earlier version
        rows.append(
            {
                "function": cxxnames.brief(site["function"]),
                "where": site.get("where") or "",
                "class": site["class"],
                "fits": fits(site),
                "share": 100 * site["allocations"] / total,
                "share_text": share(100 * site["allocations"] / total),
                "allocations": site["allocations"],
                "mean": ui.size(mean),
                "mean_bytes": mean,
                "peak": site["peak_live_objects"],
                "saving": saving,
                "saving_key": saving_key,
                "stack": [cxxnames.tidy(frame) for frame in site.get("stack", [])],
            }
        )
    return rows


def class_rows(findings):
    """How much each class serves, and how to change the code for it."""
    served = {part["class"]: part["served"] for part in findings.get("parts", [])}
    found = {row["class"]: row for row in classes_of(findings)}
    rows = []
    for name, how in render.HOW.items():
        if name in found:
            how = how if served.get(name, True) else render.NO_GAIN
            part = 100 * found[name]["allocations"] / served_by_all(findings)
            rows.append({"name": name, "text": share(part), "how": how, "n": found[name]["call_sites"]})
    return rows


def hurried(findings):
    """Whether a `try` had no time for replays and advice, and so judged no call site."""
    events = findings.get("trace", {}).get("events") or 0
    return figures.was_run(findings) and not findings.get("replay_rounds") and events >= advice.EVENTS_MIN


def cut(findings):
    """Whether that is so because only a part of the run was recorded."""
    return hurried(findings) and bool(findings["trace"].get("cut"))


def folded(sites):
    """(rows that are shown, rows that do next to nothing)"""
    little = [r for r in sites if r["share"] < SHARE_SHOWN_MIN_PERCENT]
    few = [r for r in little if r["saving_key"] <= 0 or not re.search("[1-9]", r.get("saving", "1"))]
    return [r for r in sites if r not in few], few


def rss_sentence(found):
    """What the bars tell, in one sentence."""
    parts = []
    for one in found:
        live = one.live_bytes
        extra = max(0, one.rss_bytes - live)
        part = f" ({ui.percent(100 * extra / live)})" if live else ""
        parts.append((extra, f"{one.name} {ui.size(extra)}{part}"))
    said = ", ".join(text for _, text in sorted(parts, key=lambda p: p[0]))
    return f"Held beyond the {ui.size(found[0].live_bytes)} that live, least first: {said}."


def rss_rows(found):
    """Explained memory with widths for the bars."""
    widest = max([one.rss_bytes for one in found] + [1])
    for one in found:
        yield {
            "name": one.name,
            "rss": ui.size(one.rss_bytes),
            "width": 100 * one.rss_bytes / widest,
            "absent": ui.size(one.absent_bytes) if one.absent_bytes else "",
            "parts": [
                {
                    "word": p.word,
                    "text": ui.size(p.bytes),
                    "colour": p.colour,
                    "width": 100 * p.bytes / max(1, one.rss_bytes),
                }
                for p in one.parts
            ],
        }


def maps(profile):
    """Occupancy at the peak and at the end."""
    rows = []
    for key, title in (("occupancy_at_peak", "At the peak"), ("occupancy_at_end", "At the end")):
        picture = report_map.svg(profile[key], key)
        rows.append(
            {
                "title": title,
                "svg": picture,
                "sum": report_map.summary(profile[key]),
                "depth": report_depth.words(profile[key]) if picture else "",
                "key": key,
            }
        )
    return rows


def pictures(document):
    """All that is drawn; a picture that cannot be drawn is None."""
    findings, profile = document["findings"], document["profile"]
    drawn = {"time": figures.time_bars(findings), "memory": figures.memory_bars(findings)}
    if profile and profile["samples"]:
        drawn["live"] = figures.live_lines(profile, document["timelines"])
        drawn["areas"] = figures.live_areas(profile)
        drawn["heat"] = figures.heat_whole(profile)
        drawn["heats"] = figures.heat_sites(profile)
        drawn["flames"] = [
            {"key": key, "title": flame.METRICS[key][0], "svg": flame.svg(profile, key, clean)}
            for key in flame.METRICS
        ]
        drawn["maps"] = maps(profile)
    return drawn


def view(document):
    """What the template shows."""
    document = report_depth.document(document)
    sites = site_rows(document)
    shown_sites, few_sites = folded(sites)
    explained = report_rss.explain(document["timelines"])
    name, address = download(report_depth.without(document))
    return {
        "document": document,
        "findings": document["findings"],
        "tiles": tiles(document),
        "circumstances": circumstances(document),
        "verdict": verdict(document["findings"]),
        "drawn": pictures(document),
        "allocators": allocator_rows(document["findings"]),
        "meanings": meanings(document["findings"]),
        "measured": figures.was_run(document["findings"]),
        "sites": shown_sites,
        "classes": class_rows(document["findings"]),
        "unlisted": unlisted(document["findings"]),
        "few_sites": few_sites,
        "replays": replays(document["findings"]),
        "hurried": hurried(document["findings"]),
        "cut": cut(document["findings"]),
        "rss": list(rss_rows(explained)),
        "rss_sentence": rss_sentence(explained) if explained else "",
        "rss_words": report_rss.WORDS,
        "rss_colours": report_rss.COLOURS,
        "raw": json_text(document),
        "download_name": name,
        "download": address,
        "command": render.command(),
        "zoom_words": report_map.ZOOM_WORDS,
    }


def environment():
    """jinja2 with everything escaped and cleaned."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=clean,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        drawing=lambda picture: Markup(picture if isinstance(picture, str) else picture.inline()),
        raw=Markup,
        size=ui.size,
        count=ui.count,
        percent=ui.percent,
        site_name=figures.site_name,
        brief=cxxnames.brief,
    )
    return made


def page(document, template="report.html", values=None):
    """The text of the file."""
    import report.plots as plots

    values = values if values is not None else view(document)
    return environment().get_template(template).render(colours=plots.variables(), **values)
