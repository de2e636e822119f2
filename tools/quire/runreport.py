# SPDX-License-Identifier: MIT
"""
runreport.py - what `quire run` says of a program that ended: as text, and as "quire.run/1".

    the library's report ("quire.exit/1", one a process) + how it ended -> document -> lines

RSS explained: live + rounding + page slack + cached + metadata - not in memory + not ours == RSS.
Not here: running (cmd_run.py), measuring (the library, in the process itself).
"""

import launch
import leaksites
import ui

CLASSES_SHOWN = 12
LEAKS_SHOWN = 10
FRAMES_SHOWN = 6
OTHERS_SHOWN = 5
GREW_BYTES = 4 << 20  # a program that never asks malloc is smaller, code and all

EXPLAINED = [
    ("live_bytes", "+", "live, as asked for"),
    ("rounding_bytes", "+", "rounding up to sizes"),
    ("page_slack_bytes", "+", "page slack: free slots"),
    ("cached_bytes", "+", "cached, ready for reuse"),
    ("metadata_bytes", "+", "metadata"),
    ("untouched_bytes", "-", "of these not in memory"),
    ("not_ours_bytes", "+", "not ours: program, libraries, stacks, its own mappings"),
]


def document(target, ended, report, others):
    """Everything, for --stats=json."""
    own = (report or {}).get("rss_peak_bytes", ended.peak_rss_bytes)
    peak = max(own, ended.peak_rss_bytes)  # of the children that it waited for, too, whether or not it left a report
    return {
        "schema": "quire.run/1",
        "program": target.binary,
        "command": target.argv,
        "status": launch.exit_code(ended.status),
        "ended": launch.describe(ended.status),
        "wall_s": round(ended.wall_s, 6),
        "cpu_s": round(ended.cpu_s, 6),
        "peak_rss_bytes": peak,
        "fragmentation_percent": fragmentation(report),
        "report": report,
        "other_processes": others,
        "unserved": unserved(target, ended, report, own) or unserved_beside(report, own, others),
    }


def unserved(target, ended, report, peak):
    """Why the library served nothing in the program's own process; None when it did, or when nothing says so."""
    if report is None:
        dead = ended.status < 0
        return None if dead else f"{target.name} left no report: it ended by _exit, became a program that no preload reaches (a static one), or could not write it (chroot)"
    if report.get("passthrough"):
        return "QUIRE_CONF says passthrough: everything went to libc's malloc"
    if report["heap"]["peak_bytes"] or peak < GREW_BYTES:
        return None
    return elsewhere(report["program"], peak)


def unserved_beside(report, peak, others):
    """The same of a process that it has started, where that was the largest: a wrapper's program."""
    largest = max([other for other in others if "rss_peak_bytes" in other], key=lambda other: other["rss_peak_bytes"], default=None)
    if report is None or largest is None or largest["rss_peak_bytes"] <= max(peak, GREW_BYTES) or largest.get("passthrough") or largest["heap"]["peak_bytes"]:
        return None
    return elsewhere(f"{largest['program']}, which it started,", largest["rss_peak_bytes"])


def elsewhere(whose, peak):
    """The reason in words."""
    return f"{whose} had {ui.size(peak)} in memory and none of it from malloc: it has an allocator of its own"


def fragmentation(report):
    """Of what pages of small blocks hold at exit, the part that nobody uses; None without a report or pages."""
    heap = (report or {}).get("heap")
    if not heap:
        return None
    held = heap["live_bytes"] - heap["large_bytes"] + heap["free_bytes"]
    return round(100 * heap["free_bytes"] / held, 2) if held else 0.0


def text(full):
    """Lines for people."""
    name = " ".join(full["command"])
    report, whose = full["report"], ""
    if report is None and full["other_processes"]:
        report = full["other_processes"][0]
        whose = f"{report.get('program', '?')}[{report.get('pid', '?')}]"
    lines = [
        ui.shorten(f"quire run: {name}", ui.width()),
        f"  {full['ended']}; {ui.seconds(full['wall_s'])}, CPU {ui.seconds(full['cpu_s'])};"
        f" at most {ui.size(full['peak_rss_bytes'])} in memory",
    ]
    if whose:
        lines.append(
            f"  it left no report of its own (ended by _exit or a signal, or could not write it); the largest process that did: {whose}"
        )
    if report is None:
        lines.append("  no report: it ended by a signal or by _exit, or could not write it (chroot); while it runs, QUIRE_CONF=top:1 and quire top show it")
    elif report.get("passthrough"):
        lines.append("  QUIRE_CONF says passthrough: libc served it, there is nothing to report")
    else:
        lines += heap_lines(report, fragmentation(report))
        lines += explained_lines(report.get("rss_explained"))
        lines += class_lines(report.get("classes", []))
        lines += leak_lines(full, report)
        lines += leak_site_lines(full)
        lines += plan_lines(report)
    return lines + other_lines(full["other_processes"])


def heap_lines(report, fragmentation_percent):
    """The heap in two lines."""
    heap = report["heap"]
    limit = f", limit {ui.size(heap['limit_bytes'])}" if heap["limit_bytes"] else ""
    secure = "; secure" if report.get("secure") else ""
    return [
        f"  heap: {ui.count(heap['live_blocks'])} blocks, {ui.size(heap['live_bytes'])} live at exit; held"
        f" {ui.size(heap['mapped_bytes'])}, at most {ui.size(heap['peak_bytes'])}{limit}{secure}",
        f"  fragmentation at exit: {ui.percent(fragmentation_percent)} of the pages of small blocks is free",
    ]


