//! What this machine can do at best: bytes read from memory and multiply-adds, a second, by number of threads.
//!
//! Measured with the engine's own pinned pool, so that a fraction of the roofline compares like with like. A quantity is
//! the median of several rounds; the rounds of all quantities alternate, so that a drifting clock meets them all.

mod buffer;
mod peak;

use crate::error::{EngineError, Result};
use crate::kernels::Isa;
use crate::pool::Pool;
use crate::protocol::EngineConfig;
use buffer::{Buffer, Pages};
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::path::Path;
use std::time::Instant;

/// Rounds of a measurement that stands by itself.
pub const ROUNDS: u32 = 9;
/// Rounds of a quick one, at the end of a profiled run.
pub const ROUNDS_QUICK: u32 = 5;
/// More rounds than this are refused.
pub const ROUNDS_MAX: u32 = 1000;
/// Most bytes that a stored roofline may have.
const ROOFLINE_BYTES_MAX: u64 = 1 << 20;
/// Bytes that a worker reads at a time: long enough for the prefetchers, short enough to even out unequal cores.
const READ_CHUNK_BYTES: usize = 4 << 20;
/// Units of arithmetic for each worker in a round.
const UNITS_PER_WORKER: usize = 32;

/// The most that is read in passing, bytes.
const QUICK_BYTES_MAX: usize = 256 << 20;
/// What is timed as one in passing, and the part of it that a worker reads at a time, bytes.
const QUICK_WINDOW_BYTES: usize = 16 << 20;
const QUICK_CHUNK_BYTES: usize = 1 << 20;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Request {
    /// Thread counts, one point each; 0 takes the performance cores.
    pub threads: Vec<usize>,
    /// Rounds of every quantity, besides one that is not counted.
    pub rounds: u32,
    /// Bytes of each of the two buffers; `None` chooses by cache and memory.
    pub buffer_bytes: Option<u64>,
}

/// What was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Roofline {
    /// Instruction set of the engine on this machine.
    pub isa: String,
    /// What the read loop is made of.
    pub read_instructions: String,
    /// What the f32 loop is made of.
    pub f32_instructions: String,
    /// What the int8 loop is made of.
    pub int8_instructions: String,
    /// Last-level cache of the machine, summed over its instances; `None` where sysfs is silent.
    pub last_level_cache_bytes: Option<u64>,
    /// Bytes of the buffer that is read.
    pub buffer_bytes: u64,
    /// Bytes of an ordinary page.
    pub base_page_bytes: u64,
    /// Bytes of the other buffer that the kernel did put on huge pages, as read back; `None` where it does not say.
    pub huge_page_backed_bytes: Option<u64>,
    /// Rounds behind each rate.
    pub rounds: u32,
    /// One point for each number of threads, in the order asked for.
    pub points: Vec<Point>,
}

/// The ceilings of one number of threads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Workers, the calling thread included.
    pub threads: u32,
    /// `Cpus_allowed_list` of each worker, as read back.
    pub affinity: Vec<String>,
    /// Streaming read of the buffer on transparent huge pages, 10^9 bytes a second.
    pub read_huge_pages_gb_per_s: Rate,
    /// The same on ordinary pages.
    pub read_base_pages_gb_per_s: Rate,
    /// Multiply-adds of f32, two operations each, 10^9 a second.
    pub f32_gflop_per_s: Rate,
    /// Multiply-adds of int8 into int32, two operations each, 10^9 a second.
    pub int8_gop_per_s: Rate,
}

/// A rate over the rounds, in the unit that its field names.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Half of the rounds were faster.
    pub median: f64,
    /// The slowest round.
    pub lowest: f64,
    /// The fastest round.
    pub highest: f64,
}

impl Rate {
    /// Of at least one round.
    fn of(mut rounds: Vec<f64>) -> Self {
        rounds.sort_by(f64::total_cmp);
        let (n, middle) = (rounds.len(), rounds.len() / 2);
        let median = if n % 2 == 1 { rounds[middle] } else { (rounds[middle - 1] + rounds[middle]) / 2.0 };
        Self { median, lowest: rounds[0], highest: rounds[n - 1] }
    }

    /// (highest - lowest) / median.
    pub fn spread(&self) -> f64 {
        (self.highest - self.lowest) / self.median
    }
}

impl Point {
    /// The faster of the two kinds of pages, 10^9 bytes a second: what the memory gives.
    pub fn read_gb_per_s(&self) -> f64 {
        self.read_huge_pages_gb_per_s.median.max(self.read_base_pages_gb_per_s.median)
    }
}

