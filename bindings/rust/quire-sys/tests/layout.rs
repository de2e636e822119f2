// SPDX-License-Identifier: MIT
//! The structs of this crate are those of the headers: a C program says where each field is.
#![cfg(not(miri))]
use std::fmt::Write as _;
use std::process::Command;

const HEADERS: &[&str] = &["arena", "slab", "heap", "percpu", "counter", "histogram"];

#[test]
fn every_field_is_where_the_headers_have_it() {
    let include = env!("QUIRE_INCLUDE");
    let amalgamated = std::path::Path::new(include).join("quire.h").exists();
    let mut program = String::from("#include <stddef.h>\n#include <stdio.h>\n");
    match amalgamated {
        true => program += "#include \"quire.h\"\n",
        false => HEADERS.iter().for_each(|h| writeln!(program, "#include <quire/{h}.h>").unwrap()),
    }
    program += "int main(void)\n{\n";
    let mut expected = String::new();
    for (name, bytes, fields) in quire_sys::STRUCTS {
        writeln!(program, "    printf(\"{name} %zu\\n\", sizeof(struct {name}));").unwrap();
        writeln!(expected, "{name} {bytes}").unwrap();
        for (field, offset, size) in *fields {
            let field = field.trim_start_matches("r#");
            writeln!(program, "    printf(\"  {field} %zu %zu\\n\", offsetof(struct {name}, {field}), sizeof(((struct {name} *)0)->{field}));").unwrap();
            writeln!(expected, "  {field} {offset} {size}").unwrap();
        }
    }
    program += "}\n";
    let folder = std::env::temp_dir().join(format!("quire-layout-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, binary) = (folder.join("layout.c"), folder.join("layout"));
    std::fs::write(&source, program).unwrap();
    let built = Command::new("cc").args(["-I", include]).arg(&source).arg("-o").arg(&binary).status().unwrap();
    assert!(built.success());
    let said = Command::new(&binary).output().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(String::from_utf8(said.stdout).unwrap(), expected);
}

#[test]
fn a_struct_that_says_its_size_is_made_with_it() {
    #[repr(C)]
    struct Sized {
        struct_bytes: usize,
        other: u32,
    }
    // SAFETY: numbers both
    unsafe impl quire_sys::Zeroed for Sized {
        const NAME: &'static str = "sized";
        const FIELDS: &'static [(&'static str, usize, usize)] = &[("struct_bytes", 0, 8), ("other", 8, 4)];
    }
    let new = <Sized as quire_sys::Zeroed>::zeroed();
    assert_eq!((new.struct_bytes, new.other), (16, 0));
    assert!(<quire_sys::quire_histogram as quire_sys::Zeroed>::zeroed().pool.is_null());
}

/// The two sides agree on names too: a call of each kind works.
#[test]
fn the_library_answers() {
    // SAFETY: as the headers say
    unsafe {
        let arena = quire_sys::quire_arena_create(std::ptr::null());
        assert!(!quire_sys::quire_arena_alloc(arena, 100).is_null());
        assert!(quire_sys::quire_arena_check(arena).is_null());
        quire_sys::quire_arena_destroy(arena);
        let version = std::ffi::CStr::from_ptr(quire_sys::quire_version());
        assert_eq!(version.to_str().unwrap(), env!("CARGO_PKG_VERSION"));
    }
}
