// SPDX-License-Identifier: MIT
//! Arenas: what they promise to safe code, also under Miri.
use allocator_api2::{boxed::Box as ABox, vec::Vec as AVec};
use quire::Arena;
use std::alloc::Layout;

#[test]
fn values_of_every_size_and_alignment_keep_what_was_written() {
    #[repr(align(64))]
    #[derive(Clone, Copy, PartialEq, Debug)]
    struct Wide([u8; 64]);
    let arena = Arena::new();
    let bytes: Vec<&mut u8> = (0..200).map(|i| arena.alloc(i)).collect();
    let wide: Vec<&mut Wide> = (0..20).map(|i| arena.alloc(Wide([i; 64]))).collect();
    let slices: Vec<&mut [u32]> = (0..100).map(|n| arena.alloc_slice_with(n, |i| i as u32)).collect();
    assert!(bytes.iter().enumerate().all(|(i, b)| **b as usize == i));
    for (i, w) in wide.iter().enumerate() {
        assert_eq!(**w, Wide([i as u8; 64]));
        assert_eq!(*w as *const Wide as usize & (64 - 1), 0);
    }
    assert!(slices.iter().enumerate().all(|(n, s)| s.len() == n && s.iter().enumerate().all(|(i, v)| *v as usize == i)));
}

#[test]
fn what_has_no_bytes_takes_none() {
    #[repr(align(256))]
    #[derive(Debug, PartialEq)]
    struct Nothing;
    let arena = Arena::new();
    let nothing = arena.alloc(Nothing);
    assert_eq!(nothing as *mut Nothing as usize & (256 - 1), 0);
    assert_eq!(arena.alloc_str(""), "");
    assert!(arena.alloc_slice_copy::<u64>(&[]).is_empty());
}

#[test]
fn a_vector_that_grows_and_shrinks_keeps_its_elements() {
    let arena = Arena::new();
    let mut first = AVec::new_in(&arena);
    let mut second = AVec::new_in(&arena); // so that neither is always the last block
    for i in 0..300u64 {
        first.push(i);
        if i % 3 == 0 {
            second.push(i as u8);
        }
    }
    first.truncate(100);
    first.shrink_to_fit();
    first.extend(100..150);
    assert!(first.iter().copied().eq(0..150));
    assert!(second.iter().copied().eq((0..300).step_by(3).map(|i| i as u8)));
    second.clear();
    second.shrink_to_fit();
    second.push(1);
    assert_eq!(second[..], [1]);
}

#[test]
fn a_growing_block_may_ask_for_another_alignment() {
    use allocator_api2::alloc::Allocator;
    let arena = &Arena::new();
    let old = Layout::from_size_align(24, 8).unwrap();
    let wide = Layout::from_size_align(100, 128).unwrap();
    // SAFETY: each block is given to the next call with the layout it was had with
    unsafe {
        let p = arena.allocate(old).unwrap().cast::<u8>();
        p.as_ptr().write_bytes(7, 24);
        let q = arena.grow_zeroed(p, old, wide).unwrap().cast::<u8>();
        assert_eq!(q.as_ptr() as usize & (128 - 1), 0);
        assert_eq!((q.as_ptr().add(23).read(), q.as_ptr().add(24).read(), q.as_ptr().add(99).read()), (7, 0, 0));
        let r = arena.shrink(q, wide, old).unwrap().cast::<u8>();
        assert_eq!(r.as_ptr().add(23).read(), 7);
        let s = arena.shrink(r, old, Layout::from_size_align(8, 256).unwrap()).unwrap().cast::<u8>();
        assert_eq!((s.as_ptr() as usize & 255, s.as_ptr().add(7).read()), (0, 7));
    }
}

#[test]
fn hashbrown_and_boxes_live_in_an_arena() {
    let mut arena = Arena::new();
    for round in 0..3 {
        let mut map = hashbrown::HashMap::new_in(&arena);
        for i in 0..100 {
            map.insert(i, ABox::new_in(i * round, &arena));
        }
        assert!((0..100).all(|i| *map[&i] == i * round));
        drop(map);
        arena.reset();
    }
}

#[test]
fn a_scope_gives_back_what_it_took_also_when_it_panics() {
    let mut arena = Arena::new();
    let fails = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        arena.scope(|scratch| {
            scratch.alloc([0u8; 3000]);
            panic!("inside");
        })
    }));
    assert!(fails.is_err());
    let sum: u32 = (0..10).map(|_| arena.scope(|scratch| scratch.alloc_slice_with(500, |i| i as u32).iter().sum::<u32>())).sum();
    assert_eq!(sum, 10 * 124_750);
    #[cfg(not(miri))]
    assert_eq!(arena.stats().live_bytes, 0);
}

#[test]
fn a_maker_may_allocate_from_the_same_arena() {
    let arena = Arena::new();
    let outer = arena.alloc_with(|| (arena.alloc(1), arena.alloc_str("inner")));
    *outer.0 += 1;
    assert_eq!((*outer.0, &*outer.1), (2, "inner"));
}

#[test]
fn an_arena_goes_to_another_thread_and_comes_back() {
    let mut arena = Arena::new();
    for _ in 0..3 {
        arena = std::thread::spawn(move || {
            assert_eq!(*arena.alloc(5), 5);
            arena.reset();
            arena
        })
        .join()
        .unwrap();
    }
}

#[cfg(not(miri))]
#[test]
fn over_its_limit_an_arena_says_so_and_stays_usable() {
    use quire::ArenaOptions;
    let arena = Arena::with(ArenaOptions { name: Some(c"small"), limit_bytes: 64 << 10, ..Default::default() }).unwrap();
    assert!(arena.try_alloc([0u8; 128 << 10]).is_err());
    let layout = Layout::from_size_align(isize::MAX as usize - 15, 1).unwrap();
    assert!(arena.try_alloc_layout(layout).is_err());
    assert_eq!(*arena.try_alloc(3).unwrap(), 3);
    assert_eq!(arena.stats().limit_bytes, 64 << 10);
    let error = Arena::with(ArenaOptions { limit_bytes: 1, ..Default::default() }).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::OutOfMemory);
}
