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

/// Number of characters in its text.
const CHARS: usize = uuid::fmt::Hyphenated::LENGTH;

impl Uuid {
    /// Creates a random UUID (version 4) from random bytes.
    pub fn from_random(bytes: [u8; 16]) -> Self {
        Self(uuid::Builder::from_random_bytes(bytes).into_uuid().into_bytes())
    }

    /// Creates the UUID (version 5) of a name in a namespace.
    pub fn from_name(namespace: &Self, name: &str) -> Self {
        let namespace = uuid::Uuid::from_bytes(namespace.0);
        Self(uuid::Uuid::new_v5(&namespace, name.as_bytes()).into_bytes())
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> [u8; 16] {
        self.0
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        uuid::Uuid::from_bytes(self.0).hyphenated().fmt(f)
    }
}

impl FromStr for Uuid {
    type Err = BadUuid;

    fn from_str(text: &str) -> Result<Self, BadUuid> {
        // The library also reads other forms, with other lengths.
        let parsed = uuid::Uuid::try_parse(text).ok().filter(|_| text.len() == CHARS);
        let uuid = parsed.ok_or_else(|| BadUuid(text.chars().take(2 * CHARS).collect()))?;
        Ok(Self(uuid.into_bytes()))
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
