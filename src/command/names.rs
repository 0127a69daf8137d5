//! Names and facts of a run that come from the lab host: its name from the wall clock, and what the host is.

use crate::error::{Error, Result};
use crate::run::{HostFacts, RunId};
use std::path::Path;
use sysinfo::System;

/// A fresh name for a run and its wall clock, RFC 3339: the UTC time, and a counter when that second is taken.
pub fn new_run(results: &Path) -> Result<(RunId, String)> {
    let now = jiff::Timestamp::now();
    let created = rfc_3339(now);
    let stem = now.strftime("%Y%m%d-%H%M%S").to_string();
    (0..1000)
        .map(|n| if n == 0 { stem.clone() } else { format!("{stem}-{n}") })
        .find(|name| !results.join(name).exists())
        .ok_or_else(|| Error::infra("a thousand runs began in this second").in_file(results))
        .and_then(|name| Ok((RunId::parse(&name)?, created)))
}

/// The wall clock, RFC 3339.
pub fn now() -> String {
    rfc_3339(jiff::Timestamp::now())
}

fn rfc_3339(moment: jiff::Timestamp) -> String {
    moment.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// What this lab host is, for the record.
pub fn host_facts() -> HostFacts {
    let memory_bytes = System::new().map(|mut system| {
        system.refresh_memory();
        system.total_memory()
    });
    HostFacts {
        os: System::long_os_version().unwrap_or_default(),
        kernel: System::kernel_version().unwrap_or_default(),
        cpus: std::thread::available_parallelism().map_or(0, |n| n.get() as u32),
        memory_bytes: memory_bytes.unwrap_or(0),
    }
}
