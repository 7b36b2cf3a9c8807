//! Golden image: an immutable image of many disks, read from a source through a cache of the host.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{SpecError, refuse};

/// Largest golden image in bytes. Its index takes 8 bytes for each block of 64 KiB.
pub const MAX_GOLDEN_BYTES: u64 = 2 << 40;
/// Least memory of a golden image, in bytes: 64 blocks.
pub const MIN_GOLDEN_RAM_BYTES: u64 = 4 << 20;
/// Least bytes a second from the source: a block.
pub const MIN_GOLDEN_RATE: u64 = 64 << 10;
/// Begin of an identity that is the SHA-256 of the image. 64 hexadecimal digits follow.
pub const DIGEST_PREFIX: &str = "sha256:";
/// Longest address of a source, in bytes.
const MAX_ADDRESS_BYTES: usize = 2048;
/// Longest identity, in bytes.
const MAX_IDENTITY_BYTES: usize = 128;

/// Golden image behind a disk. On the wire: `{"source":{"file":PATH},"cache":DIR}`, with the source
/// `{"nbd":"nbd://HOST:PORT/EXPORT"}`, `{"nbd":"nbd+unix:///EXPORT?socket=PATH"}` or
/// `{"http":"http://HOST:PORT/PATH"}`, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GoldenImage {
    /// Source of the image.
    pub source: GoldenSource,
    /// Directory of the cache, which all images of the host may share.
    pub cache: PathBuf,
    /// Identity that the image must have: one that a former attach reported, or `sha256:HEX`, the
    /// digest of the image. A disk whose spec has none takes that of the source when it is attached,
    /// and keeps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// Memory for blocks in bytes, at least [`MIN_GOLDEN_RAM_BYTES`]. All disks of a process that use
    /// the image share it; the first one says how much. By default a sixteenth of the host's memory,
    /// at most 1 GiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ram: Option<u64>,
    /// Most bytes of the cache file. By default as many as the image has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_size: Option<u64>,
    /// Size that the image must have, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Most bytes a second from the source. No limit by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u64>,
}

/// Source of a golden image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GoldenSource {
    /// A raw image file or a block device.
    File(PathBuf),
    /// An export of an NBD server.
    Nbd(NbdAddress),
    /// A raw image on a web server that answers requests for ranges.
    Http(HttpAddress),
}

/// Address of an NBD export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NbdAddress {
    /// Address of the server.
    pub server: NbdServerAddress,
    /// Name of the export.
    pub export: String,
}

/// Address of an NBD server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdServerAddress {
    /// Host and port.
    Tcp(HostPort),
    /// Unix socket.
    Unix(PathBuf),
}

/// Address of a file on a web server, without encryption.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HttpAddress {
    /// Address of the server.
    pub server: HostPort,
    /// Path with the query, which begins with a slash.
    pub path: String,
}

/// Host and TCP port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// Name or address; an IPv6 address without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl HostPort {
    fn parse(text: &str, default: u16) -> Result<Self, String> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']').ok_or("an IPv6 address lacks its `]`")?;
                (host, rest.strip_prefix(':'))
            }
            None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
        };
        let port = match port {
            Some(port) => port.parse().map_err(|_| format!("{port:?} is not a port"))?,
            None => default,
        };
        if host.is_empty() || port == 0 {
            return Err(format!("{text:?} is not HOST or HOST:PORT"));
        }
        Ok(Self { host: host.into(), port })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Checks that an address has only characters that may be sent to a server as they are.
fn check_address(text: &str) -> Result<(), String> {
    if text.len() > MAX_ADDRESS_BYTES {
        return Err(format!("the address has more than {MAX_ADDRESS_BYTES} bytes"));
    }
    match text.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(()),
        false => Err("the address has other characters than printable ASCII without spaces".into()),
    }
}

