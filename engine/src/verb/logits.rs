//! `farmhand logits`: teacher-forced, one JSON line a position.

use super::args::{Args, Flag, Verb};
use super::setup;
use super::stdout;
use crate::error::{EngineError, Result};
use crate::model::Logits;
use crate::protocol::EngineConfig;
use crate::quality::read_ids;
use std::path::Path;

/// `farmhand logits`.
pub const VERB: Verb = Verb {
    name: "logits",
    summary: "logits after each of the given ids, as JSON lines",
    positional: "",
    flags: &[
        setup::MODEL,
        Flag {
            names: &["--ids"],
            value: Some("FILE"),
            help: "token ids: a JSON array, or numbers between blanks or commas",
        },
        Flag { names: &["--top"], value: Some("N"), help: "how many of the likeliest to print (5)" },
        setup::THREADS,
    ],
    shared: &[setup::CACHE_TYPES, setup::ENGINE],
    run,
};

/// Tokens whose logits are held at once.
const LOGITS_TOKENS: usize = 64;

fn run(args: &Args) -> Result<u8> {
    let path = Path::new(args.require("--model")?);
    let ids = read_ids(Path::new(args.require("--ids")?))?;
    let top: usize = args.number("--top", 5)?;
    let context_tokens = u32::try_from(ids.len()).unwrap_or(u32::MAX);
    let config = EngineConfig { context_tokens, ..setup::one_config(args)? };
    let model = setup::open(path, &config)?;
    let mut session = setup::session(&model, &config)?;

    let mut position = 0;
    for chunk in ids.chunks(LOGITS_TOKENS) {
        let logits = session.forward(chunk, Logits::All)?;
        for (row, id) in logits.chunks_exact(model.vocab()).zip(chunk) {
            let line = serde_json::json!({ "position": position, "id": id, "top": top_logits(row, top) });
            position += 1;
            stdout::put(format_args!("{line}\n"))?;
        }
    }
    if !session.logits_finite() {
        return Err(EngineError::model("logits are not finite numbers").at(path.display().to_string()));
    }
    Ok(0)
}

/// The largest logits with their ids, largest first, lower ids first among equals.
fn top_logits(row: &[f32], top: usize) -> Vec<serde_json::Value> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    let largest_first = |&a: &usize, &b: &usize| row[b].total_cmp(&row[a]).then(a.cmp(&b));
    let top = top.min(order.len());
    if top > 0 && top < order.len() {
        order.select_nth_unstable_by(top - 1, largest_first);
    }
    order.truncate(top);
    order.sort_unstable_by(largest_first);
    order.into_iter().map(|id| serde_json::json!({ "id": id, "logit": row[id] })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_logits_come_first_and_ties_by_id() {
        let ids = |top| -> Vec<u64> {
            let logits = top_logits(&[1.0, 5.0, 3.0, 5.0, -1.0], top);
            logits.iter().map(|v| v["id"].as_u64().unwrap()).collect()
        };
        assert_eq!(ids(3), [1, 3, 2]);
        assert_eq!(ids(99), [1, 3, 2, 0, 4]);
        assert!(ids(0).is_empty());
    }
}
