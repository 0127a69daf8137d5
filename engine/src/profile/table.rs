//! A profile as a table: who took the time, how many bytes and operations that makes a second, and how far it is from
//! what the machine can do.

use super::{Cost, Operator, Phase, Profile, Total};
use std::fmt::Write;

/// What this machine can do at best with the threads of a profile.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ceilings {
    /// Streaming read, 10^9 bytes a second.
    pub read_gb_per_s: f64,
    /// Multiply-adds of f32, two operations each, 10^9 a second.
    pub f32_gflop_per_s: f64,
    /// Multiply-adds of int8, two operations each, 10^9 a second.
    pub int8_gop_per_s: f64,
}

/// Which ceiling is the nearer one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// Memory reads.
    Memory,
    /// Multiply-adds.
    Arithmetic,
}

/// One row of the table of a phase.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Operator, or kind of waiting.
    pub name: &'static str,
    /// Calls; `None` for waiting.
    pub calls: Option<u64>,
    /// Part of the time of all threads, 0 to 1. The rows of a phase sum to 1.
    pub share: f64,
    /// Time from begin to end of all calls, milliseconds; `None` for waiting.
    pub wall_ms: Option<f64>,
    /// Half of the calls took longer, microseconds: where another process took the core now and then, nearer the truth
    /// than the mean. Of the calls that were kept one by one; `None` for waiting and where none was kept.
    pub median_us: Option<f64>,
    /// Bytes read and written.
    pub bytes: u64,
    /// 10^9 bytes a second of `wall_ms`.
    pub gb_per_s: f64,
    /// 10^9 operations a second of `wall_ms`.
    pub gop_per_s: f64,
    /// Time that the nearer ceiling would allow / `wall_ms`: above 1 when caches serve what is counted as read from
    /// memory.
    pub of_roofline: Option<(f64, Bound)>,
}

/// Waiting for other workers inside of regions.
const SYNCHRONISATION: &str = "synchronisation";
/// One worker at work outside of regions, the others without any.
const ALONE: &str = "one thread works alone";

/// The rows of a phase: operators that were called, in the order of a pass, then both kinds of waiting. Empty when there
/// was no such pass.
pub fn rows(profile: &Profile, phase: Phase, ceilings: Option<&Ceilings>) -> Vec<Row> {
    let called = || Operator::ALL.map(|o| (o, profile.total(phase, o))).into_iter().filter(|(_, t)| t.calls > 0);
    let thread_ns = profile.threads as f64 * called().map(|(_, t)| t.wall_ns).sum::<u64>() as f64;
    if thread_ns == 0.0 {
        return Vec::new();
    }
    let of = |(operator, total): (Operator, &Total)| {
        let median_us = median_us(profile, phase, operator);
        Row { median_us, ..row(operator.name(), total, thread_ns, ceilings) }
    };
    let mut out: Vec<Row> = called().map(of).collect();
    let mut wait = |name, of: fn(&Total) -> u64| {
        let share = called().map(|(_, t)| of(t)).sum::<u64>() as f64 / thread_ns;
        let none = Row { share, calls: None, wall_ms: None, ..row(name, &Total::default(), 1.0, None) };
        out.push(none);
    };
    if profile.threads > 1 {
        wait(SYNCHRONISATION, |t| t.synchronisation_ns);
        wait(ALONE, |t| t.alone_ns);
    }
    out
}

fn median_us(profile: &Profile, phase: Phase, operator: Operator) -> Option<f64> {
    let of = profile.operators.iter().filter(|s| s.phase == phase && s.operator == operator);
    let mut durations_ns: Vec<u64> = of.map(|s| s.duration_ns).collect();
    durations_ns.sort_unstable();
    durations_ns.get(durations_ns.len() / 2).map(|ns| *ns as f64 / 1e3)
}

fn row(name: &'static str, total: &Total, thread_ns: f64, ceilings: Option<&Ceilings>) -> Row {
    let wall_ns = total.wall_ns as f64;
    // 10^9 a second is one a nanosecond
    let rate = |amount: u64| if wall_ns > 0.0 { amount as f64 / wall_ns } else { 0.0 };
    let of_roofline = ceilings.map(|ceilings| {
        let (floor_ns, bound) = floor(&total.cost, ceilings);
        (if wall_ns > 0.0 { floor_ns / wall_ns } else { 0.0 }, bound)
    });
    Row {
        name,
        calls: Some(total.calls),
        share: total.busy_ns as f64 / thread_ns,
        wall_ms: Some(wall_ns / 1e6),
        median_us: None,
        bytes: total.cost.bytes(),
        gb_per_s: rate(total.cost.bytes()),
        gop_per_s: rate(total.cost.operations()),
        of_roofline,
    }
}