impl TryFrom<String> for NbdAddress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        check_address(&text)?;
        if let Some(rest) = text.strip_prefix("nbd+unix:///") {
            let (export, socket) = rest.split_once("?socket=").ok_or_else(|| {
                format!("{text:?} has no socket; give nbd+unix:///EXPORT?socket=PATH")
            })?;
            if !socket.starts_with('/') {
                return Err(format!("the socket of {text:?} is not an absolute path"));
            }
            let server = NbdServerAddress::Unix(socket.into());
            return Ok(Self { server, export: export.into() });
        }
        let rest = text.strip_prefix("nbd://").ok_or_else(|| {
            format!("{text:?} is neither nbd://HOST:PORT/EXPORT nor nbd+unix:///EXPORT?socket=PATH")
        })?;
        let (server, export) = rest.split_once('/').unwrap_or((rest, ""));
        let server = NbdServerAddress::Tcp(HostPort::parse(server, 10809)?);
        Ok(Self { server, export: export.into() })
    }
}

impl fmt::Display for NbdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server, export } = self;
        match server {
            NbdServerAddress::Tcp(server) => write!(f, "nbd://{server}/{export}"),
            NbdServerAddress::Unix(path) => {
                write!(f, "nbd+unix:///{export}?socket={}", path.display())
            }
        }
    }
}

impl From<NbdAddress> for String {
    fn from(address: NbdAddress) -> Self {
        address.to_string()
    }
}

impl TryFrom<String> for HttpAddress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        check_address(&text)?;
        if text.starts_with("https://") {
            let problem = "a golden image is fetched without encryption: give an http:// address \
                           of a network that you trust, or mount the image and give its file";
            return Err(problem.into());
        }
        let rest = text
            .strip_prefix("http://")
            .ok_or_else(|| format!("{text:?} is not http://HOST:PORT/PATH"))?;
        let (server, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if server.contains('@') {
            return Err("the address has a user or a password, which would not be sent".into());
        }
        let path = if path.is_empty() { "/" } else { path };
        Ok(Self { server: HostPort::parse(server, 80)?, path: path.into() })
    }
}

impl fmt::Display for HttpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.server, self.path)
    }
}

impl From<HttpAddress> for String {
    fn from(address: HttpAddress) -> Self {
        address.to_string()
    }
}

impl fmt::Display for GoldenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Nbd(address) => address.fmt(f),
            Self::Http(address) => address.fmt(f),
        }
    }
}

/// Checks that an identity is one that Ringway makes, or a digest.
pub(crate) fn check_identity(identity: &str) -> Result<(), String> {
    if let Some(digest) = identity.strip_prefix(DIGEST_PREFIX) {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        return match digest.len() == 64 && digest.bytes().all(is_digit) {
            true => Ok(()),
            false => Err(format!(
                "the identity of the golden image is not {DIGEST_PREFIX} with 64 digits of 0-9 and \
                 a-f; give what `sha256sum` prints"
            )),
        };
    }
    let is_plain = identity.bytes().all(|byte| byte.is_ascii_graphic());
    match !identity.is_empty() && identity.len() <= MAX_IDENTITY_BYTES && is_plain {
        true => Ok(()),
        false => {
            Err("the identity of the golden image is neither one that `ringway golden status` \
                      shows nor a digest"
                .into())
        }
    }
}

