//! Error of an interrupted run.

use std::fmt;

/// Error of a run that a signal interrupted. Such a run has no results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted; nothing was written")
    }
}

impl std::error::Error for Interrupted {}
