// SPDX-License-Identifier: MIT
//! Counters and histograms, and the statistics of all.
#![cfg(not(miri))]
use quire::{Counter, Histogram, PerCpu, StatsFormat};

#[test]
fn nothing_that_threads_add_is_lost_and_handles_may_end_in_any_order() {
    let pool = PerCpu::with_name(Some(c"counts")).unwrap();
    let counters: Vec<Counter> = (0..50).map(|_| Counter::new(&pool).unwrap()).collect();
    let sizes = Histogram::new(&pool, 5).unwrap();
    drop(pool);
    std::thread::scope(|s| {
        for t in 0..4 {
            let (counters, sizes) = (&counters, &sizes);
            s.spawn(move || {
                for i in 0..10_000usize {
                    counters[i % 50].add(t - 1);
                    sizes.record(i as u64);
                }
            });
        }
    });
    // The four threads added -1, 0, 1 and 2.
    assert!(counters.iter().all(|counter| counter.sum() == 200 * 2));
    let moved = counters.into_iter().next().unwrap(); // the C side holds no address of it
    moved.add(1);
    assert_eq!(moved.sum(), 401);
    assert_eq!(sizes.snapshot().unwrap().stats().count, 40_000);
}

#[test]
fn a_read_follows_within_a_millisecond() {
    let counter = Counter::new(&PerCpu::new()).unwrap();
    counter.add(3);
    std::thread::sleep(std::time::Duration::from_millis(3));
    assert_eq!(counter.read(), 3);
}

#[test]
fn snapshots_merge_and_subtract_and_say_when_they_cannot() {
    let pool = PerCpu::new();
    let (fine, coarse) = (Histogram::new(&pool, 8).unwrap(), Histogram::new(&pool, 3).unwrap());
    fine.record(100);
    coarse.record(100);
    let earlier = fine.snapshot().unwrap();
    fine.record(200);
    let mut later = fine.snapshot().unwrap();
    assert!(later.merge(&coarse.snapshot().unwrap()).is_err());
    later.subtract(&earlier).unwrap();
    assert_eq!((later.stats().count, later.percentile(100.0)), (1, 200));
    later.merge(&earlier).unwrap();
    assert_eq!(later.stats().count, 2);
    assert!(Histogram::new(&pool, 11).is_err());
}

#[test]
fn statistics_are_written_and_errors_told() {
    let _heap = quire::Heap::with(quire::HeapOptions { name: Some(c"of the test"), ..Default::default() }).unwrap();
    let path = std::env::temp_dir().join(format!("quire-stats-{}", std::process::id()));
    quire::write_stats(std::fs::File::create(&path).unwrap(), StatsFormat::Json).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("quire.stats/1") && text.contains("of the test"), "{text}");
    let error = quire::write_stats(std::fs::File::open(&path).unwrap(), StatsFormat::Text).unwrap_err();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(error.raw_os_error(), Some(9)); // EBADF: not open for writing
    quire::trim();
}