impl GoldenImage {
    /// Checks that every value is in its range.
    pub(super) fn validate(&self, block_size: u64) -> Result<(), SpecError> {
        if self.cache.as_os_str().is_empty() {
            return refuse("backend", "the cache of the golden image is empty; give a directory");
        }
        if matches!(&self.source, GoldenSource::File(path) if path.as_os_str().is_empty()) {
            return refuse("backend", "the source of the golden image is empty; give a file");
        }
        if let Some(identity) = &self.identity {
            check_identity(identity).or_else(|problem| refuse("backend", problem))?;
        }
        let least = MIN_GOLDEN_RAM_BYTES;
        for (name, value) in [("ram", self.ram), ("cache_size", self.cache_size)] {
            if value.is_some_and(|value| value < least) {
                return refuse(
                    "backend",
                    format!("{name} of the golden image is less than {least} bytes; give more"),
                );
            }
        }
        if self.rate.is_some_and(|rate| rate < MIN_GOLDEN_RATE) {
            let problem = "rate of the golden image is less than 65536 bytes a second; give more";
            return refuse("backend", problem);
        }
        match self.size {
            Some(size) if size == 0 || size > MAX_GOLDEN_BYTES || size % block_size != 0 => refuse(
                "backend",
                format!(
                    "size of the golden image, {size}, is not a multiple of {block_size} in 1 to \
                     {MAX_GOLDEN_BYTES}"
                ),
            ),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::{Backend, DiskSpec};
    use super::*;

    fn parse(golden: Value) -> Result<Backend, String> {
        let wire = json!({ "golden": golden });
        let backend: Backend = serde_json::from_value(wire.clone()).map_err(|e| e.to_string())?;
        assert_eq!(serde_json::to_value(&backend).unwrap(), wire);
        let spec = DiskSpec { read_only: true, ..DiskSpec::new("d", "/s", backend.clone()) };
        spec.validate().map_err(|error| error.to_string())?;
        Ok(backend)
    }

    #[test]
    fn sources_keep_their_addresses() {
        for source in [
            json!({"file": "/img/gold.raw"}),
            json!({"nbd": "nbd://pvs1:10809/win10"}),
            json!({"nbd": "nbd://[fd00::1]:10809/"}),
            json!({"nbd": "nbd+unix:///gold?socket=/run/nbd.sock"}),
            json!({"http": "http://store:8080/gold.raw?v=3"}),
        ] {
            parse(json!({"source": source, "cache": "/var/cache/ringway"})).unwrap();
        }
        let default = NbdAddress::try_from("nbd://host".to_owned()).unwrap();
        assert_eq!(default.to_string(), "nbd://host:10809/");
    }

    #[test]
    fn hostile_values_are_refused_with_the_reason() {
        let file = || json!({"file": "/a"});
        for (golden, reason) in [
            (json!({"source": {"nbd": "host:1"}, "cache": "/c"}), "is neither nbd://"),
            (json!({"source": {"nbd": "nbd+unix:///e"}, "cache": "/c"}), "has no socket"),
            (json!({"source": {"nbd": "nbd://h:99999/e"}, "cache": "/c"}), "is not a port"),
            (json!({"source": {"nbd": "nbd://:1/e"}, "cache": "/c"}), "is not HOST"),
            (json!({"source": {"http": "https://h/a"}, "cache": "/c"}), "without encryption"),
            (json!({"source": {"http": "http://h/a b"}, "cache": "/c"}), "other characters"),
            (json!({"source": {"http": "http://h/a\r\nX: 1"}, "cache": "/c"}), "other characters"),
            (json!({"source": {"http": "http://u:p@h/a"}, "cache": "/c"}), "a user or a password"),
            (json!({"source": {"tape": "a"}, "cache": "/c"}), "unknown variant"),
            (json!({"source": file(), "cache": ""}), "give a directory"),
            (json!({"source": {"file": ""}, "cache": "/c"}), "give a file"),
            (json!({"source": file(), "cache": "/c", "ram": 0}), "ram of the golden image"),
            (json!({"source": file(), "cache": "/c", "cache_size": 1}), "cache_size of the golden"),
            (json!({"source": file(), "cache": "/c", "rate": 1}), "rate of the golden image"),
            (json!({"source": file(), "cache": "/c", "size": 100}), "size of the golden image"),
            (json!({"source": file(), "cache": "/c", "identity": "a b"}), "the identity"),
            (
                json!({"source": file(), "cache": "/c", "identity": "sha256:ab"}),
                "`sha256sum` prints",
            ),
            (json!({"source": file(), "cache": "/c", "colour": 1}), "unknown field"),
        ] {
            let error = parse(golden).unwrap_err();
            assert!(error.contains(reason), "{error} lacks {reason}");
        }
    }

    #[test]
    fn a_golden_disk_is_read_only_unless_something_is_above_it() {
        let golden = json!({"golden": {"source": {"file": "/a"}, "cache": "/c"}});
        let backend: Backend = serde_json::from_value(golden.clone()).unwrap();
        let error = DiskSpec::new("d", "/s", backend).validate().unwrap_err().to_string();
        assert!(error.contains("put a qcow2"), "{error}");
        let above = json!({"qcow2": {"file": "/q", "backing": golden}});
        let backend: Backend = serde_json::from_value(above).unwrap();
        DiskSpec::new("d", "/s", backend.clone()).validate().unwrap();
        assert_eq!(backend.files().count(), 1);
    }
}
