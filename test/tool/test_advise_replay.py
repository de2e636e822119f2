# SPDX-License-Identifier: MIT
"""test_advise_replay - what the replay makes of a plan's heap, and of frees in other threads."""

import json
import random

import pytest
from qrp import CALLOC, Program
from toolkit import build, native, native_json, quire


def any_size(count=4000, threads=1, seed=3):
    """Objects of any size that are born, resized and freed in no order."""
    chance = random.Random(seed)
    program, live = Program(reuse=False), []
    for _ in range(count):
        thread = chance.randrange(threads)
        slot = program.birth(thread, CALLOC if chance.random() < 0.2 else 1, 1, chance.randrange(9000))
        live.append(slot)
        if chance.random() < 0.3:
            program.realloc(thread, live[-1], chance.randrange(1, 90000))
        while len(live) > 100:
            program.free(chance.randrange(threads), live.pop(chance.randrange(len(live))))
    return program


def heap_plan(tmp_path, *sites):
    path = tmp_path / "plan"
    path.write_text("quire-plan 1\n" + "".join(f"site {site} heap 0\n" for site in sites))
    return path


@pytest.mark.parametrize("backend", [(), ("--null",)])
@pytest.mark.parametrize("threads", [1, 4])
def test_a_site_of_the_heap_is_served_by_the_heap_in_every_thread(tmp_path, threads, backend):
    path = any_size(threads=threads).write(tmp_path / "p.qrp", runs=True)
    figures = native_json(
        "quire-replay", "--verify", *backend, "--plan", heap_plan(tmp_path, 1), path
    )
    assert figures["ops_on_heap"] == figures["ops"] > 8000
    assert figures["corrupt"] == figures["failures"] == figures["ops_dropped"] == 0


def test_aligned_blocks_of_the_heap_are_aligned(tmp_path):
    program = Program()
    for log2 in range(13):
        slots = [program.birth(0, 3, 1, 100, align_log2=log2) for _ in range(20)]
        for slot in slots:
            program.free(0, slot)
    path = program.write(tmp_path / "p.qrp", runs=True)
    figures = native_json("quire-replay", "--verify", "--plan", heap_plan(tmp_path, 1), path)
    assert figures["ops_on_heap"] == 2 * 13 * 20 and figures["failures"] == 0


def test_sites_that_the_plan_does_not_name_stay_with_libc(tmp_path):
    path = any_size().write(tmp_path / "p.qrp", runs=True)
    figures = native_json("quire-replay", "--verify", "--plan", heap_plan(tmp_path, 2), path)
    assert figures["ops_on_heap"] == 0


def test_a_plan_with_a_second_heap_is_refused(tmp_path):
    (tmp_path / "plan").write_text("quire-plan 1\nsite 1 heap 1\n")
    path = any_size(count=10).write(tmp_path / "p.qrp", runs=True)
    done = native("quire-replay", "--plan", tmp_path / "plan", path)
    assert done.returncode == 1 and "names a second heap" in done.stderr


HANDED_OVER = """
#include <pthread.h>
#include <stdlib.h>
static void *_Atomic mail[64];
static void *give(void *arg) {
    for (int i = 0; i < 4000; i++) {
        void *mine = malloc(40 + i % 30), *old;
        ((char *)mine)[0] = 1;
        old = __atomic_exchange_n((void **)&mail[i % 64], mine, __ATOMIC_SEQ_CST);
        free(old);
    }
    return arg;
}
int main(void) {
    pthread_t t[3];
    for (int i = 0; i < 3; i++) pthread_create(&t[i], NULL, give, NULL);
    for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
    for (int i = 0; i < 64; i++) free(mail[i]);
    return 0;
}
"""


def test_the_replay_frees_as_often_in_another_thread_as_the_recorded_program(tmp_path):
    program = build(tmp_path, HANDED_OVER, flags=["-pthread"])
    assert quire(tmp_path, "record", "-o", "p.qtr", "--", program).returncode == 0
    sites, replayable = tmp_path / "p.json", tmp_path / "p.qrp"
    done = native("quire-analyse", tmp_path / "p.qtr", "--sites", sites, "--program", replayable)
    assert done.returncode == 0, done.stderr
    recorded = sum(s["cross_thread_frees"] for s in json.loads(sites.read_text())["sites"])
    planned = native_json("quire-plan", replayable)
    replayed = native_json("quire-replay", "--verify", replayable)
    assert recorded > 100  # main's last 64, and what one thread took from another
    assert replayed["frees_elsewhere"] == recorded
    assert sum(s["frees_elsewhere"] for s in planned["sites"]) == recorded
    assert replayed["corrupt"] == replayed["ops_dropped"] == 0


@pytest.mark.parametrize("word", ["heap", "slab"])
def test_a_plan_keeps_the_frees_in_other_threads(tmp_path, word):
    program, count = Program(reuse=False), 0
    for number in range(3000):
        slot = program.alloc(number % 3, site=1, size=48)
        program.free((number + number % 2) % 3, slot)
        count += number % 2
    path = program.write(tmp_path / "p.qrp", runs=True)
    (tmp_path / "plan").write_text(f"quire-plan 1\nslab 0 bytes 48\nsite 1 {word} 0\n")
    figures = native_json("quire-replay", "--verify", "--plan", tmp_path / "plan", path)
    assert figures["frees_elsewhere"] == count == 1500 and figures["corrupt"] == 0
