# SPDX-License-Identifier: MIT
"""test_replay - the replayer: what it does with each op, with threads, with allocators that lie, with damaged programs."""

import os
import random

import pytest
from qrp import CALLOC, Program
from toolkit import build, native, native_json

import peers


def churn(rounds=50):
    """One thread: phases of 100 objects that die together, temporary ones among them."""
    chance = random.Random(1)
    program = Program()
    for _ in range(rounds):
        objects = [program.alloc(0, site=1, size=chance.randrange(0, 300)) for _ in range(100)]
        for slot in objects[::3]:
            program.realloc(0, slot, chance.randrange(1, 6000))
        for _ in range(20):
            program.free(0, program.alloc(0, site=2, size=24))
        for slot in objects:
            program.free(0, slot)
    return program


def crossing(threads=4, steps=4000, seed=2):
    """Objects handed from thread to thread and freed anywhere."""
    chance = random.Random(seed)
    program, live = Program(reuse=False), []
    for _ in range(steps):
        thread = chance.randrange(threads)
        if chance.random() < 0.55 or len(live) < 5:
            live.append(program.alloc(thread, site=thread % 2, size=chance.randrange(1, 200)))
        else:
            program.free(thread, live.pop(chance.randrange(len(live))))
    for slot in live:
        program.free(chance.randrange(threads), slot)
    return program


def plan(tmp_path, *pairs):
    path = tmp_path / "plan"
    path.write_text("quire-plan 1\n" + "".join(f"site {s} arena {a}\n" for s, a in pairs))
    return path


def slab_plan(tmp_path, *sites, element_bytes=64, word="slab"):
    """A plan that places the sites on one slab."""
    path = tmp_path / "plan"
    lines = "".join(f"site {site} {word} 0\n" for site in sites)
    path.write_text(f"quire-plan 1\nslab 0 bytes {element_bytes}\n{lines}")
    return path


def test_every_op_of_one_thread_is_replayed(tmp_path):
    path = churn().write(tmp_path / "p.qrp")
    figures = native_json("quire-replay", "--verify", path)
    assert figures["ops"] == 50 * (100 + 34 + 40 + 100)
    assert figures["ops_dropped"] == figures["failures"] == figures["corrupt"] == 0
    assert figures["threads"] == figures["lanes"] == 1
    assert figures["cpu_ns"] > 0 and "libc" in figures["malloc_library"]


def test_an_empty_run_costs_less_than_an_allocator(tmp_path):
    path = churn(rounds=400).write(tmp_path / "p.qrp")
    null = min(native_json("quire-replay", "--null", path)["cpu_ns"] for _ in range(3))
    libc = min(native_json("quire-replay", path)["cpu_ns"] for _ in range(3))
    assert null < libc


@pytest.mark.parametrize("runs", [False, True])
@pytest.mark.parametrize("backend", [(), ("--null",)])
def test_threads_that_hand_objects_over_keep_their_order(tmp_path, runs, backend):
    path = crossing().write(tmp_path / "p.qrp", runs=runs)
    figures = native_json("quire-replay", "--verify", *backend, path)
    assert figures["ops_dropped"] == figures["corrupt"] == figures["failures"] == 0
    assert figures["threads"] == figures["lanes"] == 4
    assert figures["order_known"] == runs


@pytest.mark.parametrize("seed", range(6))
def test_arenas_end_only_after_the_last_death_in_any_thread(tmp_path, seed):
    path = crossing(seed=seed).write(tmp_path / "p.qrp", runs=bool(seed % 2))
    figures = native_json(
        "quire-replay", "--verify", "--plan", plan(tmp_path, (0, 0), (1, 0)), path
    )
    assert figures["ops_dropped"] == figures["corrupt"] == figures["failures"] == 0
    assert figures["arenas"] == 4 and figures["arena_generations"] >= 4


def test_an_arena_lives_from_its_first_object_to_its_last(tmp_path):
    path = churn(rounds=50).write(tmp_path / "p.qrp")
    figures = native_json("quire-replay", "--verify", "--plan", plan(tmp_path, (1, 0)), path)
    assert figures["arenas"] == 1 and figures["arena_generations"] == 50
    both = native_json("quire-replay", "--verify", "--plan", plan(tmp_path, (1, 0), (2, 1)), path)
    assert both["arena_generations"] == 50 + 50 * 20


@pytest.mark.parametrize("word", ["slab", "slot"])
def test_objects_of_a_slabs_site_are_the_slabs(tmp_path, word):
    path = churn().write(tmp_path / "p.qrp")
    served = slab_plan(tmp_path, 2, word=word)
    figures = native_json("quire-replay", "--verify", "--plan", served, path)
    assert figures["ops_on_slabs"] == 50 * 40
    assert figures["corrupt"] == figures["failures"] == figures["ops_dropped"] == 0


