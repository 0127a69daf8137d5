//! Profiles in the Chrome trace event format, which Perfetto and chrome://tracing open: complete events (`ph` is `X`)
//! with times in microseconds, and metadata events (`M`) that name processes and threads.
//!
//! A recording shows as a process. Its first thread has the operators; inside them, and on the other threads, is what
//! each worker did in the pool's regions.

use super::Profile;
use serde::Serialize;
use std::io::{Result, Write};
use std::time::Instant;

/// A complete event.
#[derive(Serialize)]
struct Complete<A> {
    name: &'static str,
    cat: &'static str,
    ph: &'static str,
    ts: f64,
    dur: f64,
    pid: usize,
    tid: usize,
    args: A,
}

#[derive(Serialize)]
struct OperatorArgs {
    phase: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    layer: Option<u16>,
    tokens: u32,
    rows: u64,
    weight_bytes: u64,
    kv_bytes: u64,
    activation_bytes: u64,
    bytes: u64,
    f32_operations: u64,
    int8_operations: u64,
}

#[derive(Serialize)]
struct WorkerArgs {
    operator: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    layer: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    items: Option<u32>,
}

/// A metadata event.
#[derive(Serialize)]
struct Metadata<'a> {
    name: &'static str,
    ph: &'static str,
    pid: usize,
    tid: usize,
    args: NameArgs<'a>,
}

#[derive(Serialize)]
struct NameArgs<'a> {
    name: &'a str,
}

/// Writes events one a line, with commas between them.
struct Events<W> {
    out: W,
    written: usize,
}

impl<W: Write> Events<W> {
    fn put(&mut self, event: &impl Serialize) -> Result<()> {
        self.out.write_all(if self.written == 0 { b"\n" } else { b",\n" })?;
        self.written += 1;
        serde_json::to_writer(&mut self.out, event).map_err(std::io::Error::from)
    }
}

/// Writes the recordings, each with its name, as one trace. Times are microseconds after the earliest began. Fails when
/// `out` does.
pub fn write_trace(out: impl Write, recordings: &[(String, Profile)]) -> Result<()> {
    let mut events = Events { out, written: 0 };
    let dropped: u64 = recordings.iter().map(|(_, profile)| profile.dropped_events).sum();
    let about = serde_json::json!({ "recorded_by": "farmhand", "dropped_events": dropped });
    write!(events.out, "{{\"displayTimeUnit\":\"ns\",\"otherData\":{about},\"traceEvents\":[")?;
    let origin = recordings.iter().map(|(_, profile)| profile.origin).min();
    for (i, (name, profile)) in recordings.iter().enumerate() {
        // 0 is the idle process to some readers, and the idle thread
        put_recording(&mut events, i + 1, name, profile, origin.unwrap_or(profile.origin))?;
    }
    writeln!(events.out, "\n]}}")?;
    events.out.flush()
}

fn put_recording<W: Write>(
    events: &mut Events<W>,
    pid: usize,
    name: &str,
    profile: &Profile,
    origin: Instant,
) -> Result<()> {
    events.put(&Metadata { name: "process_name", ph: "M", pid, tid: 1, args: NameArgs { name } })?;
    for worker in 0..profile.threads {
        let name = &format!("worker {worker}");
        events.put(&Metadata { name: "thread_name", ph: "M", pid, tid: worker + 1, args: NameArgs { name } })?;
    }
    let offset_ns = profile.origin.duration_since(origin).as_nanos() as u64;
    let us = |ns: u64| ns as f64 / 1e3;
    for span in &profile.operators {
        let args = OperatorArgs {
            phase: span.phase.name(),
            layer: span.layer,
            tokens: span.tokens,
            rows: span.cost.rows,
            weight_bytes: span.cost.weight_bytes,
            kv_bytes: span.cost.kv_bytes,
            activation_bytes: span.cost.activation_bytes,
            bytes: span.cost.bytes(),
            f32_operations: span.cost.f32_operations,
            int8_operations: span.cost.int8_operations,
        };
        let (ts, dur) = (us(offset_ns + span.start_ns), us(span.duration_ns));
        events.put(&Complete { name: span.operator.name(), cat: "operator", ph: "X", ts, dur, pid, tid: 1, args })?;
    }
    for (worker, spans) in profile.workers.iter().enumerate() {
        for span in spans {
            let operator = span.operator.name();
            let (name, cat) = if span.items.is_some() { (operator, "work") } else { ("synchronisation", "wait") };
            let args = WorkerArgs { operator, layer: span.layer, items: span.items };
            let (ts, dur) = (us(offset_ns + span.start_ns), us(span.duration_ns));
            events.put(&Complete { name, cat, ph: "X", ts, dur, pid, tid: worker + 1, args })?;
        }
    }
    Ok(())
}
