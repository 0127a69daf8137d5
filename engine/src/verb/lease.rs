//! `farmhand lease`: who may use this device?

use super::args::{Args, Flag, Verb};
use super::json;
use crate::error::{EngineError, ErrorKind, Result};
use crate::lease::{Grant, LeaseFolder};

/// `farmhand lease`.
pub const VERB: Verb = Verb {
    name: "lease",
    summary: "acquire, renew, release, break or show the lease of this device",
    positional: "acquire|renew|release|break|show",
    flags: &[
        Flag { names: &["--workdir"], value: Some("DIR"), help: "folder that holds the lease (required)" },
        Flag { names: &["--owner"], value: Some("NAME"), help: "acquire, break: who asks" },
        Flag {
            names: &["--ttl-ms"],
            value: Some("N"),
            help: "acquire, renew: time to live in milliseconds (default 60000)",
        },
        Flag { names: &["--token"], value: Some("T"), help: "renew, release: the token that acquire printed" },
    ],
    shared: &[],
    run,
};

const TTL_MS_DEFAULT: u64 = 60_000;

fn run(args: &Args) -> Result<u8> {
    let leases = LeaseFolder::new(args.require("--workdir")?);
    let ttl_ms = args.number("--ttl-ms", TTL_MS_DEFAULT)?;
    let token = || args.require("--token").and_then(|_| args.number("--token", 0));
    match args.positional() {
        [word] if word == "acquire" => match leases.acquire(args.require("--owner")?, ttl_ms)? {
            Grant::Granted(lease) => json::print(&lease, false)?,
            Grant::HeldBy(holder) => {
                json::print(&holder, false)?;
                return Err(EngineError::new(
                    ErrorKind::Lease,
                    format!("the device is held by `{}` for {} ms more", holder.owner, holder.expires_in_ms),
                )
                .hint("wait until it is released or runs out"));
            }
        },
        [word] if word == "renew" => json::print(&leases.renew(token()?, ttl_ms)?, false)?,
        [word] if word == "release" => {
            let token = token()?;
            leases.release(token)?;
            json::print(&serde_json::json!({ "token": token, "released": true }), false)?;
        }
        [word] if word == "break" => json::print(&leases.break_off(args.require("--owner")?)?, false)?,
        [word] if word == "show" => json::print(&leases.show()?, false)?,
        _ => {
            return Err(EngineError::usage("`farmhand lease` needs one of acquire, renew, release, break, show"));
        }
    }
    Ok(0)
}
