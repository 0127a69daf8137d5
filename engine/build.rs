//! Tells the engine which Rust target it is built for (no constant of the language holds the whole triple), and the build
//! script of the harness where the engine's source is.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-env=FARMHAND_TARGET={}", env::var("TARGET").unwrap_or_else(|_| "unknown".into()));
    println!("cargo::metadata=source={}", env::var("CARGO_MANIFEST_DIR").unwrap_or_default());
}
