// SPDX-License-Identifier: MIT
//! Allocate one way, free all at once.
//!
//! The usual case is here, not in C: the arena begins with a window of free memory, of which the head is taken.  What does not fit the C side does.
use crate::{block, created, nothing, ArenaStats, ALIGN_BYTES};
use allocator_api2::alloc::{handle_alloc_error, AllocError, Allocator, Layout};
use quire_sys::{quire_arena, quire_arena_window, Zeroed};
use std::ffi::CStr;
use std::io;
use std::ptr::{self, NonNull};

/// How an [`Arena`] begins; the default is what [`Arena::new`] takes.
#[derive(Clone, Copy, Debug, Default)]
pub struct ArenaOptions<'a> {
    /// Shown in panics and by `quire top`; cut to 31 bytes.
    pub name: Option<&'a CStr>,
    /// The first span, rounded up; 0: one page.
    pub size_hint_bytes: usize,
    /// Memory that it may hold at once; 0: no limit.
    pub limit_bytes: usize,
}

/// Memory that goes all at once.
///
/// An allocation is an addition and a comparison.  Values are not dropped: what owns something else should not be put here, or be made of the
/// arena's memory itself, as `allocator_api2::vec::Vec<T, &Arena>` is.
///
/// ```
/// use quire::{allocator_api2::vec::Vec, Arena};
///
/// let mut arena = Arena::new();
/// for request in ["a b", "c d e"] {
///     let mut words = Vec::new_in(&arena);
///     words.extend(request.split(' ').map(|word| &*arena.alloc_str(word)));
///     assert_eq!(words.join(" "), request);
///     drop(words);
///     arena.reset();
/// }
/// ```
///
/// What lies in it cannot be used after a reset,
///
/// ```compile_fail,E0502
/// let mut arena = quire::Arena::new();
/// let n = arena.alloc(1);
/// arena.reset();
/// *n += 1;
/// ```
///
/// nor after its end,
///
/// ```compile_fail,E0597
/// let n = {
///     let arena = quire::Arena::new();
///     arena.alloc(1)
/// };
/// ```
///
/// nor can what is made of its memory.
///
/// ```compile_fail,E0505
/// let arena = quire::Arena::new();
/// let list = quire::allocator_api2::vec::Vec::<u8, _>::new_in(&arena);
/// drop(arena);
/// drop(list);
/// ```
///
/// It is for one thread at a time: it may go to another one, and is not shared.
///
/// ```
/// let arena = quire::Arena::new();
/// std::thread::spawn(move || *arena.alloc(1)).join().unwrap();
/// ```
///
/// ```compile_fail,E0277
/// let arena = quire::Arena::new();
/// std::thread::scope(|s| {
///     s.spawn(|| *arena.alloc(1));
/// });
/// ```
#[derive(Debug)]
pub struct Arena {
    raw: NonNull<quire_arena>, // neither Send nor Sync by itself
}

// SAFETY: the C side wants one thread at a time, whichever it is; what was allocated is borrowed from the arena, so that it cannot move meanwhile
unsafe impl Send for Arena {}

impl Arena {
    /// A new, empty arena.
    ///
    /// # Panics
    /// When there is no memory.
    #[must_use]
    pub fn new() -> Self {
        Self::with(ArenaOptions::default()).expect("memory for an arena")
    }

    /// A new, empty arena with a name, a limit, a size to begin with.
    ///
    /// # Errors
    /// No memory, or a limit less than one page.
    pub fn with(options: ArenaOptions<'_>) -> io::Result<Self> {
        let opts = quire_sys::quire_arena_opts {
            name: options.name.map_or(ptr::null(), CStr::as_ptr),
            size_hint_bytes: options.size_hint_bytes,
            limit_bytes: options.limit_bytes,
            ..Zeroed::zeroed()
        };
        // SAFETY: the options live until it returns, and the name is copied
        created(unsafe { quire_sys::quire_arena_create(&opts) }).map(|raw| Self { raw })
    }

    /// `value`, in the arena.  It is not dropped.
    ///
    /// # Panics
    /// Out of memory is an error of allocation (`handle_alloc_error`), here and in all but what begins with `try`.
    #[inline]
    #[allow(clippy::mut_from_ref)] // each call gives another place
    pub fn alloc<T>(&self, value: T) -> &mut T {
        self.alloc_with(|| value)
    }

