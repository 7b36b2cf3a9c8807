//! UUIDs of toolstack objects, with one type for each kind of object.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A 128-bit UUID; text as in RFC 9562, lower case.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct Uuid([u8; 16]);

/// Text that is not a UUID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no UUID: 32 hexadecimal digits in groups of 8, 4, 4, 4 and 12 are expected")]
pub struct BadUuid(pub String);

/// Indexes of the bytes that follow a dash.
const DASHES: [usize; 4] = [4, 6, 8, 10];
/// Number of characters in its text.
const CHARS: usize = 36;

impl Uuid {
    /// Creates a random UUID (version 4) from random bytes.
    pub fn from_random(mut bytes: [u8; 16]) -> Self {
        bytes[6] = (bytes[6] & 0x0f) | 0x40;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        Self(bytes)
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> [u8; 16] {
        self.0
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            let dash = if DASHES.contains(&at) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

impl FromStr for Uuid {
    type Err = BadUuid;

    fn from_str(text: &str) -> Result<Self, BadUuid> {
        let bad = || BadUuid(text.chars().take(2 * CHARS).collect());
        if text.len() != CHARS {
            return Err(bad());
        }
        let mut bytes = [0; 16];
        let mut rest = text.as_bytes();
        for (at, byte) in bytes.iter_mut().enumerate() {
            if DASHES.contains(&at) {
                rest = rest.strip_prefix(b"-").ok_or_else(bad)?;
            }
            let (digits, after) = rest.split_at_checked(2).ok_or_else(bad)?;
            let [high, low] = *digits else { return Err(bad()) };
            let digit = |one: u8| char::from(one).to_digit(16).and_then(|d| u8::try_from(d).ok());
            *byte = digit(high).zip(digit(low)).map(|(h, l)| h << 4 | l).ok_or_else(bad)?;
            rest = after;
        }
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for Uuid {
    type Error = BadUuid;

    fn try_from(text: String) -> Result<Self, BadUuid> {
        text.parse()
    }
}

impl From<Uuid> for String {
    fn from(uuid: Uuid) -> Self {
        uuid.to_string()
    }
}

/// Defines a UUID type for each kind of object.
macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

kinds! {
    /// UUID of a machine.
    VmId,
    /// UUID of a machine's disk slot with its content.
    VbdId,
    /// UUID of a disk.
    VdiId,
    /// UUID of a storage repository.
    SrId,
    /// UUID of a machine's network interface.
    VifId,
    /// UUID of a network.
    NetworkId,
}

/// Number of one running instance of a machine; 0 is the control domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Domid(pub u32);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn text_and_back(bytes: [u8; 16]) {
            let uuid = Uuid::from_random(bytes);
            let text = uuid.to_string();
            prop_assert_eq!(text.parse(), Ok(uuid));
            prop_assert_eq!(text.to_uppercase().parse(), Ok(uuid));
            prop_assert_eq!(text.as_bytes()[14], b'4');
        }

        #[test]
        fn any_text_is_one_or_is_refused(text: String) {
            let _ = text.parse::<Uuid>();
        }
    }

    #[test]
    fn what_is_none_is_refused() {
        let good = "01234567-89ab-cdef-0123-456789abcdef";
        assert_eq!(good.parse::<Uuid>().unwrap().to_string(), good);
        for bad in [
            "",
            "0",
            "0123456789abcdef0123456789abcdef",
            "01234567-89ab-cdef-0123-456789abcdeg",
            "01234567-89ab-cdef-01234-56789abcdef",
            "01234567-89ab-cdef-0123-456789abcdefa",
            "\u{20ac}1234567-89ab-cdef-0123-456789abcde",
        ] {
            assert!(bad.parse::<Uuid>().is_err(), "{bad}");
        }
    }
}
