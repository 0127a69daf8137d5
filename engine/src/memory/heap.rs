//! What small things on the heap take: close to what usual allocators hand out, so that a process can account for its
//! memory.

use std::collections::HashMap;

/// A block of `bytes`, with the allocator's own part; nothing for an empty one, which is not allocated.
pub fn block(bytes: usize) -> u64 {
    if bytes == 0 { 0 } else { (bytes + 8).next_multiple_of(16).max(32) as u64 }
}

/// The elements of a vector themselves, and not what they point to.
pub fn vec<T>(vec: &Vec<T>) -> u64 {
    block(vec.capacity() * size_of::<T>())
}

/// The table of a map, and not what its keys and values point to. One slot in eight stays free, and each has a byte of
/// control.
pub fn map<K, V>(map: &HashMap<K, V>) -> u64 {
    let slots = (map.capacity() * 8 / 7).next_power_of_two();
    if map.capacity() == 0 { 0 } else { block(slots * (size_of::<(K, V)>() + 1)) }
}
