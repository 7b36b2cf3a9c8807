//! Error responses of the API.

use std::borrow::Cow;
use std::fmt;

use crate::value::Value;
use crate::xmlrpc;

/// Error as clients see it: `[code, params..]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// Code, for example `VM_BAD_POWER_STATE`.
    pub code: Cow<'static, str>,
    /// Parameters, in the order that the code defines.
    pub params: Vec<String>,
}

impl ApiError {
    /// Creates an error with this code.
    pub fn new(
        code: impl Into<Cow<'static, str>>,
        params: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Self { code: code.into(), params: params.into_iter().map(Into::into).collect() }
    }

    /// Returns the code followed by the parameters: `ErrorDescription` on the wire.
    pub fn details(&self) -> Vec<String> {
        let code = self.code.clone().into_owned();
        std::iter::once(code).chain(self.params.iter().cloned()).collect()
    }

    /// Parses the value of [`details`](Self::details) as a server sends it.
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

/// Reason why a body is invalid. The API has no response for it. A server sends
/// [`page`](Self::page) with status 500 and closes the connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadBody {
    /// The body is longer than the limit.
    #[error("the body is longer than {limit} bytes: send less at once")]
    TooLarge {
        /// Longest body in bytes.
        limit: usize,
    },
    /// The body violates its encoding, or exceeds a limit on its contents.
    #[error("the body cannot be read: {0}")]
    Malformed(String),
    /// The encoding is correct, but the body is neither a call nor a response.
    #[error("the body is not a valid message: {0}")]
    Unfit(String),
}

/// Longest reason in a [`BadBody`], in characters. Parser errors quote their input.
const WHY_CHARS_MAX: usize = 256;

impl BadBody {
    /// Creates [`BadBody::Malformed`] with this reason, truncated if too long.
    pub(crate) fn malformed(why: impl fmt::Display) -> Self {
        Self::Malformed(why.to_string().chars().take(WHY_CHARS_MAX).collect())
    }

    /// Returns an HTML page with the error.
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
