//! `ip` of iproute2, and what the kernel shows of its devices.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use super::NetError;

/// Longest run of `ip`: it asks the kernel one thing.
const IP_DEADLINE: Duration = Duration::from_secs(10);
/// Longest name of a network device.
const NAME_BYTES_MAX: usize = 15;
/// Where the kernel shows network devices.
const DEVICES: &str = "/sys/class/net";

/// A network device of the host, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Device {
    name: String,
    shown: PathBuf,
}

impl Device {
    /// The device of this name, there or not.
    ///
    /// # Errors
    /// [`NetError::Refused`]: no device can have this name.
    pub(super) fn named(name: &str) -> Result<Self, NetError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let starts = name.starts_with(|c: char| c.is_ascii_alphanumeric());
        if !starts || name.len() > NAME_BYTES_MAX || !name.chars().all(plain) {
            let name: String = name.chars().take(2 * NAME_BYTES_MAX).collect();
            let why = format!("a name has 1 to {NAME_BYTES_MAX} letters, digits, `.`, `-`, `_`");
            return Err(NetError::Refused { what: format!("network device `{name}`"), why });
        }
        Ok(Self { name: name.to_owned(), shown: Path::new(DEVICES).join(name) })
    }

    /// Every device whose alias is this.
    pub(super) fn all(alias: &str) -> std::io::Result<Vec<Self>> {
        Ok(Self::every()?.into_iter().filter(|device| device.alias() == alias).collect())
    }

    /// Every device whose name can be used here.
    pub(super) fn every() -> std::io::Result<Vec<Self>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(DEVICES)? {
            let name = entry?.file_name();
            found.extend(name.to_str().and_then(|name| Self::named(name).ok()));
        }
        Ok(found)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn is_there(&self) -> bool {
        self.shown.exists()
    }

    /// The kernel shows this file or directory of it: each kind of device has its own.
    pub(super) fn has(&self, what: &str) -> bool {
        self.shown.join(what).exists()
    }

    /// What this file of it holds; none if the kernel does not say.
    pub(super) fn shows(&self, file: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.shown.join(file)).ok()?;
        Some(text.trim().to_owned())
    }

    /// The name of what this link of it leads to.
    pub(super) fn leads_to(&self, link: &str) -> Option<String> {
        let target = std::fs::read_link(self.shown.join(link)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }

    /// Its number; none if it is not there. One that is made anew has another.
    pub(super) fn index(&self) -> Option<u32> {
        self.shows("ifindex")?.parse().ok()
    }

    /// Whose it is, as whoever made it has said.
    pub(super) fn alias(&self) -> String {
        self.shows("ifalias").unwrap_or_default()
    }

    /// Another kind of device has the name.
    pub(super) fn taken(&self, wanted: &str) -> NetError {
        let what = format!("network device {}", self.name);
        NetError::Refused { what, why: format!("it is there, and is no {wanted}") }
    }
}

/// Runs `ip` with these words.
pub(super) async fn ip(program: &Path, words: &[&str]) -> Result<(), NetError> {
    let what = || format!("ip {}", words.join(" "));
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(IP_DEADLINE, command.output()).await;
    let output = output.map_err(|_| NetError::Late(what()))?;
    let output = output.map_err(|error| NetError::Refused {
        what: what(),
        why: format!("{error}; is iproute2 installed?"),
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(NetError::Refused { what: what(), why: said.trim().to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_no_device_can_have_are_refused() {
        for good in ["xapi0", "tap7.6", "rw-a_b", "123456789012345"] {
            assert_eq!(Device::named(good).unwrap().name(), good);
        }
        for bad in ["", "-x", ".", "..", "a/b", "a b", "1234567890123456", "\u{e4}"] {
            let error = Device::named(bad).unwrap_err().to_string();
            assert!(error.contains("1 to 15 letters"), "{error}");
        }
    }

    #[test]
    fn what_the_kernel_shows_is_seen() {
        let lo = Device::named("lo").unwrap();
        assert!(lo.is_there() && lo.has("mtu") && !lo.has("bridge"));
        assert_eq!(lo.alias(), "");
        assert_eq!(lo.index(), Some(1), "the first device of every kernel");
        assert!(!Device::named("rw-none").unwrap().is_there());
        assert_eq!(Device::all("nobody has this alias").unwrap(), []);
    }

    #[tokio::test]
    async fn a_refusal_carries_the_words_of_ip() {
        let error = ip(Path::new("sh"), &["-c", "echo no way >&2; exit 2"]).await.unwrap_err();
        assert!(error.to_string().ends_with(": no way"), "{error}");
        let error = ip(Path::new("/nonexistent/ip"), &["link"]).await.unwrap_err();
        assert!(error.to_string().contains("iproute2"), "{error}");
    }
}