impl Roofline {
    /// Measures. Usage errors for a request that makes no sense, system errors when memory or threads cannot be had.
    pub fn measure(request: &Request) -> Result<Self> {
        if request.rounds == 0 || request.rounds > ROUNDS_MAX {
            return Err(EngineError::usage(format!("{} rounds are outside 1..={ROUNDS_MAX}", request.rounds)));
        }
        let last_level_cache_bytes = buffer::last_level_cache_bytes(Path::new("/"));
        let bytes = match request.buffer_bytes {
            Some(bytes) => buffer::checked(bytes)?,
            None => buffer::default_bytes(last_level_cache_bytes, buffer::available_bytes(Path::new("/"))),
        };
        let isa = Isa::detect();
        let buffers = (Buffer::new(bytes, Pages::Huge)?, Buffer::new(bytes, Pages::Base)?);
        let mut points = Vec::new();
        for &threads in &request.threads {
            points.push(point(isa, threads, request.rounds, (&buffers.0, &buffers.1))?);
        }
        Ok(Self {
            isa: isa.name().to_owned(),
            read_instructions: peak::read_instructions(isa).to_owned(),
            f32_instructions: peak::f32_instructions(isa).to_owned(),
            int8_instructions: peak::int8_instructions(isa).to_owned(),
            last_level_cache_bytes,
            buffer_bytes: bytes as u64,
            base_page_bytes: buffer::base_page_bytes(),
            huge_page_backed_bytes: buffers.0.huge_page_backed_bytes(),
            rounds: request.rounds,
            points,
        })
    }

    /// The point of that number of threads.
    pub fn point(&self, threads: u32) -> Option<&Point> {
        self.points.iter().find(|p| p.threads == threads)
    }

    /// Reads what `farmhand roofline -o json` printed. System errors of reading; protocol errors when it is something
    /// else, or has a rate that is no positive number.
    pub fn read(path: &Path) -> Result<Self> {
        let place = || path.display().to_string();
        let made_by = "`farmhand roofline -o json` prints what belongs there";
        let file =
            std::fs::File::open(path).map_err(|e| EngineError::io("cannot read the roofline", &e).at(place()))?;
        let mut text = String::new();
        file.take(ROOFLINE_BYTES_MAX)
            .read_to_string(&mut text)
            .map_err(|e| EngineError::io("cannot read the roofline", &e).at(place()).hint(made_by))?;
        let roofline: Self = serde_json::from_str(&text)
            .map_err(|e| EngineError::protocol(format!("not a roofline: {e}")).at(place()).hint(made_by))?;
        let rates = |p: &Point| [p.read_gb_per_s(), p.f32_gflop_per_s.median, p.int8_gop_per_s.median];
        match roofline.points.iter().flat_map(rates).find(|rate| !rate.is_finite() || *rate <= 0.0) {
            Some(rate) => Err(EngineError::protocol(format!("{rate} is no rate")).at(place()).hint(made_by)),
            None => Ok(roofline),
        }
    }
}

/// What memory gives to the workers of one configuration, as the agent measures it in passing.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ReadBandwidth {
    /// Streaming read by the workers of a decode, 10^9 bytes a second; the best of many windows, since it is a ceiling.
    pub read_gb_per_s: f64,
    /// Last-level cache of the machine, summed over its instances; `None` where sysfs is silent.
    pub last_level_cache_bytes: Option<u64>,
}

impl ReadBandwidth {
    /// Measures, in a fraction of a second. Errors as [`Pool::for_config`] and of memory that cannot be had.
    pub fn measure(config: &EngineConfig) -> Result<Self> {
        let last_level_cache_bytes = buffer::last_level_cache_bytes(Path::new("/"));
        let bytes = buffer::default_bytes(last_level_cache_bytes, buffer::available_bytes(Path::new("/")));
        let buffer = Buffer::new(bytes.min(QUICK_BYTES_MAX), Pages::Huge)?;
        let pool = Pool::for_config(config)?;
        pool.set_active(pool.decode_threads());
        // windows shorter than a time slice, so that some are read without being interrupted on a busy machine too
        let windows = (0..ROUNDS_QUICK).flat_map(|_| buffer.bytes().chunks(QUICK_WINDOW_BYTES));
        let rates = windows.map(|bytes| read_round(Isa::detect(), &pool, bytes, QUICK_CHUNK_BYTES));
        Ok(Self { read_gb_per_s: rates.fold(0.0, f64::max), last_level_cache_bytes })
    }
}

