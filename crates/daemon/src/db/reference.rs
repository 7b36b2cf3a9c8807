//! Object references.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use model::id::Uuid;
use xenapi::{NULL_REF, Value};

/// Reference of a record in the API: `OpaqueRef:` and a random UUID.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ref(Arc<str>);

impl Ref {
    /// Creates a reference from a UUID.
    pub fn of(uuid: Uuid) -> Self {
        Self(format!("OpaqueRef:{uuid}").into())
    }

    /// Creates a reference from a client's text for comparisons. Case does not matter. The null
    /// reference becomes a reference that names nothing.
    pub fn written(text: &str) -> Self {
        let lower = text.to_ascii_lowercase();
        match lower.strip_prefix("opaqueref:") {
            Some(uuid) => Self(format!("OpaqueRef:{uuid}").into()),
            None => Self(lower.into()),
        }
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether this is the null reference.
    pub fn is_null(&self) -> bool {
        self.as_str() == NULL_REF
    }

    /// Converts the reference to a field or result value.
    pub fn value(&self) -> Value {
        Value::text(self.as_str())
    }
}

impl From<&str> for Ref {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl Borrow<str> for Ref {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for Ref {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Ref {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
