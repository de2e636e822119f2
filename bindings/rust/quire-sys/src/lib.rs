// SPDX-License-Identifier: MIT
//! Quire's C interface, as its headers declare it; what a function does, costs and promises stands there (`man quire-arena` and its like).
//!
//! The crate `quire` is the safe way to use it.  All structs of options and statistics are made by one macro, which also keeps the list of
//! their fields that `tests/layout.rs` compares with the headers.
#![allow(non_camel_case_types)]
#![no_std]
use core::ffi::{c_char, c_int, c_uint, c_void};
use core::mem;

/// A struct that crosses the border: all zero is what its maker starts with.
///
/// # Safety
/// All bits zero must be a value of the type, and `FIELDS` all of its fields.
pub unsafe trait Zeroed: Sized {
    /// Its name in C.
    const NAME: &'static str;
    /// Of each field its name, offset and bytes.
    const FIELDS: &'static [(&'static str, usize, usize)];
    /// Options that mean the defaults, or statistics that are about to be filled in.  A struct whose first field is `struct_bytes` says its size there.
    fn zeroed() -> Self {
        let mut new = mem::MaybeUninit::<Self>::zeroed();
        if Self::FIELDS[0].0 == "struct_bytes" {
            // SAFETY: the first field of a struct of C's lies at its beginning, and this one is a size_t
            unsafe { new.as_mut_ptr().cast::<usize>().write(mem::size_of::<Self>()) };
        }
        // SAFETY: the trait's promise
        unsafe { new.assume_init() }
    }
}

/// Structs as C has them, each with its [`Zeroed`].
macro_rules! c_structs {
    ($($(#[$note:meta])* struct $name:ident { $($field:ident: $type:ty,)* })*) => {$(
        $(#[$note])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs)]
        pub struct $name { $(pub $field: $type,)* }
        // SAFETY: numbers and pointers all
        unsafe impl Zeroed for $name {
            const NAME: &'static str = stringify!($name);
            const FIELDS: &'static [(&'static str, usize, usize)] =
                &[$((stringify!($field), mem::offset_of!($name, $field), mem::size_of::<$type>())),*];
        }
    )*
        /// Every struct here, with its bytes: for the test that compares them with the headers.
        pub const STRUCTS: &[(&str, usize, &[(&str, usize, usize)])] =
            &[$(($name::NAME, mem::size_of::<$name>(), $name::FIELDS)),*];
    };
}

