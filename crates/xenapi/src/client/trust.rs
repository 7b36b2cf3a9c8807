//! Known servers, recognized by their certificates: trust on first use.

use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::ClientError;

/// Largest file of known servers, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Prefix of a fingerprint's text, which names the hash.
const HASH: &str = "SHA256:";

/// Fingerprint of a certificate: its SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    pub(super) fn new(hash: [u8; 32]) -> Self {
        Self(hash)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HASH)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Fingerprint {
    type Err = NoFingerprint;

    fn from_str(text: &str) -> Result<Self, NoFingerprint> {
        let digits = text.strip_prefix(HASH).ok_or(NoFingerprint)?;
        let mut hash = [0; 32];
        if digits.len() != 2 * hash.len() {
            return Err(NoFingerprint);
        }
        for (at, byte) in hash.iter_mut().enumerate() {
            let pair = digits.get(2 * at..2 * at + 2).ok_or(NoFingerprint)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| NoFingerprint)?;
        }
        Ok(Self(hash))
    }
}

/// Error of text that is no fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a fingerprint, which is `{HASH}` and 64 hexadecimal digits")]
pub struct NoFingerprint;

/// Known servers: a file with a line `HOST:PORT FINGERPRINT` for each server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownServers {
    file: PathBuf,
    /// True if unknown servers are rejected.
    known_only: bool,
}

impl KnownServers {
    /// Trusts the servers in this file, which may not exist yet. Adds each new server to it.
    pub fn in_file(file: impl Into<PathBuf>) -> Self {
        Self { file: file.into(), known_only: false }
    }

    /// Trusts only the servers in this file.
    pub fn known_in(file: impl Into<PathBuf>) -> Self {
        Self { file: file.into(), known_only: true }
    }

    /// Checks that the server's certificate is the known one. If the server is new and new servers
    /// are allowed, stores its fingerprint and returns it.
    pub(super) fn verify(
        &self,
        at: &str,
        found: Fingerprint,
    ) -> Result<Option<Fingerprint>, ClientError> {
        let failed =
            |source| ClientError::Trust { at: at.to_owned(), file: self.file.clone(), source };
        match known(&self.file, at).map_err(failed)? {
            Some(known) if known == found => Ok(None),
            Some(known) => {
                let file = self.file.clone();
                Err(ClientError::Changed { at: at.to_owned(), known, found, file })
            }
            None if self.known_only => {
                Err(ClientError::Unknown { at: at.to_owned(), file: self.file.clone() })
            }
            None => {
                remember(&self.file, at, &found).map_err(failed)?;
                Ok(Some(found))
            }
        }
    }
}

fn known(file: &Path, at: &str) -> io::Result<Option<Fingerprint>> {
    let opened = match File::open(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut text = String::new();
    opened.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the file is too large"));
    }
    let line = text.lines().find_map(|line| line.strip_prefix(at)?.strip_prefix(' '));
    let parsed = line.map(|line| line.trim().parse());
    parsed.transpose().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Appends a line with a single write, so that the lines of two programs do not mix.
fn remember(file: &Path, at: &str, found: &Fingerprint) -> io::Result<()> {
    let mut line = String::new();
    let _infallible = writeln!(line, "{at} {found}");
    let mut options = OpenOptions::new();
    let mut opened = options.append(true).create(true).mode(0o600).open(file)?;
    opened.write_all(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(byte: u8) -> Fingerprint {
        Fingerprint::new([byte; 32])
    }

    #[test]
    fn a_fingerprint_is_read_back() {
        let text = one(0xa7).to_string();
        assert_eq!(text, format!("SHA256:{}", "a7".repeat(32)));
        assert_eq!(text.parse(), Ok(one(0xa7)));
        for bad in ["", "SHA256:", "SHA256:a7", &"a7".repeat(32), &text.replace('a', "x")] {
            assert_eq!(bad.parse::<Fingerprint>(), Err(NoFingerprint), "{bad}");
        }
        let wide = format!("SHA256:{}", "é".repeat(32));
        assert_eq!(wide.parse::<Fingerprint>(), Err(NoFingerprint));
    }

    #[test]
    fn the_first_that_is_seen_is_trusted_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("trust");
        let known_servers = KnownServers::in_file(&file);
        assert_eq!(known_servers.verify("a:443", one(1)).unwrap(), Some(one(1)));
        assert_eq!(known_servers.verify("a:443", one(1)).unwrap(), None);
        // Another server whose name starts like the first one's.
        assert_eq!(known_servers.verify("a:4430", one(2)).unwrap(), Some(one(2)));
        let changed = known_servers.verify("a:443", one(3)).unwrap_err();
        let message = changed.to_string();
        assert!(matches!(changed, ClientError::Changed { known, found, .. }
            if known == one(1) && found == one(3)));
        let remedy = format!("sed -i '\\|^a:443 |d' {}", file.display());
        assert!(message.ends_with(&remedy), "{message}");
        // The remedy in the error message works.
        let status = std::process::Command::new("sh").args(["-c", &remedy]).status().unwrap();
        assert!(status.success());
        assert_eq!(known_servers.verify("a:443", one(3)).unwrap(), Some(one(3)));
        assert_eq!(known_servers.verify("a:4430", one(2)).unwrap(), None);
    }

    #[test]
    fn who_was_never_met_can_be_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("trust");
        let known = KnownServers::known_in(&file);
        let error = known.verify("a:443", one(1)).unwrap_err();
        assert!(matches!(error, ClientError::Unknown { .. }), "{error:?}");
        assert!(!file.exists());
        KnownServers::in_file(&file).verify("a:443", one(1)).unwrap();
        assert_eq!(known.verify("a:443", one(1)).unwrap(), None);
        assert!(matches!(known.verify("a:443", one(2)), Err(ClientError::Changed { .. })));
    }

    #[test]
    fn a_damaged_line_is_no_reason_to_trust() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("trust");
        std::fs::write(&file, "b:1 SHA256:00\na:443 nonsense\n").unwrap();
        let error = KnownServers::in_file(&file).verify("a:443", one(1)).unwrap_err();
        assert!(matches!(error, ClientError::Trust { .. }), "{error:?}");
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(text.lines().count(), 2, "{text}");
    }
}
