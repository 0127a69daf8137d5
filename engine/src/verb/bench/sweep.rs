//! How speed goes with depth and with threads, over the rows of one `farmhand bench`.

use super::print::Row;

/// More threads that give less than this share of the speed of fewer ones are a cliff, not a matter of taste.
const CLIFF_RATIO: f64 = 0.5;

/// One row, as far as sweeps go.
struct Point {
    /// What all rows of a sweep have in common.
    series: String,
    test: String,
    depth: u32,
    threads: u32,
    tokens_per_s: f64,
}

/// The rows so far.
#[derive(Default)]
pub struct Sweep {
    points: Vec<Point>,
}

impl Sweep {
    /// Takes a row; its speed / that of the first row of its series.
    pub fn take(&mut self, row: &Row) -> f64 {
        self.add(Point {
            series: row.series(),
            test: row.test(),
            depth: row.n_depth,
            threads: row.n_threads,
            tokens_per_s: row.avg_ts,
        })
    }

    fn add(&mut self, point: Point) -> f64 {
        let first =
            self.points.iter().find(|p| p.series == point.series).map_or(point.tokens_per_s, |p| p.tokens_per_s);
        let ratio = point.tokens_per_s / first;
        self.points.push(point);
        ratio
    }

    /// Where more threads are far slower than fewer, in words: the test, both counts and the ratio.
    pub fn cliffs(&self) -> Vec<String> {
        let cliff = |point: &Point| {
            let fewer = self
                .points
                .iter()
                .filter(|p| p.series == point.series && p.depth == point.depth && p.threads < point.threads);
            let best = fewer.max_by(|a, b| a.tokens_per_s.total_cmp(&b.tokens_per_s))?;
            let ratio = point.tokens_per_s / best.tokens_per_s;
            (ratio < CLIFF_RATIO).then(|| {
                format!(
                    "{}: {} threads give {ratio:.2} of the speed of {} threads; use `-t {}`",
                    point.test, point.threads, best.threads, best.threads
                )
            })
        };
        self.points.iter().filter_map(cliff).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(threads: u32, depth: u32, tokens_per_s: f64) -> Point {
        Point { series: "m tg32".into(), test: format!("tg32 @ d{depth}"), depth, threads, tokens_per_s }
    }

    // field report E1: 3 threads 28 token/s, 5 threads 0.26
    #[test]
    fn a_cliff_of_more_threads_is_named_with_its_ratio_and_a_gentle_slope_is_not() {
        let mut sweep = Sweep::default();
        for (threads, speed) in [(1, 12.0), (3, 28.0), (4, 20.0), (5, 0.26)] {
            sweep.add(point(threads, 0, speed));
        }
        assert_eq!(sweep.cliffs(), ["tg32 @ d0: 5 threads give 0.01 of the speed of 3 threads; use `-t 3`".to_owned()]);
    }

    // field report E10: slower with every token of context
    #[test]
    fn depths_are_held_against_the_first_row_of_their_own_series_and_are_no_cliff_of_threads() {
        let mut sweep = Sweep::default();
        let ratios = [(0, 40.0), (1024, 30.0), (4096, 8.0)].map(|(depth, speed)| sweep.add(point(2, depth, speed)));
        assert_eq!(ratios, [1.0, 0.75, 0.2]);
        let other = Point { series: "m pp512".into(), ..point(2, 4096, 300.0) };
        assert_eq!(sweep.add(other), 1.0);
        assert!(sweep.cliffs().is_empty());
    }
}
