//! Framing of journal lines: `{"crc":"HHHHHHHH","body":{"seq":N,"t-us":T,"record":{…}}}`.
//!
//! The CRC (CRC-32/ISO-HDLC, the one of zip and Ethernet) covers the exact bytes of the body, so a line that was cut,
//! mixed with another or altered is recognised whatever its JSON looks like. Sequence numbers start at 0 and rise by 1.

use super::Record;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The longest line that a reader accepts, in bytes. Longer ones are refused, not buffered.
pub const LINE_BYTES_MAX: usize = 1 << 20;

/// A record with its place in the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Framed {
    /// Position in the journal, from 0.
    pub seq: u64,
    /// Device's monotonic clock, in microseconds.
    pub time_us: u64,
    /// The record.
    pub record: Record,
}

/// Why a line was not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FrameError {
    /// Longer than [`LINE_BYTES_MAX`].
    TooLong,
    /// Not the outer JSON object, or not UTF-8.
    NotAFrame,
    /// The CRC of the body is not the one given.
    CrcDiffers,
    /// The CRC fits, but the body is not one that this version knows.
    BodyUnknown(String),
}

impl std::fmt::Display for FrameError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooLong => write!(f, "journal line is longer than {LINE_BYTES_MAX} bytes"),
            Self::NotAFrame => f.write_str("journal line is not a frame"),
            Self::CrcDiffers => f.write_str("journal line has a wrong crc"),
            Self::BodyUnknown(why) => write!(f, "journal line has an unknown body: {why}"),
        }
    }
}

impl std::error::Error for FrameError {}

/// The body as it is written: borrowed, since token times and telemetry can be long.
#[derive(Serialize)]
struct BodyOut<'a> {
    seq: u64,
    #[serde(rename = "t-us")]
    time_us: u64,
    record: &'a Record,
}

#[derive(Deserialize)]
struct Body {
    seq: u64,
    #[serde(rename = "t-us")]
    time_us: u64,
    record: Record,
}

#[derive(Deserialize)]
struct Outer<'a> {
    crc: &'a str,
    #[serde(borrow)]
    body: &'a RawValue,
}

/// Wraps any serialisable body in a CRC frame; the line ends with a newline.
pub fn seal<T: Serialize>(body: &T) -> Result<String, serde_json::Error> {
    let body = serde_json::to_string(body)?;
    Ok(format!("{{\"crc\":\"{:08x}\",\"body\":{body}}}\n", crc32(body.as_bytes())))
}

/// Opens a CRC frame around any body. `line` may carry its newline.
pub fn open<T: for<'de> Deserialize<'de>>(line: &[u8]) -> Result<T, FrameError> {
    if line.len() > LINE_BYTES_MAX {
        return Err(FrameError::TooLong);
    }
    let text = std::str::from_utf8(line).map_err(|_| FrameError::NotAFrame)?;
    let outer: Outer = serde_json::from_str(text.trim_end_matches('\n')).map_err(|_| FrameError::NotAFrame)?;
    let stated = u32::from_str_radix(outer.crc, 16).map_err(|_| FrameError::NotAFrame)?;
    if stated != crc32(outer.body.get().as_bytes()) {
        return Err(FrameError::CrcDiffers);
    }
    serde_json::from_str(outer.body.get()).map_err(|e| FrameError::BodyUnknown(e.to_string()))
}

/// Encodes one journal line, newline included.
pub fn encode(framed: &Framed) -> Result<String, serde_json::Error> {
    seal(&BodyOut { seq: framed.seq, time_us: framed.time_us, record: &framed.record })
}

/// Decodes one journal line, with or without its newline.
pub fn decode(line: &[u8]) -> Result<Framed, FrameError> {
    let body: Body = open(line)?;
    Ok(Framed { seq: body.seq, time_us: body.time_us, record: body.record })
}

/// CRC-32/ISO-HDLC: reflected polynomial 0xEDB88320, initial value and final xor 0xFFFFFFFF.
pub fn crc32(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = crc_table();
    !bytes.iter().fold(!0u32, |crc, &byte| (crc >> 8) ^ TABLE[((crc ^ u32::from(byte)) & 0xff) as usize])
}

const fn crc_table() -> [u32; 256] {
    let mut table = [0u32; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> String {
        encode(&Framed { seq: 3, time_us: 17, record: Record::JournalEnd { interrupted: false } }).unwrap()
    }

    #[test]
    fn crc32_of_the_check_string_is_the_published_value() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn a_line_comes_back_as_it_went() {
        let framed = decode(line().as_bytes()).unwrap();
        assert_eq!((framed.seq, framed.time_us), (3, 17));
        assert_eq!(framed.record, Record::JournalEnd { interrupted: false });
    }

    #[test]
    fn a_line_that_lost_or_changed_a_byte_is_refused() {
        let good = line();
        for cut in 0..good.len() - 1 {
            assert!(decode(&good.as_bytes()[..cut]).is_err(), "cut at {cut}");
        }
        let body_at = good.find("\"seq\"").unwrap();
        for at in body_at..good.len() - 3 {
            let mut bad = good.clone().into_bytes();
            bad[at] ^= 0x01;
            assert!(decode(&bad).is_err(), "byte {at} flipped");
        }
    }

    #[test]
    fn a_number_that_is_not_finite_cannot_enter_a_sample() {
        assert!(crate::protocol::Finite::new(f64::NAN).is_none());
        assert!(serde_json::from_str::<crate::protocol::Finite>("1e999").is_err());
    }
}
