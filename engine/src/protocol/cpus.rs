//! On which cores the workers run, as it is asked for.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Core numbers from here on are refused: no kernel has as many.
pub const CPUS_MAX: u32 = 4096;

/// Core numbers in the order in which workers take them, written `4-7,0`; none leaves the choice to the topology.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct CpuList(Vec<u32>);

impl CpuList {
    /// The core numbers, worker 0's first.
    pub fn cpus(&self) -> &[u32] {
        &self.0
    }

    /// Whether no core is named.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromStr for CpuList {
    type Err = String;

    /// Numbers and ranges between commas; a range may count down. The reason when it is none of that, names a core twice
    /// or one from [`CPUS_MAX`] on.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut cpus = Vec::new();
        for part in text.split(',').map(str::trim) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |word: &str| {
                let number = word.parse::<u32>().ok().filter(|n| *n < CPUS_MAX);
                number.ok_or_else(|| {
                    let shown = crate::text::escaped(part.as_bytes(), 40);
                    format!("`{shown}` is neither a core below {CPUS_MAX} nor a range of them")
                })
            };
            let (first, last) = (number(first)?, number(last)?);
            match first <= last {
                true => cpus.extend(first..=last),
                false => cpus.extend((last..=first).rev()),
            }
        }
        let mut sorted = cpus.clone();
        sorted.sort_unstable();
        match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(format!("core {} is named twice", pair[0])),
            None => Ok(Self(cpus)),
        }
    }
}

impl fmt::Display for CpuList {
    /// As it is read back; runs that count up are ranges.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, run) in self.0.chunk_by(|a, b| a + 1 == *b).enumerate() {
            let comma = if i > 0 { "," } else { "" };
            match run {
                [one] => write!(f, "{comma}{one}")?,
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

impl Serialize for CpuList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CpuList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() {
            return Ok(Self::default());
        }
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Cores by how fast they are, resolved on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CpuClusters {
    /// The fastest cores; where all are alike, all.
    Big,
    /// Those between the fastest and the slowest.
    Mid,
    /// The slowest cores of a device that has faster ones.
    Little,
    /// All cores, fastest first.
    All,
}

impl CpuClusters {
    /// `big`, `mid`, `little` or `all`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Big => "big",
            Self::Mid => "mid",
            Self::Little => "little",
            Self::All => "all",
        }
    }
}

impl FromStr for CpuClusters {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Big, Self::Mid, Self::Little, Self::All].into_iter().find(|c| c.as_str() == text).ok_or_else(|| {
            let shown = crate::text::escaped(text.as_bytes(), 40);
            format!("`{shown}` is none of big, mid, little, all")
        })
    }
}

/// Whether weights are rearranged at load for faster kernels, which takes memory of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Repack {
    /// Where it pays and the memory is there.
    #[default]
    Auto,
    /// Yes, or an error.
    On,
    /// No: weights are used as the file has them.
    Off,
}

impl Repack {
    /// `auto`, `on` or `off`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

impl FromStr for Repack {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Auto, Self::On, Self::Off].into_iter().find(|c| c.as_str() == text).ok_or_else(|| {
            let shown = crate::text::escaped(text.as_bytes(), 40);
            format!("`{shown}` is none of auto, on, off")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_list_keeps_its_order_and_reads_back_as_it_is_written() {
        let read = |text: &str| text.parse::<CpuList>().unwrap();
        assert_eq!(read("4-7,0").cpus(), [4, 5, 6, 7, 0]);
        assert_eq!(read("7-4, 0").cpus(), [7, 6, 5, 4, 0]);
        for text in ["4-7,0", "3", "7,6,5,0-1"] {
            assert_eq!(read(text).to_string(), text);
            let json = serde_json::to_string(&read(text)).unwrap();
            assert_eq!(serde_json::from_str::<CpuList>(&json).unwrap(), read(text));
        }
        assert_eq!(serde_json::from_str::<CpuList>("\"\"").unwrap(), CpuList::default());
    }

    #[test]
    fn what_is_no_core_list_says_why() {
        let fault = |text: &str| text.parse::<CpuList>().unwrap_err();
        assert!(fault("4-").contains("`4-` is neither a core below 4096"));
        assert!(fault("").contains("neither"));
        assert!(fault("0,4096").contains("`4096`"));
        assert!(fault("0-99999999999").contains("neither"));
        assert_eq!(fault("0-3,2"), "core 2 is named twice");
        assert_eq!("prime".parse::<CpuClusters>().unwrap_err(), "`prime` is none of big, mid, little, all");
    }
}
