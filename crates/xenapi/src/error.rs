//! What the API answers instead of a result.

use std::borrow::Cow;
use std::fmt;

use crate::value::Value;
use crate::xmlrpc;

/// A failure as clients see it: `[code, params..]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// For example `VM_BAD_POWER_STATE`.
    pub code: Cow<'static, str>,
    /// What it is about, in the order that the code has.
    pub params: Vec<String>,
}

impl ApiError {
    /// A failure with this code.
    pub fn new(
        code: impl Into<Cow<'static, str>>,
        params: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Self { code: code.into(), params: params.into_iter().map(Into::into).collect() }
    }

    /// The code, then the parameters: `ErrorDescription` on the wire.
    pub fn details(&self) -> Vec<String> {
        let code = self.code.clone().into_owned();
        std::iter::once(code).chain(self.params.iter().cloned()).collect()
    }

    /// Of what [`details`](Self::details) tells, as it comes from a server.
    pub(crate) fn of_details(details: Value) -> Option<Self> {
        let Value::Set(details) = details else { return None };
        let mut texts = details.into_iter().map(|detail| match detail {
            Value::Str(text) => Some(text),
            _ => None,
        });
        let code = texts.next()??;
        Some(Self { code: code.into(), params: texts.collect::<Option<_>>()? })
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.code)?;
        self.params.iter().try_for_each(|param| write!(f, ", {param}"))
    }
}

impl std::error::Error for ApiError {}

/// Why a body is not what it should be. It has no answer in the API: a server sends
/// [`page`](Self::page) with the status 500 and closes the connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadBody {
    /// It is longer than the limit.
    #[error("the body is longer than {limit} bytes: send less at once")]
    TooLarge {
        /// Longest body, in bytes.
        limit: usize,
    },
    /// It is not in its encoding, or past a limit of what it may hold.
    #[error("the body cannot be read: {0}")]
    Malformed(String),
    /// It is in its encoding, but neither a call nor an answer.
    #[error("the body is not what belongs here: {0}")]
    Unfit(String),
}

/// Longest reason that a [`BadBody`] tells, in characters: libraries repeat what they found.
const WHY_CHARS_MAX: usize = 256;

impl BadBody {
    /// Not in its encoding, for this reason; a long one is cut.
    pub(crate) fn malformed(why: impl fmt::Display) -> Self {
        Self::Malformed(why.to_string().chars().take(WHY_CHARS_MAX).collect())
    }

    /// The page that tells it, in HTML.
    pub fn page(&self) -> String {
        let why = xmlrpc::escaped(&self.to_string());
        format!("<html><body><h1>HTTP 500 internal server error</h1><p>{why}</p></body></html>")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_comes_first() {
        let error = ApiError::new("UUID_INVALID", ["VM", "x"]);
        assert_eq!(error.details(), ["UUID_INVALID", "VM", "x"]);
        assert_eq!(error.to_string(), "UUID_INVALID, VM, x");
        assert_eq!(ApiError::new("INTERNAL_ERROR", [""; 0]).details(), ["INTERNAL_ERROR"]);
    }

    #[test]
    fn a_page_is_safe_to_show() {
        let page = BadBody::Malformed("unknown element <script>&\"".into()).page();
        assert_eq!(
            page,
            "<html><body><h1>HTTP 500 internal server error</h1><p>the body cannot be read: \
             unknown element &lt;script&gt;&amp;\"</p></body></html>"
        );
    }
}
