//! Text of an error with its causes in one line, for logs and users.
//!
//! # How to test
//! Errors with a source make the lines.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::error::Error;

/// Formats an error and its causes in one line: `error: cause: root cause`.
pub fn error_chain(error: &dyn Error) -> String {
    let mut line = error.to_string();
    sources(error).for_each(|cause| append(&mut line, &cause));
    line
}

/// Formats an error and its causes in one line. A cause that the line already contains is not
/// repeated.
pub fn distinct_error_chain(error: &dyn Error) -> String {
    let mut line = error.to_string();
    for cause in sources(error) {
        if !line.contains(&cause) {
            append(&mut line, &cause);
        }
    }
    line
}

/// Formats the causes of an error in one line, without the error itself. The result is `None` if
/// the error has no cause.
pub fn causes(error: &dyn Error) -> Option<String> {
    Some(error_chain(error.source()?))
}

/// Returns the texts of the causes of an error.
fn sources(error: &dyn Error) -> impl Iterator<Item = String> {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.map(ToString::to_string)
}

fn append(line: &mut String, cause: &str) {
    line.push_str(": ");
    line.push_str(cause);
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

    fn link(says: &'static str, cause: Link) -> Link {
        Link { says, cause: Some(Box::new(cause)) }
    }

    const ROOT: Link = Link { says: "no such file", cause: None };

    #[test]
    fn a_line_has_all_causes() {
        let error = link("not attached", link("cannot open a", ROOT));
        assert_eq!(error_chain(&error), "not attached: cannot open a: no such file");
        assert_eq!(causes(&error).unwrap(), "cannot open a: no such file");
        assert_eq!(error_chain(&ROOT), "no such file");
        assert_eq!(causes(&ROOT), None);
    }

    #[test]
    fn causes_are_said_once() {
        let polite = link("cannot open a", ROOT);
        assert_eq!(distinct_error_chain(&polite), "cannot open a: no such file");
        let chatty = link("cannot open a: no such file", ROOT);
        assert_eq!(distinct_error_chain(&chatty), "cannot open a: no such file");
        assert_eq!(error_chain(&chatty), "cannot open a: no such file: no such file");
    }
}
