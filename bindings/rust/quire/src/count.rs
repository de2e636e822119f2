// SPDX-License-Identifier: MIT
//! What many threads write and few read: every CPU has a copy of its own.
use crate::{created, HistogramStats};
use quire_sys::{quire_counter, quire_histogram, quire_histogram_snapshot, quire_percpu, Zeroed};
use std::cell::UnsafeCell;
use std::ffi::{c_int, CStr};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;

#[derive(Debug)]
struct Pool(NonNull<quire_percpu>);

// SAFETY: the C side may be called from any thread at any time
unsafe impl Send for Pool {}
// SAFETY: the same
unsafe impl Sync for Pool {}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: every counter and histogram keeps its pool, so there is none left
        unsafe { quire_sys::quire_percpu_destroy(self.0.as_ptr()) }
    }
}

/// Where counters and histograms live; one is enough for a program.  Copies of the handle are the same pool, which goes with the last of them and of
/// what lives in it.
#[derive(Clone, Debug)]
pub struct PerCpu(Arc<Pool>);

impl PerCpu {
    /// A new, empty pool.
    ///
    /// # Panics
    /// When there is no memory.
    #[must_use]
    pub fn new() -> Self {
        Self::with_name(None).expect("memory for a per-CPU pool")
    }

    /// A new, empty pool, which statistics show under that name.
    ///
    /// # Errors
    /// No memory.
    pub fn with_name(name: Option<&CStr>) -> io::Result<Self> {
        let opts = quire_sys::quire_percpu_opts { name: name.map_or(ptr::null(), CStr::as_ptr), ..Zeroed::zeroed() };
        // SAFETY: the options live until it returns, and the name is copied
        created(unsafe { quire_sys::quire_percpu_create(&opts) }).map(|raw| Self(Arc::new(Pool(raw))))
    }
}

impl Default for PerCpu {
    fn default() -> Self {
        Self::new()
    }
}

