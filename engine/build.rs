//! Tells the engine which Rust target it is built for: no constant of the language holds the whole triple.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-env=FARMHAND_TARGET={}", std::env::var("TARGET").unwrap_or_else(|_| "unknown".into()));
}
