# SPDX-License-Identifier: MIT
"""test_plan - the advice rules for arenas, slabs and recycling slots, each case as a program of a few sites."""

import random

import pytest
from qrp import CALLOC, Program
from toolkit import native_json


def planned(tmp_path, program, *options, runs=True):
    return native_json("quire-plan", *options, program.write(tmp_path / "p.qrp", runs=runs))


def arena_of(document, site):
    return next(s["arena"] for s in document["sites"] if s["site"] == site)


def site_of(document, site):
    return next(s for s in document["sites"] if s["site"] == site)


def element_bytes(document, site):
    """The element size of the slab that the site is placed on."""
    slab = site_of(document, site)["slab"]
    return next(s["element_bytes"] for s in document["slabs"] if s["slab"] == slab)


def come_and_go(program, site=1, sizes=(48,), count=6000, kept=300, threads=1):
    """A list whose nodes are born and die in no order; in the end all are dead."""
    chance, live = random.Random(site), []
    for i in range(count):
        live.append(program.alloc(chance.randrange(threads), site=site, size=sizes[i % len(sizes)]))
        if len(live) > kept:
            program.free(chance.randrange(threads), live.pop(chance.randrange(len(live))))
    for slot in live:
        program.free(chance.randrange(threads), slot)


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


def test_what_lives_once_after_many_requests_leaves_them_their_kept_arena(tmp_path):
    program = Program()
    for _ in range(200):
        phase(program, [1], count=50)
    phase(program, [2], count=3000, size=200)
    phase(program, [3], count=3000, size=200)
    arenas = planned(tmp_path, program)["arenas"]
    assert [(arena["generations"], arena["kept"]) for arena in arenas] == [(200, True), (1, False), (1, False)]


