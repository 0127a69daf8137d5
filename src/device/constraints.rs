//! The constraint sheet of a device: the limits that the product promises there. The gate holds every run against them.

use crate::config::Checker;
use crate::run::Constraints;
use serde::Deserialize;
use toml::Spanned;

/// `[constraints]` as typed.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(super) struct ConstraintsToml {
    memory_mb_max: Option<Spanned<f64>>,
    decode_tps_min: Option<Spanned<f64>>,
    first_token_ms_max: Option<Spanned<f64>>,
    power_w_max: Option<Spanned<f64>>,
    temperature_c_max: Option<Spanned<f64>>,
}

pub(super) fn read(check: &mut Checker<'_>, typed: &ConstraintsToml) -> Constraints {
    check.within_if_there("memory-mb-max", typed.memory_mb_max.as_ref(), 1.0..=1e9);
    check.within_if_there("decode-tps-min", typed.decode_tps_min.as_ref(), 0.001..=1e6);
    check.within_if_there("first-token-ms-max", typed.first_token_ms_max.as_ref(), 1.0..=1e9);
    check.within_if_there("power-w-max", typed.power_w_max.as_ref(), 0.01..=1e4);
    check.within_if_there("temperature-c-max", typed.temperature_c_max.as_ref(), 1.0..=150.0);
    let bare = |value: &Option<Spanned<f64>>| value.as_ref().map(|v| *v.get_ref());
    Constraints {
        memory_mb_max: bare(&typed.memory_mb_max),
        decode_tps_min: bare(&typed.decode_tps_min),
        first_token_ms_max: bare(&typed.first_token_ms_max),
        power_w_max: bare(&typed.power_w_max),
        temperature_c_max: bare(&typed.temperature_c_max),
    }
}
