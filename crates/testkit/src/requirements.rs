//! What a host may lack. A test whose environment is missing fails; it is left out only where somebody
//! has said that this is known.

use crate::error::{Error, Result};

/// What a test needs of its host and some hosts cannot give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostRequirement {
    /// A block device that can be made to stall: the blkio controller of control groups, version 1.
    Stalling,
    /// Control groups of the CPU controller, and leave to make some.
    Groups,
}

impl HostRequirement {
    /// Set to 1 this variable of the environment says that the host's lack is known.
    #[must_use]
    pub fn variable(self) -> &'static str {
        match self {
            Self::Stalling => "RINGWAY_NO_BLKIO",
            Self::Groups => "RINGWAY_NO_CGROUPS",
        }
    }

    /// The host has it not, which was tried: `why`. Returns if what needs it may be left out, and says so
    /// on standard error.
    ///
    /// # Errors
    /// [`Error::Absent`]: nobody has said that it may be.
    pub fn leave_out(self, why: &str) -> Result<()> {
        let variable = self.variable();
        if std::env::var_os(variable).is_some_and(|value| value == "1") {
            eprintln!("left out, as {variable} allows, nothing here shows what it should: {why}");
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