fn done(status: c_int) -> io::Result<()> {
    match status {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A number that many threads add to, without an atomic instruction.
///
/// ```
/// use quire::{Counter, PerCpu};
///
/// let hits = Counter::new(&PerCpu::new())?;
/// std::thread::scope(|s| {
///     for _ in 0..4 {
///         s.spawn(|| (0..1000).for_each(|_| hits.add(1)));
///     }
/// });
/// assert_eq!(hits.sum(), 4000);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Counter {
    raw: UnsafeCell<quire_counter>, // the C side writes to it when it is read
    _pool: Arc<Pool>,
}

// SAFETY: add, sum and read may be called from any thread at any time; nothing points at the struct
unsafe impl Send for Counter {}
// SAFETY: the same
unsafe impl Sync for Counter {}

impl Counter {
    /// A counter at 0.
    ///
    /// # Errors
    /// No memory.
    pub fn new(pool: &PerCpu) -> io::Result<Self> {
        let mut raw = quire_counter::zeroed();
        // SAFETY: the pool lives as long as the counter, which keeps it
        done(unsafe { quire_sys::quire_counter_init(&mut raw, pool.0 .0.as_ptr()) })?;
        Ok(Self { raw: UnsafeCell::new(raw), _pool: Arc::clone(&pool.0) })
    }

    /// Adds `value`, which may be negative; the count wraps around.  Nothing is lost or counted twice.
    #[inline]
    pub fn add(&self, value: isize) {
        // SAFETY: a counter that was begun
        unsafe { quire_sys::quire_counter_add(self.raw.get(), value) }
    }

    /// The count: exact when nobody adds meanwhile, else some value that it had between.
    #[must_use]
    pub fn sum(&self) -> isize {
        // SAFETY: the same
        unsafe { quire_sys::quire_counter_sum(self.raw.get()) }
    }

    /// The count as it was at most a millisecond ago: cheap, however often it is read.
    #[must_use]
    pub fn read(&self) -> isize {
        // SAFETY: the same; threads that read at once agree by atomic instructions
        unsafe { quire_sys::quire_counter_read(self.raw.get()) }
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more, and its pool goes after it
        unsafe { quire_sys::quire_counter_fini(self.raw.get()) }
    }
}

/// How often each value occurs, recorded by many threads; each value is known to 2<sup>-precision</sup> of itself.
///
/// ```
/// use quire::{Histogram, PerCpu};
///
/// let times_ns = Histogram::new(&PerCpu::new(), 7)?;
/// (1..=1000).for_each(|ns| times_ns.record(ns));
/// let seen = times_ns.snapshot()?;
/// assert_eq!(seen.stats().count, 1000);
/// assert!((500..504).contains(&seen.percentile(50.0)));
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// A snapshot is for one thread at a time.
///
/// ```compile_fail,E0277
/// # let histogram = quire::Histogram::new(&quire::PerCpu::new(), 7).unwrap();
/// let seen = histogram.snapshot().unwrap();
/// std::thread::scope(|s| {
///     s.spawn(|| seen.percentile(50.0));
/// });
/// ```
#[derive(Debug)]
pub struct Histogram {
    raw: UnsafeCell<quire_histogram>,
    precision_bits: u32,
    _pool: Arc<Pool>,
}

// SAFETY: record and take may be called from any thread at any time; nothing points at the struct
unsafe impl Send for Histogram {}
// SAFETY: the same
unsafe impl Sync for Histogram {}

impl Histogram {
    /// An empty histogram.
    ///
    /// # Errors
    /// No memory; a precision of 0 or more than 10 bits.
    pub fn new(pool: &PerCpu, precision_bits: u32) -> io::Result<Self> {
        let mut raw = quire_histogram::zeroed();
        // SAFETY: the pool lives as long as the histogram, which keeps it
        done(unsafe { quire_sys::quire_histogram_init(&mut raw, pool.0 .0.as_ptr(), precision_bits) })?;
        Ok(Self { raw: UnsafeCell::new(raw), precision_bits, _pool: Arc::clone(&pool.0) })
    }

    /// Records a value.
    #[inline]
    pub fn record(&self, value: u64) {
        // SAFETY: a histogram that was begun
        unsafe { quire_sys::quire_histogram_record(self.raw.get(), value) }
    }

    /// The counts now.
    ///
    /// # Errors
    /// No memory.
    pub fn snapshot(&self) -> io::Result<Snapshot> {
        // SAFETY: a new snapshot, as precise as the histogram, which was begun
        let snapshot = created(unsafe { quire_sys::quire_histogram_snapshot_create(self.precision_bits) }).map(|raw| Snapshot { raw })?;
        // SAFETY: the same
        done(unsafe { quire_sys::quire_histogram_snapshot_take(snapshot.raw.as_ptr(), self.raw.get()) })?;
        Ok(snapshot)
    }
}

impl Drop for Histogram {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more, and its pool goes after it
        unsafe { quire_sys::quire_histogram_fini(self.raw.get()) }
    }
}

/// The counts of a [`Histogram`] at one moment, in memory of their own.
#[derive(Debug)]
pub struct Snapshot {
    raw: NonNull<quire_histogram_snapshot>, // not Sync: one thread at a time
}

// SAFETY: one thread at a time, whichever it is
unsafe impl Send for Snapshot {}

impl Snapshot {
    /// The least value that `percent` of all do not exceed, rounded up to its bucket's largest; 0 when nothing was recorded.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> u64 {
        // SAFETY: the snapshot lives
        unsafe { quire_sys::quire_histogram_snapshot_percentile(self.raw.as_ptr(), percent) }
    }

    /// What it adds up to.
    #[must_use]
    pub fn stats(&self) -> HistogramStats {
        let mut out = HistogramStats::zeroed();
        // SAFETY: the snapshot lives, and `out` is the header's struct
        unsafe { quire_sys::quire_histogram_snapshot_stats(self.raw.as_ptr(), &mut out) };
        out
    }

    /// Adds another's counts.
    ///
    /// # Errors
    /// The other is less precise.
    pub fn merge(&mut self, other: &Snapshot) -> io::Result<()> {
        // SAFETY: both live, and they are two
        done(unsafe { quire_sys::quire_histogram_snapshot_merge(self.raw.as_ptr(), other.raw.as_ptr()) })
    }

    /// Takes an earlier one of the same histogram away: what was recorded between the two is left.
    ///
    /// # Errors
    /// It is no earlier one, or less precise.
    pub fn subtract(&mut self, earlier: &Snapshot) -> io::Result<()> {
        // SAFETY: the same
        done(unsafe { quire_sys::quire_histogram_snapshot_subtract(self.raw.as_ptr(), earlier.raw.as_ptr()) })
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        // SAFETY: nobody else has it
        unsafe { quire_sys::quire_histogram_snapshot_destroy(self.raw.as_ptr()) }
    }
}
