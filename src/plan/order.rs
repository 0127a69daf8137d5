//! The order of a comparison's cells: counterbalanced blocks ABBA BAAB, so that slow drift of the device cancels and an
//! effect of the order can be told from an effect of the candidate.

use farmgate_engine::protocol::Arm;

/// Pairs in one block: ABBA BAAB.
const BLOCK_PAIRS: u32 = 4;

/// The arms of a pair in the order in which they run; A is the baseline, B the candidate.
/// Pairs 0 and 3 of each block of four run AB, pairs 1 and 2 run BA.
pub fn arms_of_pair(pair: u32) -> [Arm; 2] {
    match pair % BLOCK_PAIRS {
        0 | 3 => [Arm::Baseline, Arm::Candidate],
        _ => [Arm::Candidate, Arm::Baseline],
    }
}

/// The order as people write it, for instance `ABBA BAAB x2`.
pub fn order_text(pairs: u32) -> String {
    if pairs > 0 && pairs.is_multiple_of(BLOCK_PAIRS) {
        return match pairs / BLOCK_PAIRS {
            1 => "ABBA BAAB".to_owned(),
            blocks => format!("ABBA BAAB x{blocks}"),
        };
    }
    let mut out = match pairs / BLOCK_PAIRS {
        0 => String::new(),
        1 => "ABBA BAAB ".to_owned(),
        blocks => format!("ABBA BAAB x{blocks}, then "),
    };
    for pair in 0..pairs % BLOCK_PAIRS {
        if pair == 2 {
            out.push(' ');
        }
        out.extend(arms_of_pair(pair).map(|arm| if arm == Arm::Baseline { 'A' } else { 'B' }));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_reads_abba_baab() {
        assert_eq!(order_text(4), "ABBA BAAB");
        assert_eq!(order_text(8), "ABBA BAAB x2");
        assert_eq!(order_text(1), "AB");
        assert_eq!(order_text(3), "ABBA BA");
        assert_eq!(order_text(5), "ABBA BAAB AB");
        assert_eq!(order_text(10), "ABBA BAAB x2, then ABBA");
    }

    #[test]
    fn a_block_is_balanced_in_first_places_and_in_mean_position() {
        let cells: Vec<Arm> = (0..BLOCK_PAIRS).flat_map(arms_of_pair).collect();
        let positions =
            |arm: Arm| -> usize { cells.iter().enumerate().filter(|(_, a)| **a == arm).map(|(i, _)| i).sum() };
        assert_eq!(positions(Arm::Baseline), positions(Arm::Candidate));
        assert_eq!((0..BLOCK_PAIRS).filter(|p| arms_of_pair(*p)[0] == Arm::Baseline).count(), 2);
    }
}
