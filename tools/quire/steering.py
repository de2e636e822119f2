# SPDX-License-Identifier: MIT
"""
steering.py - the advice carried out on the unmodified program: plan files, and the environment that preloads them.

    recording + mix --write_plan()--> NAME.plan --environment()--> the program under libquire-malloc.so --report--> counters()

    written = steering.write_plan(recording, mixed, path)       recording: tracefile.analyse(); mixed: advise.mix.choose()
        -> Written(path, sites, steered_allocs, allocs, left)   sites: how many are steered; 0: there is nothing to carry out
                                                                left: [(site number, why it is left to the heap)]
    env = steering.environment(base, path, report=FILE, control=False, timed=False)
        -> base with LD_PRELOAD and QUIRE_CONF, ours first; other preloaded libraries and the user's QUIRE_CONF stay
           control  the same lookups, every block from the heap: what finding the site costs
           timed    some of the frees that a changed program would not make are timed (for one more run, not for a measured one)
           report   the JSON report goes there when the process ends; None: none is written; a process is told by %p in the name
    said = steering.counters(FILE)
        -> Counters(blocks, bytes, needless_frees, needless_free_ns, fallbacks, sites, refused); None: there is no report, or no plan in it
           needless_frees    frees of blocks in arenas: a changed program would not make them
           needless_free_ns  CPU time of all of them together, from those that were timed; None unless timed
           sites             [{"site": n, "blocks": n, "bytes": n, "fallbacks": n, "sent_back": bool}]
           refused           why the library served everything from the heap; "" when it took the plan
    plan = steering.read(path)         a plan file, checked; QuireError (exit 3, one line) when it is damaged or of a newer version
    matched = steering.match(plan, target)  the plan for the files that are there now: the same, or its sites found again by function and
                                       line; QuireError (exit 3) with what differs when nothing can be found again

The saving with the frees in place is what the run under environment() measures; without them it is that and needless_free_ns more.
Not here: which site goes where (advise/mix.py), what the library does with a plan (src/steer/).
"""
