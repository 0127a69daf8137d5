//! The ways in which the engine can be built for an architecture, in the order in which they are tried. Each is a way
//! with everything that cargo needs to be told, or the reason why it cannot be had on this machine.

use super::host_target;
use crate::process::Job;
use crate::target::Architecture;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Budget of a question to a compiler.
const ASK: Duration = Duration::from_secs(60);
/// Segments of what is built are aligned to the largest page that any of these processors has.
const PAGE_BYTES_MAX: u32 = 64 << 10;

/// What is looked at on this machine.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// Folders that programs are looked for in.
    pub path: OsString,
    /// Cargo.
    pub cargo: OsString,
    /// The Rust compiler that cargo uses.
    pub rustc: OsString,
    /// Folder of a compiler made by `tools/foreign-toolchain.sh`.
    pub foreign: Option<PathBuf>,
    /// Settings of cargo that change what is built: the variables `CARGO_PROFILE_RELEASE_…`.
    pub profile: Vec<(OsString, OsString)>,
}

impl Surroundings {
    /// Those of this process; the folder of the foreign compiler is `$FARMGATE_FOREIGN`.
    pub fn of_process() -> Self {
        let or = |key, default: &str| std::env::var_os(key).unwrap_or_else(|| default.into());
        let is_profile = |key: &OsString| key.to_string_lossy().starts_with("CARGO_PROFILE_RELEASE_");
        let mut profile: Vec<_> = std::env::vars_os().filter(|(key, _)| is_profile(key)).collect();
        profile.sort();
        Self {
            path: or("PATH", ""),
            cargo: or("CARGO", "cargo"),
            rustc: or("RUSTC", "rustc"),
            foreign: std::env::var_os("FARMGATE_FOREIGN").filter(|v| !v.is_empty()).map(PathBuf::from),
            profile,
        }
    }
}

/// A question whether one of the ways can be gone.
type Look = fn(&Search<'_>) -> Result<Way, String>;

/// One look at this machine, for one architecture.
struct Search<'a> {
    architecture: Architecture,
    around: &'a Surroundings,
    /// Where the compiler is asked, since rustup may have another one for each folder.
    root: &'a Path,
}

/// A Rust compiler and its cargo.
#[derive(Debug, Clone)]
struct Compiler {
    cargo: OsString,
    rustc: OsString,
    /// Its folder, when it is not the ordinary one.
    foreign: Option<PathBuf>,
}

/// What a compiler says of itself and of a target.
struct Answer {
    /// `rustc -vV`, whole.
    version: String,
    /// The first line of it, short.
    name: String,
    has_std: bool,
    has_lld: bool,
}

impl Compiler {
    /// The compiler and what it says, if it can build for a target.
    fn with_std(self, target: &str, root: &Path) -> Result<(Self, Answer), String> {
        let answer = self.ask(target, root)?;
        if answer.has_std {
            return Ok((self, answer));
        }
        Err(format!("{} has no standard library for {target}", answer.name))
    }

    fn ask(&self, target: &str, root: &Path) -> Result<Answer, String> {
        let version = self.say(&["-vV"], root)?;
        let name = version.split(" (").next().unwrap_or_default().lines().next().unwrap_or_default().to_owned();
        let host = version.lines().find_map(|l| l.strip_prefix("host: ")).unwrap_or_default();
        let folders = self.say(&["--print", "sysroot", "--print", "target-libdir", "--target", target], root)?;
        let mut lines = folders.lines();
        let sysroot = Path::new(lines.next().unwrap_or_default());
        let has_std = std::fs::read_dir(lines.next().unwrap_or_default()).is_ok_and(|entries| {
            let name = |e: std::fs::DirEntry| e.file_name().to_string_lossy().into_owned();
            entries.flatten().map(name).any(|n| n.starts_with("libstd-") && n.ends_with(".rlib"))
        });
        let has_lld = sysroot.join("lib/rustlib").join(host).join("bin/rust-lld").is_file();
        Ok(Answer { name, has_std, has_lld, version })
    }

    fn say(&self, arguments: &[&str], root: &Path) -> Result<String, String> {
        let mut job = Job::new(&self.rustc, ASK).args(arguments).in_folder(root);
        for (key, value) in self.environment() {
            job = job.env(key, value);
        }
        let shown = self.rustc.to_string_lossy();
        let output = job.run().map_err(|e| e.what().to_owned())?;
        match output.status {
            0 => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            127 => Err(format!("{shown} was not found")),
            _ => Err(format!("{shown} fails: {}", output.last_words())),
        }
    }

