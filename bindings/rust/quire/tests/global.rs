// SPDX-License-Identifier: MIT
//! A whole program on Quire's heap: every allocation of this test's is its.
#![cfg(not(miri))]
use std::collections::BTreeMap;

#[global_allocator]
static GLOBAL: quire::Global = quire::Global;

#[test]
fn a_program_lives_on_the_heap() {
    let threads: Vec<_> = (0..4u64)
        .map(|t| {
            std::thread::spawn(move || {
                let mut map = BTreeMap::new();
                for i in 0..20_000u64 {
                    map.insert(i * 7919 % 1000, format!("{t}/{i}"));
                }
                let mut text = String::new();
                map.values().for_each(|value| text += value);
                (map, vec![0u8; text.len()])
            })
        })
        .collect();
    for thread in threads {
        let (map, zeros) = thread.join().unwrap();
        assert!(map.len() == 1000 && zeros.iter().all(|byte| *byte == 0));
    }
    #[repr(align(256))]
    struct Wide(#[allow(dead_code)] u8);
    let mut wide: Vec<Wide> = Vec::new();
    wide.extend((0..100).map(Wide));
    assert_eq!(wide.as_ptr() as usize & (256 - 1), 0);
    // SAFETY: any address may be asked about
    assert!(unsafe { quire_sys::quire_heap_owns(quire_sys::quire_heap_default(), wide.as_ptr().cast()) });
}
