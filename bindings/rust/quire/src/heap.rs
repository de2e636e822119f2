// SPDX-License-Identifier: MIT
//! Blocks of any size: the process's heap, and heaps of one's own.
use crate::{block, created, nothing, HeapStats, ALIGN_BYTES};
use allocator_api2::alloc::{AllocError, Allocator, GlobalAlloc, Layout};
use quire_sys::{quire_heap, Zeroed};
use std::ffi::{c_void, CStr};
use std::io;
use std::ptr::{self, NonNull};

/// The heap of the process, for all of a program's memory or some of it.
///
/// ```
/// #[global_allocator]
/// static GLOBAL: quire::Global = quire::Global;
///
/// assert_eq!(vec![1; 1000].len(), 1000);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Global;

/// How a [`Heap`] begins; the default is what [`Heap::new`] takes.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeapOptions<'a> {
    /// Shown in statistics and panics; cut to 31 bytes.
    pub name: Option<&'a CStr>,
    /// Memory that it may hold at once; 0: no limit.
    pub limit_bytes: usize,
}

/// A heap with pages, an account and a limit of its own; all that is left in it goes with it.
///
/// ```
/// use quire::{allocator_api2::vec::Vec, Heap, HeapOptions};
///
/// let session = Heap::with(HeapOptions { name: Some(c"session"), limit_bytes: 16 << 20 })?;
/// let mut history = Vec::new_in(&session);
/// history.extend(0..1000);
/// assert!(session.stats().live_bytes >= 4000);
/// assert!(history.try_reserve(1 << 30).is_err());
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// What is made of its memory ends before it.
///
/// ```compile_fail,E0505
/// let heap = quire::Heap::new();
/// let list = quire::allocator_api2::vec::Vec::<u8, _>::new_in(&heap);
/// drop(heap);
/// drop(list);
/// ```
#[derive(Debug)]
pub struct Heap {
    raw: NonNull<quire_heap>,
}

// SAFETY: the C side may be called from any thread at any time, and blocks be freed by another thread than allocated them
unsafe impl Send for Heap {}
// SAFETY: the same
unsafe impl Sync for Heap {}

impl Heap {
    /// A new, empty heap.
    ///
    /// # Panics
    /// When there is no memory.
    #[must_use]
    pub fn new() -> Self {
        Self::with(HeapOptions::default()).expect("memory for a heap")
    }

    /// A new, empty heap with a name and a limit.
    ///
    /// # Errors
    /// No memory, or a limit less than its bookkeeping.
    pub fn with(options: HeapOptions<'_>) -> io::Result<Self> {
        let opts = quire_sys::quire_heap_opts {
            name: options.name.map_or(ptr::null(), CStr::as_ptr),
            limit_bytes: options.limit_bytes,
            ..Zeroed::zeroed()
        };
        // SAFETY: the options live until it returns, and the name is copied
        created(unsafe { quire_sys::quire_heap_create(&opts) }).map(|raw| Self { raw })
    }

    /// Gives free pages back; how many bytes.
    pub fn trim(&self) -> usize {
        // SAFETY: the heap lives
        unsafe { quire_sys::quire_heap_trim(self.raw.as_ptr()) }
    }

    /// One snapshot.
    #[must_use]
    pub fn stats(&self) -> HeapStats {
        let mut out = HeapStats::zeroed();
        // SAFETY: the heap lives, and `out` is the header's struct
        unsafe { quire_sys::quire_heap_stats(self.raw.as_ptr(), &mut out) };
        out
    }
}

impl Default for Heap {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: what is made of its blocks borrows it, so nobody uses it any more
        unsafe { quire_sys::quire_heap_destroy(self.raw.as_ptr()) }
    }
}

/// # Safety
/// A live heap, and a layout of at least one byte.
#[inline]
unsafe fn take(heap: *mut quire_heap, layout: Layout) -> *mut c_void {
    // SAFETY: the caller's promise
    unsafe {
        match layout.align() <= ALIGN_BYTES {
            true => quire_sys::quire_heap_alloc(heap, layout.size()),
            false => quire_sys::quire_heap_alloc_aligned(heap, layout.size(), layout.align()),
        }
    }
}

