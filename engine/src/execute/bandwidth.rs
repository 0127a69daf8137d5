//! Whether a decode was as fast as memory allows, or faster: then not every token was computed.

use crate::protocol::ReasonCode;
use crate::roofline::ReadBandwidth;

/// Memory bandwidth utilisation above this is no truth. The margin above 1 is for the ceiling, which is measured too.
const MBU_MAX: f64 = 1.1;
/// Weights up to this size may lie in a cache that sysfs does not tell of.
const CACHE_BYTES_UNKNOWN: u64 = 64 << 20;

/// Bytes that a decode read a second / what this device reads at best.
pub(crate) fn mbu_of(bytes_per_token: u64, tokens_per_s: f64, bandwidth: ReadBandwidth) -> f64 {
    bytes_per_token as f64 * tokens_per_s / (bandwidth.read_gb_per_s * 1e9)
}

/// What speaks against a decode of that utilisation. Weights that fit the last-level cache may be read faster than memory.
pub(crate) fn objection(mbu: f64, weight_bytes: u64, bandwidth: ReadBandwidth) -> Option<ReasonCode> {
    let cache_bytes = bandwidth.last_level_cache_bytes.unwrap_or(CACHE_BYTES_UNKNOWN);
    (mbu > MBU_MAX && weight_bytes > cache_bytes).then_some(ReasonCode::MbuAboveOne)
}

#[cfg(test)]
mod tests {
    use super::*;

    // field report E23: an answer that ended early was counted as 1500 token/s
    #[test]
    fn a_decode_that_claims_more_than_memory_can_give_is_invalid_unless_the_weights_fit_the_cache() {
        let phone = ReadBandwidth { read_gb_per_s: 30.0, last_level_cache_bytes: Some(8_000_000) };
        let weights = 500_000_000;
        let mbu = |tokens_per_s| mbu_of(weights + 10_000_000, tokens_per_s, phone);
        assert_eq!(mbu(50.0), 0.85);
        assert_eq!(mbu(1500.0), 25.5);
        assert_eq!(objection(mbu(50.0), weights, phone), None);
        assert_eq!(objection(mbu(1500.0), weights, phone), Some(ReasonCode::MbuAboveOne));
        assert_eq!((objection(1.1, weights, phone), objection(1.11, weights, phone).is_some()), (None, true));
        assert_eq!(objection(25.5, 8_000_000, phone), None);
        let silent = ReadBandwidth { last_level_cache_bytes: None, ..phone };
        assert_eq!(objection(25.5, 64 << 20, silent), None);
        assert_eq!(objection(25.5, (64 << 20) + 1, silent), Some(ReasonCode::MbuAboveOne));
    }
}
