//! Exact null distributions of rank statistics: what they look like when nothing differs.
//!
//! Each function gives the cumulative distribution as a table: entry `k` is P(statistic <= k). All are made by counting
//! arrangements, so they hold for any continuous distribution of the data; with ties they err on the careful side.

/// Wilcoxon's signed-rank statistic of `n` values: each rank 1..=n belongs to a positive value with chance 1/2.
///
/// ```text
/// n = 3, sum of positive ranks:   0   1   2   3   4   5   6
/// arrangements of 8:              1   1   1   2   1   1   1
/// ```
///
/// Source: Wilcoxon, "Individual Comparisons by Ranking Methods", Biometrics Bulletin 1 (1945); recurrence as in
/// Hollander, Wolfe and Chicken, "Nonparametric Statistical Methods", 3rd ed. 2014, section 3.1.
pub fn signed_rank(n: usize) -> Vec<f64> {
    let top = n * (n + 1) / 2;
    let mut chance = vec![0.0; top + 1];
    chance[0] = 1.0;
    let mut reach = 0;
    for rank in 1..=n {
        reach += rank;
        for sum in (0..=reach).rev() {
            let with = if sum >= rank { chance[sum - rank] } else { 0.0 };
            chance[sum] = (chance[sum] + with) / 2.0;
        }
    }
    cumulated(chance)
}

/// Mann and Whitney's U of samples of `m` and `n`: how many of the m x n cross pairs have the first value above the
/// second, every arrangement of the ranks being equally likely.
///
/// ```text
/// m = n = 2, U:              0   1   2   3   4
/// arrangements of 6:         1   1   2   1   1
/// ```
///
/// Source: Mann and Whitney, "On a Test of Whether One of Two Random Variables is Stochastically Larger than the Other",
/// Annals of Mathematical Statistics 18 (1947), whose recurrence this is.
pub fn rank_sum(m: usize, n: usize) -> Vec<f64> {
    // rows[j] = distribution for samples of i and j; grown from i - 1 to i
    let mut rows: Vec<Vec<f64>> = vec![vec![1.0]; n + 1];
    for i in 1..=m {
        for j in 1..=n {
            let mut chance = vec![0.0; i * j + 1];
            // the largest of all values is one of the first sample with chance i / (i + j), and then beats all j others
            let first = i as f64 / (i + j) as f64;
            for (u, p) in rows[j].iter().enumerate() {
                chance[u + j] += first * p;
            }
            for (u, p) in rows[j - 1].iter().enumerate() {
                chance[u] += (1.0 - first) * p;
            }
            rows[j] = chance;
        }
    }
    cumulated(rows.swap_remove(n))
}

/// The sign statistic of `n` values: how many of them are above the true median, a fair coin each.
///
/// Source: Conover, "Practical Nonparametric Statistics", 3rd ed. 1999, section 3.4.
pub fn sign(n: usize) -> Vec<f64> {
    // in logarithms, since 2^-n vanishes for large n
    let mut log_chance = -(n as f64) * std::f64::consts::LN_2;
    let mut chance = Vec::with_capacity(n + 1);
    for k in 0..=n {
        chance.push(log_chance.exp());
        log_chance += ((n - k).max(1) as f64 / (k + 1) as f64).ln();
    }
    cumulated(chance)
}

fn cumulated(mut chance: Vec<f64>) -> Vec<f64> {
    let mut sum = 0.0;
    for p in &mut chance {
        sum += *p;
        *p = sum.min(1.0);
    }
    chance
}

/// How many order statistics may be cut off at each end: the largest c with P(statistic <= c - 1) <= alpha, together with
/// that probability; `None` when not even c = 1 reaches the level.
pub(super) fn cut(cumulative: &[f64], alpha: f64) -> Option<(usize, f64)> {
    let c = cumulative.iter().take_while(|p| **p <= alpha + super::LEVEL_SLACK).count();
    (c > 0).then(|| (c, cumulative[c - 1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-12
    }

    #[test]
    fn signed_rank_has_the_tabulated_values() {
        // Hollander, Wolfe and Chicken, table A.4: n = 5: P(T+ >= 15) = 1/32; n = 10: P(T+ >= 45) = 0.042, and
        // P(T+ >= 47) = 0.024, that is 43 and 25 of 1024 arrangements
        assert!(close(signed_rank(5)[0], 1.0 / 32.0));
        let ten = signed_rank(10);
        assert!(close(ten[10], 43.0 / 1024.0));
        assert!(close(ten[8], 25.0 / 1024.0));
        assert!(close(ten[55], 1.0));
    }

    #[test]
    fn signed_rank_equals_the_enumeration_of_all_signs() {
        for n in 0..=12usize {
            let mut counts = vec![0u32; n * (n + 1) / 2 + 1];
            for signs in 0..1u32 << n {
                let sum: usize = (0..n).filter(|i| signs >> i & 1 == 1).map(|i| i + 1).sum();
                counts[sum] += 1;
            }
            let mut sum = 0;
            for (k, p) in signed_rank(n).into_iter().enumerate() {
                sum += counts[k];
                assert!(close(p, f64::from(sum) / f64::from(1u32 << n)), "n {n} k {k}");
            }
        }
    }

    #[test]
    fn rank_sum_equals_the_enumeration_of_all_arrangements() {
        for (m, n) in [(1, 1), (3, 3), (2, 5), (5, 4), (6, 6)] {
            let mut counts = vec![0u32; m * n + 1];
            for chosen in (0..1u32 << (m + n)).filter(|c| c.count_ones() as usize == m) {
                let mut u = 0;
                for i in (0..m + n).filter(|i| chosen >> i & 1 == 1) {
                    u += (0..i).filter(|j| chosen >> j & 1 == 0).count();
                }
                counts[u] += 1;
            }
            let all: u32 = counts.iter().sum();
            let mut sum = 0;
            for (k, p) in rank_sum(m, n).into_iter().enumerate() {
                sum += counts[k];
                assert!(close(p, f64::from(sum) / f64::from(all)), "m {m} n {n} k {k}");
            }
        }
    }

    #[test]
    fn rank_sum_reaches_the_levels_that_verdicts_md_quotes() {
        // two-sided: 3 + 3 not below 0.10, 5 + 5 not below 0.0079
        assert!(close(2.0 * rank_sum(3, 3)[0], 0.1));
        assert!((2.0 * rank_sum(5, 5)[0] - 0.0079).abs() < 5e-5);
    }

    #[test]
    fn the_sign_distribution_is_the_fair_binomial_also_for_large_n() {
        assert!(close(sign(10)[1], 11.0 / 1024.0));
        assert!(close(sign(0)[0], 1.0));
        let large = sign(5000);
        assert!((large[2499] + large[2500] - 1.0).abs() < 1e-9, "symmetric about 2500");
        assert!((large[5000] - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_cut_never_exceeds_its_level() {
        assert_eq!(cut(&signed_rank(4), 0.05), None);
        assert_eq!(cut(&signed_rank(5), 0.05), Some((1, 1.0 / 32.0)));
        assert_eq!(cut(&signed_rank(10), 0.05), Some((11, signed_rank(10)[10])));
        // 1 / 20 is 5 %: reaching the level exactly is reaching it
        assert_eq!(cut(&rank_sum(3, 3), (1.0 - 0.9) / 2.0).unwrap().0, 1);
    }
}