    /// What cargo and compiler need in their environment.
    fn environment(&self) -> Vec<(OsString, OsString)> {
        let Some(folder) = &self.foreign else { return Vec::new() };
        vec![("RUSTC".into(), self.rustc.clone()), ("LD_LIBRARY_PATH".into(), folder.join("usr/lib").into())]
    }
}

/// One way to build the engine: a compiler, a target and a linker.
#[derive(Debug, Clone)]
pub(super) struct Way {
    /// How it is called in messages.
    label: String,
    /// Rust target that it builds for.
    pub target: &'static str,
    /// Cargo.
    pub cargo: OsString,
    /// `build`, or a subcommand that takes the same arguments.
    pub subcommand: &'static str,
    /// Environment of cargo.
    pub environment: Vec<(OsString, OsString)>,
    /// Flags of the compiler, for the target's code alone.
    pub flags: Vec<String>,
    /// Whether what it makes must be static.
    pub is_static: bool,
    /// What the compiler says of its version.
    version: String,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.label)
    }
}

impl Way {
    /// A text that changes when this way makes something else of the same source.
    pub fn state(&self) -> String {
        let Self { subcommand, target, flags, version, environment, .. } = self;
        format!("{subcommand} {target}\n{flags:?}\n{environment:?}\n{version}")
    }
}

/// Every way to build for `architecture` in the folder `root`, best first; those that cannot be gone say why. Each is
/// looked into only when the one before it was not taken.
pub(super) fn ways<'a>(
    architecture: Architecture,
    around: &'a Surroundings,
    root: &'a Path,
) -> impl Iterator<Item = Result<Way, String>> + use<'a> {
    let is_own = Architecture::of_target(host_target()) == Some(architecture);
    let all: [(bool, Look); 5] = [
        (is_own, |search| search.own(true)),
        (true, |search| search.musl_and_lld()),
        (true, |search| search.zigbuild()),
        (true, |search| search.gcc()),
        // better an engine for this machine alone than none at all
        (is_own, |search| search.own(false)),
    ];
    let search = Search { architecture, around, root };
    all.into_iter().filter(|(applies, _)| *applies).map(move |(_, way)| way(&search))
}

