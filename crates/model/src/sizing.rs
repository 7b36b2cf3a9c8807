//! Ringway's share of a host, with the reason for each number. `docs/sizing.md` has the table.
//!
//! The share is 1 GiB and a twentieth of the host's memory, at most 8 GiB and at most half of the
//! host's memory. Half of the share is for image caches, an eighth for request buffers, and a
//! quarter for concurrent steps. The rest is for processes and queues.

use std::fmt;

use crate::admission::DEFAULT_HOST;

/// Maximum number of reactors of a process: with more, the host's storage saturates first.
pub const MAX_REACTORS: u16 = 16;
/// Memory of one running device step in bytes, as measured for XenServer.
pub const STEP_BYTES: u64 = 15 << 20;
/// Divisor of the share for image caches.
const CACHE_PART: u64 = 2;
/// Divisor of the share for request buffers.
const BUFFER_PART: u64 = 8;
/// Divisor of the share for concurrent steps.
const STEPS_PART: u64 = 4;
/// Fixed part of the share on a host with enough memory, in bytes.
const SHARE_BASE_BYTES: u64 = 1 << 30;
/// Divisor of the host's memory for the variable part of the share.
const SHARE_PART: u64 = 20;
/// Maximum share in bytes.
const MAX_SHARE_BYTES: u64 = 8 << 30;
/// Number of reactors for a share below each size in bytes, as XenServer 7.0's control domain.
const REACTORS_BY_SHARE: [(u64, u16); 2] = [(2 << 30, 4), (4 << 30, 8)];

/// Host properties that determine the sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// Number of CPUs that Ringway may use.
    pub cpus: u16,
    /// Total memory in bytes.
    pub memory_bytes: u64,
}

/// A value and the reason for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizedValue<T> {
    /// The value.
    pub value: T,
    /// The reason, as a sentence.
    pub why: String,
}

/// Sizes that apply unless the configuration sets others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizing {
    /// Memory for Ringway's own processes, in bytes.
    pub share_bytes: SizedValue<u64>,
    /// Number of threads of a `ringway-io` that serve requests.
    pub reactors: SizedValue<u16>,
    /// Memory for image caches, in bytes.
    pub cache_bytes: SizedValue<u64>,
    /// Memory for request buffers, in bytes.
    pub buffer_bytes: SizedValue<u64>,
    /// Maximum number of concurrent device steps on the host.
    pub steps: SizedValue<u16>,
}

/// Returns the sizes for a host.
pub fn sizing(host: Host) -> Sizing {
    let share_bytes = share(host.memory_bytes);
    let part = |of: u64, what: &str| {
        let why = format!("one {what} of Ringway's {}", Bytes(share_bytes.value));
        SizedValue { value: share_bytes.value / of, why }
    };
    Sizing {
        reactors: reactors(host.cpus, share_bytes.value),
        cache_bytes: part(CACHE_PART, "half"),
        buffer_bytes: part(BUFFER_PART, "eighth"),
        steps: steps(share_bytes.value),
        share_bytes,
    }
}

fn share(memory: u64) -> SizedValue<u64> {
    let wanted = SHARE_BASE_BYTES.saturating_add(memory / SHARE_PART);
    let half = memory / 2;
    let (value, why) = if half <= wanted.min(MAX_SHARE_BYTES) {
        (half, format!("half of the host's {}", Bytes(memory)))
    } else if wanted > MAX_SHARE_BYTES {
        (MAX_SHARE_BYTES, "more serves no purpose".into())
    } else {
        let base = Bytes(SHARE_BASE_BYTES);
        (wanted, format!("{base} and one of {SHARE_PART} parts of the host's {}", Bytes(memory)))
    };
    SizedValue { value, why }
}

fn reactors(cpus: u16, share: u64) -> SizedValue<u16> {
    let by_memory = REACTORS_BY_SHARE.into_iter().find(|(below, _)| share < *below);
    let (value, why) = match by_memory {
        Some((below, most)) if cpus > most => {
            let (has, below) = (Bytes(share), Bytes(below));
            (most, format!("Ringway's share of memory is {has}; below {below} there are {most}"))
        }
        _ if cpus > MAX_REACTORS => {
            (MAX_REACTORS, format!("of {cpus} CPUs at most {MAX_REACTORS} are used"))
        }
        _ => (cpus.max(1), format!("one for each of {cpus} CPUs")),
    };
    SizedValue { value, why }
}

