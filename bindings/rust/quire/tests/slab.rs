// SPDX-License-Identifier: MIT
//! Slabs: values are dropped once, wherever; also under Miri.
use quire::Slab;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

#[test]
fn a_value_is_dropped_once_and_one_that_is_taken_out_is_not() {
    let counted = Rc::new(());
    let slab = Slab::new();
    let boxes: Vec<_> = (0..100).map(|_| slab.alloc(Rc::clone(&counted))).collect();
    let taken: Vec<_> = boxes.into_iter().step_by(2).map(|value| value.into_inner()).collect();
    assert_eq!(Rc::strong_count(&counted), 51);
    drop(taken);
    assert_eq!(Rc::strong_count(&counted), 1);
}

#[test]
fn a_drop_that_panics_gives_the_place_back() {
    struct Fails;
    impl Drop for Fails {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }
    let slab = Slab::new();
    let value = slab.alloc(Fails);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(value))).is_err());
    #[cfg(not(miri))]
    assert_eq!(slab.stats().live_elements, 0);
}

#[test]
fn threads_free_what_others_allocated() {
    static DROPPED: AtomicUsize = AtomicUsize::new(0);
    struct Value(usize);
    impl Drop for Value {
        fn drop(&mut self) {
            DROPPED.fetch_add(self.0, Relaxed);
        }
    }
    // Miri's stand-in has no lock: there all is allocated before, and freed after, one thread at a time.
    let count = if cfg!(miri) { 10 } else { 10_000 };
    let slab = Slab::new();
    for _ in 0..4 {
        let values: Vec<_> = (0..count).map(|_| slab.alloc(Value(1))).collect();
        std::thread::scope(|s| s.spawn(move || drop(values)).join().unwrap());
    }
    assert_eq!(DROPPED.load(Relaxed), 4 * count);
}

#[cfg(not(miri))]
#[test]
fn threads_use_one_slab_at_once() {
    let slab = Slab::new();
    std::thread::scope(|s| {
        let (send, receive) = std::sync::mpsc::channel();
        for t in 0..3u64 {
            let (slab, send) = (&slab, send.clone());
            s.spawn(move || (0..20_000).for_each(|i| send.send(slab.alloc([t, i, t + i])).unwrap()));
        }
        drop(send);
        s.spawn(move || receive.iter().for_each(|value| assert_eq!(value[2], value[0] + value[1])));
    });
    assert_eq!(slab.stats().live_elements, 0);
}

#[test]
fn types_without_bytes_and_with_wide_alignment() {
    #[repr(align(128))]
    struct Wide(u8);
    let (none, wide) = (Slab::new(), Slab::new());
    let (a, b) = (none.alloc(()), none.alloc(()));
    let values: Vec<_> = (0..20).map(|i| wide.alloc(Wide(i))).collect();
    assert!(values.iter().enumerate().all(|(i, v)| v.0 as usize == i && &**v as *const Wide as usize & 127 == 0));
    drop((a, b));
}

#[cfg(not(miri))] // whose stand-in has a leak for an error
#[test]
fn a_leaked_value_lives_as_long_as_the_slab() {
    let slab = Slab::new();
    let n = slab.alloc(1).leak();
    *n += 1;
    assert_eq!((*n, slab.stats().live_elements), (2, 1));
}

#[cfg(not(miri))]
#[test]
fn over_its_limit_a_slab_gives_the_value_back() {
    let slab = Slab::with(quire::SlabOptions { limit_bytes: 64 << 10, ..Default::default() }).unwrap();
    let mut kept = Vec::new();
    let refused = loop {
        match slab.try_alloc(vec![7; 100]) {
            Ok(value) => kept.push(value),
            Err(value) => break value,
        }
    };
    assert_eq!((refused.len(), kept.is_empty()), (100, false));
}