def name_sites(reports, plan):
    """The names that the plan has for its sites, into what reports say of them."""
    names = {site.number: site.where for site in plan.sites} if plan else {}
    for report in filter(None, reports):
        for site in report.get("plan", {}).get("sites", []):
            site["where"] = names.get(site["site"], "")


def plan_lines(report):
    """What became of the plan."""
    plan = report.get("plan")
    if plan is None:
        return []
    if plan["refused"]:
        return ["", f"  plan: not used: {plan['refused']}; the heap served every call"]
    sites = [site for site in plan["sites"] if site["blocks"] or site["fallbacks"]]
    rows = [
        [
            ui.count(site["blocks"]),
            ui.size(site["bytes"]),
            ui.count(site["fallbacks"]),
            (site.get("where") or f"site {site['site']}") + ", sent back to the heap" * site["sent_back"],
        ]
        for site in sorted(sites, key=lambda s: s["blocks"], reverse=True)[:CLASSES_SHOWN]
    ]
    lines = [
        "",
        f"  plan: {ui.count(plan['blocks'])} blocks, {ui.size(plan['bytes'])}, by arenas that held at most {ui.size(plan['peak_bytes'])};"
        f" {ui.count(plan['fallbacks'])} by the heap instead",
    ]
    more = len(sites) - len(rows)
    lines += ui.table(["by arenas", "bytes", "by the heap", "call site"], rows, align="rrrl") if rows else []
    return lines + [f"  and {more} more call site{'s' * (more > 1)}"] * (more > 0)


def explained_lines(explained):
    """Where the resident memory is."""
    if not explained:
        return []
    lines = ["", "  RSS explained"]
    for key, sign, words in EXPLAINED:
        if explained.get(key):
            lines.append(f"  {sign} {ui.size(explained[key]):>9}  {words}")
    return lines + [f"  = {ui.size(explained['rss_bytes']):>9}  in memory at exit"]


def class_lines(classes):
    """Size classes, those that held most first."""
    shown = sorted(classes, key=lambda c: c["peak_bytes"], reverse=True)[:CLASSES_SHOWN]
    rows = [
        [
            ui.count(c["slot_bytes"]),
            ui.count(c["live_blocks"]),
            ui.size(c["live_blocks"] * c["slot_bytes"]),
            ui.size(c["peak_bytes"]),
        ]
        for c in shown
    ]
    if not rows:
        return []
    more = len(classes) - len(shown)
    lines = ["", *ui.table(["size", "live", "live bytes", "peak held"], rows, align="rrrr")]
    return lines + [f"  and {more} smaller" if more > 1 else "  and one smaller"] * (more > 0)


def leak_lines(full, report):
    """What was live at exit, with --leaks: as it was asked for where all stacks are known, else what the blocks have room for."""
    if "leaked_blocks" not in report:
        return []
    if not report["leaked_blocks"]:
        return ["", "  no block is live at exit"]
    asked_bytes = leaksites.asked_bytes(full) if report is full["report"] else None
    lines = [
        "",
        f"  live at exit: {ui.count(report['leaked_blocks'])} blocks, {ui.size(asked_bytes)}" if asked_bytes is not None
        else f"  live at exit: {ui.count(report['leaked_blocks'])} blocks, with room for {ui.size(report['leaked_bytes'])}",
    ]
    for leak in report.get("leaks", [])[:LEAKS_SHOWN]:
        lines.append(
            f"    {ui.count(leak['count']):>8} of up to {ui.count(leak['size_bytes'])} bytes, one at {leak['address']}"
        )
    return lines


def leak_site_lines(full):
    """Who allocated what was live at exit."""
    sites = full.get("leak_sites")
    if sites is None or not full["report"] or not full["report"].get("leaked_blocks"):
        return []
    lines = suppressed_lines(full.get("leak_suppressed", [])) + ["", "  allocated by, most bytes first"] * bool(sites)
    for site in sites[:LEAKS_SHOWN]:
        head, *callers = site["stack"][:FRAMES_SHOWN] or ["a place that is not known"]
        lines.append(f"    {ui.count(site['count']):>8} blocks, {ui.size(site['bytes'])}: {head}")
        lines += [f"{'':24}< {frame}" for frame in callers]
    more = len(sites) - LEAKS_SHOWN
    lines += [f"    and {more} more stacks: --stats=json has them"] * (more > 0)
    return lines + [f"  {full['leak_sites_note']}"] * bool(full["leak_sites_note"])


def suppressed_lines(suppressed):
    """What suppressions took of it, by line."""
    if not suppressed:
        return []
    count, size = (sum(line[key] for line in suppressed) for key in ("count", "bytes"))
    lines = [f"  of these suppressed: {ui.count(count)} blocks, {ui.size(size)}"]
    return lines + [f"    {ui.count(line['count']):>8} blocks, {ui.size(line['bytes'])} by {line['line']}" for line in suppressed]


def other_lines(others):
    """Other processes of the program."""
    if not others:
        return []
    lines = [
        "",
        f"  {len(others)} other process{'es' * (len(others) > 1)} of it left a report, the largest first",
    ]
    for one in others[:OTHERS_SHOWN]:
        lines.append(
            f"    {one.get('program', '?')}[{one.get('pid', '?')}]: CPU {ui.seconds(one.get('time_cpu_ns', 0) / 1e9)},"
            f" at most {ui.size(one.get('rss_peak_bytes', 0))}{live_at_exit([one])}"
        )
    return lines


def live_at_exit(reports):
    """Of other processes' --leaks; nothing where there is none."""
    blocks, room = (sum(one.get(key, 0) for one in reports) for key in ("leaked_blocks", "leaked_bytes"))
    return f", {ui.count(blocks)} blocks with room for {ui.size(room)} live at exit" if blocks else ""
