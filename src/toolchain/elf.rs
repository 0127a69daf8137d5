//! What an executable says of itself, read before it is pushed: the machine it is for, whether it is static, and whether
//! its segments can be mapped on devices with large pages. Nothing in the file is trusted.

use crate::target::Architecture;

/// Most program headers of a sane executable; linkers write about ten.
const PROGRAM_HEADERS_MAX: u64 = 256;
/// Most entries of the dynamic section that are looked at.
const DYNAMIC_ENTRIES_MAX: u64 = 1024;

const PT_LOAD: u64 = 1;
const PT_DYNAMIC: u64 = 2;
const PT_INTERP: u64 = 3;
const DT_NEEDED: u64 = 1;

/// What was found in an executable whose header is sound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Executable {
    /// Whether it names a loader or libraries, and so needs the device's own C library.
    pub needs_libraries: bool,
    /// The least alignment of a segment that is loaded, bytes.
    pub alignment_bytes: u64,
}

impl Executable {
    /// What may keep devices of the architecture from running it, and what to do.
    pub fn fault(&self, architecture: Architecture) -> Option<(String, &'static str)> {
        let needed_bytes = page_bytes(architecture);
        if self.needs_libraries {
            return Some((
                "the engine is not static; it runs only where the C library is that it was linked with".to_owned(),
                "link it with `-C target-feature=+crt-static`",
            ));
        }
        (self.alignment_bytes < needed_bytes).then(|| {
            let found_bytes = self.alignment_bytes;
            let what = format!(
                "the engine's segments are aligned to {found_bytes} bytes; devices whose pages have {needed_bytes} \
                 bytes cannot load it"
            );
            (what, "link it with `-C link-arg=-Wl,-z,max-page-size=65536`")
        })
    }
}

/// The least alignment of loaded segments that devices of the architecture need, bytes.
///
/// Kernels for 64-bit processors may have pages of 16 KiB (Android from 15 on) and map no segment that is aligned to
/// less. 32-bit Arm programs only ever meet pages of 4 KiB: its own kernels have no others, and 64-bit kernels with
/// larger ones run no 32-bit programs.
fn page_bytes(architecture: Architecture) -> u64 {
    match architecture {
        Architecture::Armv7 => 4 << 10,
        Architecture::Aarch64 | Architecture::Riscv64 | Architecture::X86_64 => 16 << 10,
    }
}

/// Class (1 for 32 bits, 2 for 64) and machine number in the header.
fn identity(architecture: Architecture) -> (u8, u64) {
    match architecture {
        Architecture::Armv7 => (1, 40),
        Architecture::X86_64 => (2, 62),
        Architecture::Aarch64 => (2, 183),
        Architecture::Riscv64 => (2, 243),
    }
}

/// Where the fields lie in one of the two classes: offset and size in bytes.
struct Layout {
    word_bytes: u64,
    table_offset: u64,
    entry_bytes: u64,
    entry_count: u64,
    program_header_bytes: u64,
    segment_offset: u64,
    segment_address: u64,
    segment_file_bytes: u64,
    segment_memory_bytes: u64,
    segment_alignment: u64,
}

const BITS_32: Layout = Layout {
    word_bytes: 4,
    table_offset: 28,
    entry_bytes: 42,
    entry_count: 44,
    program_header_bytes: 32,
    segment_offset: 4,
    segment_address: 8,
    segment_file_bytes: 16,
    segment_memory_bytes: 20,
    segment_alignment: 28,
};

const BITS_64: Layout = Layout {
    word_bytes: 8,
    table_offset: 32,
    entry_bytes: 54,
    entry_count: 56,
    program_header_bytes: 56,
    segment_offset: 8,
    segment_address: 16,
    segment_file_bytes: 32,
    segment_memory_bytes: 40,
    segment_alignment: 48,
};

/// A file of which pieces are read.
pub(super) struct Content<'a> {
    /// Its size.
    pub bytes: u64,
    /// Fills the buffer from an offset; `false` when the file does not reach that far.
    pub read_at: &'a dyn Fn(u64, &mut [u8]) -> bool,
}

impl Content<'_> {
    /// A little-endian number of at most 8 bytes.
    fn number(&self, at: u64, bytes: u64) -> Option<u64> {
        let mut field = [0u8; 8];
        let place = field.get_mut(..usize::try_from(bytes).ok()?)?;
        (self.read_at)(at, place).then(|| u64::from_le_bytes(field))
    }
}