macro_rules! opaque {
    ($($(#[$note:meta])* $name:ident),* $(,)?) => {$(
        $(#[$note])*
        #[repr(C)]
        pub struct $name { _none: [u8; 0] }
    )*};
}

opaque! {
    /// Where spans come from.
    quire_source,
    /// An arena.
    quire_arena,
    /// A slab.
    quire_slab,
    /// A heap.
    quire_heap,
    /// A pool of per-CPU objects.
    quire_percpu,
    /// The counts of a histogram at one moment.
    quire_histogram_snapshot,
}

c_structs! {
    /// What an arena begins with, so that the usual case of an allocation needs no call.
    struct quire_arena_window { cursor: *mut u8, end: *mut u8, }
    /// Of an arena.
    struct quire_arena_opts { struct_bytes: usize, name: *const c_char, source: *mut quire_source, size_hint_bytes: usize, limit_bytes: usize, flags: u64, }
    /// A place in an arena's life.
    struct quire_arena_mark {
        arena: *const quire_arena, birth: u64, epoch: u64, position: u64,
        span: *mut c_void, cursor: *mut c_void, large: *mut c_void, defer: *mut c_void,
    }
    /// One snapshot.
    struct quire_arena_stats {
        struct_bytes: usize, mapped_bytes: usize, live_bytes: usize, free_bytes: usize, lost_bytes: usize, meta_bytes: usize,
        peak_bytes: usize, limit_bytes: usize, spans: usize, large_blocks: usize,
    }
    /// Of a slab.
    struct quire_slab_opts {
        struct_bytes: usize, name: *const c_char, source: *mut quire_source, align_bytes: usize, page_bytes_max: usize,
        initial_elements: usize, limit_bytes: usize, flags: u64,
    }
    /// One snapshot.
    struct quire_slab_stats {
        struct_bytes: usize, mapped_bytes: usize, live_bytes: usize, free_bytes: usize, meta_bytes: usize, live_elements: usize, element_bytes: usize,
        slot_bytes: usize, peak_bytes: usize, limit_bytes: usize, pages: usize, empty_pages: usize, caches: usize,
    }
    /// Of a heap.
    struct quire_heap_opts { struct_bytes: usize, name: *const c_char, source: *mut quire_source, limit_bytes: usize, flags: u64, }
    /// One snapshot.
    struct quire_heap_stats {
        struct_bytes: usize, mapped_bytes: usize, live_bytes: usize, free_bytes: usize, meta_bytes: usize, rounding_bytes: usize, live_blocks: usize,
        large_bytes: usize, large_blocks: usize, peak_bytes: usize, limit_bytes: usize, pages: usize, caches: usize,
    }
    /// Of a pool.
    struct quire_percpu_opts {
        struct_bytes: usize, name: *const c_char, source: *mut quire_source, chunk_bytes: usize, cpus: c_uint, limit_bytes: usize, flags: u64, reserve_bytes: usize,
    }
    /// A per-CPU object.
    struct quire_percpu_ref { bits: usize, }
    /// Yours to place.
    struct quire_counter { pool: *mut quire_percpu, r#ref: quire_percpu_ref, read_ns: u64, read_sum: usize, }
    /// Yours to place.
    struct quire_histogram { pool: *mut quire_percpu, r#ref: quire_percpu_ref, precision_bits: c_uint, }
    /// What a snapshot adds up to.
    struct quire_histogram_stats { struct_bytes: usize, count: u64, min: u64, max: u64, sum: f64, }
    /// Some values of a snapshot.
    struct quire_histogram_bucket { least: u64, largest: u64, count: u64, }
}

/// Flags of a slab.
pub const QUIRE_SLAB_DEFRAG: u64 = 1;
/// Formats of statistics.
pub const QUIRE_STATS_TEXT: u32 = 0;
/// Formats of statistics.
pub const QUIRE_STATS_JSON: u32 = 1;
/// Formats of statistics.
pub const QUIRE_STATS_PROMETHEUS: u32 = 2;

#[cfg(not(miri))]
extern "C" {
    pub fn quire_version() -> *const c_char;
    pub fn quire_on_panic(f: Option<unsafe extern "C" fn(message: *const c_char, address: *const c_void)>);
    pub fn quire_stats_write(fd: c_int, format: u32) -> c_int;

    pub fn quire_source_default() -> *mut quire_source;
    pub fn quire_source_trim(source: *mut quire_source) -> usize;
    pub fn quire_source_set_decay(source: *mut quire_source, decay_ns: u64) -> c_int;

    pub fn quire_arena_create(opts: *const quire_arena_opts) -> *mut quire_arena;
    pub fn quire_arena_destroy(arena: *mut quire_arena);
    pub fn quire_arena_alloc(arena: *mut quire_arena, bytes: usize) -> *mut c_void;
    pub fn quire_arena_alloc_aligned(arena: *mut quire_arena, bytes: usize, align_bytes: usize) -> *mut c_void;
    pub fn quire_arena_alloc_zero(arena: *mut quire_arena, count: usize, bytes: usize) -> *mut c_void;
    pub fn quire_arena_resize(arena: *mut quire_arena, old: *mut c_void, old_bytes: usize, new_bytes: usize) -> *mut c_void;
    pub fn quire_arena_mark(arena: *const quire_arena) -> quire_arena_mark;
    pub fn quire_arena_rewind(arena: *mut quire_arena, mark: quire_arena_mark);
    pub fn quire_arena_reset(arena: *mut quire_arena);
    pub fn quire_arena_trim(arena: *mut quire_arena) -> usize;
    pub fn quire_arena_owns(arena: *const quire_arena, p: *const c_void) -> bool;
    pub fn quire_arena_stats(arena: *const quire_arena, out: *mut quire_arena_stats);
    pub fn quire_arena_check(arena: *const quire_arena) -> *const c_char;

    pub fn quire_slab_create(element_bytes: usize, opts: *const quire_slab_opts) -> *mut quire_slab;
    pub fn quire_slab_destroy(slab: *mut quire_slab);
    pub fn quire_slab_alloc(slab: *mut quire_slab) -> *mut c_void;
    pub fn quire_slab_alloc_zero(slab: *mut quire_slab) -> *mut c_void;
    pub fn quire_slab_free(slab: *mut quire_slab, element: *mut c_void);
    pub fn quire_slab_alloc_batch(slab: *mut quire_slab, elements: *mut *mut c_void, count: usize) -> usize;
    pub fn quire_slab_free_batch(slab: *mut quire_slab, elements: *mut *mut c_void, count: usize);
    pub fn quire_slab_trim(slab: *mut quire_slab) -> usize;
    pub fn quire_slab_owns(slab: *const quire_slab, p: *const c_void) -> bool;
    pub fn quire_slab_stats(slab: *const quire_slab, out: *mut quire_slab_stats);
    pub fn quire_slab_check(slab: *mut quire_slab) -> *const c_char;

    pub fn quire_heap_default() -> *mut quire_heap;
    pub fn quire_heap_create(opts: *const quire_heap_opts) -> *mut quire_heap;
    pub fn quire_heap_destroy(heap: *mut quire_heap);
    pub fn quire_heap_alloc(heap: *mut quire_heap, bytes: usize) -> *mut c_void;
    pub fn quire_heap_alloc_zero(heap: *mut quire_heap, count: usize, bytes: usize) -> *mut c_void;
    pub fn quire_heap_alloc_aligned(heap: *mut quire_heap, bytes: usize, align_bytes: usize) -> *mut c_void;
    pub fn quire_heap_realloc(heap: *mut quire_heap, p: *mut c_void, bytes: usize) -> *mut c_void;
    pub fn quire_heap_free(heap: *mut quire_heap, p: *mut c_void);
    pub fn quire_heap_usable_bytes(p: *const c_void) -> usize;
    pub fn quire_heap_trim(heap: *mut quire_heap) -> usize;
    pub fn quire_heap_owns(heap: *const quire_heap, p: *const c_void) -> bool;
    pub fn quire_heap_stats(heap: *const quire_heap, out: *mut quire_heap_stats);
    pub fn quire_heap_check(heap: *mut quire_heap) -> *const c_char;
}

/// The C side's allocators for Miri, which cannot call C.
#[cfg(miri)]
mod stand_in;
#[cfg(miri)]
pub use stand_in::*;

extern "C" {
    pub fn quire_percpu_create(opts: *const quire_percpu_opts) -> *mut quire_percpu;
    pub fn quire_percpu_destroy(pool: *mut quire_percpu);
    pub fn quire_percpu_alloc(pool: *mut quire_percpu, bytes: usize, align_bytes: usize) -> quire_percpu_ref;
    pub fn quire_percpu_free(pool: *mut quire_percpu, object: quire_percpu_ref);
    pub fn quire_percpu_at(pool: *const quire_percpu, object: quire_percpu_ref, cpu: c_uint) -> *mut c_void;
    pub fn quire_percpu_cpus(pool: *const quire_percpu) -> c_uint;
    pub fn quire_percpu_add(pool: *mut quire_percpu, object: quire_percpu_ref, value: isize);
    pub fn quire_percpu_sum(pool: *const quire_percpu, object: quire_percpu_ref) -> isize;
    pub fn quire_percpu_check(pool: *mut quire_percpu) -> *const c_char;

    pub fn quire_counter_init(counter: *mut quire_counter, pool: *mut quire_percpu) -> c_int;
    pub fn quire_counter_fini(counter: *mut quire_counter);
    pub fn quire_counter_add(counter: *mut quire_counter, value: isize);
    pub fn quire_counter_sum(counter: *const quire_counter) -> isize;
    pub fn quire_counter_read(counter: *mut quire_counter) -> isize;

    pub fn quire_histogram_init(histogram: *mut quire_histogram, pool: *mut quire_percpu, precision_bits: c_uint) -> c_int;
    pub fn quire_histogram_fini(histogram: *mut quire_histogram);
    pub fn quire_histogram_record(histogram: *mut quire_histogram, value: u64);
    pub fn quire_histogram_snapshot_create(precision_bits: c_uint) -> *mut quire_histogram_snapshot;
    pub fn quire_histogram_snapshot_destroy(snapshot: *mut quire_histogram_snapshot);
    pub fn quire_histogram_snapshot_reset(snapshot: *mut quire_histogram_snapshot);
    pub fn quire_histogram_snapshot_take(snapshot: *mut quire_histogram_snapshot, histogram: *const quire_histogram) -> c_int;
    pub fn quire_histogram_snapshot_merge(snapshot: *mut quire_histogram_snapshot, other: *const quire_histogram_snapshot) -> c_int;
    pub fn quire_histogram_snapshot_subtract(snapshot: *mut quire_histogram_snapshot, earlier: *const quire_histogram_snapshot) -> c_int;
    pub fn quire_histogram_snapshot_percentile(snapshot: *const quire_histogram_snapshot, percent: f64) -> u64;
    pub fn quire_histogram_snapshot_stats(snapshot: *const quire_histogram_snapshot, out: *mut quire_histogram_stats);
}