@pytest.mark.parametrize("backend", [(), ("--null",)])
@pytest.mark.parametrize("seed", range(4))
def test_elements_may_be_freed_by_any_thread(tmp_path, seed, backend):
    path = crossing(seed=seed, threads=8).write(tmp_path / "p.qrp", runs=bool(seed % 2))
    served = slab_plan(tmp_path, 0, 1, element_bytes=200)
    figures = native_json("quire-replay", "--verify", *backend, "--plan", served, path)
    assert figures["ops_on_slabs"] == figures["ops"] == 2 * sum_of_births(path)
    assert figures["corrupt"] == figures["failures"] == figures["ops_dropped"] == 0


def sum_of_births(path):
    return native_json("quire-plan", path)["allocs"]


def test_a_resized_object_stays_in_its_element_or_leaves_for_libc_with_its_contents(tmp_path):
    program = Program()
    for size in (10, 64, 65, 5000):
        slot = program.alloc(0, site=1, size=32)
        program.realloc(0, slot, size)
        program.realloc(0, slot, 40)
        program.free(0, slot)
    path = program.write(tmp_path / "p.qrp")
    figures = native_json("quire-replay", "--verify", "--plan", slab_plan(tmp_path, 1), path)
    # Two stay to the end (4 ops each), two leave with their first resize (birth and leaving).
    assert figures["ops_on_slabs"] == 2 * 4 + 2 * 2
    assert figures["corrupt"] == figures["failures"] == 0 and figures["ops"] == 16


def test_what_does_not_fit_an_element_stays_with_libc(tmp_path):
    program = Program()
    program.free(0, program.alloc(0, site=1, size=64))
    program.free(0, program.alloc(0, site=1, size=65))
    program.free(0, program.birth(0, 3, 1, 32, align_log2=6))
    program.free(0, program.birth(0, CALLOC, 1, 0))
    path = program.write(tmp_path / "p.qrp")
    figures = native_json("quire-replay", "--verify", "--plan", slab_plan(tmp_path, 1), path)
    assert figures["ops_on_slabs"] == 4 and figures["ops"] == 8 and figures["corrupt"] == 0


def test_arenas_and_slabs_serve_one_program_together(tmp_path):
    path = churn().write(tmp_path / "p.qrp")
    both = tmp_path / "plan"
    both.write_text("quire-plan 1\nslab 3 bytes 24\nsite 1 arena 0\nsite 2 slot 3\n")
    figures = native_json("quire-replay", "--verify", "--plan", both, path)
    assert figures["arena_generations"] == 50 and figures["ops_on_slabs"] == 50 * 40
    assert figures["corrupt"] == figures["failures"] == 0


def test_threads_that_never_overlapped_share_a_lane(tmp_path):
    program = Program(reuse=False)
    for thread in range(5):
        for slot in [program.alloc(thread) for _ in range(50)]:
            program.free(thread, slot)
    figures = native_json("quire-replay", program.write(tmp_path / "p.qrp", runs=True))
    assert figures["threads"] == 5 and figures["lanes"] == 1


def test_a_thread_that_began_later_waits_for_its_beginner(tmp_path):
    program = Program(reuse=False)
    mine = [program.alloc(0) for _ in range(10)]
    theirs = [program.alloc(thread) for thread in (1, 2) for _ in range(10)]
    for slot in mine + theirs:
        program.free(0, slot)
    program.alloc(1)
    program.alloc(2)
    figures = native_json("quire-replay", program.write(tmp_path / "p.qrp", runs=True))
    assert figures["threads"] == figures["lanes"] == 3 and figures["ops_dropped"] == 0


@pytest.mark.parametrize("peer", peers.installed(), ids=lambda p: p.name)
def test_a_peer_that_is_preloaded_is_named_by_the_process_itself(tmp_path, peer):
    path = churn().write(tmp_path / "p.qrp")
    done = native(
        "quire-replay", "--expect-malloc", peer.path, path, environment={"LD_PRELOAD": peer.path}
    )
    assert done.returncode == 0, done.stderr
    assert peer.name[:6] in done.stdout


def test_a_peer_that_is_not_really_loaded_is_an_error(tmp_path):
    path = churn().write(tmp_path / "p.qrp")
    peer = peers.installed()[0]
    done = native("quire-replay", "--expect-malloc", peer.path, path)
    assert done.returncode == 1 and "does not serve malloc" in done.stderr and done.stdout == ""


def test_a_library_that_is_loaded_but_defines_no_malloc_is_an_error(tmp_path):
    path = churn().write(tmp_path / "p.qrp")
    library = build(tmp_path, "int nothing_of_use;", name="libidle.so", flags=["-shared", "-fPIC"])
    done = native(
        "quire-replay", "--expect-malloc", library, path, environment={"LD_PRELOAD": str(library)}
    )
    assert done.returncode == 1 and "does not serve malloc" in done.stderr