/// Judges an executable.
///
/// # Errors
/// In words, what makes it no executable for the architecture, or a damaged one.
pub(super) fn read(file: &Content<'_>, architecture: Architecture) -> Result<Executable, String> {
    let mut ident = [0u8; 6];
    if !(file.read_at)(0, &mut ident) || !ident.starts_with(b"\x7fELF") {
        return Err("the file is no ELF executable".to_owned());
    }
    if ident[5] != 1 {
        return Err("the executable is for a big-endian machine".to_owned());
    }
    let cut = || "the file ends within the ELF header".to_owned();
    let found = (ident[4], file.number(18, 2).ok_or_else(cut)?);
    if found != identity(architecture) {
        return Err(format!("the executable is for {}, not for {architecture}", machine_name(found)));
    }
    // 2: fixed address, 3: position independent
    let kind = file.number(16, 2).ok_or_else(cut)?;
    if !matches!(kind, 2 | 3) {
        return Err(format!("the file is ELF of type {kind}, not an executable"));
    }
    let layout = if ident[4] == 1 { &BITS_32 } else { &BITS_64 };
    let field = |at, bytes| file.number(at, bytes).ok_or_else(cut);
    let table = field(layout.table_offset, layout.word_bytes)?;
    let (entry, count) = (field(layout.entry_bytes, 2)?, field(layout.entry_count, 2)?);
    if entry != layout.program_header_bytes || count == 0 || count > PROGRAM_HEADERS_MAX {
        return Err(format!("the ELF header is damaged: {count} program headers of {entry} bytes"));
    }
    if table.checked_add(entry * count).is_none_or(|end| end > file.bytes) {
        return Err(format!("the ELF header is damaged: {count} program headers at {table} of {} bytes", file.bytes));
    }
    segments(file, layout, (0..count).map(|i| table + i * entry))
}

fn machine_name(found: (u8, u64)) -> String {
    match Architecture::ALL.into_iter().find(|a| identity(*a) == found) {
        Some(architecture) => architecture.name().to_owned(),
        None => format!("ELF machine {} with {} bits", found.1, if found.0 == 2 { 64 } else { 32 }),
    }
}

/// What a program header says of a segment.
struct Segment {
    offset: u64,
    address: u64,
    file_bytes: u64,
    memory_bytes: u64,
    alignment: u64,
}

impl Segment {
    fn read(file: &Content<'_>, layout: &Layout, at: u64) -> Option<Self> {
        let word = |offset| file.number(at + offset, layout.word_bytes);
        Some(Self {
            offset: word(layout.segment_offset)?,
            address: word(layout.segment_address)?,
            file_bytes: word(layout.segment_file_bytes)?,
            memory_bytes: word(layout.segment_memory_bytes)?,
            alignment: word(layout.segment_alignment)?,
        })
    }

    /// What keeps a kernel from mapping it, in words.
    fn fault(&self, total_bytes: u64) -> Option<String> {
        let Self { offset, address, file_bytes, memory_bytes, alignment } = *self;
        if offset.checked_add(file_bytes).is_none_or(|end| end > total_bytes) {
            return Some(format!("{file_bytes} bytes at {offset} in a file of {total_bytes} bytes"));
        }
        if memory_bytes < file_bytes || address.checked_add(memory_bytes).is_none() {
            return Some(format!("{file_bytes} bytes for {memory_bytes} bytes of memory at {address:#x}"));
        }
        if alignment > 1 && !alignment.is_power_of_two() {
            return Some(format!("an alignment of {alignment} bytes"));
        }
        if alignment > 1 && offset % alignment != address % alignment {
            return Some(format!("offset {offset:#x} and address {address:#x} differ within {alignment:#x} bytes"));
        }
        None
    }
}

fn segments(file: &Content<'_>, layout: &Layout, places: impl Iterator<Item = u64>) -> Result<Executable, String> {
    let mut needs_libraries = false;
    let mut alignment_bytes = None;
    for (i, at) in places.enumerate() {
        let header = file.number(at, 4).zip(Segment::read(file, layout, at));
        let (kind, segment) = header.ok_or_else(|| "the file ends within its program headers".to_owned())?;
        match kind {
            PT_INTERP => needs_libraries = true,
            PT_DYNAMIC => needs_libraries |= names_libraries(file, &segment, layout),
            PT_LOAD => {
                if let Some(fault) = segment.fault(file.bytes) {
                    return Err(format!("segment {i} of the executable is damaged: {fault}"));
                }
                alignment_bytes = Some(alignment_bytes.unwrap_or(u64::MAX).min(segment.alignment));
            }
            _ => {}
        }
    }
    let alignment_bytes = alignment_bytes.ok_or_else(|| "the executable has no segment to load".to_owned())?;
    Ok(Executable { needs_libraries, alignment_bytes })
}