/// # Safety
/// A live heap, and a layout of at least one byte.
#[inline]
unsafe fn take_zero(heap: *mut quire_heap, layout: Layout) -> *mut c_void {
    // SAFETY: the caller's promise
    unsafe {
        if layout.align() <= ALIGN_BYTES {
            return quire_sys::quire_heap_alloc_zero(heap, 1, layout.size());
        }
        let p = take(heap, layout);
        if !p.is_null() {
            p.cast::<u8>().write_bytes(0, layout.size());
        }
        p
    }
}

/// # Safety
/// A live block of the heap with the layout `old`, and a layout `new` of at least one byte.  NULL: the block is as it was.
#[inline]
unsafe fn resize(heap: *mut quire_heap, p: *mut u8, old: Layout, new: Layout) -> *mut c_void {
    // SAFETY: the caller's promise
    unsafe {
        if new.align() <= ALIGN_BYTES {
            return quire_sys::quire_heap_realloc(heap, p.cast(), new.size());
        }
        let moved = take(heap, new);
        if !moved.is_null() {
            ptr::copy_nonoverlapping(p, moved.cast(), old.size().min(new.size()));
            quire_sys::quire_heap_free(heap, p.cast());
        }
        moved
    }
}

// SAFETY: the default heap's blocks have the layout that was asked for, and stay until they are freed, by whatever thread
unsafe impl GlobalAlloc for Global {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise: the layout has a byte at least
        unsafe { take(quire_sys::quire_heap_default(), layout).cast() }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the same
        unsafe { take_zero(quire_sys::quire_heap_default(), layout).cast() }
    }

    #[inline]
    unsafe fn dealloc(&self, p: *mut u8, _: Layout) {
        // SAFETY: the caller's promise: a live block of this allocator's
        unsafe { quire_sys::quire_heap_free(quire_sys::quire_heap_default(), p.cast()) }
    }

    #[inline]
    unsafe fn realloc(&self, p: *mut u8, layout: Layout, new_bytes: usize) -> *mut u8 {
        // SAFETY: the caller's promise: it fits a layout
        unsafe {
            let new = Layout::from_size_align_unchecked(new_bytes, layout.align());
            resize(quire_sys::quire_heap_default(), p, layout, new).cast()
        }
    }
}

/// An allocator over what gives a live heap.
macro_rules! allocator_of {
    ($type:ty, $heap:expr) => {
        // SAFETY: blocks stay until they are freed or their heap ends, which a borrow of it rules out; copies are the same heap
        unsafe impl Allocator for $type {
            #[inline]
            fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
                if layout.size() == 0 {
                    return Ok(NonNull::slice_from_raw_parts(nothing(layout), 0));
                }
                // SAFETY: the heap lives, and there is a byte to allocate
                block(unsafe { take($heap(self), layout) }, layout)
            }

            #[inline]
            fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
                if layout.size() == 0 {
                    return self.allocate(layout);
                }
                // SAFETY: the same
                block(unsafe { take_zero($heap(self), layout) }, layout)
            }

            #[inline]
            unsafe fn deallocate(&self, p: NonNull<u8>, layout: Layout) {
                if layout.size() != 0 {
                    // SAFETY: the caller's promise: a live block of this heap
                    unsafe { quire_sys::quire_heap_free($heap(self), p.as_ptr().cast()) }
                }
            }

            unsafe fn grow(&self, p: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
                if old.size() == 0 {
                    return self.allocate(new);
                }
                // SAFETY: the caller's promise, and new is larger than 0 bytes
                block(unsafe { resize($heap(self), p.as_ptr(), old, new) }, new)
            }

            unsafe fn shrink(&self, p: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
                if new.size() == 0 {
                    // SAFETY: the caller's promise
                    unsafe { self.deallocate(p, old) };
                    return self.allocate(new);
                }
                // SAFETY: the same
                block(unsafe { resize($heap(self), p.as_ptr(), old, new) }, new)
            }
        }
    };
}

#[inline]
fn own(heap: &&Heap) -> *mut quire_heap {
    heap.raw.as_ptr()
}

#[inline]
fn of_process(_: &Global) -> *mut quire_heap {
    // SAFETY: may be called from any thread at any time
    unsafe { quire_sys::quire_heap_default() }
}

allocator_of!(&Heap, own);
allocator_of!(Global, of_process);