def test_an_allocator_whose_objects_overlap_is_found_out(tmp_path):
    source = """
    #include <stddef.h>
    #include <string.h>
    static char pool[64 << 20]; static size_t used; static unsigned turn;
    void *malloc(size_t n) {
        used += turn++ % 7 ? (n + 15) & ~15ul : 0;
        return pool + (used < sizeof pool - (1 << 20) ? used : 0);
    }
    void free(void *p) {}
    void *calloc(size_t a, size_t b) { return memset(malloc(a * b), 0, a * b); }
    void *realloc(void *p, size_t n) { void *q = malloc(n); if (p) memmove(q, p, n); return q; }
    """
    library = build(tmp_path, source, name="libbroken.so", flags=["-shared", "-fPIC"])
    path = churn().write(tmp_path / "p.qrp")
    done = native("quire-replay", "--verify", path, environment={"LD_PRELOAD": str(library)})
    assert done.returncode == 1 and "overlap" in done.stderr


def test_sizes_beyond_four_gigabytes_are_read_whole(tmp_path):
    program = Program()
    program.free(0, program.birth(0, CALLOC, 3, (5 << 32) + 7))
    planned = native_json("quire-plan", program.write(tmp_path / "p.qrp"))
    assert planned["peak_live_bytes"] == (5 << 32) + 7


def test_an_allocation_that_fails_is_counted_and_survived(tmp_path):
    program = Program()
    program.free(0, program.birth(0, CALLOC, 3, 1 << 60))
    program.free(0, program.alloc(0))
    figures = native_json("quire-replay", program.write(tmp_path / "p.qrp"))
    assert figures["failures"] == 1 and figures["ops"] == 4


def test_peak_memory_is_that_of_the_replay_alone(tmp_path):
    program = Program()
    slots = [program.alloc(0, size=1 << 20) for _ in range(64)]
    for slot in slots:
        program.free(0, slot)
    figures = native_json("quire-replay", program.write(tmp_path / "p.qrp"))
    # The kernel counts resident pages in batches for each CPU: a few hundred KiB either way.
    assert 63 << 20 <= figures["peak_rss_bytes"] <= 66 << 20


def test_a_truncated_program_is_refused_at_every_length(tmp_path):
    whole = crossing(steps=200).bytes(runs=True)
    path = tmp_path / "p.qrp"
    for length in list(range(0, 200)) + list(range(200, len(whole) - 1, 97)):
        path.write_bytes(whole[:length])
        done = native("quire-replay", path)
        assert done.returncode == 1 and done.stderr.count("\n") == 1, length


@pytest.mark.by_turns
def test_a_program_with_flipped_bytes_never_crashes_the_replayer(tmp_path):
    chance = random.Random(3)
    whole = churn(rounds=1).bytes()
    path = tmp_path / "p.qrp"
    for _ in range(600 if os.environ.get("QUIRE_TEST_LONG") else 24):
        damaged = bytearray(whole)
        # Only the head and the threads: flipped sizes would merely ask for much memory.
        damaged[chance.randrange(0, 96)] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        assert native("quire-replay", path).returncode in (0, 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "quire-plan 2\n",
        "quire-plan 1\nsite x arena 0\n",
        "quire-plan 1\nsite 99 arena 0\n",
        "quire-plan 1\nsite 1 arena 999999\n",
        "quire-plan 1\nsite 1 slab 0\n",
        "quire-plan 1\nslab 0 bytes 64\nsite 1 slab 1\n",
        "quire-plan 1\nslab 0 bytes 0\nsite 1 slab 0\n",
        "quire-plan 1\nslab 5000 bytes 64\n",
        "quire-plan 1\nslab 0 bytes 64\nsite 1 slab 0\nsite 1 arena 0\n",
        "quire-plan 1\nslab 0 bytes 64\nsite 1 pool 0\n",
        "quire-plan 1\nslab 0 bytes 64\nsite 1\n",
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(tmp_path, text):
    path = churn(rounds=1).write(tmp_path / "p.qrp")
    (tmp_path / "plan").write_text(text)
    done = native("quire-replay", "--plan", tmp_path / "plan", path)
    assert done.returncode == 1 and done.stderr.count("\n") == 1


def test_a_plan_that_would_break_an_arenas_contract_is_refused(tmp_path):
    program = Program(reuse=False)
    slot = program.alloc(0, site=1)
    program.realloc(1, slot, 500)
    program.free(1, slot)
    path = program.write(tmp_path / "p.qrp", runs=True)
    done = native("quire-replay", "--plan", plan(tmp_path, (1, 0)), path)
    assert done.returncode == 1 and "another thread" in done.stderr