def test_requests_of_which_few_lack_one_kind_still_share_an_arena(tmp_path):
    program = Program()
    for i in range(200):
        phase(program, [1, 2] if i % 40 else [2 - i % 80 // 40], count=50)
    document = planned(tmp_path, program)
    assert arena_of(document, 1) == arena_of(document, 2) is not None and document["arenas"][0]["generations"] == 200


def test_objects_that_are_never_freed_fit_an_arena(tmp_path):
    program = Program()
    for _ in range(500):
        program.alloc(0, site=1)
    assert arena_of(planned(tmp_path, program), 1) is not None


@pytest.mark.parametrize("size", [1, 17, 20])
def test_that_small_sizes_are_rounded_up_is_no_waste(tmp_path, size):
    """malloc pads them as well: what an arena must not hold is what is dead."""
    program = Program()
    for _ in range(3):
        phase(program, [1], count=60000, size=size)
    document = planned(tmp_path, program)
    assert site_of(document, 1)["peak_live_bytes"] == 60000 * size
    assert arena_of(document, 1) is not None


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


def test_temporaries_do_not_ride_in_an_arena_that_is_never_reset(tmp_path):
    program = Program()
    for _ in range(2000):
        program.alloc(0, site=1, size=56)
        program.free(0, program.alloc(0, site=2, size=33))
        program.free(0, program.alloc(0, site=3, size=200))
    document = planned(tmp_path, program)
    assert [site_of(document, site)["class"] for site in (1, 2, 3)] == ["arena", "recycling slot", "recycling slot"]
    assert document["arena_peak_bytes"] == 2000 * 64


def test_a_long_lived_set_whose_members_come_and_go_stays_out(tmp_path):
    chance = random.Random(4)
    program, live = Program(), []
    for _ in range(30000):
        live.append(program.alloc(0, site=1, size=200))
        if len(live) > 500:
            program.free(0, live.pop(chance.randrange(len(live))))
    assert arena_of(planned(tmp_path, program), 1) is None


@pytest.mark.by_turns
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
    assert document["arenas"] == document["slabs"] == document["sites"] == []


def test_temporaries_between_the_phases_do_not_shatter_the_arena(tmp_path):
    program = Program()
    for _ in range(3000):
        slots = []
        for _ in range(20):
            slots.append(program.alloc(0, site=1, size=24))
            program.free(0, program.alloc(0, site=2, size=24))
        for slot in slots:
            program.free(0, slot)
        for _ in range(4):
            program.free(0, program.alloc(0, site=3, size=160))
    document = planned(tmp_path, program)
    assert arena_of(document, 1) is not None and arena_of(document, 3) is None
    assert document["arenas"][0]["generations"] == 3000
    assert site_of(document, 3)["class"] == "recycling slot"


def test_a_list_whose_nodes_come_and_go_gets_a_slab(tmp_path):
    program = Program()
    come_and_go(program)
    document = planned(tmp_path, program)
    assert site_of(document, 1)["class"] == "slab" and element_bytes(document, 1) == 48
    assert document["slabs"] == [
        {"slab": 0, "element_bytes": 48, "objects": 6000, "peak_live": 301}
    ]
    assert document["arenas"] == []


def test_one_temporary_in_a_loop_gets_a_recycling_slot_as_large_as_the_largest(tmp_path):
    program = Program()
    for i in range(5000):
        program.free(0, program.alloc(0, site=1, size=100 + i % 50))
    document = planned(tmp_path, program)
    assert site_of(document, 1)["class"] == "recycling slot"
    assert element_bytes(document, 1) == 160 and document["slabs"][0]["peak_live"] == 1


def test_one_temporary_in_each_thread_is_a_recycling_slot(tmp_path):
    program = Program(reuse=False)
    for _ in range(200):
        slots = [(t, program.alloc(t, site=1, size=64)) for t in range(3)]
        for thread, slot in slots:
            program.free(thread, slot)
    document = planned(tmp_path, program)
    assert site_of(document, 1)["class"] == "recycling slot"


def test_sites_whose_sizes_round_up_to_the_same_share_a_slab_but_temporaries_have_their_own(tmp_path):
    program = Program()
    come_and_go(program, site=1, sizes=(41,))
    come_and_go(program, site=2, sizes=(48,))
    come_and_go(program, site=3, sizes=(49,))
    for _ in range(100):
        program.free(0, program.alloc(0, site=4, size=33))
    document = planned(tmp_path, program)
    slabs = [site_of(document, site)["slab"] for site in (1, 2, 3, 4)]
    assert slabs[0] == slabs[1] and len(set(slabs)) == 3 and None not in slabs
    assert element_bytes(document, 1) == element_bytes(document, 4) == 48


@pytest.mark.parametrize(
    "sizes, klass",
    [
        ((48,) * 9 + (40,), "slab"),
        ((64,) * 9 + (80,), "slab"),
        ((64,) * 9 + (16,), "slab"),
        ((16, 1000), "heap"),
        ((16,) * 9 + (1000,), "heap"),
        ((65537,), "leave alone"),
    ],
)
def test_only_nearly_one_size_is_a_slabs_case(tmp_path, sizes, klass):
    program = Program()
    come_and_go(program, sizes=sizes, kept=5000, count=8000)
    document = planned(tmp_path, program, "--no-arenas")
    assert site_of(document, 1)["class"] == klass
    if klass == "slab":
        assert element_bytes(document, 1) >= max(sizes)


def test_a_temporary_whose_size_varies_widely_is_the_heaps(tmp_path):
    program = Program()
    for i in range(5000):
        program.free(0, program.alloc(0, site=1, size=5000 if i % 100 == 0 else 20))
    assert site_of(planned(tmp_path, program), 1)["class"] == "heap"


def test_an_element_holds_what_its_object_grows_to(tmp_path):
    program = Program()
    for _ in range(500):
        slot = program.alloc(0, site=1, size=60)
        program.realloc(0, slot, 100)
        program.free(0, slot)
    document = planned(tmp_path, program)
    assert site_of(document, 1)["class"] == "recycling slot" and element_bytes(document, 1) == 112


def test_slots_that_would_hold_more_than_they_are_worth_are_given_up(tmp_path):
    program = Program(sites=40)
    for site in range(1, 40):
        size = 16 * site if site < 10 else 1000 * site
        for _ in range(5000 if site < 10 else 100):
            program.free(0, program.alloc(0, site=site, size=size))
    document = planned(tmp_path, program)
    classes = {site: site_of(document, site)["class"] for site in range(1, 40)}
    assert all(classes[site] == "recycling slot" for site in range(1, 10))
    kept = [s["element_bytes"] for s in document["slabs"] if s["element_bytes"] > 512]
    assert kept and sum(kept) < (256 << 10) + 39000 // 4
    assert {classes[site] for site in range(10, 33)} == {"heap", "recycling slot"}
    assert classes[39] == "leave alone" and len(kept) < 30


def test_objects_aligned_to_more_than_a_slot_are_the_heaps(tmp_path):
    program = Program()
    for _ in range(500):
        program.free(0, program.birth(0, 3, 1, 64, align_log2=6))
        program.free(0, program.birth(0, 3, 2, 64, align_log2=4))
    document = planned(tmp_path, program)
    assert site_of(document, 1)["class"] == "heap"
    assert site_of(document, 2)["class"] == "recycling slot"


def test_an_arena_that_fits_comes_before_a_slab(tmp_path):
    program = Program()
    for _ in range(20):
        phase(program, [1])
    document = planned(tmp_path, program)
    assert site_of(document, 1)["class"] == "arena" and site_of(document, 1)["slab"] is None
    without = planned(tmp_path, program, "--no-arenas")
    assert site_of(without, 1)["class"] == "slab" and without["arenas"] == []


def test_a_site_that_is_hardly_used_is_left_alone(tmp_path):
    program = Program()
    for _ in range(63):
        program.free(0, program.birth(0, CALLOC, 1, 64))
    assert site_of(planned(tmp_path, program), 1)["class"] == "leave alone"


def test_frees_by_other_threads_are_counted(tmp_path):
    program = Program(reuse=False)
    come_and_go(program, threads=4)
    facts = site_of(planned(tmp_path, program), 1)
    assert facts["class"] == "slab" and 0.6 < facts["frees_elsewhere"] / facts["frees"] < 0.9


def test_elements_are_counted_with_their_rounding_in_the_forecast(tmp_path):
    program = Program()
    come_and_go(program, sizes=(33,))
    document = planned(tmp_path, program)
    assert document["peak_live_bytes"] == 301 * 33 and document["peak_planned_bytes"] == 301 * 48
