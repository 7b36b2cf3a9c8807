//! Requirements that some hosts do not meet. Without them a test fails, unless an environment
//! variable says that the lack is known. Then the test is left out.

use std::io::Write as _;

use crate::error::{Error, Result};

/// A requirement of a test that some hosts cannot meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostRequirement {
    /// A block device that can be made to stall: the controller io or blkio of control groups.
    Stalling,
    /// Control groups with the CPU controller, and the right to create them.
    Groups,
}

impl HostRequirement {
    /// Returns the environment variable that, set to 1, says that the lack is known.
    #[must_use]
    pub fn variable(self) -> &'static str {
        match self {
            Self::Stalling => "RINGWAY_NO_BLKIO",
            Self::Groups => "RINGWAY_NO_CGROUPS",
        }
    }

    /// Handles a requirement that the host does not meet, for the reason `why`. If the variable
    /// allows it, returns and reports on standard error that the test is left out.
    ///
    /// # Errors
    /// [`Error::Absent`]: the variable is not set to 1.
    pub fn leave_out(self, why: &str) -> Result<()> {
        let variable = self.variable();
        if std::env::var_os(variable).is_some_and(|value| value == "1") {
            let text = "skipped, as the environment allows; this run does not test it";
            let _ = writeln!(std::io::stderr(), "{text} ({variable}): {why}");
            return Ok(());
        }
        Err(Error::Absent { why: why.to_owned(), variable })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_has_allowed_is_an_error_that_names_the_variable() {
        for host_requirement in [HostRequirement::Stalling, HostRequirement::Groups] {
            if std::env::var_os(host_requirement.variable()).is_some_and(|value| value == "1") {
                host_requirement.leave_out("it is away").unwrap();
                continue;
            }
            let error = host_requirement.leave_out("it is away").unwrap_err().to_string();
            assert!(error.starts_with("it is away; "), "{error}");
            assert!(
                error.contains(&format!("{}=1 leaves", host_requirement.variable())),
                "{error}"
            );
        }
    }
}
