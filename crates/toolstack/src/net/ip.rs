//! `ip` of iproute2, and the network devices in sysfs.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use super::NetError;

/// Longest run of `ip`, which makes one request to the kernel.
const IP_DEADLINE: Duration = Duration::from_secs(10);
/// Longest name of a network device, in bytes.
const NAME_BYTES_MAX: usize = 15;
/// The kernel's directory of network devices.
const DEVICES: &str = "/sys/class/net";

/// Network device of the host, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Device {
    name: String,
    shown: PathBuf,
}

impl Device {
    /// Returns the device of this name, whether it exists or not.
    ///
    /// # Errors
    /// [`NetError::Refused`] if the name is invalid.
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

    /// Returns all devices with this alias.
    pub(super) fn all(alias: &str) -> std::io::Result<Vec<Self>> {
        Ok(Self::every()?.into_iter().filter(|device| device.alias() == alias).collect())
    }

    /// Returns all devices with a valid name.
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

    /// Returns whether the kernel shows this file or directory for the device. Each kind of device
    /// has its own.
    pub(super) fn has(&self, what: &str) -> bool {
        self.shown.join(what).exists()
    }

    /// Returns the content of a file of the device; `None` if the kernel reports none.
    pub(super) fn shows(&self, file: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.shown.join(file)).ok()?;
        Some(text.trim().to_owned())
    }

    /// Returns the name of the target of a link of the device.
    pub(super) fn leads_to(&self, link: &str) -> Option<String> {
        let target = std::fs::read_link(self.shown.join(link)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }

    /// Returns the device's index; `None` if it does not exist. A recreated device has another
    /// index.
    pub(super) fn index(&self) -> Option<u32> {
        self.shows("ifindex")?.parse().ok()
    }

    /// Returns the alias, which marks the owner.
    pub(super) fn alias(&self) -> String {
        self.shows("ifalias").unwrap_or_default()
    }

    /// Returns the error that another kind of device has the name.
    pub(super) fn taken(&self, wanted: &str) -> NetError {
        let what = format!("network device {}", self.name);
        NetError::Refused { what, why: format!("it exists and is not a {wanted}") }
    }
}

/// Runs `ip` with these arguments.
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
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(NetError::Refused { what: what(), why: stderr.trim().to_owned() })
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
