// SPDX-License-Identifier: MIT
//! Values of one type, allocated and freed by any thread, in any order.
use crate::{created, SlabStats, ALIGN_BYTES};
use allocator_api2::alloc::{handle_alloc_error, Layout};
use quire_sys::{quire_slab, Zeroed};
use std::ffi::CStr;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::mem::{align_of, size_of, ManuallyDrop};
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

/// How a [`Slab`] begins; the default is what [`Slab::new`] takes.
#[derive(Clone, Copy, Debug, Default)]
pub struct SlabOptions<'a> {
    /// Shown in statistics and panics; cut to 31 bytes.
    pub name: Option<&'a CStr>,
    /// Memory that it may hold at once; 0: no limit.
    pub limit_bytes: usize,
    /// Room of the first page, in elements; 0: it grows from one page.
    pub initial_elements: usize,
    /// Always fill the fullest page, so that others become empty and go back.
    pub defrag: bool,
}

/// Places for values of one type.
///
/// ```
/// use quire::Slab;
///
/// let slab = Slab::new();
/// let mut n = slab.alloc(41);
/// *n += 1;
/// std::thread::scope(|s| {
///     s.spawn(|| drop(n)); // from any thread
///     assert_eq!(slab.alloc(7).into_inner(), 7);
/// });
/// ```
///
/// A value does not outlive the slab,
///
/// ```compile_fail,E0597
/// let n = {
///     let slab = quire::Slab::new();
///     slab.alloc(1)
/// };
/// ```
///
/// and one that must stay on its thread does, with its slab.
///
/// ```compile_fail,E0277
/// let slab = quire::Slab::new();
/// let n = slab.alloc(std::rc::Rc::new(1));
/// std::thread::scope(|s| {
///     s.spawn(move || drop(n));
/// });
/// ```
///
/// ```compile_fail,E0277
/// let slab = quire::Slab::<std::rc::Rc<u8>>::new();
/// std::thread::spawn(move || drop(slab));
/// ```
pub struct Slab<T> {
    raw: NonNull<quire_slab>,
    of: PhantomData<T>,
}

// SAFETY: the C side may be called from any thread at any time; values go between threads with their boxes
unsafe impl<T: Send> Send for Slab<T> {}
// SAFETY: the same; a shared slab gives nobody a reference to a value
unsafe impl<T: Send> Sync for Slab<T> {}

impl<T> Slab<T> {
    /// A new, empty slab.
    ///
    /// # Panics
    /// When there is no memory.
    #[must_use]
    pub fn new() -> Self {
        Self::with(SlabOptions::default()).expect("memory for a slab")
    }

    /// A new, empty slab with a name, a limit, a size to begin with.
    ///
    /// # Errors
    /// No memory, or a limit less than one page.
    pub fn with(options: SlabOptions<'_>) -> io::Result<Self> {
        let opts = quire_sys::quire_slab_opts {
            name: options.name.map_or(ptr::null(), CStr::as_ptr),
            align_bytes: align_of::<T>().max(ALIGN_BYTES),
            limit_bytes: options.limit_bytes,
            initial_elements: options.initial_elements,
            flags: if options.defrag { quire_sys::QUIRE_SLAB_DEFRAG } else { 0 },
            ..Zeroed::zeroed()
        };
        // SAFETY: the options live until it returns, and the name is copied
        created(unsafe { quire_sys::quire_slab_create(size_of::<T>(), &opts) }).map(|raw| Self { raw, of: PhantomData })
    }

    /// `value`, in the slab.  Out of memory is an error of allocation (`handle_alloc_error`).
    #[inline]
    pub fn alloc(&self, value: T) -> SlabBox<'_, T> {
        self.try_alloc(value).unwrap_or_else(|_| handle_alloc_error(Layout::new::<T>()))
    }

    /// `value` in the slab, or as it was when there is no memory.
    ///
    /// # Errors
    /// No memory, or over the limit: `value` comes back, and the slab stays usable.
    #[inline]
    pub fn try_alloc(&self, value: T) -> Result<SlabBox<'_, T>, T> {
        // SAFETY: the slab lives
        match NonNull::new(unsafe { quire_sys::quire_slab_alloc(self.raw.as_ptr()) }.cast::<T>()) {
            Some(at) => {
                // SAFETY: room for a T, aligned, that nobody else has
                unsafe { at.as_ptr().write(value) };
                Ok(SlabBox { at, slab: self })
            }
            None => Err(value),
        }
    }

    /// Gives every empty page back; how many bytes.
    pub fn trim(&self) -> usize {
        // SAFETY: the slab lives
        unsafe { quire_sys::quire_slab_trim(self.raw.as_ptr()) }
    }

    /// One snapshot.
    #[must_use]
    pub fn stats(&self) -> SlabStats {
        let mut out = SlabStats::zeroed();
        // SAFETY: the slab lives, and `out` is the header's struct
        unsafe { quire_sys::quire_slab_stats(self.raw.as_ptr(), &mut out) };
        out
    }
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for Slab<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slab").field("raw", &self.raw).finish()
    }
}

impl<T> Drop for Slab<T> {
    fn drop(&mut self) {
        // SAFETY: every box borrows the slab, so nobody uses it or its elements any more
        unsafe { quire_sys::quire_slab_destroy(self.raw.as_ptr()) }
    }
}

/// A value in a [`Slab`], and its owner: dropped, it drops the value and gives the place back.
pub struct SlabBox<'s, T> {
    at: NonNull<T>,
    slab: &'s Slab<T>,
}

// SAFETY: it is the value's only owner, and the C side takes elements back from any thread
unsafe impl<T: Send> Send for SlabBox<'_, T> {}
// SAFETY: shared, it gives shared references only
unsafe impl<T: Sync> Sync for SlabBox<'_, T> {}

impl<'s, T> SlabBox<'s, T> {
    /// The value itself; its place is given back.
    #[must_use]
    pub fn into_inner(self) -> T {
        let this = ManuallyDrop::new(self);
        // SAFETY: the value is moved out once, then its place is free
        unsafe {
            let value = this.at.as_ptr().read();
            quire_sys::quire_slab_free(this.slab.raw.as_ptr(), this.at.as_ptr().cast());
            value
        }
    }

    /// The value for as long as the slab lives.  It is not dropped; its memory goes with the slab.
    #[must_use]
    pub fn leak(self) -> &'s mut T {
        // SAFETY: nobody else will ever have this element
        unsafe { &mut *ManuallyDrop::new(self).at.as_ptr() }
    }
}

impl<T> Deref for SlabBox<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the value lives as long as its box
        unsafe { self.at.as_ref() }
    }
}

impl<T> DerefMut for SlabBox<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: and the box is its only owner
        unsafe { self.at.as_mut() }
    }
}

impl<T> Drop for SlabBox<'_, T> {
    #[inline]
    fn drop(&mut self) {
        struct Place<'s, T>(NonNull<T>, &'s Slab<T>);
        impl<T> Drop for Place<'_, T> {
            #[inline]
            fn drop(&mut self) {
                // SAFETY: an element of this slab, whose value is gone
                unsafe { quire_sys::quire_slab_free(self.1.raw.as_ptr(), self.0.as_ptr().cast()) }
            }
        }
        let _place = Place(self.at, self.slab); // given back also when the value's drop panics
        // SAFETY: the value's only owner ends
        unsafe { ptr::drop_in_place(self.at.as_ptr()) }
    }
}

impl<T: fmt::Debug> fmt::Debug for SlabBox<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
