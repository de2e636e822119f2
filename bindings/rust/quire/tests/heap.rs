// SPDX-License-Identifier: MIT
//! Heaps, as allocators; also under Miri.
use allocator_api2::{alloc::Allocator, vec::Vec as AVec};
use quire::Heap;
use std::alloc::Layout;

fn blocks_keep_their_bytes<A: Allocator>(heap: A) {
    let layouts = [(1, 1), (16, 16), (0, 8), (100, 64), (5000, 4096), (40_000, 8), (300_000, 16)];
    let layouts = &layouts[..if cfg!(miri) { 4 } else { layouts.len() }]; // Miri is slow
    // SAFETY: each block is used and given back with the layout it was had with
    unsafe {
        for &(bytes, align) in layouts {
            let mut layout = Layout::from_size_align(bytes, align).unwrap();
            let mut p = heap.allocate_zeroed(layout).unwrap().cast::<u8>();
            assert_eq!(p.as_ptr() as usize & (align - 1), 0);
            assert!((0..bytes).step_by(7).all(|i| p.as_ptr().add(i).read() == 0));
            p.as_ptr().write_bytes(9, bytes);
            for more in [bytes + 1, bytes * 3 + 50] {
                let new = Layout::from_size_align(more, align).unwrap();
                p = heap.grow_zeroed(p, layout, new).unwrap().cast();
                layout = new;
                assert!((0..more).step_by(5).all(|i| p.as_ptr().add(i).read() == if i < bytes { 9 } else { 0 }));
            }
            let less = Layout::from_size_align(bytes / 2, align).unwrap();
            p = heap.shrink(p, layout, less).unwrap().cast();
            assert!((0..bytes / 2).all(|i| p.as_ptr().add(i).read() == 9));
            heap.deallocate(p, less);
        }
    }
}

#[test]
fn a_heap_of_ones_own_keeps_what_is_written() {
    blocks_keep_their_bytes(&Heap::new());
}

#[cfg(not(miri))]
#[test]
fn the_process_heap_keeps_what_is_written() {
    blocks_keep_their_bytes(quire::Global);
}

#[test]
fn what_is_left_in_a_heap_goes_with_it() {
    let heap = Heap::new();
    let mut list = AVec::new_in(&heap);
    list.extend(0..1000);
    assert_eq!(list.leak()[999], 999);
}

#[cfg(not(miri))]
#[test]
fn blocks_go_between_threads_and_all_come_back() {
    let heap = Heap::new();
    std::thread::scope(|s| {
        for _ in 0..4 {
            let lists: Vec<_> = (0..500).map(|n| AVec::<u8, _>::with_capacity_in(n, &heap)).collect();
            s.spawn(move || drop(lists));
        }
    });
    assert_eq!(heap.stats().live_blocks, 0);
}