impl Search<'_> {
    fn has(&self, program: &str) -> bool {
        std::env::split_paths(&self.around.path).any(|folder| folder.join(program).is_file())
    }

    /// The ordinary compiler, with its answer about a target that it has the standard library for.
    fn compiler(&self, target: &str) -> Result<(Compiler, Answer), String> {
        let (cargo, rustc) = (self.around.cargo.clone(), self.around.rustc.clone());
        Compiler { cargo, rustc, foreign: None }.with_std(target, self.root)
    }

    /// The one that `FARMGATE_FOREIGN` names.
    fn foreign_compiler(&self, target: &str) -> Result<(Compiler, Answer), String> {
        let folder = self.around.foreign.as_ref().ok_or("FARMGATE_FOREIGN names no other compiler")?;
        // cargo runs in another folder
        let folder = std::path::absolute(folder).map_err(|e| e.to_string())?;
        let (rustc, cargo) = (folder.join("usr/bin/rustc"), folder.join("usr/bin/cargo"));
        if !rustc.is_file() {
            return Err(format!("FARMGATE_FOREIGN names no compiler: {} is not there", rustc.display()));
        }
        let cargo = if cargo.is_file() { cargo.into() } else { self.around.cargo.clone() };
        Compiler { cargo, rustc: rustc.into(), foreign: Some(folder) }.with_std(target, self.root)
    }

    /// The way of a static build; each adds its linker to it.
    fn way(&self, label: String, target: &'static str, compiler: &Compiler, answer: Answer) -> Way {
        let page = format!("-Clink-arg=-Wl,-z,max-page-size={PAGE_BYTES_MAX}");
        Way {
            label,
            target,
            cargo: compiler.cargo.clone(),
            subcommand: "build",
            environment: compiler.environment().into_iter().chain(self.around.profile.clone()).collect(),
            flags: vec!["-Ctarget-feature=+crt-static".to_owned(), page],
            is_static: true,
            version: answer.version,
        }
    }

    /// This machine's ordinary compiler and linker. Static linking needs the static C library, which some systems keep
    /// apart.
    fn own(&self, is_static: bool) -> Result<Way, String> {
        let target = host_target();
        let (compiler, answer) = self.compiler(target)?;
        let label =
            format!("{} and this machine's linker{}", answer.name, if is_static { "" } else { ", dynamically" });
        let mut way = self.way(label, target, &compiler, answer);
        if !is_static {
            way.flags.remove(0);
            way.is_static = false;
        }
        Ok(way)
    }

    /// Rust's own linker and the C library that comes with the musl target: nothing else is needed, since the engine has
    /// no C.
    fn musl_and_lld(&self) -> Result<Way, String> {
        let target = self.architecture.musl();
        let (compiler, answer) = self.compiler(target)?;
        if !answer.has_lld {
            return Err(format!("{} comes without rust-lld", answer.name));
        }
        let mut way = self.way(format!("{} for {target} and rust-lld", answer.name), target, &compiler, answer);
        way.flags.pop();
        let page = format!("-Clink-arg=max-page-size={PAGE_BYTES_MAX}");
        let linker = ["-Clinker=rust-lld", "-Clinker-flavor=ld.lld", "-Clink-self-contained=yes", "-Clink-arg=-z"];
        way.flags.extend(linker.map(str::to_owned).into_iter().chain([page]));
        Ok(way)
    }

    /// Zig's linker, driven by cargo-zigbuild, for compilers that come without a linker of their own.
    fn zigbuild(&self) -> Result<Way, String> {
        if !self.has("cargo-zigbuild") {
            return Err("cargo-zigbuild is not on PATH".to_owned());
        }
        let target = self.architecture.musl();
        let (compiler, answer) = self.compiler(target).map_err(|e| format!("cargo-zigbuild is there, but {e}"))?;
        let mut way = self.way(format!("{} for {target} and cargo-zigbuild", answer.name), target, &compiler, answer);
        way.subcommand = "zigbuild";
        Ok(way)
    }

    /// The distribution's cross compiler for C as the linker, with whichever Rust compiler has the standard library.
    fn gcc(&self) -> Result<Way, String> {
        let (target, linker) = (self.architecture.gnu(), gcc_name(self.architecture));
        if !self.has(linker) {
            return Err(format!("{linker} is not on PATH"));
        }
        let found = self.compiler(target).or_else(|ordinary| {
            self.foreign_compiler(target).map_err(|foreign| format!("{linker} is there, but {ordinary}, and {foreign}"))
        });
        let (compiler, answer) = found?;
        let place = compiler.foreign.as_ref().map(|folder| format!(" of {}", folder.display())).unwrap_or_default();
        let label = format!("{}{place} for {target} and {linker}", answer.name);
        let mut way = self.way(label, target, &compiler, answer);
        way.flags.push(format!("-Clinker={linker}"));
        Ok(way)
    }
}

fn gcc_name(architecture: Architecture) -> &'static str {
    match architecture {
        Architecture::Aarch64 => "aarch64-linux-gnu-gcc",
        Architecture::Armv7 => "arm-linux-gnueabihf-gcc",
        Architecture::Riscv64 => "riscv64-linux-gnu-gcc",
        Architecture::X86_64 => "x86_64-linux-gnu-gcc",
    }
}

/// What to type to make one of the ways possible.
pub(super) fn how_to_install(architecture: Architecture) -> String {
    let (musl, gnu) = (architecture.musl(), architecture.gnu());
    let packages = match architecture {
        Architecture::Aarch64 => "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
        Architecture::Armv7 => "gcc-arm-linux-gnueabihf libc6-dev-armhf-cross",
        Architecture::Riscv64 => "gcc-riscv64-linux-gnu libc6-dev-riscv64-cross",
        Architecture::X86_64 => "gcc-x86-64-linux-gnu libc6-dev-amd64-cross",
    };
    format!(
        "any one of these is enough (Rust itself: https://rustup.rs)\n\
         \x20 rustup target add {musl}\n\
         \x20 cargo install --locked cargo-zigbuild && pip install ziglang && rustup target add {musl}\n\
         \x20 apt-get install {packages} && rustup target add {gnu}\n\
         \x20 on Debian without rustup: apt-get install {packages},\n\
         \x20   tools/foreign-toolchain.sh DIR from farmgate's repository, and FARMGATE_FOREIGN=DIR\n\
         or pass `--artefacts DIR` with a `farmhand-{architecture}` in it, built elsewhere"
    )
}
