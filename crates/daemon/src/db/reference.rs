//! References.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use model::id::Uuid;
use xenapi::{NULL_REF, Value};

/// What a record is called on the wire: `OpaqueRef:` and a UUID that means nothing else.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ref(Arc<str>);

impl Ref {
    /// A new one.
    pub fn of(uuid: Uuid) -> Self {
        Self(format!("OpaqueRef:{uuid}").into())
    }

    /// Of what a client has written, in which case does not count, to be compared with others; of
    /// the one that names nothing it makes one that is none.
    pub fn written(text: &str) -> Self {
        let lower = text.to_ascii_lowercase();
        match lower.strip_prefix("opaqueref:") {
            Some(uuid) => Self(format!("OpaqueRef:{uuid}").into()),
            None => Self(lower.into()),
        }
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// It names nothing.
    pub fn is_null(&self) -> bool {
        self.as_str() == NULL_REF
    }

    /// As a field or a result holds it.
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
