// SPDX-License-Identifier: MIT
//! The library: found by pkg-config where that feature is on, else built from quire.c.
//!
//!     vendor/quire.c                        in a published crate
//!     scripts/amalgamate.py OUT_DIR         in a checkout, with python3
//!
//! Dependents get DEP_QUIRE_INCLUDE, the folder of the headers.
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if env::var("CARGO_CFG_MIRI").is_ok() {
        return; // src/stand_in.rs takes its place
    }
    assert_eq!(env::var("CARGO_CFG_TARGET_OS").as_deref(), Ok("linux"), "Quire needs Linux");
    let include = if cfg!(feature = "pkg-config") { find() } else { build() };
    println!("cargo:include={}", include.display());
    println!("cargo:rustc-env=QUIRE_INCLUDE={}", include.display());
}

#[cfg(feature = "pkg-config")]
fn find() -> PathBuf {
    let found = pkg_config::Config::new().atleast_version(env!("CARGO_PKG_VERSION")).probe("quire");
    let found = found.expect("Quire is not installed; without the feature pkg-config it is built");
    found.include_paths.first().cloned().unwrap_or_else(|| PathBuf::from("/usr/include"))
}

#[cfg(not(feature = "pkg-config"))]
fn find() -> PathBuf {
    unreachable!("only with the feature pkg-config")
}

fn build() -> PathBuf {
    let folder = source();
    cc::Build::new()
        .file(folder.join("quire.c"))
        .include(&folder)
        .std("gnu11")
        .pic(true)
        .opt_level(2) // as it is released; a debug build of a program needs no slow allocator
        .flag("-pthread")
        .compile("quire");
    println!("cargo:rustc-link-lib=pthread");
    folder
}

fn source() -> PathBuf {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let vendored = here.join("vendor");
    if vendored.join("quire.c").exists() {
        println!("cargo:rerun-if-changed=vendor");
        return vendored;
    }
    let root = here.join("../../..");
    for part in ["scripts/amalgamate.py", "src", "include"] {
        println!("cargo:rerun-if-changed={}", root.join(part).display());
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    amalgamate(&root.join("scripts/amalgamate.py"), &out);
    out
}

fn amalgamate(script: &Path, out: &Path) {
    let done = Command::new("python3").arg(script).arg(out).status();
    let done = done.expect("in a checkout, python3 writes quire.c; in a published crate it is there");
    assert!(done.success(), "{} failed", script.display());
}
