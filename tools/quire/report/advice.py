# SPDX-License-Identifier: MIT
"""
advice.py - the plan in words, for a page: each arena and slab, what speaks for and against it, and how to get the change.

    plan + sites + mix -> {"arenas": [...], "slabs": [...], "refused": [...]}      strings, as `advise` says them

Not here: the plan (quire-plan, advise/mix.py), the reasons (advise/evidence.py), the change itself (patch/code.py).
"""

import advise.evidence as advise_evidence
import render
import tracefile

PATCHES_SHOWN = 4


def patches(sites, trace):
    """The commands that print the change for the busiest of some sites."""
    rows = sorted(sites, key=lambda s: s.allocs, reverse=True)[:PATCHES_SHOWN]
    shown = tracefile.typed(trace)
    return [
        {
            "site": advise_evidence.name_of(site),
            "command": f"{render.command()} advise {shown} --patch {site.id}",
        }
        for site in rows
    ]


def arenas(planned, rows, mix, trace):
    """Each arena that matters, the busiest first."""
    names, found = {site.id: site for site in rows}, []
    for arena in sorted(planned["arenas"], key=lambda a: a["objects"], reverse=True):
        said = render.arenas_text({**planned, "arenas": [arena]}, rows)
        if not said or len(found) == advise_evidence.ARENAS_SHOWN:
            continue
        late, examples = arena["late_objects"], arena["counterexamples"][:1]
        outlive = "none outlives the rest" if late == 0 else f"{late:,} outlive the rest"
        served = [site for site in rows if site.arena == arena["arena"]]
        found.append(
            {
                "text": said[0].strip(),
                "gains": mix.serves("arena"),
                "together": f"{advise_evidence.generations(arena)}; {outlive}",
                "example": advise_evidence.said(examples[0], names) if examples else "",
                "patches": patches(served, trace),
            }
        )
    return found


def slabs(planned, rows, mix, trace):
    """Each slab that the mix serves."""
    found = []
    for slab in planned["slabs"]:
        said = render.slabs_text({**planned, "slabs": [slab]}, rows, mix)
        if said and len(found) < render.SLABS_SHOWN:
            served = [s for s in rows if s.slab == slab["slab"] and mix.serves(s.klass)]
            found.append({"text": said[0].strip(), "patches": patches(served, trace)})
    return found


def refused(planned, rows):
    """Busy sites without an arena, and why."""
    names, found = {site.id: site for site in rows}, []
    least = advise_evidence.REFUSED_SHARE_MIN * planned["allocs"]
    for one in planned["refused"]:
        site = names.get(one["site"])
        if one["objects"] < least or not (site and site.no_arena):
            continue
        shown = advise_evidence.SHOWN_BY_EXAMPLE in site.no_arena and one["counterexamples"][:1]
        found.append(
            {
                "text": f"{advise_evidence.name_of(site)}: {site.no_arena}",
                "together": advise_evidence.generations(one),
                "example": advise_evidence.said(shown[0], names) if shown else "",
            }
        )
    return found[: advise_evidence.REFUSED_SHOWN]


def advice_of(mix, rows, trace):
    """All of it; None without a plan."""
    if mix is None:
        return None
    return {
        "arenas": arenas(mix.planned, rows, mix, trace),
        "slabs": slabs(mix.planned, rows, mix, trace),
        "refused": refused(mix.planned, rows),
    }
