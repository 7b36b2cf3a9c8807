//! Ethernet addresses as text.

use std::fmt;
use std::str::FromStr;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::spec::SpecError;

/// Ethernet address of one interface: neither a group address nor zero. On the wire:
/// `"02:00:00:00:00:01"`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddress([u8; 6]);

impl MacAddress {
    /// Returns the bytes in transmission order.
    pub fn bytes(self) -> [u8; 6] {
        self.0
    }
}

impl TryFrom<[u8; 6]> for MacAddress {
    type Error = SpecError;

    fn try_from(bytes: [u8; 6]) -> Result<Self, SpecError> {
        let [first, ..] = bytes;
        if first & 1 == 0 && bytes != [0; 6] {
            return Ok(Self(bytes));
        }
        let problem = format!("{} is no interface's: a group's or zero", Self(bytes));
        Err(SpecError { field: "mac", problem })
    }
}

impl FromStr for MacAddress {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let octet = |part: &str| {
            let digits = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
            digits.then(|| u8::from_str_radix(part, 16).ok()).flatten()
        };
        let mut parts = text.split(':');
        let mut bytes = [0; 6];
        let read = bytes.iter_mut().try_for_each(|byte| {
            *byte = octet(parts.next()?)?;
            Some(())
        });
        match (read, parts.next()) {
            (Some(()), None) => Self::try_from(bytes),
            _ => {
                let problem =
                    format!("{text:?} is no address; write for example 02:00:00:00:00:01");
                Err(SpecError { field: "mac", problem })
            }
        }
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(out, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl Serialize for MacAddress {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MacAddress {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}
