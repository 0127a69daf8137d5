//! When a device is fit to be measured, as its file says it.

use crate::config::Checker;
use farmgate_engine::protocol::{Finite, ReadyCriteria};
use serde::Deserialize;
use toml::Spanned;

/// `[ready]` as typed.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(super) struct ReadyToml {
    temperature_margin_c: Option<Spanned<f64>>,
    idle_temperature_c: Option<Spanned<f64>>,
    temperature_max_c: Option<Spanned<f64>>,
    thermal_status: Option<bool>,
    foreign_cpu_percent_max: Option<Spanned<f64>>,
    clock_ratio_min: Option<Spanned<f64>>,
    battery_percent_min: Option<Spanned<u32>>,
    charging_steady: Option<bool>,
    sentinel_ratio_min: Option<Spanned<f64>>,
    cool_down_timeout_s: Option<Spanned<u64>>,
    poll_period_ms: Option<Spanned<u64>>,
}

pub(super) fn read(check: &mut Checker<'_>, typed: &ReadyToml) -> ReadyCriteria {
    check.within_if_there("temperature-margin-c", typed.temperature_margin_c.as_ref(), 0.1..=100.0);
    check.within_if_there("idle-temperature-c", typed.idle_temperature_c.as_ref(), -40.0..=125.0);
    check.within_if_there("temperature-max-c", typed.temperature_max_c.as_ref(), -40.0..=125.0);
    check.within_if_there("foreign-cpu-percent-max", typed.foreign_cpu_percent_max.as_ref(), 0.1..=100_000.0);
    check.within_if_there("clock-ratio-min", typed.clock_ratio_min.as_ref(), 0.01..=1.0);
    check.within_if_there("battery-percent-min", typed.battery_percent_min.as_ref(), 1..=100);
    check.within_if_there("sentinel-ratio-min", typed.sentinel_ratio_min.as_ref(), 0.01..=1.0);
    check.within_if_there("cool-down-timeout-s", typed.cool_down_timeout_s.as_ref(), 1..=86_400);
    check.within_if_there("poll-period-ms", typed.poll_period_ms.as_ref(), 50..=60_000);
    if let (Some(idle), None) = (&typed.idle_temperature_c, &typed.temperature_margin_c) {
        check.fault(
            idle.span(),
            "`idle-temperature-c` asks nothing without `temperature-margin-c`",
            "give the margin above it, or a `temperature-max-c` instead",
        );
    }
    let number = |value: &Option<Spanned<f64>>| value.as_ref().and_then(|v| Finite::new(*v.get_ref()));
    let usual = ReadyCriteria::default();
    ReadyCriteria {
        temperature_margin_c: number(&typed.temperature_margin_c),
        idle_temperature_c: number(&typed.idle_temperature_c),
        temperature_max_c: number(&typed.temperature_max_c),
        thermal_status: typed.thermal_status.unwrap_or_default(),
        foreign_cpu_percent_max: number(&typed.foreign_cpu_percent_max),
        clock_ratio_min: number(&typed.clock_ratio_min),
        battery_percent_min: typed.battery_percent_min.as_ref().map(|v| *v.get_ref()),
        charging_steady: typed.charging_steady.unwrap_or_default(),
        sentinel_ratio_min: number(&typed.sentinel_ratio_min),
        cool_down_timeout_ms: typed
            .cool_down_timeout_s
            .as_ref()
            .map_or(usual.cool_down_timeout_ms, |v| v.get_ref() * 1000),
        poll_period_ms: typed.poll_period_ms.as_ref().map_or(usual.poll_period_ms, |v| *v.get_ref()),
    }
}