    /// What `make` returns, made where it is to be, if the optimiser can.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub fn alloc_with<T>(&self, make: impl FnOnce() -> T) -> &mut T {
        let p = self.alloc_layout(Layout::new::<T>()).cast::<T>();
        // SAFETY: room for a T, aligned, that nobody else has while the arena is borrowed
        unsafe {
            p.as_ptr().write(make());
            &mut *p.as_ptr()
        }
    }

    /// `value` in the arena, or as it was when there is no memory.
    ///
    /// # Errors
    /// No memory, or over the limit: `value` comes back.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub fn try_alloc<T>(&self, value: T) -> Result<&mut T, T> {
        match self.try_alloc_layout(Layout::new::<T>()) {
            // SAFETY: as in alloc_with()
            Ok(p) => unsafe {
                p.cast::<T>().as_ptr().write(value);
                Ok(&mut *p.cast::<T>().as_ptr())
            },
            Err(AllocError) => Err(value),
        }
    }

    /// A copy of a string.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub fn alloc_str(&self, text: &str) -> &mut str {
        let bytes = self.alloc_slice_copy(text.as_bytes());
        // SAFETY: a copy of what is UTF-8
        unsafe { std::str::from_utf8_unchecked_mut(bytes) }
    }

    /// A copy of a slice.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub fn alloc_slice_copy<T: Copy>(&self, from: &[T]) -> &mut [T] {
        let p = self.alloc_layout(Layout::for_value(from)).cast::<T>();
        // SAFETY: room for as many, which is new and so does not overlap
        unsafe {
            ptr::copy_nonoverlapping(from.as_ptr(), p.as_ptr(), from.len());
            std::slice::from_raw_parts_mut(p.as_ptr(), from.len())
        }
    }

    /// A slice of clones.
    #[allow(clippy::mut_from_ref)]
    pub fn alloc_slice_clone<T: Clone>(&self, from: &[T]) -> &mut [T] {
        self.alloc_slice_with(from.len(), |i| from[i].clone())
    }

    /// A slice of `count` elements, `make(0)` to `make(count - 1)`.
    ///
    /// # Panics
    /// When so many have more bytes than there are addresses.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub fn alloc_slice_with<T>(&self, count: usize, mut make: impl FnMut(usize) -> T) -> &mut [T] {
        let layout = Layout::array::<T>(count).expect("as many elements as there are addresses for");
        let p = self.alloc_layout(layout).cast::<T>();
        for i in 0..count {
            // SAFETY: within the layout; a panic of make() leaves earlier elements undropped in the arena, as all values are
            unsafe { p.as_ptr().add(i).write(make(i)) };
        }
        // SAFETY: all are written
        unsafe { std::slice::from_raw_parts_mut(p.as_ptr(), count) }
    }

    /// Room for a layout, contents undefined.
    #[inline]
    pub fn alloc_layout(&self, layout: Layout) -> NonNull<u8> {
        self.try_alloc_layout(layout).unwrap_or_else(|AllocError| handle_alloc_error(layout))
    }

    /// Room for a layout, contents undefined.
    ///
    /// # Errors
    /// No memory, or over the limit; the arena stays as it was.
    #[inline]
    pub fn try_alloc_layout(&self, layout: Layout) -> Result<NonNull<u8>, AllocError> {
        if layout.size() == 0 {
            return Ok(nothing(layout));
        }
        let p = if layout.align() <= ALIGN_BYTES {
            // SAFETY: the arena lives, and only this thread has it
            unsafe { self.take(layout.size()) }
        } else {
            // SAFETY: the same
            unsafe { quire_sys::quire_arena_alloc_aligned(self.raw.as_ptr(), layout.size(), layout.align()).cast() }
        };
        NonNull::new(p).ok_or(AllocError)
    }

    /// The head of the window, or the long way: as quire/arena.h has it.
    ///
    /// # Safety
    /// As `quire_arena_alloc()`.
    #[inline]
    unsafe fn take(&self, bytes: usize) -> *mut u8 {
        let window = self.raw.as_ptr().cast::<quire_arena_window>();
        let need = bytes.wrapping_add(ALIGN_BYTES - 1) & !(ALIGN_BYTES - 1);
        // SAFETY: every arena begins with its window; cursor and end are of one span, or both NULL
        unsafe {
            let cursor = (*window).cursor;
            let room = ((*window).end as usize).wrapping_sub(cursor as usize);
            if need.wrapping_sub(1) < room {
                (*window).cursor = cursor.add(need);
                return cursor;
            }
            quire_sys::quire_arena_alloc(self.raw.as_ptr(), bytes).cast()
        }
    }

    /// Frees all.  The memory stays warm for the next round, but for what this round did not need.
    pub fn reset(&mut self) {
        // SAFETY: nothing that was allocated is borrowed any more
        unsafe { quire_sys::quire_arena_reset(self.raw.as_ptr()) }
    }

    /// Frees, when `work` is done or panics, all that it allocated.
    ///
    /// ```
    /// let mut arena = quire::Arena::new();
    /// let longest = arena.scope(|scratch| scratch.alloc_slice_copy(&[1, 5, 3]).iter().copied().max());
    /// assert_eq!(longest, Some(5));
    /// ```
    ///
    /// Nothing of that can leave it.
    ///
    /// ```compile_fail
    /// let mut arena = quire::Arena::new();
    /// let n = arena.scope(|scratch| scratch.alloc(1));
    /// ```
    pub fn scope<R>(&mut self, work: impl for<'s> FnOnce(&'s Arena) -> R) -> R {
        struct Back<'s>(&'s Arena, quire_sys::quire_arena_mark);
        impl Drop for Back<'_> {
            fn drop(&mut self) {
                // SAFETY: the mark is this arena's; who has only a shared reference cannot reset it or rewind it past the mark
                unsafe { quire_sys::quire_arena_rewind(self.0.raw.as_ptr(), self.1) }
            }
        }
        let arena: &Arena = self;
        // SAFETY: the arena lives
        let back = Back(arena, unsafe { quire_sys::quire_arena_mark(arena.raw.as_ptr()) });
        work(back.0)
    }

    /// Gives back what a reset or a scope's end kept; how many bytes.
    pub fn trim(&mut self) -> usize {
        // SAFETY: the arena lives
        unsafe { quire_sys::quire_arena_trim(self.raw.as_ptr()) }
    }

    /// One snapshot.
    #[must_use]
    pub fn stats(&self) -> ArenaStats {
        let mut out = ArenaStats::zeroed();
        // SAFETY: the arena lives, and `out` is the header's struct
        unsafe { quire_sys::quire_arena_stats(self.raw.as_ptr(), &mut out) };
        out
    }
}

