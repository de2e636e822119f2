# SPDX-License-Identifier: MIT
"""
test_plan_requests - the advice on servers: no call site makes 8 objects a request, all of them together do.

    request   [----------------]   ten kinds, one object of each: one arena
                [------------]

As small programs of ops, and as a recorded C program (programs/requests.c).
"""

import pathlib
import random

import pytest
from qrp import Program
from toolkit import build, native, native_json, quire


def planned(tmp_path, program, *options):
    return native_json("quire-plan", *options, program.write(tmp_path / "p.qrp", runs=True))


def site_of(document, site):
    return next(s for s in document["sites"] if s["site"] == site)


def arena_of(document, site):
    return site_of(document, site)["arena"]


def arenas_of(document, sites):
    return {arena_of(document, site) for site in sites}


def request(program, sites, each=1, size=64):
    """Born one after the other, dead one after the other."""
    slots = [program.alloc(0, site=site, size=size) for _ in range(each) for site in sites]
    for slot in slots:
        program.free(0, slot)


def test_ten_kinds_of_one_object_each_share_an_arena_which_is_kept(tmp_path):
    program, kinds = Program(sites=16), range(1, 11)
    for _ in range(100):
        request(program, kinds)
    document = planned(tmp_path, program, "--plan", tmp_path / "plan")
    (arena,) = document["arenas"]
    assert arenas_of(document, kinds) == {0} and arena["generations"] == 100 and arena["objects"] == 1000
    assert arena["kept"] and "arena 0 kept 1\n" in (tmp_path / "plan").read_text()


def test_three_sites_of_six_objects_share_an_arena_and_one_alone_has_none(tmp_path):
    program = Program()
    for _ in range(100):
        request(program, [1, 2, 3], each=6)
        request(program, [4], each=6)
    document = planned(tmp_path, program)
    assert arenas_of(document, [1, 2, 3]) == {0} and arena_of(document, 4) is None
    assert document["arenas"][0]["generations"] == 100


def test_two_kinds_of_request_meet_in_the_kinds_of_object_that_they_share(tmp_path):
    program = Program(sites=16)
    for i in range(300):
        request(program, range(1, 9) if i % 3 == 0 else range(3, 11))
    document = planned(tmp_path, program)
    assert arenas_of(document, range(1, 11)) == {0} and document["arenas"][0]["generations"] == 300


def test_two_kinds_of_request_that_share_nothing_have_an_arena_each(tmp_path):
    program = Program(sites=24)
    for i in range(300):
        request(program, range(1, 9) if i % 2 == 0 else range(11, 20))
    document = planned(tmp_path, program)
    first, second = arenas_of(document, range(1, 9)), arenas_of(document, range(11, 20))
    assert len(first) == len(second) == 1 and first != second and None not in first | second


def test_requests_in_two_threads_at_once_have_an_arena_in_each(tmp_path):
    program, kinds = Program(sites=16, reuse=False), range(1, 11)
    for _ in range(100):
        slots = [(thread, program.alloc(thread, site=kind)) for kind in kinds for thread in (0, 1)]
        for thread, slot in slots[:10]:
            program.free(thread, slot)
        for thread, slot in slots[10:]:
            program.free(1 - thread, slot)
    document = planned(tmp_path, program, "--plan", tmp_path / "plan")
    (arena,) = document["arenas"]
    assert arenas_of(document, kinds) == {0} and arena["instances"] == 2 and arena["generations"] == 200
    replayed = native_json("quire-replay", "--verify", "--plan", tmp_path / "plan", tmp_path / "p.qrp")
    assert replayed["corrupt"] == replayed["failures"] == 0 and replayed["arena_generations"] == 200


def test_requests_that_always_overlap_in_one_thread_are_no_arena(tmp_path):
    program, before = Program(sites=16), []
    for i in range(4000):
        slots = [program.alloc(0, site=kind, size=64) for kind in range(1 + i % 2, 11, 2)]
        for slot in before:
            program.free(0, slot)
        before = slots
    assert planned(tmp_path, program)["arenas"] == []


def test_kinds_that_live_one_after_the_other_or_by_chance_at_once_share_nothing(tmp_path):
    chance = random.Random(3)
    program, live = Program(sites=24), {}
    for _ in range(300):
        for kind in range(1, 11):
            program.free(0, program.alloc(0, site=kind))
    for _ in range(6000):
        kind = chance.randrange(11, 21)
        if kind in live:
            program.free(0, live.pop(kind))
        else:
            live[kind] = program.alloc(0, site=kind)
    assert planned(tmp_path, program)["arenas"] == []


def test_large_generations_and_rare_ones_are_destroyed_not_kept(tmp_path):
    program = Program()
    for _ in range(20):
        request(program, [1], each=100, size=2000)
    for _ in range(7):
        request(program, [2], each=100, size=16)
    document = planned(tmp_path, program)
    assert len(document["arenas"]) == 2 and not any(arena["kept"] for arena in document["arenas"])


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """programs/requests.c, with malloc."""
    source = (pathlib.Path(__file__).parent / "programs" / "requests.c").read_text()
    return build(tmp_path_factory.mktemp("server"), source, "requests", ["-DARENA=0", "-pthread"])


def recorded(folder, program, *words):
    """quire-plan's document of a real run, without the sites that are hardly used."""
    done = quire(folder, "record", "-o", "r.qtr", "--", program, *words)
    assert done.returncode == 0, done.stderr
    analysed = native("quire-analyse", folder / "r.qtr", "--sites", folder / "r.json", "--program", folder / "r.qrp")
    assert analysed.returncode == 0, analysed.stderr
    document = native_json("quire-plan", folder / "r.qrp")
    document["sites"] = [site for site in document["sites"] if site["allocs"] > 64]
    return document


@pytest.mark.parametrize(
    "shape, requests, generations, instances",
    [("three", 2000, 2000, 1), ("two", 50000, 50000, 1), ("threads", 2000, 4000, 2)],
)
def test_a_server_has_one_arena_for_its_requests_also_where_they_are_too_many_to_be_kept(
    tmp_path, server, shape, requests, generations, instances
):
    document = recorded(tmp_path, server, shape, requests)
    (arena,) = document["arenas"]
    assert {site["arena"] for site in document["sites"]} == {0}
    assert arena["generations"] == generations and arena["instances"] == instances and arena["kept"]


@pytest.mark.parametrize("shape", ["late", "queue", "apart"])
def test_a_program_that_only_looks_like_a_server_has_none(tmp_path, server, shape):
    document = recorded(tmp_path, server, shape, 10000)
    assert document["arenas"] == [] and len(document["sites"]) == 10
    shown = [worst for refused in document["refused"] for worst in refused["counterexamples"]]
    if shape != "apart":
        assert any(worst["held_bytes"] > 10 * worst["peak_live_bytes"] for worst in shown)
