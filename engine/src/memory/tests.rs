//! Regions, residency, refusals.

use super::*;
use std::io::Error;
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn a_region_is_zeroed_aligned_and_given_back() {
    for len in [0, 1, 4096, HUGE_PAGE_BYTES - 1, HUGE_PAGE_BYTES + 1, 3 * HUGE_PAGE_BYTES] {
        let mut region = Region::zeroed(len).unwrap();
        assert_eq!(region.len(), len);
        assert_eq!(region.as_ptr() as usize % HUGE_PAGE_BYTES, 0);
        assert!(region.iter().all(|&b| b == 0));
        region.fill(7);
        assert!(region.iter().all(|&b| b == 7));
    }
    assert!(Region::zeroed(usize::MAX).is_err());
    assert!(Region::zeroed(usize::MAX / 2).is_err());
}

#[test]
fn every_block_is_done_once_and_the_first_error_ends_it() {
    for len in [0, 1, BLOCK_BYTES, 5 * BLOCK_BYTES + 3] {
        let (sum, told) = (AtomicU64::new(0), AtomicU64::new(0));
        let add = |block: Range<usize>| {
            sum.fetch_add(block.len() as u64, Ordering::Relaxed);
            Ok::<(), ()>(())
        };
        in_blocks(
            len,
            &|done| {
                told.fetch_max(done, Ordering::Relaxed);
            },
            &add,
        )
        .unwrap();
        assert_eq!((sum.into_inner(), told.into_inner()), (len as u64, len as u64));
    }
    let refuse = |block: Range<usize>| if block.start == 0 { Err("no") } else { Ok(()) };
    assert_eq!(in_blocks(3 * BLOCK_BYTES, &|_| {}, &refuse), Err("no"));
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_that_is_paged_in_is_resident_to_its_last_byte() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f");
    for len in [1usize, 4096, 70_000, 3 << 20] {
        std::fs::write(&path, vec![1u8; len]).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        // SAFETY: nobody else has the file
        let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
        let told = AtomicU64::new(0);
        page_in(&map, &|done| {
            told.fetch_max(done, Ordering::Relaxed);
        });
        assert_eq!((resident_bytes(&map), told.into_inner()), (Some(len as u64), len as u64));
        touch(&map);
    }
    assert_eq!(resident_bytes(&[]), Some(0));
}

#[test]
fn a_refusal_to_lock_names_what_is_needed_and_the_limit_in_bytes() {
    let cause = Error::from_raw_os_error(libc::ENOMEM);
    let text = refusal(83_886_080, Some(65_536), &cause);
    assert!(text.starts_with(
        "the model is not locked in memory: it takes 83886080 bytes, this process may lock 65536\n\nhint: "
    ));
    // the limit is not what stands in the way
    assert!(refusal(100, Some(65_536), &cause).contains(&cause.to_string()));
    assert!(refusal(100, None, &cause).contains(&cause.to_string()));
}
