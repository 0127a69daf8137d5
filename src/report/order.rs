//! Order statistics for tables and plots. Judgements have their own, with intervals; these only describe.

/// The values in ascending order.
pub fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The quantile `q` in 0..=1 of values in ascending order, linear between neighbours (type 7); `None` when empty.
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let position = q.clamp(0.0, 1.0) * last as f64;
    let (below, part) = (position.floor() as usize, position.fract());
    let above = (below + 1).min(last);
    Some(sorted[below] * (1.0 - part) + sorted[above] * part)
}

/// The median of values in ascending order; `None` when empty.
pub fn median(sorted: &[f64]) -> Option<f64> {
    quantile(sorted, 0.5)
}

/// At most `count` of the values, evenly spread, first and last among them.
pub fn thinned<T: Copy>(values: &[T], count: usize) -> Vec<T> {
    if values.len() <= count || count < 2 {
        return values.iter().copied().take(count).collect();
    }
    (0..count).map(|i| values[i * (values.len() - 1) / (count - 1)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_neighbours() {
        let values = sorted([4.0, 1.0, 3.0, 2.0]);
        assert_eq!(median(&values), Some(2.5));
        assert_eq!(quantile(&values, 1.0), Some(4.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn thinning_keeps_both_ends() {
        let values: Vec<u32> = (0..1000).collect();
        let thin = thinned(&values, 11);
        assert_eq!((thin.len(), thin[0], thin[10]), (11, 0, 999));
        assert_eq!(thinned(&[1, 2], 5), [1, 2]);
    }
}
