//! Errors of a share.

/// Failure to use the state of a share, or a setting that it refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShareError {
    /// The memory is too small for the tables.
    #[error("the memory of a share has {cells} cells and needs {needed}: create it anew")]
    Small {
        /// Cells that there are.
        cells: usize,
        /// Cells that the tables need.
        needed: usize,
    },
    /// The memory has another layout.
    #[error(
        "the memory of a share has layout {found}, this version uses {expected}: create it anew"
    )]
    Layout {
        /// Layout found.
        found: u64,
        /// Layout of this version.
        expected: u64,
    },
    /// No profile was given, and none is stored.
    #[error("the storage has no profile: calibrate it")]
    NoProfile,
    /// A number of a profile is outside of its range.
    #[error(
        "the profile's {field} is {value}, allowed are {low} to {high}: calibrate the storage anew"
    )]
    Profile {
        /// Name of the number.
        field: &'static str,
        /// Value found.
        value: u64,
        /// Lowest value.
        low: u64,
        /// Highest value.
        high: u64,
    },
    /// The samples of a calibration do not suffice for a profile.
    #[error("the calibration has no usable sample of {0}: run it to its end")]
    Samples(&'static str),
    /// A weight is outside of its range.
    #[error("a weight of {0} is not possible, allowed are 1 to 1000, the default is 100")]
    Weight(u64),
    /// A table has no free slot.
    #[error("the share already has {limit} {what}: detach some")]
    TableFull {
        /// Content of the table.
        what: &'static str,
        /// Slots of the table.
        limit: usize,
    },
}
