// SPDX-License-Identifier: MIT
//! Quire beside the crates that Rust programs take: CPU time of the thread, in rounds that take turns, medians.
//!
//!     cargo run --release -p quire-bench [ROUNDS]        a table in Markdown
//!
//! Every competitor of a row does the same operations with the same random numbers; one round of each is thrown away.  A row's name
//! says what its figures are of.  Not here: memory, more threads than one.
use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};

const REQUESTS: usize = 2_000;
const OBJECTS: usize = 100;
const LIVE: usize = 10_000;
const TURNS: usize = 400_000;

fn cpu_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a clock that every thread has
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// xorshift: the same numbers for everybody.
struct Numbers(u64);
impl Numbers {
    fn next(&mut self) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 as usize
    }
}

/// Each with what it does in a round.
type Competitors = Vec<(&'static str, Box<dyn FnMut()>)>;

/// A row: what is done, how often in a round, and who does it.
struct Row {
    what: &'static str,
    operations: usize,
    by: Competitors,
}

type Node<'a> = (u64, u64, Option<&'a u64>, u64, u64);

/// A request: objects of one type, and all gone.
fn requests() -> Row {
    let (mut quire, mut bump) = (quire::Arena::new(), bumpalo::Bump::new());
    let by: Competitors = vec![
        ("quire", Box::new(move || {
            for request in 0..REQUESTS as u64 {
                for i in 0..OBJECTS as u64 {
                    black_box::<&mut Node>(quire.alloc((request, i, None, 0, 0)));
                }
                quire.reset();
            }
        })),
        ("bumpalo", Box::new(move || {
            for request in 0..REQUESTS as u64 {
                for i in 0..OBJECTS as u64 {
                    black_box::<&mut Node>(bump.alloc((request, i, None, 0, 0)));
                }
                bump.reset();
            }
        })),
        ("typed-arena", Box::new(|| {
            for request in 0..REQUESTS as u64 {
                let arena = typed_arena::Arena::<Node>::new(); // it has no reset
                for i in 0..OBJECTS as u64 {
                    black_box::<&mut Node>(arena.alloc((request, i, None, 0, 0)));
                }
            }
        })),
        ("mimalloc", Box::new(|| boxed_requests(&mimalloc::MiMalloc))),
        ("glibc", Box::new(|| boxed_requests(&System))),
    ];
    Row { what: "arena: 100 objects of 40 bytes, then all gone; ns an object", operations: REQUESTS * OBJECTS, by }
}

fn boxed_requests(heap: &impl GlobalAlloc) {
    let layout = Layout::new::<Node>();
    let mut kept = [std::ptr::null_mut(); OBJECTS];
    for request in 0..REQUESTS as u64 {
        // SAFETY: a layout with bytes; each block is freed once
        unsafe {
            for (i, place) in kept.iter_mut().enumerate() {
                *place = heap.alloc(layout);
                place.cast::<Node>().write((request, i as u64, None, 0, 0));
                black_box(*place);
            }
            kept.iter().for_each(|p| heap.dealloc(*p, layout));
        }
    }
}

/// Strings of many sizes, and all gone.
fn strings() -> Row {
    const TEXT: &str = "the quick brown fox jumps over the lazy dog, again and again and again";
    fn rounds(mut one: impl FnMut(&str), mut end: impl FnMut()) {
        let mut numbers = Numbers(88172645463325252);
        for _ in 0..REQUESTS {
            (0..OBJECTS).for_each(|_| one(&TEXT[..numbers.next() % TEXT.len()]));
            end();
        }
    }
    use std::cell::RefCell;
    let (quire, bump) = (RefCell::new(quire::Arena::new()), RefCell::new(bumpalo::Bump::new()));
    let by: Competitors = vec![
        ("quire", Box::new(move || rounds(|s| { black_box(quire.borrow().alloc_str(s)); }, || quire.borrow_mut().reset()))),
        ("bumpalo", Box::new(move || rounds(|s| { black_box(bump.borrow().alloc_str(s)); }, || bump.borrow_mut().reset()))),
    ];
    Row { what: "arena: 100 strings of 0 to 69 bytes, then all gone; ns a string", operations: REQUESTS * OBJECTS, by }
}

