// SPDX-License-Identifier: MIT
//! For Miri, which cannot call C: arenas, slabs and heaps over Rust's own allocator, as strict as it is.  Each keeps what its header promises to the
//! crate above (a window that may be used, old bytes that stay when a block moves), so that Miri sees the crate's own pointers and lifetimes.
//!
//! Not here: limits, statistics, per-CPU objects.
#![allow(clippy::missing_safety_doc)]
extern crate alloc;
use crate::*;
use alloc::alloc::{alloc, alloc_zeroed, dealloc, Layout};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ptr;

const CHUNK_BYTES: usize = 1024;

#[repr(C)]
struct Arena {
    window: quire_arena_window,
    blocks: Vec<(*mut u8, Layout)>,
}

unsafe fn arena_drop_to(arena: *mut Arena, count: usize) {
    while (*arena).blocks.len() > count {
        let (p, layout) = (*arena).blocks.pop().unwrap();
        dealloc(p, layout);
    }
}

unsafe fn arena_block(arena: *mut Arena, layout: Layout) -> *mut u8 {
    let p = alloc(layout);
    (*arena).blocks.push((p, layout));
    (*arena).window = quire_arena_window { cursor: p.add(layout.size()), end: p.add(layout.size()) };
    p
}

pub unsafe fn quire_arena_create(_: *const quire_arena_opts) -> *mut quire_arena {
    let window = quire_arena_window { cursor: ptr::null_mut(), end: ptr::null_mut() };
    Box::into_raw(Box::new(Arena { window, blocks: Vec::new() })).cast()
}

pub unsafe fn quire_arena_destroy(arena: *mut quire_arena) {
    quire_arena_reset(arena);
    drop(Box::from_raw(arena.cast::<Arena>()));
}

pub unsafe fn quire_arena_reset(arena: *mut quire_arena) {
    let arena = arena.cast::<Arena>();
    arena_drop_to(arena, 0);
    (*arena).window = quire_arena_window { cursor: ptr::null_mut(), end: ptr::null_mut() };
}

pub unsafe fn quire_arena_alloc(arena: *mut quire_arena, bytes: usize) -> *mut c_void {
    if bytes > isize::MAX as usize - 64 {
        return ptr::null_mut();
    }
    let need = (bytes.max(1) + 15) & !15;
    let arena = arena.cast::<Arena>();
    let p = arena_block(arena, Layout::from_size_align(need.max(CHUNK_BYTES), 16).unwrap());
    (*arena).window.cursor = p.add(need);
    p.cast()
}

pub unsafe fn quire_arena_alloc_aligned(arena: *mut quire_arena, bytes: usize, align_bytes: usize) -> *mut c_void {
    arena_block(arena.cast(), Layout::from_size_align(bytes.max(1), align_bytes).unwrap()).cast()
}

pub unsafe fn quire_arena_resize(arena: *mut quire_arena, old: *mut c_void, old_bytes: usize, new_bytes: usize) -> *mut c_void {
    if new_bytes <= old_bytes {
        return old;
    }
    let p = quire_arena_alloc(arena, new_bytes);
    if !p.is_null() {
        ptr::copy_nonoverlapping(old.cast::<u8>(), p.cast(), old_bytes);
    }
    p
}

pub unsafe fn quire_arena_mark(arena: *const quire_arena) -> quire_arena_mark {
    let of = arena.cast::<Arena>();
    quire_arena_mark { arena, position: (*of).blocks.len() as u64, cursor: (*of).window.cursor.cast(), ..Zeroed::zeroed() }
}

pub unsafe fn quire_arena_rewind(arena: *mut quire_arena, mark: quire_arena_mark) {
    assert!(ptr::eq(arena, mark.arena));
    let arena = arena.cast::<Arena>();
    arena_drop_to(arena, mark.position as usize);
    let end = (*arena).blocks.last().map_or(ptr::null_mut(), |(p, layout)| p.add(layout.size()));
    (*arena).window = quire_arena_window { cursor: mark.cursor.cast(), end };
}

pub unsafe fn quire_arena_trim(_: *mut quire_arena) -> usize {
    0
}