fn point(isa: Isa, threads: usize, rounds: u32, (huge, base): (&Buffer, &Buffer)) -> Result<Point> {
    let pool = Pool::new(threads)?;
    let mut rates: [Vec<f64>; 4] = Default::default();
    for round in 0..=rounds {
        let measured = [
            read_round(isa, &pool, huge.bytes(), READ_CHUNK_BYTES),
            read_round(isa, &pool, base.bytes(), READ_CHUNK_BYTES),
            arithmetic_round(&pool, peak::F32_UNIT_OPERATIONS, &|| peak::f32_unit(isa)),
            arithmetic_round(&pool, peak::INT8_UNIT_OPERATIONS, &|| peak::int8_unit(isa)),
        ];
        // the first round wakes threads and clocks
        if round > 0 {
            rates.iter_mut().zip(measured).for_each(|(of, rate)| of.push(rate));
        }
    }
    let [huge, base, floats, bytes] = rates.map(Rate::of);
    Ok(Point {
        threads: pool.threads() as u32,
        affinity: pool.affinity(),
        read_huge_pages_gb_per_s: huge,
        read_base_pages_gb_per_s: base,
        f32_gflop_per_s: floats,
        int8_gop_per_s: bytes,
    })
}

/// 10^9 bytes a second.
fn read_round(isa: Isa, pool: &Pool, bytes: &[u8], chunk_bytes: usize) -> f64 {
    let chunks = bytes.len().div_ceil(chunk_bytes);
    let seconds = seconds_of(|| {
        pool.scatter(chunks, 1, &|_, range| {
            let end = bytes.len().min(range.end * chunk_bytes);
            std::hint::black_box(peak::read(isa, &bytes[range.start * chunk_bytes..end]));
        });
    });
    bytes.len() as f64 / seconds / 1e9
}

/// 10^9 operations a second of a unit that has `operations` of them.
fn arithmetic_round(pool: &Pool, operations: u64, unit: &(dyn Fn() -> f32 + Sync)) -> f64 {
    let units = UNITS_PER_WORKER * pool.threads();
    let seconds = seconds_of(|| {
        pool.scatter(units, 1, &|_, range| {
            range.for_each(|_| {
                std::hint::black_box(unit());
            });
        });
    });
    units as f64 * operations as f64 / seconds / 1e9
}

/// At least a nanosecond, so that rates are finite.
fn seconds_of(work: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    work();
    begun.elapsed().as_nanos().max(1) as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Request {
        Request { threads: vec![1, 2], rounds: 2, buffer_bytes: Some(8 << 20) }
    }

    #[test]
    fn every_point_has_positive_rates_and_survives_its_own_json() {
        let roofline = Roofline::measure(&small()).unwrap();
        assert_eq!(roofline.points.iter().map(|p| p.threads).collect::<Vec<_>>(), [1, 2]);
        assert_eq!((roofline.buffer_bytes, roofline.rounds), (8 << 20, 2));
        for point in &roofline.points {
            assert_eq!(point.affinity.len(), point.threads as usize);
            let rates = [
                point.read_huge_pages_gb_per_s,
                point.read_base_pages_gb_per_s,
                point.f32_gflop_per_s,
                point.int8_gop_per_s,
            ];
            for rate in rates {
                assert!(0.0 < rate.lowest && rate.lowest <= rate.median && rate.median <= rate.highest, "{rate:?}");
            }
            assert!(point.read_gb_per_s() >= point.read_base_pages_gb_per_s.median);
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), serde_json::to_string(&roofline).unwrap()).unwrap();
        assert_eq!(Roofline::read(file.path()).unwrap().point(2).unwrap().threads, 2);
        assert!(Roofline::read(file.path()).unwrap().point(3).is_none());
    }

    #[test]
    fn a_file_that_is_no_roofline_is_refused_with_its_name() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "{\"isa\": 1}").unwrap();
        let error = Roofline::read(file.path()).unwrap_err();
        assert!(error.place().unwrap().contains(file.path().to_str().unwrap()), "{error}");
        let mut roofline = Roofline::measure(&small()).unwrap();
        roofline.points[1].int8_gop_per_s.median = 0.0;
        std::fs::write(file.path(), serde_json::to_string(&roofline).unwrap()).unwrap();
        assert!(Roofline::read(file.path()).unwrap_err().what().contains("0 is no rate"));
    }

    #[test]
    fn a_rate_is_a_median_between_its_extremes() {
        assert_eq!(Rate::of(vec![3.0, 1.0, 2.0]), Rate { median: 2.0, lowest: 1.0, highest: 3.0 });
        assert_eq!(Rate::of(vec![4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(Rate::of(vec![2.0, 1.0, 3.0]).spread(), 1.0);
    }

    #[test]
    fn requests_without_sense_are_refused() {
        for (rounds, buffer_bytes) in [(0, None), (ROUNDS_MAX + 1, None), (1, Some(0)), (1, Some(u64::MAX))] {
            let request = Request { threads: vec![1], rounds, buffer_bytes };
            assert!(Roofline::measure(&request).is_err(), "{rounds} {buffer_bytes:?}");
        }
    }
}