/// Nanoseconds that the ceilings allow, and which of them decides.
fn floor(cost: &Cost, ceilings: &Ceilings) -> (f64, Bound) {
    let memory = cost.bytes() as f64 / ceilings.read_gb_per_s;
    let arithmetic =
        cost.f32_operations as f64 / ceilings.f32_gflop_per_s + cost.int8_operations as f64 / ceilings.int8_gop_per_s;
    if arithmetic > memory { (arithmetic, Bound::Arithmetic) } else { (memory, Bound::Memory) }
}

/// The tables of both phases as Markdown, under a heading with `name`.
pub fn table(name: &str, profile: &Profile, ceilings: Option<&Ceilings>) -> String {
    let mut out = String::new();
    for phase in Phase::ALL {
        let rows = rows(profile, phase, ceilings);
        if rows.is_empty() {
            continue;
        }
        let (passes, tokens) = profile.passes(phase);
        let wall_ms: f64 = rows.iter().filter_map(|r| r.wall_ms).sum();
        let threads = profile.threads;
        let _ = writeln!(
            out,
            "{name}, {}: {passes} passes, {tokens} tokens, {threads} threads, {wall_ms:.1} ms in operators\n\n\
             | operator | calls | share of time | wall (ms) | median call (us) | bytes (MB) | GB/s | GOP/s | of roofline |\n\
             | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
            phase.name()
        );
        for row in &rows {
            let _ = writeln!(out, "{}", line(row));
        }
        let _ = writeln!(out, "{}\n", line(&sum(&rows, wall_ms)));
        let busy = profile.worker_busy_ns(phase).map(|ns| format!("{:.1} %", ns as f64 / wall_ms / 1e4));
        let regions = Operator::ALL.map(|o| profile.total(phase, o).regions).iter().sum::<u64>() as f64 / passes as f64;
        let busy = busy.collect::<Vec<_>>().join(", ");
        let _ = writeln!(out, "at work, by worker: {busy}; parallel regions a pass: {regions:.1}\n");
    }
    if profile.dropped_events > 0 {
        let _ = writeln!(out, "{} events dropped from the trace; the table has them all\n", profile.dropped_events);
    }
    out
}

/// All rows as one: its part of the roofline is the time that the ceilings allow every operator, one after the other.
fn sum(rows: &[Row], wall_ms: f64) -> Row {
    let bytes: u64 = rows.iter().map(|r| r.bytes).sum();
    let per_wall = |of: fn(&Row) -> f64| rows.iter().map(|r| of(r) * r.wall_ms.unwrap_or(0.0)).sum::<f64>() / wall_ms;
    let floor = |r: &Row| r.of_roofline.map(|(part, bound)| (part * r.wall_ms.unwrap_or(0.0), bound));
    let floors: Option<Vec<(f64, Bound)>> = rows.iter().filter(|r| r.wall_ms.is_some()).map(floor).collect();
    let of_roofline = floors.map(|floors| {
        let of = |bound| floors.iter().filter(|f| f.1 == bound).map(|f| f.0).sum::<f64>();
        let (memory, arithmetic) = (of(Bound::Memory), of(Bound::Arithmetic));
        let bound = if arithmetic > memory { Bound::Arithmetic } else { Bound::Memory };
        ((memory + arithmetic) / wall_ms, bound)
    });
    Row {
        name: "all",
        calls: None,
        share: rows.iter().map(|r| r.share).sum(),
        wall_ms: Some(wall_ms),
        median_us: None,
        bytes,
        gb_per_s: per_wall(|r| r.gb_per_s),
        gop_per_s: per_wall(|r| r.gop_per_s),
        of_roofline,
    }
}

fn line(row: &Row) -> String {
    let calls = row.calls.map_or(String::new(), |n| n.to_string());
    let share = format!("{:.1} %", 100.0 * row.share);
    let Some(wall_ms) = row.wall_ms else { return format!("| {} | {calls} | {share} | | | | | | |", row.name) };
    let roofline = row.of_roofline.map_or(String::new(), |(part, bound)| {
        let bound = match bound {
            Bound::Memory => "memory",
            Bound::Arithmetic => "arithmetic",
        };
        format!("{part:.2} {bound}")
    });
    let median_us = row.median_us.map_or(String::new(), |us| format!("{us:.1}"));
    let gop_per_s = if row.gop_per_s > 0.0 { format!("{:.1}", row.gop_per_s) } else { String::new() };
    format!(
        "| {} | {calls} | {share} | {wall_ms:.2} | {median_us} | {:.2} | {:.2} | {gop_per_s} | {roofline} |",
        row.name,
        row.bytes as f64 / 1e6,
        row.gb_per_s
    )
}
