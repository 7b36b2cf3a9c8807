//! Specification of an NBD export.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::spec::{SpecError, validate_id, validate_socket};

/// Default number of connections that one export accepts at a time, as QEMU's NBD server has it:
/// bursts of clients are served, also beside clients that stay connected and do nothing.
pub const DEFAULT_CONNECTIONS: u16 = 100;
/// Maximum number of connections of one export: each may use some megabytes.
pub const MAX_CONNECTIONS: u16 = 256;

/// A disk offered over NBD on a Unix socket: the parameters of `disk.export`. The export's name is
/// the disk's id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportSpec {
    /// Id of the disk.
    pub id: String,
    /// Unix socket to listen on.
    pub socket: PathBuf,
    /// Whether writes are refused. A writable export needs an inactive disk, and holds its lock.
    #[serde(default)]
    pub read_only: bool,
    /// Maximum number of connections at a time; further ones are closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<u16>,
    /// Permission bits of the socket, for example 0o660.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_mode: Option<u32>,
    /// Group that owns the socket, by name or number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket_group: Option<String>,
}

impl ExportSpec {
    /// Creates a read-only export with default values.
    pub fn new(id: impl Into<String>, socket: impl Into<PathBuf>) -> Self {
        Self {
            id: id.into(),
            socket: socket.into(),
            read_only: true,
            connections: None,
            socket_mode: None,
            socket_group: None,
        }
    }

    /// Returns the maximum number of connections at a time.
    pub fn limit(&self) -> u16 {
        self.connections.unwrap_or(DEFAULT_CONNECTIONS)
    }

    /// Returns the URI of the export for NBD clients.
    pub fn uri(&self) -> String {
        let mut uri = format!("nbd+unix:///{}?socket=", self.id);
        for byte in self.socket.as_os_str().as_encoded_bytes() {
            match byte {
                b'/' | b'.' | b'-' | b'_' | b'~' => uri.push(char::from(*byte)),
                byte if byte.is_ascii_alphanumeric() => uri.push(char::from(*byte)),
                byte => uri.push_str(&format!("%{byte:02X}")),
            }
        }
        uri
    }

    /// Checks the fields without accessing the host.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn validate(&self) -> Result<(), SpecError> {
        validate_id(&self.id)?;
        validate_socket(&self.socket, self.socket_mode)?;
        if self.connections.is_some_and(|count| count == 0 || count > MAX_CONNECTIONS) {
            let problem = format!("{} is not in 1 to {MAX_CONNECTIONS}", self.limit());
            return Err(SpecError { field: "connections", problem });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wire_form_has_defaults_and_limits() {
        let text = r#"{"id":"d1","socket":"/run/x/d1.nbd","read_only":true}"#;
        let spec: ExportSpec = serde_json::from_str(text).unwrap();
        assert_eq!(spec, ExportSpec::new("d1", "/run/x/d1.nbd"));
        assert_eq!((spec.limit(), spec.validate()), (DEFAULT_CONNECTIONS, Ok(())));
        assert_eq!(serde_json::to_string(&spec).unwrap(), text);
        for (text, field) in [
            (r#"{"id":"","socket":"/s"}"#, "id"),
            (r#"{"id":"a","socket":""}"#, "socket"),
            (r#"{"id":"a","socket":"/s","socket_mode":512}"#, "socket_mode"),
            (r#"{"id":"a","socket":"/s","connections":0}"#, "connections"),
            (r#"{"id":"a","socket":"/s","connections":257}"#, "connections"),
        ] {
            let spec: ExportSpec = serde_json::from_str(text).unwrap();
            assert_eq!(spec.validate().unwrap_err().field, field, "{text}");
        }
        let spaced = ExportSpec::new("d1", "/run/a b&c.nbd");
        assert_eq!(spaced.uri(), "nbd+unix:///d1?socket=/run/a%20b%26c.nbd");
        assert!(serde_json::from_str::<ExportSpec>(r#"{"id":"a","socket":"/s","x":1}"#).is_err());
    }
}
