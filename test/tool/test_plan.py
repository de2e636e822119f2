# SPDX-License-Identifier: MIT
"""test_plan - the advice rule for arenas, each case as a program of a few sites."""

import random

from qrp import Program
from toolkit import native_json


def planned(tmp_path, program, *options, runs=True):
    return native_json("quire-plan", *options, program.write(tmp_path / "p.qrp", runs=runs))


def arena_of(document, site):
    return next(s["arena"] for s in document["sites"] if s["site"] == site)


def phase(program, sites, count=100, thread=0, size=64):
    slots = [program.alloc(thread, site=site, size=size) for _ in range(count) for site in sites]
    for slot in slots:
        program.free(thread, slot)


def test_objects_born_in_a_phase_and_dead_together_get_an_arena(tmp_path):
    program = Program()
    for _ in range(20):
        phase(program, [1])
    document = planned(tmp_path, program)
    assert arena_of(document, 1) is not None
    assert document["arenas"][0]["generations"] == 20 and document["arenas"][0]["objects"] == 2000


def test_sites_that_share_their_phases_share_their_arena(tmp_path):
    program = Program()
    for _ in range(20):
        phase(program, [1, 2, 3])
    document = planned(tmp_path, program)
    assert arena_of(document, 1) == arena_of(document, 2) == arena_of(document, 3) is not None
    assert len(document["arenas"]) == 1


def test_sites_with_phases_of_their_own_get_arenas_of_their_own(tmp_path):
    program = Program()
    held = [program.alloc(0, site=1, size=4000) for _ in range(400)]
    for _ in range(50):
        phase(program, [2], count=400, size=500)
    for slot in held:
        program.free(0, slot)
    document = planned(tmp_path, program)
    assert arena_of(document, 1) is not None and arena_of(document, 2) is not None
    assert arena_of(document, 1) != arena_of(document, 2)


def test_objects_that_are_never_freed_fit_an_arena(tmp_path):
    program = Program()
    for _ in range(500):
        program.alloc(0, site=1)
    assert arena_of(planned(tmp_path, program), 1) is not None


def test_one_object_at_a_time_is_no_arena(tmp_path):
    program = Program()
    for _ in range(5000):
        program.free(0, program.alloc(0, site=1, size=4000))
    document = planned(tmp_path, program)
    assert arena_of(document, 1) is None and document["arenas"] == []


def test_a_temporary_rides_in_the_arena_of_its_phase_when_it_wastes_little(tmp_path):
    program = Program()
    held = []
    for _ in range(1000):
        held.append(program.alloc(0, site=1, size=1000))
        program.free(0, program.alloc(0, site=2, size=16))
    for slot in held:
        program.free(0, slot)
    document = planned(tmp_path, program)
    assert arena_of(document, 2) == arena_of(document, 1) is not None


def test_a_temporary_that_would_waste_much_stays_out(tmp_path):
    program = Program()
    held = []
    for _ in range(1000):
        held.append(program.alloc(0, site=1, size=1000))
        for _ in range(5):
            program.free(0, program.alloc(0, site=2, size=1000))
    for slot in held:
        program.free(0, slot)
    document = planned(tmp_path, program)
    assert arena_of(document, 1) is not None and arena_of(document, 2) is None


def test_a_long_lived_set_whose_members_come_and_go_stays_out(tmp_path):
    chance = random.Random(4)
    program, live = Program(), []
    for _ in range(30000):
        live.append(program.alloc(0, site=1, size=200))
        if len(live) > 500:
            program.free(0, live.pop(chance.randrange(len(live))))
    assert arena_of(planned(tmp_path, program), 1) is None


def test_arenas_never_hold_more_than_the_rule_allows(tmp_path):
    chance = random.Random(6)
    for waste_percent in (0, 25, 100):
        program, live = Program(sites=40), []
        for _ in range(30000):
            site = min(39, int(chance.expovariate(0.2)))
            live.append(program.alloc(0, site=site, size=chance.randrange(16, 2000)))
            while live and chance.random() < 0.45:
                program.free(0, live.pop(chance.randrange(max(0, len(live) - 1 - site), len(live))))
        document = planned(tmp_path, program, "--waste-percent", waste_percent)
        allowed = document["arena_live_peak_bytes"] * (100 + waste_percent) / 100 + (1 << 20)
        assert document["arena_peak_bytes"] <= allowed + 100


def test_each_thread_has_an_arena_of_its_own(tmp_path):
    program = Program(reuse=False)
    for _ in range(10):
        slots = [(t, program.alloc(t, site=1)) for _ in range(50) for t in range(3)]
        for thread, slot in slots:
            program.free((thread + 1) % 3, slot)
    document = planned(tmp_path, program)
    assert arena_of(document, 1) is not None
    assert document["arenas"][0]["instances"] == 3


def test_a_site_whose_objects_another_thread_resizes_stays_out(tmp_path):
    program = Program(reuse=False)
    for _ in range(10):
        slots = [program.alloc(0, site=1) for _ in range(50)]
        program.realloc(1, slots[0], 300)
        for slot in slots:
            program.free(0, slot)
    assert arena_of(planned(tmp_path, program), 1) is None


def test_a_program_without_operations_has_no_plan(tmp_path):
    document = planned(tmp_path, Program())
    assert document["arenas"] == [] and document["sites"] == []