struct Slab {
    layout: Layout,
    live: usize,
}

pub unsafe fn quire_slab_create(element_bytes: usize, opts: *const quire_slab_opts) -> *mut quire_slab {
    let layout = Layout::from_size_align(element_bytes.max(1), (*opts).align_bytes.max(16)).unwrap();
    Box::into_raw(Box::new(Slab { layout, live: 0 })).cast()
}

/// The real one frees what is left; here that would hide a leak from Miri.
pub unsafe fn quire_slab_destroy(slab: *mut quire_slab) {
    assert_eq!(Box::from_raw(slab.cast::<Slab>()).live, 0);
}

pub unsafe fn quire_slab_alloc(slab: *mut quire_slab) -> *mut c_void {
    (*slab.cast::<Slab>()).live += 1;
    alloc((*slab.cast::<Slab>()).layout).cast()
}

pub unsafe fn quire_slab_free(slab: *mut quire_slab, element: *mut c_void) {
    (*slab.cast::<Slab>()).live -= 1;
    dealloc(element.cast(), (*slab.cast::<Slab>()).layout);
}

pub unsafe fn quire_slab_trim(_: *mut quire_slab) -> usize {
    0
}

struct Heap {
    blocks: BTreeMap<*mut u8, Layout>,
}

pub unsafe fn quire_heap_create(_: *const quire_heap_opts) -> *mut quire_heap {
    Box::into_raw(Box::new(Heap { blocks: BTreeMap::new() })).cast()
}

pub unsafe fn quire_heap_destroy(heap: *mut quire_heap) {
    let heap = Box::from_raw(heap.cast::<Heap>());
    heap.blocks.iter().for_each(|(p, layout)| dealloc(*p, *layout));
}

unsafe fn heap_enter(heap: *mut quire_heap, p: *mut u8, layout: Layout) -> *mut c_void {
    (*heap.cast::<Heap>()).blocks.insert(p, layout);
    p.cast()
}

pub unsafe fn quire_heap_alloc_aligned(heap: *mut quire_heap, bytes: usize, align_bytes: usize) -> *mut c_void {
    let layout = Layout::from_size_align(bytes, align_bytes).unwrap();
    heap_enter(heap, alloc(layout), layout)
}

pub unsafe fn quire_heap_alloc(heap: *mut quire_heap, bytes: usize) -> *mut c_void {
    quire_heap_alloc_aligned(heap, bytes, 16)
}

pub unsafe fn quire_heap_alloc_zero(heap: *mut quire_heap, count: usize, bytes: usize) -> *mut c_void {
    let layout = Layout::from_size_align(count * bytes, 16).unwrap();
    heap_enter(heap, alloc_zeroed(layout), layout)
}

pub unsafe fn quire_heap_realloc(heap: *mut quire_heap, p: *mut c_void, bytes: usize) -> *mut c_void {
    let had = (&(*heap.cast::<Heap>()).blocks)[&p.cast()].size();
    let moved = quire_heap_alloc(heap, bytes);
    ptr::copy_nonoverlapping(p.cast::<u8>(), moved.cast(), had.min(bytes));
    quire_heap_free(heap, p);
    moved
}

pub unsafe fn quire_heap_free(heap: *mut quire_heap, p: *mut c_void) {
    let layout = (*heap.cast::<Heap>()).blocks.remove(&p.cast()).expect("a block of this heap");
    dealloc(p.cast(), layout);
}

pub unsafe fn quire_heap_trim(_: *mut quire_heap) -> usize {
    0
}

extern "C" {
    pub fn quire_heap_default() -> *mut quire_heap;
    pub fn quire_arena_stats(arena: *const quire_arena, out: *mut quire_arena_stats);
    pub fn quire_slab_stats(slab: *const quire_slab, out: *mut quire_slab_stats);
    pub fn quire_heap_stats(heap: *const quire_heap, out: *mut quire_heap_stats);
    pub fn quire_stats_write(fd: c_int, format: u32) -> c_int;
    pub fn quire_source_default() -> *mut quire_source;
    pub fn quire_source_trim(source: *mut quire_source) -> usize;
}
