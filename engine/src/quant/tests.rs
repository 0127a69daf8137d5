//! Encoders and decoders agree within the step of each format.

use super::*;
use crate::gguf::TensorType;
use proptest::prelude::*;

/// Largest error of a block whose numbers lie in -1..1, as stated by the format's step.
fn bound(tensor_type: TensorType) -> f32 {
    match tensor_type {
        TensorType::F32 => 0.0,
        TensorType::F16 => 5e-4,
        TensorType::Bf16 => 4e-3,
        TensorType::Q8_0 => 1.0 / 127.0,
        TensorType::Q4_0 => 1.0 / 7.0,
        TensorType::Q4_1 => 1.1 / 15.0,
        TensorType::Q5_0 => 1.0 / 15.0,
        TensorType::Q5_1 => 1.1 / 31.0,
        // scales are themselves rounded to 6 or 8 bits
        TensorType::Q4K => 2.5 / 15.0,
        TensorType::Q6K => 2.5 / 31.0,
        TensorType::Q2K | TensorType::Q3K | TensorType::Q5K => unreachable!("no encoder"),
    }
}

const ENCODED: [TensorType; 10] = [
    TensorType::F32,
    TensorType::F16,
    TensorType::Bf16,
    TensorType::Q8_0,
    TensorType::Q4_0,
    TensorType::Q4_1,
    TensorType::Q5_0,
    TensorType::Q5_1,
    TensorType::Q4K,
    TensorType::Q6K,
];

proptest! {
    #[test]
    fn what_is_encoded_comes_back_within_the_step(row in proptest::collection::vec(-1.0f32..1.0, 256)) {
        for tensor_type in ENCODED {
            let mut bytes = Vec::new();
            quantise_row(tensor_type, &row, &mut bytes).unwrap();
            prop_assert_eq!(Some(bytes.len()), tensor_type.row_bytes(row.len()));
            let mut back = vec![0.0; row.len()];
            dequantise_row(tensor_type, &bytes, &mut back);
            for (x, y) in row.iter().zip(&back) {
                prop_assert!((x - y).abs() <= bound(tensor_type), "{tensor_type}: {x} came back as {y}");
            }
        }
    }
}

#[test]
fn a_row_of_zeros_comes_back_as_zeros() {
    for tensor_type in ENCODED {
        let mut bytes = Vec::new();
        quantise_row(tensor_type, &[0.0; 256], &mut bytes).unwrap();
        let mut back = vec![1.0; 256];
        dequantise_row(tensor_type, &bytes, &mut back);
        assert!(back.iter().all(|x| *x == 0.0), "{tensor_type}: {back:?}");
    }
}

#[test]
fn a_row_that_is_no_whole_number_of_blocks_is_refused() {
    assert!(quantise_row(TensorType::Q8_0, &[0.0; 33], &mut Vec::new()).is_err());
}
