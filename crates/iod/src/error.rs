//! Error texts for users and error codes for callers.

use std::error::Error;
use std::fmt::Write;

use model::rpc::{RpcError, code};

/// Formats an error and its causes in one line. A cause that the line already contains is not
/// repeated.
pub fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut line = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !line.contains(&cause_text) {
            // Writing to a string does not fail.
            let _ = write!(line, ": {cause_text}");
        }
        next = cause.source();
    }
    line
}

/// Returns the error of a valid call that the host could not carry out.
pub(crate) fn failed(error: impl Error + 'static) -> RpcError {
    RpcError { code: code::FAILED, message: error_chain(&error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{says}")]
    struct Link {
        says: &'static str,
        #[source]
        cause: Option<Box<Link>>,
    }

    #[test]
    fn causes_are_said_once() {
        let inner = Link { says: "no such file", cause: None };
        let polite = Link { says: "cannot open a", cause: Some(Box::new(inner)) };
        assert_eq!(error_chain(&polite), "cannot open a: no such file");
        let inner = Link { says: "no such file", cause: None };
        let chatty = Link { says: "cannot open a: no such file", cause: Some(Box::new(inner)) };
        assert_eq!(error_chain(&chatty), "cannot open a: no such file");
    }
}
