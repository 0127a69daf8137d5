//! Matrix products of every weight type, the detected kernels against the scalar specification.
//!
//! `decode`: one activation vector, counted in bytes of weights (GB/s), to be held against the memory's bandwidth; the
//! matrix fits the cache, so this is the kernel's own ceiling. `prefill`: 512 vectors, counted in multiply-adds.
//! `-strips` are rows rearranged at load.
//! `cargo bench -p farmgate-engine -- decode/Q4_0` runs one.

use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use farmgate_engine::gguf::TensorType;
use farmgate_engine::kernels::{
    Activations, Isa, Layout, SharedOut, WeightRows, activation_format, matmul, pack, strips_bytes,
};
use std::time::Duration;

/// Row length, elements: a whole number of every block.
const COLS: usize = 2048;
/// Rows for one vector, and for many.
const DECODE_ROWS: usize = 512;
const PREFILL_ROWS: usize = 64;
const PREFILL_VECTORS: usize = 512;

/// The scalar form, and the detected one when there is another.
fn isas() -> Vec<Isa> {
    let mut isas = vec![Isa::Scalar];
    if Isa::detect() != Isa::Scalar {
        isas.push(Isa::detect());
    }
    isas
}

/// Bytes that are valid blocks of any type: codes differ, and every half and float made of them is a normal number
/// (others cost some processors a hundred cycles each). Speed does not depend on values otherwise.
fn weights(tensor_type: TensorType, rows: usize) -> Vec<u8> {
    let bytes = rows * tensor_type.row_bytes(COLS).expect("whole blocks");
    (0..bytes).map(|i| 16 + (i * 37 % 44) as u8).collect()
}

fn run(
    group: &mut BenchmarkGroup<'_, criterion::measurement::WallTime>,
    tensor_type: TensorType,
    rows: usize,
    vectors: usize,
) {
    let data = weights(tensor_type, rows);
    let x: Vec<f32> = (0..vectors * COLS).map(|i| (i % 255) as f32 / 127.0 - 1.0).collect();
    let mut acts = Activations::new(COLS, vectors);
    let mut out = vec![0.0; rows * vectors];
    let rearranged = strips_bytes(Isa::detect(), tensor_type, COLS, rows).map(|bytes| {
        let (as_stored, mut strips) =
            (WeightRows { layout: Layout::Rows, tensor_type, cols: COLS, data: &data }, vec![0; bytes]);
        pack(Isa::detect(), as_stored, 0..rows, &mut strips);
        (Isa::detect(), Layout::Strips, strips)
    });
    let as_stored = isas().into_iter().map(|isa| (isa, Layout::Rows, data.clone()));
    for (isa, layout, data) in as_stored.chain(rearranged) {
        let name = if layout == Layout::Strips { format!("{}-strips", isa.name()) } else { isa.name().to_owned() };
        acts.fill(isa, activation_format(tensor_type), &x, vectors, COLS);
        group.bench_function(BenchmarkId::new(tensor_type.name(), name), |bencher| {
            bencher.iter(|| {
                let weights = WeightRows { layout, tensor_type, cols: COLS, data: &data };
                // SAFETY: `out` outlives the product, which this thread alone computes.
                let shared = unsafe { SharedOut::new(out.as_mut_ptr(), out.len(), rows) };
                matmul(isa, weights, 0..rows, &acts, shared);
            });
        });
    }
}

fn decode(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decode");
    for tensor_type in TensorType::ALL {
        group.throughput(Throughput::Bytes((DECODE_ROWS * tensor_type.row_bytes(COLS).unwrap_or(0)) as u64));
        run(&mut group, tensor_type, DECODE_ROWS, 1);
    }
    group.finish();
}

fn prefill(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("prefill");
    for tensor_type in TensorType::ALL {
        group.throughput(Throughput::Elements((PREFILL_ROWS * COLS * PREFILL_VECTORS) as u64));
        run(&mut group, tensor_type, PREFILL_ROWS, PREFILL_VECTORS);
    }
    group.finish();
}

criterion_group! {
    name = kernels;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800));
    targets = decode, prefill
}
criterion_main!(kernels);