/// Whether the dynamic section asks for libraries. One that cannot be read counts as asking: nothing is taken for static
/// that is not seen to be so.
fn names_libraries(file: &Content<'_>, dynamic: &Segment, layout: &Layout) -> bool {
    let entry = 2 * layout.word_bytes;
    for i in 0..(dynamic.file_bytes / entry).min(DYNAMIC_ENTRIES_MAX) {
        let tag = dynamic.offset.checked_add(i * entry).and_then(|at| file.number(at, layout.word_bytes));
        match tag {
            Some(0) => return false,
            Some(DT_NEEDED) | None => return true,
            Some(_) => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toolchain::testing::executable;
    use proptest::prelude::*;

    fn judge(bytes: &[u8], architecture: Architecture) -> Result<Executable, String> {
        let read_at = |at: u64, buffer: &mut [u8]| {
            let start = usize::try_from(at).unwrap_or(usize::MAX);
            let piece = start.checked_add(buffer.len()).and_then(|end| bytes.get(start..end));
            piece.is_some_and(|piece| {
                buffer.copy_from_slice(piece);
                true
            })
        };
        read(&Content { bytes: bytes.len() as u64, read_at: &read_at }, architecture)
    }

    #[test]
    fn a_sound_static_executable_is_judged_for_each_architecture() {
        for architecture in Architecture::ALL {
            let found = judge(&executable(architecture, 0x10000, &[]), architecture).unwrap();
            assert_eq!(found, Executable { needs_libraries: false, alignment_bytes: 0x10000 });
        }
    }

    #[test]
    fn an_executable_for_another_machine_is_told() {
        let error = judge(&executable(Architecture::X86_64, 0x10000, &[]), Architecture::Aarch64).unwrap_err();
        assert_eq!(error, "the executable is for x86_64, not for aarch64");
        let mut other = executable(Architecture::Armv7, 0x10000, &[]);
        other[18] = 8;
        let error = judge(&other, Architecture::Armv7).unwrap_err();
        assert_eq!(error, "the executable is for ELF machine 8 with 32 bits, not for armv7");
        other[5] = 2;
        assert!(judge(&other, Architecture::Armv7).unwrap_err().contains("big-endian"));
    }

    #[test]
    fn a_loader_or_a_needed_library_makes_it_not_static_and_an_empty_dynamic_section_does_not() {
        for architecture in Architecture::ALL {
            let is_static = |extra: &[(u32, u64)]| {
                !judge(&executable(architecture, 0x10000, extra), architecture).unwrap().needs_libraries
            };
            assert!(!is_static(&[(3, 0)]), "a loader");
            assert!(!is_static(&[(2, 1)]), "a needed library");
            assert!(is_static(&[(2, 5)]), "a position-independent static executable has other entries");
        }
    }

    #[test]
    fn headers_that_lead_out_of_the_file_are_damaged() {
        let whole = executable(Architecture::Aarch64, 0x10000, &[(2, 5)]);
        let judge = |bytes: &[u8]| judge(bytes, Architecture::Aarch64).unwrap_err();
        assert!(judge(&whole[..whole.len() - 1]).contains("segment 0"), "{}", judge(&whole[..whole.len() - 1]));
        assert!(judge(&whole[..100]).contains("program headers at 64 of 100 bytes"));
        assert!(judge(&whole[..30]).contains("ends within the ELF header"));
        let with = |at: usize, byte: u8| {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            judge(&bytes)
        };
        assert!(with(39, 0xff).contains("program headers at"));
        assert!(with(54, 8).contains("of 8 bytes"));
        assert!(with(56, 0).contains("0 program headers"));
        assert!(with(64, 0).contains("no segment to load"));
        assert!(with(64 + 48, 3).contains("alignment of 65539"));
        assert!(with(64 + 16, 1).contains("differ within 0x10000 bytes"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_judged_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), which in 0..4usize) {
            let _ = judge(&bytes, Architecture::ALL[which]);
        }
        #[test]
        fn a_damaged_executable_is_judged_without_panic(
            which in 0..4usize,
            damage in proptest::collection::vec((0..400usize, any::<u8>()), 0..12),
            cut in 0..400usize,
        ) {
            let architecture = Architecture::ALL[which];
            let mut bytes = executable(architecture, 0x1000, &[(2, 1), (3, 0)]);
            for (at, byte) in damage {
                if let Some(place) = bytes.get_mut(at) {
                    *place = byte;
                }
            }
            bytes.truncate(bytes.len() - cut.min(bytes.len()));
            let _ = judge(&bytes, architecture);
        }
    }
}
