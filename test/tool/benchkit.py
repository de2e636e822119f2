# SPDX-License-Identifier: MIT
"""
benchkit.py - `quire bench` in this process over drivers that answer at once: the fixture `bench` and what stands in for the drivers.

Not here: tests (test_bench.py, test_bench_mallocs.py).
"""

import argparse
import json
import os
import stat

import pytest
import toolkit  # noqa: F401  (makes the tool's modules importable)

import bench.run as bench_run
import cmd_bench

# All drivers, answering at once.  FAKE_SLAB is the slab's speed at 1, 2, 4, 8, 16 threads, FAKE_SLAB_OVERHEAD
# its bytes above an element's own; FAKE_FREE_MS is what freeing a million per-CPU objects at random takes,
# FAKE_512 a call with 512 CPUs; FAKE_HEAP the drop-in's time for a small program of which libc takes 200, FAKE_HELD what
# it holds after freeing; FAKE_REMOTE the slab's pairs when others free, FAKE_FRAGMENT what it holds of a tenth that lives,
# FAKE_ARENA_OPERATION the arena's calls.
DRIVER = """#!/bin/sh
driver=${0##*/}
while [ $# -gt 0 ]; do
    case $1 in
    --allocator) kind=$2 ;;
    --callers) callers=$2 ;;
    --threads) threads=$2 ;;
    --workload) workload=$2 ;;
    --object) object=$2 ;;
    --count) count=$2 ;;
    --cpus) cpus=$2 ;;
    --live) live=$2 ;;
    esac
    shift
done
[ "$driver" = micro ] && kind=malloc
case $kind,$LD_PRELOAD in
arena,*) name=quire-arena ;;
slab,*) name=quire-slab ;;
percpu,*) name=quire-percpu ;;
malloc,*quire-malloc*) name=libquire-malloc ;;
malloc,*mimalloc*) name=mimalloc ;;
malloc,*jemalloc*) name=jemalloc ;;
malloc,*) name=libc ;;
local,*) name=thread-local ;;
*) name=$kind ;;
esac
[ "$name" = "$FAKE_UNLOADED" ] && name=libc
[ "$FAKE_HANG" ] && exec sleep 60
[ "$FAKE_CRASH" = "$driver" ] && { echo "out of memory" >&2; exit 1; }
speeds=${FAKE_SLAB:-160 160 158 156 152} ns=${FAKE_ARENA_NS:-2e6} above=${FAKE_SLAB_OVERHEAD:-0.5}
free=${FAKE_FREE_MS:-10}
case $name in
libc) speeds="40 40 40 40 40" ns=20e6 above=16 free=40 heap=200 ;;
libquire-malloc) heap=${FAKE_HEAP:-50} ;;
area-map) free=900 ;;
mimalloc) speeds="150 150 150 150 150" ns=6e6 above=16 ;;
jemalloc) speeds="60 60 55 50 45" ns=11e6 above=16 ;;
none) speeds="230 230 230 230 230" ;;
esac
case $driver,$workload in
query,*) figure='"objects":1000,"cpu_ns_per_query":'$ns',"queries_per_s":5,"response_ns":{"min":1e6,"avg":2e6,"max":3e6}' ;;
slab,stress)
    set -- $speeds
    case $threads in 2) shift ;; 4) shift 2 ;; 8) shift 3 ;; 16) shift 4 ;; esac
    figure='"m_pairs_per_cpu_s":'$1 ;;
arena,*)
    for row in "create + destroy" "alloc 64" "reset after 1000 blocks" "mark, alloc 64, rewind"; do
        echo '{"row":"'$row'","cpu_ns":'${FAKE_ARENA_OPERATION:-5}'}'
    done
    exit 0 ;;
slab,remote)
    speed=50
    [ "$name" = quire-slab ] && speed=${FAKE_REMOTE:-100}
    figure='"m_pairs_per_cpu_s":'$speed ;;
slab,fragment)
    held=10
    [ "$name" = quire-slab ] && held=${FAKE_FRAGMENT:-2}
    figure='"held_over_live":'$held',"held_over_live_trimmed":'$held ;;
percpu,churn)
    for n in 50 95; do echo '{"allocator":"'$name'","full_percent":'$n',"ns_per_pair":40}'; done
    exit 0 ;;
percpu,list) figure='"ns_per_push_pop":4' ;;
percpu,memory)
    echo '{"allocator":"'$name'","what":"resident","object_bytes":64,"resident_mib":2.2,"payload_mib":2}'
    for n in 64 256 1024 4096; do
        echo '{"allocator":"'$name'","what":"returned","object_bytes":'$n',"returned_of_possible":0.9}'
    done
    exit 0 ;;
slab,replace) figure='"ns_per_pair":20,"m_pairs_per_cpu_s":50' ;;
percpu,threads)
    for n in 1 $threads; do echo '{"allocator":"'$name'","threads":'$n',"m_pairs_per_cpu_s":50}'; done
    exit 0 ;;
percpu,objects)
    [ "$count" = 1000000 ] || free=2 # a tenth of them
    figure='"object_bytes":'$object',"count":'$count',"measured":20000,"alloc_ms":5,"free_in_order_ms":1,"free_alternating_ms":1'
    figure=$figure',"free_reverse_ms":1,"free_random_ms":'$free ;;
percpu,aligned)
    echo '{"allocator":"'$name'","align_bytes":4,"alloc_ms":10}'
    figure='"align_bytes":8,"alloc_ms":12,"over_plain":1.2,"measured":50000,"projected_ms":600000' ;;
percpu,grow)
    [ "$cpus" ] && figure='"cpus":'$cpus',"count":'$count',"alloc_ns":'${FAKE_GROW:-20}',"free_in_order_ns":20,"free_random_ns":30' &&
        echo '{"allocator":"'$name'",'"$figure"'}' && exit 0
    for objects in 10000 100000; do
        for cpus in 2 512; do
            alloc=20
            [ "$cpus" = 512 ] && alloc=${FAKE_512:-20}
            echo '{"allocator":"'$name'","cpus":'$cpus',"count":'$objects',"alloc_ns":'$alloc',"free_in_order_ns":20,"free_random_ns":30}'
            [ "$name" = libc ] && break
        done
    done
    exit 0 ;;
percpu,add)
    for kind in quire-percpu thread-local shared-atomic mutex; do echo '{"allocator":"'$kind'","rseq":1,"ns_per_add":1}'; done
    [ "$FAKE_NO_RSEQ" ] || echo '{"allocator":"quire-percpu","rseq":0,"ns_per_add":7}'
    exit 0 ;;
micro,*)
    [ "$live" ] && [ "$live" = "$FAKE_SLOW_LIVE" ] && [ "$name" = libquire-malloc ] && heap=$((heap * 2))
    figure='"ns_per_pair":'${heap:-100}',"threads":1,"ops":100,"cpu_ns":'${heap:-100}',"ns_per_op":'${heap:-100}',"peak_rss_bytes":1048576,"requests_per_cpu_s":900'
    figure=$figure',"load_bytes":41943040,"libraries_bytes":157286400,"test_bytes":262144000,"given_back_bytes":1048576'
    figure=$figure',"thread_bytes":9000,"held_bytes":'${FAKE_HELD:-1000}',"last_to_second":1.01,"leaked_bytes":0' ;;
slab,full) figure='"overhead_bytes_per_element":'$above',"held_freed_bytes":3145728,"held_trimmed_bytes":1048576' ;;
*) figure='"cold_cpu_ms":5,"warm_cpu_ms":1,"free_cpu_ms":2,"held_freed_mib":3,"held_trimmed_mib":4' ;;
esac
echo '{"allocator":"'$name'",'"$figure"'}'
"""


