//! Names of networks, and the names derived from them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::InternalError;

/// Longest name, in bytes: a device name has a prefix before it.
const BYTES_MAX: usize = 11;

/// Name of an internal network: 1 to 11 small letters, digits, `-` or `_`, the first a letter. It
/// is valid as a part of device, file and table names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

impl Name {
    /// Returns the name of its bridge.
    pub fn bridge(&self) -> String {
        format!("rw-{self}")
    }

    /// Returns the name of its TAP device for a switch's uplink.
    pub fn tap(&self) -> String {
        format!("rwt-{self}")
    }

    /// Returns the name of its nftables table.
    pub fn table(&self) -> String {
        format!("ringway_{self}")
    }

    /// Returns the alias that marks its devices.
    pub(super) fn alias(&self) -> String {
        format!("ringway network {self}")
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Name {
    type Err = InternalError;

    fn from_str(text: &str) -> Result<Self, InternalError> {
        let plain =
            |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
        let starts = text.starts_with(|c: char| c.is_ascii_lowercase());
        if starts && text.len() <= BYTES_MAX && text.chars().all(plain) {
            return Ok(Self(text.to_owned()));
        }
        Err(InternalError::Name(text.chars().take(2 * BYTES_MAX).collect()))
    }
}

impl TryFrom<String> for Name {
    type Error = InternalError;

    fn try_from(text: String) -> Result<Self, InternalError> {
        text.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_they_may_be() {
        for good in ["a", "lan", "dev-2_x", "abcdefghijk"] {
            let name: Name = good.parse().unwrap();
            assert!(name.bridge().len() <= 15 && name.tap().len() <= 15, "{name}");
        }
        for bad in
            ["", "A", "2lan", "-a", "..", "a/b", "a b", "a;b", "abcdefghijkl", "\u{e4}", "a\n"]
        {
            let error = bad.parse::<Name>().unwrap_err().to_string();
            assert!(error.contains("1 to 11"), "{error}");
        }
        let long = "x".repeat(9000).parse::<Name>().unwrap_err().to_string();
        assert!(long.len() < 200, "{long}");
    }
}
