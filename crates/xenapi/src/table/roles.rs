//! Roles of the API. Each role may do everything that the previous one may.

use std::fmt;
use std::str::FromStr;

/// Role of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Reads, and cancels the user's own tasks.
    ReadOnly,
    /// Starts and stops VMs, changes CDs, uses consoles.
    VmOperator,
    /// Creates, changes and destroys VMs and their devices.
    VmAdmin,
    /// Places, moves and snapshots VMs, and sets their memory.
    VmPowerAdmin,
    /// Manages hosts, storage and networks.
    PoolOperator,
    /// Everything.
    PoolAdmin,
}

impl Role {
    /// All roles, from the least to the most powerful.
    pub const ALL: [Self; 6] = [
        Self::ReadOnly,
        Self::VmOperator,
        Self::VmAdmin,
        Self::VmPowerAdmin,
        Self::PoolOperator,
        Self::PoolAdmin,
    ];

    /// Returns the name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReadOnly => "read-only",
            Self::VmOperator => "vm-operator",
            Self::VmAdmin => "vm-admin",
            Self::VmPowerAdmin => "vm-power-admin",
            Self::PoolOperator => "pool-operator",
            Self::PoolAdmin => "pool-admin",
        }
    }

    /// Returns the purpose in a sentence.
    pub fn description(self) -> &'static str {
        match self {
            Self::ReadOnly => "May log in and look at everything",
            Self::VmOperator => "May start and stop machines and use their consoles",
            Self::VmAdmin => "May create, change and destroy machines",
            Self::VmPowerAdmin => "May place, move and snapshot machines and size their memory",
            Self::PoolOperator => "May manage hosts, storage and networks",
            Self::PoolAdmin => "May do everything, also manage users and their roles",
        }
    }

    /// Returns the UUID of the role's record. It is the same in every pool, so that scripts may use
    /// it.
    pub fn uuid(self) -> &'static str {
        match self {
            Self::ReadOnly => "7233b8e3-eacb-d7da-2c95-f2e581cdbf4e",
            Self::VmOperator => "fb8d4ff9-310c-a959-0613-54101535d3d5",
            Self::VmAdmin => "aaa00ab5-7340-bfbc-0d1b-7cf342639a6e",
            Self::VmPowerAdmin => "7955168d-7bec-10ed-105f-c6a7e6e63249",
            Self::PoolOperator => "b9ce9791-0604-50cd-0649-09b3284c7dfd",
            Self::PoolAdmin => "0165f154-ba3e-034e-6b27-5d271af109ba",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error of text that names no role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no role; there are {names}", names = Role::ALL.map(Role::name).join(", "))]
pub struct NoRole(pub String);

impl FromStr for Role {
    type Err = NoRole;

    fn from_str(text: &str) -> Result<Self, NoRole> {
        let found = Self::ALL.into_iter().find(|role| role.name() == text);
        found.ok_or_else(|| NoRole(text.chars().take(64).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_role_may_more_than_the_one_before_it() {
        assert!(Role::ALL.is_sorted());
        assert!(Role::PoolAdmin > Role::VmPowerAdmin && Role::VmPowerAdmin > Role::VmAdmin);
    }

    #[test]
    fn a_name_is_read_back() {
        for role in Role::ALL {
            assert_eq!(role.to_string().parse(), Ok(role));
        }
        let error = "root".parse::<Role>().unwrap_err().to_string();
        assert!(
            error.starts_with("`root` is no role; there are read-only, vm-operator"),
            "{error}"
        );
    }

    #[test]
    fn each_has_a_uuid_of_its_own() {
        let uuids: std::collections::BTreeSet<_> = Role::ALL.map(Role::uuid).into();
        assert_eq!(uuids.len(), Role::ALL.len());
        assert!(uuids.iter().all(|uuid| uuid.len() == 36));
    }
}
