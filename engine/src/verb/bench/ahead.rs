//! What is looked at before anything is measured: a table is not to break off after minutes for what was known at its begin.

use super::{Request, Test};
use crate::error::{EngineError, Result};
use crate::gguf::{Gguf, LoadMode};
use crate::memory::available_bytes;
use crate::model::{Hyperparameters, Session};
use crate::pool::Pool;
use crate::protocol::KvPolicy;
use crate::text::one_line;
use std::collections::BTreeSet;
use std::path::Path;

/// Tests up to this long are measured whatever the model was trained for: it is speed that is asked for.
const TEST_TOKENS_MAX: u64 = 65_536;

/// Refuses what one of the tests could not do with one of the models; only headers are read. Usage errors, model errors that
/// name the file, system errors for caches that no memory is there for.
pub fn check(paths: &[&str], request: &Request) -> Result<()> {
    let tests = request.tests();
    if tests.is_empty() {
        return Err(EngineError::usage("nothing to measure").hint("give -p or -n a number above 0"));
    }
    // before any file: threads and cores are no matter of the model
    check_workers(&tests, request)?;
    for path in paths {
        let gguf = Gguf::open(Path::new(path), LoadMode::Map)?;
        let h = Hyperparameters::from_metadata(gguf.metadata()).map_err(|e| {
            let place = e.place().map_or_else(|| (*path).to_owned(), |place| format!("{path}, {place}"));
            e.at(place)
        })?;
        let trained = h.context_trained_tokens as u64;
        let available = available_bytes();
        for test in &tests {
            check_test(test, request, &h, available).map_err(|e| e.at(format!("{path}, {}", test.name())))?;
        }
        let longest = tests.iter().map(Test::tokens).max().unwrap_or(0);
        if longest > trained && request.config.kv_policy == KvPolicy::Full {
            crate::talk::talk!(
                "warning: {} was trained for {trained} tokens and is measured with up to {longest}: speeds are real, \
                 answers of that length would not be",
                one_line(path)
            );
        }
    }
    Ok(())
}

fn check_workers(tests: &[Test], request: &Request) -> Result<()> {
    let mut lacking = BTreeSet::new();
    for test in tests {
        let threads = Pool::decode_threads_of(&request.config_of(test, 1)?)?;
        let roofline = request.profiling.roofline().filter(|_| test.decode > 0);
        if roofline.is_some_and(|roofline| roofline.point(threads as u32).is_none()) {
            lacking.insert(threads);
        }
    }
    for threads in lacking {
        crate::talk::talk!(
            "warning: the roofline says nothing of {threads} threads, so their decodes have no mbu\n\n\
             hint: `farmhand roofline -t {threads} -o json` makes one"
        );
    }
    Ok(())
}

fn check_test(test: &Test, request: &Request, h: &Hyperparameters, available: Option<u64>) -> Result<()> {
    let (tokens, trained) = (test.tokens(), h.context_trained_tokens as u64);
    let tokens_max = trained.max(TEST_TOKENS_MAX);
    if tokens > tokens_max {
        return Err(EngineError::usage(format!(
            "a test of {tokens} tokens is longer than the model's context of {trained} and than {TEST_TOKENS_MAX}"
        ))
        .hint(format!("depth (-d) and tokens (-p, -n) of a test may be {tokens_max} together")));
    }
    let kv_bytes = Session::foresee(h, &request.config_of(test, tokens)?)?;
    match available {
        Some(available) if kv_bytes > available => Err(EngineError::system(format!(
            "the kv cache of {tokens} tokens takes {kv_bytes} bytes, of {available} that can be had"
        ))
        .hint("ask for fewer tokens (-d, -p, -n), smaller cache types (-ctk, -ctv) or --kv-policy window:N")),
        _ => Ok(()),
    }
}