impl Default for Arena {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: nothing that was allocated is borrowed any more
        unsafe { quire_sys::quire_arena_destroy(self.raw.as_ptr()) }
    }
}

// SAFETY: blocks stay where they are until the arena is reset or ends, which a borrow of it rules out; copies of the reference are the same arena
unsafe impl Allocator for &Arena {
    #[inline]
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        self.try_alloc_layout(layout).map(|p| NonNull::slice_from_raw_parts(p, layout.size()))
    }

    #[inline]
    unsafe fn deallocate(&self, _: NonNull<u8>, _: Layout) {}

    unsafe fn grow(&self, p: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if old.size() != 0 && new.align() <= ALIGN_BYTES {
            // SAFETY: the caller's promise: a block of this arena with that many bytes.  Its alignment is kept: it stays, or goes to 16 bytes
            return block(unsafe { quire_sys::quire_arena_resize(self.raw.as_ptr(), p.as_ptr().cast(), old.size(), new.size()) }, new);
        }
        let moved = self.allocate(new)?;
        // SAFETY: the new block is another one, and larger
        unsafe { ptr::copy_nonoverlapping(p.as_ptr(), moved.cast::<u8>().as_ptr(), old.size()) };
        Ok(moved)
    }

    unsafe fn grow_zeroed(&self, p: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        // SAFETY: the caller's promise; the bytes behind the old ones are the new block's
        unsafe {
            let grown = self.grow(p, old, new)?;
            grown.cast::<u8>().as_ptr().add(old.size()).write_bytes(0, new.size() - old.size());
            Ok(grown)
        }
    }

    unsafe fn shrink(&self, p: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if new.size() == 0 {
            return Ok(NonNull::slice_from_raw_parts(nothing(new), 0));
        }
        if p.as_ptr() as usize & (new.align() - 1) == 0 {
            // SAFETY: the caller's promise; shrinking leaves a block where it is
            return block(unsafe { quire_sys::quire_arena_resize(self.raw.as_ptr(), p.as_ptr().cast(), old.size(), new.size()) }, new);
        }
        let moved = self.allocate(new)?;
        // SAFETY: the new block is another one, and as large as what is copied
        unsafe { ptr::copy_nonoverlapping(p.as_ptr(), moved.cast::<u8>().as_ptr(), new.size()) };
        Ok(moved)
    }
}