ANSWERS = {}  # of the driver: it says the same to the same words, and is asked thousands of times


def remembering(process_rows):
    """The same, asking a process only for what none was asked for."""

    def answer(cast, name, argv, limit_s=None):
        words = [os.path.basename(word) for word in argv]
        if "--file" in words:
            words[words.index("--file") + 1] = "FOLDER"
        told = sorted((k, v) for k, v in os.environ.items() if k.startswith("FAKE_"))
        key = json.dumps([name, name in cast.path_of, words, told])
        if key not in ANSWERS:
            ANSWERS[key] = json.dumps(process_rows(cast, name, argv, limit_s))
        return json.loads(ANSWERS[key])

    return answer


@pytest.fixture
def bench(tmp_path, monkeypatch, capsys):
    """bench(arguments...) runs the command in this process over drivers that answer at once;
    (status, stdout, stderr)."""
    folder = tmp_path / "build" / "bench"
    folder.mkdir(parents=True)
    (tmp_path / "build" / "libquire-malloc.so").write_text("")
    for name in ("query", "slab", "percpu", "micro", "arena"):
        driver = folder / name
        driver.write_text(DRIVER)
        driver.chmod(driver.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("QUIRE_BUILD_DIR", str(tmp_path / "build"))
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(cmd_bench, "QUICK_S", dict.fromkeys(cmd_bench.QUICK_S, 0))
    monkeypatch.setattr(bench_run, "ROUNDS_MIN", 1)
    monkeypatch.setattr(bench_run, "process_rows", remembering(bench_run.process_rows))
    monkeypatch.setattr(
        cmd_bench.peers,
        "installed",
        lambda: [
            cmd_bench.peers.Peer(n, f"/nonexistent/lib{n}.so.2") for n in ("mimalloc", "jemalloc")
        ],
    )
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        parser = argparse.ArgumentParser()
        cmd_bench.add_arguments(parser)
        status = cmd_bench.run(parser.parse_args(arguments))
        out, err = capsys.readouterr()
        return status, out, err

    return run
