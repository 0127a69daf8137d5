//! How near to the memory's speed a decode was, where a roofline says what that is.

use super::Test;
use crate::execute::bandwidth::{mbu_of, objection};
use crate::model::Session;
use crate::protocol::ReasonCode;
use crate::roofline::{ReadBandwidth, Roofline};

/// The utilisation of a decode of `tokens_per_s`, and what speaks against believing it. Nothing for a prompt, and where the
/// roofline has no point of as many workers on the same cores: ceilings of other cores are none.
pub fn of(
    session: &Session,
    test: Test,
    tokens_per_s: f64,
    roofline: Option<&Roofline>,
) -> Option<(f64, Option<ReasonCode>)> {
    let roofline = roofline.filter(|_| test.decode > 0)?;
    let threads = session.threads_effective();
    let point = roofline.point(threads)?;
    let affinity = session.affinity_effective();
    if point.affinity != affinity[..threads as usize] {
        crate::talk::talk!(
            "warning: {}: no mbu, since the roofline of {threads} threads was measured on cores {}, and this on {}",
            test.name(),
            crate::text::one_line(&point.affinity.join(" ")),
            affinity.join(" ")
        );
        return None;
    }
    let bandwidth =
        ReadBandwidth { read_gb_per_s: point.read_gb_per_s(), last_level_cache_bytes: roofline.last_level_cache_bytes };
    // the token in the middle stands for all: what is read grows evenly
    let bytes = session.bytes_per_token((test.depth + test.decode / 2) as usize);
    let mbu = mbu_of(bytes, tokens_per_s, bandwidth);
    Some((mbu, objection(mbu, session.model().weight_bytes(), bandwidth)))
}
