//! Device numbers of disk slots.

use std::collections::BTreeSet;
use std::fmt;

use crate::domain::pci::MAX_DISKS;
use crate::refusal::Refusal;

/// Highest device number: a machine has 255 slots.
pub const MAX_DEVICE: u8 = MAX_DISKS - 1;
/// Text that requests the lowest free number.
const AUTODETECT: &str = "autodetect";
/// Prefixes of device names with letters: `xvda` is 0, `xvdb` 1, `xvdaa` 26.
const PREFIXES: [&str; 3] = ["xvd", "sd", "hd"];
/// Maximum number of characters of refused text in an error.
const REPEATED_CHARS: usize = 32;

/// Number of a disk slot, 0 to [`MAX_DEVICE`]. It determines the address that the guest sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNumber(u8);

impl DeviceNumber {
    /// Returns all numbers, in order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..=MAX_DEVICE).map(Self)
    }

    /// Returns the number.
    pub fn get(self) -> u8 {
        self.0
    }

    /// Parses `17`, `xvdr`, `sdr` or `hdr`. A partition such as `xvda1` is not a slot.
    pub fn parse(text: &str) -> Option<Self> {
        let letters = PREFIXES.iter().find_map(|prefix| text.strip_prefix(prefix));
        letters.map_or_else(|| digits(text), count_letters)
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Returns the slot for a new device from `wanted`: a number, a name, or `autodetect` for the
/// lowest free one.
///
/// # Errors
/// [`Refusal::DeviceTaken`]; [`Refusal::NoSuchDevice`] if `wanted` is not a slot, or if none is
/// free.
pub fn choose(wanted: &str, used: &BTreeSet<DeviceNumber>) -> Result<DeviceNumber, Refusal> {
    let found = match wanted {
        AUTODETECT => DeviceNumber::all().find(|number| !used.contains(number)),
        _ => DeviceNumber::parse(wanted),
    };
    match found {
        None => Err(no_such_device(wanted)),
        Some(number) if used.contains(&number) => Err(Refusal::DeviceTaken(number.get())),
        Some(number) => Ok(number),
    }
}

/// Returns the refusal of this text.
pub(crate) fn no_such_device(text: &str) -> Refusal {
    Refusal::NoSuchDevice(text.chars().take(REPEATED_CHARS).collect())
}

/// Parses one to three decimal digits up to [`MAX_DEVICE`].
fn digits(text: &str) -> Option<DeviceNumber> {
    let plain = text.len() <= 3 && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|number| plain && *number <= MAX_DEVICE)?;
    Some(DeviceNumber(number))
}

/// Parses one or two letters: `a` is 0, `z` 25, `aa` 26.
fn count_letters(letters: &str) -> Option<DeviceNumber> {
    if letters.is_empty() || letters.len() > 2 {
        return None;
    }
    let counted = letters.bytes().try_fold(0u16, |sum, byte| {
        let digit = byte.is_ascii_lowercase().then(|| u16::from(byte - b'a') + 1)?;
        Some(sum * 26 + digit)
    })?;
    let number = u8::try_from(counted.checked_sub(1)?).ok()?;
    (number <= MAX_DEVICE).then_some(DeviceNumber(number))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Option<u8> {
        DeviceNumber::parse(text).map(DeviceNumber::get)
    }

    #[test]
    fn numbers_and_names_of_slots() {
        for (text, number) in [
            ("0", 0),
            ("7", 7),
            ("007", 7),
            ("254", 254),
            ("xvda", 0),
            ("hda", 0),
            ("sda", 0),
            ("xvdp", 15),
            ("xvdz", 25),
            ("xvdaa", 26),
            ("xvdaz", 51),
            ("sdba", 52),
            ("hdiu", 254),
        ] {
            assert_eq!(parsed(text), Some(number), "{text}");
        }
        for text in [
            "",
            "255",
            "256",
            "1000",
            "0000",
            "-1",
            "+1",
            " 1",
            "1 ",
            "0x1",
            "x",
            "xvd",
            "xvdA",
            "xvda1",
            "xvdiv",
            "xvdaaa",
            "fda",
            "vda",
            "sd0",
            "xvd\u{e4}",
            "autodetect",
            "1_0",
        ] {
            assert_eq!(parsed(text), None, "{text}");
        }
    }

    #[test]
    fn every_slot_has_one_number_and_one_name_in_letters() {
        let all: Vec<_> = DeviceNumber::all().collect();
        assert_eq!(all.len(), 255);
        let letters: Vec<String> = ('a'..='z').map(String::from).collect();
        let pairs = letters.iter().flat_map(|x| letters.iter().map(move |y| format!("{x}{y}")));
        let names = letters.iter().cloned().chain(pairs).take(255);
        for (number, name) in all.into_iter().zip(names) {
            assert_eq!(DeviceNumber::parse(&number.to_string()), Some(number));
            for prefix in PREFIXES {
                assert_eq!(DeviceNumber::parse(&format!("{prefix}{name}")), Some(number));
            }
        }
    }

    #[test]
    fn a_new_device_gets_a_slot_of_its_own() {
        let mut used = BTreeSet::new();
        for expected in 0..=MAX_DEVICE {
            let number = choose("autodetect", &used).unwrap();
            assert_eq!(number.get(), expected);
            used.insert(number);
        }
        assert_eq!(
            choose("autodetect", &used),
            Err(Refusal::NoSuchDevice("autodetect".into())),
            "none is free"
        );
        used.remove(&DeviceNumber(3));
        assert_eq!(choose("autodetect", &used), Ok(DeviceNumber(3)));
        assert_eq!(choose("hdd", &used), Ok(DeviceNumber(3)));
        assert_eq!(choose("xvdb", &used), Err(Refusal::DeviceTaken(1)));
        assert_eq!(choose("255", &used), Err(Refusal::NoSuchDevice("255".into())));
        let long = "9".repeat(1000);
        assert_eq!(choose(&long, &used), Err(Refusal::NoSuchDevice("9".repeat(32))));
    }

    proptest! {
        #[test]
        fn any_text_is_a_slot_or_is_refused(text in "\\PC*") {
            let used = BTreeSet::new();
            match (DeviceNumber::parse(&text), choose(&text, &used)) {
                (Some(number), chosen) => prop_assert_eq!(chosen, Ok(number)),
                (None, Ok(_)) => prop_assert_eq!(text, "autodetect"),
                (None, Err(refusal)) => prop_assert!(!refusal.passes()),
            }
        }

        #[test]
        fn likely_text_is_read_as_the_number_it_is(text in "(xvd|sd|hd|fd)?[0-9a-z]{0,4}") {
            let number = parsed(&text);
            if let Ok(expected) = text.parse::<u64>() {
                let small = text.len() <= 3 && expected <= 254;
                prop_assert_eq!(number.map(u64::from), small.then_some(expected));
            }
            if let Some(number) = number {
                prop_assert!(number <= MAX_DEVICE);
            }
        }
    }
}
