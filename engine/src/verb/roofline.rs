//! `farmhand roofline`: what can this machine do at best?

use super::args::{Args, Flag, Verb};
use super::json;
use super::stdout;
use crate::error::{EngineError, Result};
use crate::pool::Pool;
use crate::roofline::{ROUNDS, Rate, Request, Roofline};
use std::collections::BTreeSet;

/// `farmhand roofline`.
pub const VERB: Verb = Verb {
    name: "roofline",
    summary: "measure this machine's ceilings: memory reads, f32 and int8 multiply-adds, by threads",
    positional: "",
    flags: &[
        Flag {
            names: &["-t", "--threads"],
            value: Some("N,..."),
            help: "worker threads; 0 takes the performance cores (1,0)",
        },
        Flag { names: &["-r", "--rounds"], value: Some("N"), help: "rounds behind each figure (9)" },
        Flag {
            names: &["--buffer-mib"],
            value: Some("N"),
            help: "buffer to read (8 times the last-level cache, at least 256, as memory allows)",
        },
        Flag { names: &["-o", "--output"], value: Some("FORMAT"), help: "md or json (md)" },
    ],
    shared: &[],
    run,
};

fn run(args: &Args) -> Result<u8> {
    let as_json = match args.get("-o").unwrap_or("md") {
        "md" => false,
        "json" => true,
        other => {
            return Err(EngineError::usage(format!("flag `-o`: unknown format `{other}`")).hint("known: md, json"));
        }
    };
    let buffer_bytes = match args.get("--buffer-mib") {
        None => None,
        Some(_) => Some(args.number::<u64>("--buffer-mib", 0)?.saturating_mul(1 << 20)),
    };
    let request = Request { threads: threads(args)?, rounds: args.number("-r", ROUNDS)?, buffer_bytes };
    let roofline = Roofline::measure(&request)?;
    if as_json {
        json::print(&roofline, true)?;
    } else {
        stdout::put(format_args!("{}", markdown(&roofline)))?;
    }
    Ok(0)
}

/// As asked for; without the flag one thread, and all performance cores where that is more.
fn threads(args: &Args) -> Result<Vec<usize>> {
    let mut threads: Vec<usize> = args.numbers("-t", &[1, 0])?;
    if threads.contains(&0) {
        let all = Pool::new(0)?.threads();
        threads.iter_mut().filter(|n| **n == 0).for_each(|n| *n = all);
    }
    // the same point twice says nothing more
    let mut seen = BTreeSet::new();
    threads.retain(|n| seen.insert(*n));
    Ok(threads)
}

fn markdown(roofline: &Roofline) -> String {
    let mib = |bytes: u64| format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20));
    let unknown = || "unknown".to_owned();
    let mut out = format!(
        "| threads | read, huge pages (GB/s) | read, {} KiB pages (GB/s) | f32 (GFLOP/s) | int8 (GOP/s) |\n\
         | ---: | ---: | ---: | ---: | ---: |\n",
        roofline.base_page_bytes >> 10
    );
    for point in &roofline.points {
        let (huge, base) = (rate(&point.read_huge_pages_gb_per_s), rate(&point.read_base_pages_gb_per_s));
        let (floats, bytes) = (rate(&point.f32_gflop_per_s), rate(&point.int8_gop_per_s));
        out.push_str(&format!("| {} | {huge} | {base} | {floats} | {bytes} |\n", point.threads));
    }
    out.push_str(&format!(
        "\nmedians of {} rounds, in brackets (highest - lowest) / median\n\
         buffer {}, last-level cache {}, on huge pages as read back {}\n\
         read: {}\nf32:  {}\nint8: {}\n",
        roofline.rounds,
        mib(roofline.buffer_bytes),
        roofline.last_level_cache_bytes.map_or_else(unknown, mib),
        roofline.huge_page_backed_bytes.map_or_else(unknown, mib),
        roofline.read_instructions,
        roofline.f32_instructions,
        roofline.int8_instructions,
    ));
    out
}

fn rate(rate: &Rate) -> String {
    format!("{:.1} ({:.0} %)", rate.median, 100.0 * rate.spread())
}
