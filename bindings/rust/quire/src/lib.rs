// SPDX-License-Identifier: MIT
//! Memory allocators for programs that know something about their memory that `malloc` cannot know.
//!
//! | you know | use | |
//! |---|---|---|
//! | it all goes at once: a request, a parse, a frame | [`Arena`] | under 1 ns for an allocation, nothing for a free |
//! | it is many of one type, in any order, on any thread | [`Slab`] | no header, no atomic instruction |
//! | nothing of the kind | [`Heap`], [`Global`] | blocks of any size; a limit, an account, an end of its own |
//! | many threads count, few look | [`Counter`], [`Histogram`] | no atomic instruction, no line that moves between CPUs |
//!
//! ```
//! use quire::{Arena, Slab};
//!
//! let arena = Arena::new();
//! let name = arena.alloc_str("origin");
//! let point = arena.alloc((1, 2, &*name));
//! assert_eq!(point.2, "origin");
//!
//! let nodes = Slab::new();
//! let node = nodes.alloc([0u64; 4]); // freed where it is dropped, on whatever thread
//! assert_eq!(node.len(), 4);
//! ```
//!
//! `&Arena`, `&Heap` and [`Global`] are allocators of [`allocator_api2`], so that its `Vec` and `Box` and hashbrown's maps live in them.
//!
//! Linux, with a C compiler when it is built.  The C library, what it promises and why: its headers and `man quire-arena` and its like.
#![deny(missing_docs)]
#![deny(unsafe_op_in_unsafe_fn)]
#![warn(clippy::undocumented_unsafe_blocks)]

mod arena;
mod count;
mod heap;
mod slab;

pub use allocator_api2;
pub use arena::{Arena, ArenaOptions};
pub use count::{Counter, Histogram, PerCpu, Snapshot};
pub use heap::{Global, Heap, HeapOptions};
pub use slab::{Slab, SlabBox, SlabOptions};

pub use quire_sys::{
    quire_arena_stats as ArenaStats, quire_heap_stats as HeapStats, quire_histogram_stats as HistogramStats, quire_slab_stats as SlabStats,
};

use allocator_api2::alloc::{AllocError, Layout};
use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;

/// What every block of memory is aligned to that nobody asked an alignment for.
const ALIGN_BYTES: usize = 16;

/// How [`write_stats`] writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum StatsFormat {
    /// A table for people.
    Text = quire_sys::QUIRE_STATS_TEXT,
    /// One object, `"schema": "quire.stats/1"`.
    Json = quire_sys::QUIRE_STATS_JSON,
    /// The text exposition format 0.0.4.
    Prometheus = quire_sys::QUIRE_STATS_PROMETHEUS,
}

/// Writes what all slabs, per-CPU pools, heaps and sources of the process hold.  Allocates nothing.
///
/// # Errors
/// What write(2) says; a part may have been written by then.
pub fn write_stats(to: impl AsFd, format: StatsFormat) -> io::Result<()> {
    // SAFETY: the descriptor is open as long as `to` lives
    match unsafe { quire_sys::quire_stats_write(to.as_fd().as_raw_fd(), format as u32) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives the memory that is idle in the process back to the system; how many bytes.
pub fn trim() -> usize {
    // SAFETY: may be called from any thread at any time
    unsafe { quire_sys::quire_source_trim(quire_sys::quire_source_default()) }
}

/// What the C side returned, or the error that it set.
fn created<T>(p: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(p).ok_or_else(io::Error::last_os_error)
}

/// The address of a block of no bytes: aligned, and never followed.
fn nothing(layout: Layout) -> NonNull<u8> {
    // SAFETY: an alignment is not 0
    unsafe { NonNull::new_unchecked(std::ptr::null_mut::<u8>().wrapping_add(layout.align())) }
}

/// A block as the allocator interface wants it; NULL is out of memory.
#[inline]
fn block(p: *mut c_void, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
    NonNull::new(p.cast::<u8>()).map(|p| NonNull::slice_from_raw_parts(p, layout.size())).ok_or(AllocError)
}
