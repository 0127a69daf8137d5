//! What the tests of the statistics share.

use farmgate_engine::protocol::Finite;
use proptest::prelude::*;
use std::ops::Range;

/// The values as finite numbers.
pub fn finite(values: &[f64]) -> Vec<Finite> {
    values.iter().map(|v| Finite::new(*v).expect("tests use finite numbers")).collect()
}

/// Ordinary, constant, tiny and huge numbers of either sign.
pub fn any_values(count: Range<usize>) -> impl Strategy<Value = Vec<Finite>> {
    let value = prop_oneof![
        -1000.0..1000.0f64,
        Just(0.0),
        Just(1.0),
        Just(f64::MIN_POSITIVE),
        Just(f64::MAX),
        Just(f64::MIN),
        Just(5e-324)
    ];
    proptest::collection::vec(value, count).prop_map(|v| finite(&v))
}

/// As [`any_values`], above zero.
pub fn any_positive() -> impl Strategy<Value = Finite> {
    let value = prop_oneof![0.001..1000.0f64, Just(1.0), Just(f64::MIN_POSITIVE), Just(f64::MAX), Just(5e-324)];
    value.prop_map(|v| finite(&[v])[0])
}
