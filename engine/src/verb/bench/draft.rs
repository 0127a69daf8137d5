//! Decoding with a draft model. What a draft is worth depends on the text, so this continues one instead of random tokens.

use super::super::draft::{Draft, DraftReport, describe};
use super::super::setup;
use super::print::{Row, utc_now};
use super::{Measured, Request, Subject, Test, model_type, row};
use crate::error::{EngineError, Result};
use crate::generate::{Continue, GenerateOptions};
use crate::speculative::{Acceptance, Speculation};

/// What is continued: plain prose with a beginning that repeats, as answers have.
const PROMPT: &str = "Once upon a time there was a little girl who lived near the woods. Every morning she went to the \
                      well, and every morning she met an old man who asked her the same question. One day";

/// `decode` tokens with the draft, after the prompt repeated up to `depth` tokens; the counts of all repetitions are added.
pub fn measure(subject: &Subject<'_>, draft: &Draft, request: &Request, test: Test) -> Result<Row> {
    let Test { depth, decode, .. } = test;
    let model = &subject.model;
    let text = model.tokenizer().encode(PROMPT, true, false);
    let prompt: Vec<u32> = text.iter().copied().cycle().take(text.len().max(depth as usize)).collect();
    // the first token comes with the prompt, so one more makes `decode` steps
    let tokens_max = decode as usize + 1;
    let config = request.config_of(&test, (prompt.len() + tokens_max) as u64)?;
    let mut session = setup::session(model, &config)?;
    let mut draft_session = draft.session(&config)?;
    let faults_before = session.affinity_faults();
    let test_time = utc_now();
    let options = GenerateOptions { tokens_max, obey_eog: false };
    let (mut samples_ns, mut total) = (Vec::new(), Acceptance::default());
    for repetition in 0..request.repetitions + u32::from(request.warm_up) {
        session.clear();
        draft_session.clear();
        let mut speculation = Speculation::new(&mut session, &mut draft_session, draft.options)?;
        let (generation, acceptance) = speculation.generate(&prompt, options, &mut |_, _| Continue::Yes)?;
        if !generation.logits_finite {
            return Err(EngineError::model("logits are not finite numbers").at(subject.path.to_owned()));
        }
        if repetition == 0 && request.warm_up {
            continue;
        }
        let instants = &generation.instants;
        let took = instants[instants.len() - 1].duration_since(instants[0]);
        samples_ns.push(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1));
        total.add(acceptance);
    }
    crate::talk::talk!("{}", describe(&total));
    let measured = Measured { test_time, samples_ns, faults_before };
    let mut row = row(&session, &config, subject, Test { prompt: 0, ..test }, measured)?;
    row.model_type = format!("{} + {}", row.model_type, model_type(&draft.model));
    row.draft = Some(DraftReport::new(draft, total));
    Ok(row)
}