fn steps(share: u64) -> SizedValue<u16> {
    let fit = u16::try_from(share / STEPS_PART / STEP_BYTES).unwrap_or(u16::MAX).max(1);
    let (value, why) = if fit < DEFAULT_HOST {
        let room = Bytes(share / STEPS_PART);
        (fit, format!("each takes up to {} of {room}", Bytes(STEP_BYTES)))
    } else {
        (DEFAULT_HOST, format!("storage gains nothing from more; {fit} would fit into memory"))
    };
    SizedValue { value, why }
}

/// An amount of memory, displayed with a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = self.0 >> 20;
        if mib < 1024 {
            return write!(f, "{mib} MiB");
        }
        let tenths = (mib * 10 + 512) / 1024;
        match tenths % 10 {
            0 => write!(f, "{} GiB", tenths / 10),
            part => write!(f, "{}.{part} GiB", tenths / 10),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(cpus: u16, gib: u64) -> Sizing {
        sizing(Host { cpus, memory_bytes: gib << 30 })
    }

    /// Documentation page with the table.
    const DOCUMENT: &str = include_str!("../../../docs/sizing.md");

    #[test]
    fn the_documents_table_is_what_is_computed() {
        let rows: Vec<_> = DOCUMENT.lines().filter(|line| line.contains("GiB |")).collect();
        assert!(rows.len() >= 10, "{rows:?}");
        for row in rows {
            let gib = row.split(' ').nth(1).unwrap().parse().unwrap();
            let Sizing { share_bytes, reactors, cache_bytes, buffer_bytes, steps } = of(128, gib);
            let [share, cache, buffers] =
                [share_bytes, cache_bytes, buffer_bytes].map(|part| Bytes(part.value));
            let (reactors, steps) = (reactors.value, steps.value);
            let is =
                format!("| {gib} GiB | {share} | {reactors} | {cache} | {buffers} | {steps} |");
            assert_eq!(row, is);
        }
    }

    #[test]
    fn reactors_follow_memory_and_cpus() {
        for (gib, most) in [(2, 4), (19, 4), (20, 8), (59, 8), (60, 16), (4096, 16)] {
            assert_eq!(of(128, gib).reactors.value, most, "{gib}");
            for cpus in 1..=most {
                assert_eq!(of(cpus, gib).reactors.value, cpus);
            }
        }
    }

    #[test]
    fn each_number_says_why() {
        let small = of(8, 1);
        assert_eq!(small.share_bytes.why, "half of the host's 1 GiB");
        assert_eq!(
            small.reactors.why,
            "Ringway's share of memory is 512 MiB; below 2 GiB there are 4"
        );
        assert_eq!(small.cache_bytes.why, "one half of Ringway's 512 MiB");
        assert_eq!((small.cache_bytes.value, small.buffer_bytes.value), (256 << 20, 64 << 20));
        assert_eq!(small.steps.value, 8);
        assert_eq!(small.steps.why, "each takes up to 15 MiB of 128 MiB");
        let large = of(96, 256);
        assert_eq!(large.share_bytes.why, "more serves no purpose");
        assert_eq!(large.reactors.why, "of 96 CPUs at most 16 are used");
        assert_eq!(large.steps.value, 16);
        assert_eq!(of(2, 16).reactors.why, "one for each of 2 CPUs");
        assert_eq!(of(2, 16).share_bytes.why, "1 GiB and one of 20 parts of the host's 16 GiB");
    }

    proptest! {
        #[test]
        fn any_host_gets_something_and_not_more_than_half(cpus: u16, memory_bytes: u64) {
            let Sizing { share_bytes, reactors, cache_bytes, buffer_bytes, steps } =
                sizing(Host { cpus, memory_bytes });
            prop_assert!(share_bytes.value <= memory_bytes / 2);
            prop_assert!((1..=MAX_REACTORS).contains(&reactors.value));
            prop_assert!((1..=DEFAULT_HOST).contains(&steps.value));
            let parts = cache_bytes.value + buffer_bytes.value;
            prop_assert!(parts <= share_bytes.value);
        }
    }
}