/// Values of one type, that live and die at random among 10,000.
fn churn() -> Row {
    type Value = [u64; 8];
    let pool: &'static quire::Slab<Value> = Box::leak(Box::new(quire::Slab::new()));
    let mut boxes: Vec<_> = (0..LIVE).map(|i| pool.alloc([i as u64; 8])).collect();
    let mut keyed = slab::Slab::<Value>::new();
    let mut keys: Vec<_> = (0..LIVE).map(|i| keyed.insert([i as u64; 8])).collect();
    let by: Competitors = vec![
        ("quire", Box::new(move || {
            let mut numbers = Numbers(88172645463325252);
            for i in 0..TURNS {
                boxes[numbers.next() % LIVE] = black_box(pool.alloc([i as u64; 8]));
            }
        })),
        ("slab", Box::new(move || {
            let mut numbers = Numbers(88172645463325252);
            for i in 0..TURNS {
                let place = &mut keys[numbers.next() % LIVE];
                keyed.remove(*place);
                *place = black_box(keyed.insert([i as u64; 8]));
            }
        })),
        ("mimalloc", churn_of(&mimalloc::MiMalloc, |_| 64)),
        ("glibc", churn_of(&System, |_| 64)),
    ];
    Row { what: "slab: values of 64 bytes replaced at random among 10,000; ns a replacement", operations: TURNS, by }
}

/// Blocks that live and die at random among 10,000.
fn churn_of<A: GlobalAlloc>(heap: &'static A, bytes: fn(usize) -> usize) -> Box<dyn FnMut()> {
    let layout = move |n| Layout::from_size_align(bytes(n), 8).unwrap();
    // SAFETY: a layout with bytes
    let mut kept: Vec<_> = (0..LIVE).map(|n| (unsafe { heap.alloc(layout(n)) }, layout(n))).collect();
    Box::new(move || {
        let mut numbers = Numbers(88172645463325252);
        for i in 0..TURNS {
            let n = numbers.next();
            let place = &mut kept[n % LIVE];
            // SAFETY: the block with the layout it was had with, once
            unsafe {
                heap.dealloc(place.0, place.1);
                *place = (heap.alloc(layout(n >> 20)), layout(n >> 20));
                black_box(place.0.cast::<u64>()).write(i as u64);
            }
        }
    })
}

fn sizes() -> Row {
    let sizes: fn(usize) -> usize = |n| 8 + (n % 1024) * (n / 1024 % 3 + 1) / 2;
    let by = vec![
        ("quire", churn_of(&quire::Global, sizes)),
        ("mimalloc", churn_of(&mimalloc::MiMalloc, sizes)),
        ("glibc", churn_of(&System, sizes)),
    ];
    Row { what: "heap: blocks of 8 to 1,542 bytes replaced at random among 10,000; ns a replacement", operations: TURNS, by }
}

fn counts() -> Row {
    let counter = quire::Counter::new(&quire::PerCpu::new()).expect("memory for a counter");
    let shared: &'static AtomicIsize = Box::leak(Box::default());
    let by: Competitors = vec![
        ("quire", Box::new(move || (0..TURNS).for_each(|i| counter.add(black_box(i as isize))))),
        ("AtomicIsize", Box::new(move || (0..TURNS).for_each(|i| { shared.fetch_add(black_box(i as isize), Relaxed); }))),
    ];
    Row { what: "counter: a thread alone adds; ns an addition", operations: TURNS, by }
}

fn load() -> String {
    std::fs::read_to_string("/proc/loadavg").map(|text| text.split(' ').next().unwrap_or("?").to_string()).unwrap_or_default()
}

fn main() {
    let rounds: usize = std::env::args().nth(1).map_or(51, |word| word.parse().expect("a number of rounds"));
    let before = load();
    for mut row in [requests(), strings(), churn(), sizes(), counts()] {
        let mut times = vec![Vec::with_capacity(rounds); row.by.len()];
        for round in 0..=rounds {
            for turn in 0..row.by.len() {
                let who = (turn + round) % row.by.len(); // each is first now and then
                let begun = cpu_ns();
                (row.by[who].1)();
                if round > 0 {
                    times[who].push((cpu_ns() - begun) as f64 / row.operations as f64);
                }
            }
        }
        println!("\n{}\n\n| | median | quarter of the rounds below | above |\n|---|---|---|---|", row.what);
        for ((who, _), mut all) in row.by.iter().zip(times) {
            all.sort_by(f64::total_cmp);
            println!("| {who} | {:.2} | {:.2} | {:.2} |", all[rounds / 2], all[rounds / 4], all[rounds * 3 / 4]);
        }
    }
    println!("\n{rounds} rounds; load {before} before, {} after", load());
}
