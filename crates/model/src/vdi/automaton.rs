//! States of a volume, and the transitions between them.
//!
//! ```text
//!               attach(access)                activate
//!   +----------+ -----------> +------------------+ --------> +-------------------+
//!   | Detached |              | Attached(access) |           | Activated(access) |
//!   +----------+ <----------- +------------------+ <-------- +-------------------+
//!                  detach                         deactivate
//! ```
//! *Attached*: the data can be reached, without a lock. *Activated*: the data may be read and
//! written, with a lock. An operation whose goal is reached does nothing. A volume attached for
//! writing stays so if it is attached for reading. A volume attached for reading must be detached
//! before it can be attached for writing.

use std::fmt;

use crate::wire_names::named;

named! {
    /// Access mode of a volume.
    Access {
        /// Reading.
        Ro = "RO",
        /// Reading and writing.
        Rw = "RW",
    }
}

/// State of a volume, for one user or for all users together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VolumeState {
    /// The data cannot be reached.
    #[default]
    Detached,
    /// The data can be reached.
    Attached(Access),
    /// The volume is in use.
    Activated(Access),
}

impl VolumeState {
    /// All states.
    pub const ALL: [Self; 5] = [
        Self::Detached,
        Self::Attached(Access::Ro),
        Self::Attached(Access::Rw),
        Self::Activated(Access::Ro),
        Self::Activated(Access::Rw),
    ];

    /// Returns the access mode, unless the volume is detached.
    pub fn access(self) -> Option<Access> {
        match self {
            Self::Detached => None,
            Self::Attached(access) | Self::Activated(access) => Some(access),
        }
    }
}

impl fmt::Display for VolumeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Detached => f.write_str("detached"),
            Self::Attached(access) => write!(f, "attached {}", access.name()),
            Self::Activated(access) => write!(f, "activated {}", access.name()),
        }
    }
}

/// Operation on a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VolumeOp {
    /// Make the data reachable.
    Attach(Access),
    /// Begin to use it.
    Activate,
    /// Stop using it.
    Deactivate,
    /// Make the data unreachable.
    Detach,
}

impl VolumeOp {
    /// All operations.
    pub const ALL: [Self; 5] = [
        Self::Attach(Access::Ro),
        Self::Attach(Access::Rw),
        Self::Activate,
        Self::Deactivate,
        Self::Detach,
    ];
}

impl fmt::Display for VolumeOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attach(access) => write!(f, "attach {}", access.name()),
            Self::Activate => f.write_str("activate"),
            Self::Deactivate => f.write_str("deactivate"),
            Self::Detach => f.write_str("detach"),
        }
    }
}

/// An operation that is not permitted in this state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{op} is not possible for a volume that is {state}")]
pub struct IllegalTransition {
    /// The state.
    pub state: VolumeState,
    /// The operation.
    pub op: VolumeOp,
}

/// Returns the state after `op`.
///
/// # Errors
/// Activate when detached, detach when activated, and attach for writing when attached for
/// reading.
pub fn apply(state: VolumeState, op: VolumeOp) -> Result<VolumeState, IllegalTransition> {
    use VolumeState::{Activated, Attached, Detached};
    let reached = match (state, op) {
        (Detached, VolumeOp::Attach(access)) => Attached(access),
        (Attached(has) | Activated(has), VolumeOp::Attach(wants)) if wants <= has => state,
        (Detached, VolumeOp::Deactivate | VolumeOp::Detach) => Detached,
        (Attached(access) | Activated(access), VolumeOp::Activate) => Activated(access),
        (Attached(access) | Activated(access), VolumeOp::Deactivate) => Attached(access),
        (Attached(_), VolumeOp::Detach) => Detached,
        (Detached, VolumeOp::Activate)
        | (Attached(_) | Activated(_), VolumeOp::Attach(_))
        | (Activated(_), VolumeOp::Detach) => return Err(IllegalTransition { state, op }),
    };
    Ok(reached)
}

/// Returns the shortest path from one state to another: operations in order, each with the state to
/// record if it fails. A change of access mode passes through detached.
pub fn steps(from: VolumeState, to: VolumeState) -> Vec<(VolumeOp, VolumeState)> {
    let mut way = Vec::new();
    let mut state = from;
    // Each iteration applies one legal operation; the longest path has four.
    while let Some(op) = toward(state, to) {
        way.push((op, state));
        match apply(state, op) {
            Ok(reached) => state = reached,
            Err(_) => break,
        }
    }
    way
}

/// Returns the next operation on the path; `None` at its end.
fn toward(state: VolumeState, to: VolumeState) -> Option<VolumeOp> {
    use VolumeState::{Activated, Attached, Detached};
    match (state, to) {
        (Detached, Detached) => None,
        (Detached, Attached(access) | Activated(access)) => Some(VolumeOp::Attach(access)),
        (Attached(has), Attached(wants)) if has == wants => None,
        (Activated(has), Activated(wants)) if has == wants => None,
        (Attached(has), Activated(wants)) if has == wants => Some(VolumeOp::Activate),
        (Attached(_), _) => Some(VolumeOp::Detach),
        (Activated(_), _) => Some(VolumeOp::Deactivate),
    }
}

/// Returns the overall state of a volume with these states for its users: the highest state, with
/// write access if any user has it.
pub fn superstate<'a>(all: impl IntoIterator<Item = &'a VolumeState>) -> VolumeState {
    all.into_iter().copied().fold(VolumeState::Detached, |one, other| {
        let Some(access) = one.access().max(other.access()) else { return VolumeState::Detached };
        let active = [one, other].iter().any(|each| matches!(each, VolumeState::Activated(_)));
        if active { VolumeState::Activated(access) } else { VolumeState::Attached(access) }
    })
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, VecDeque};

    use VolumeState::{Activated, Attached, Detached};

    use super::*;

    const RO: Access = Access::Ro;
    const RW: Access = Access::Rw;

    /// Tests the whole table: a row a state, a column an operation in the order of
    /// [`VolumeOp::ALL`].
    #[test]
    fn each_operation_in_each_state() {
        type Row = [Option<VolumeState>; 5];
        let table: [Row; 5] = [
            [Some(Attached(RO)), Some(Attached(RW)), None, Some(Detached), Some(Detached)],
            [Some(Attached(RO)), None, Some(Activated(RO)), Some(Attached(RO)), Some(Detached)],
            [
                Some(Attached(RW)),
                Some(Attached(RW)),
                Some(Activated(RW)),
                Some(Attached(RW)),
                Some(Detached),
            ],
            [Some(Activated(RO)), None, Some(Activated(RO)), Some(Attached(RO)), None],
            [
                Some(Activated(RW)),
                Some(Activated(RW)),
                Some(Activated(RW)),
                Some(Attached(RW)),
                None,
            ],
        ];
        for (state, row) in VolumeState::ALL.into_iter().zip(table) {
            for (op, expected) in VolumeOp::ALL.into_iter().zip(row) {
                assert_eq!(apply(state, op), expected.ok_or(IllegalTransition { state, op }));
            }
        }
        let error = apply(Activated(RW), VolumeOp::Detach).unwrap_err().to_string();
        assert_eq!(error, "detach is not possible for a volume that is activated RW");
    }

    /// Returns the length of the shortest path, found by search.
    fn distance(from: VolumeState, to: VolumeState) -> usize {
        let mut far = BTreeMap::from([(from, 0)]);
        let mut next = VecDeque::from([from]);
        while let Some(state) = next.pop_front() {
            for reached in VolumeOp::ALL.into_iter().filter_map(|op| apply(state, op).ok()) {
                if !far.contains_key(&reached) {
                    far.insert(reached, far[&state] + 1);
                    next.push_back(reached);
                }
            }
        }
        far[&to]
    }

    #[test]
    fn each_way_arrives_is_legal_and_has_no_detour() {
        for from in VolumeState::ALL {
            for to in VolumeState::ALL {
                let way = steps(from, to);
                let mut state = from;
                for (op, if_failed) in &way {
                    assert_eq!(*if_failed, state, "{from} to {to}");
                    state = apply(state, *op).unwrap();
                }
                assert_eq!(state, to);
                assert_eq!(way.len(), distance(from, to), "{from} to {to}: {way:?}");
            }
        }
        let way = steps(Activated(RO), Activated(RW));
        assert_eq!(way.len(), 4);
        assert_eq!(way[2], (VolumeOp::Attach(RW), Detached));
    }

    #[test]
    fn a_volume_is_what_its_busiest_users_make_it() {
        assert_eq!(superstate([]), Detached);
        for one in VolumeState::ALL {
            assert_eq!(superstate([&one]), one);
            assert_eq!(superstate([&one, &Detached, &one]), one);
            for other in VolumeState::ALL {
                let both = superstate([&one, &other]);
                assert_eq!(both, superstate([&other, &one]));
                assert_eq!(both.access(), one.access().max(other.access()));
                let active = |state| matches!(state, Activated(_));
                assert_eq!(active(both), active(one) || active(other));
                for third in VolumeState::ALL {
                    assert_eq!(superstate([&both, &third]), superstate([&one, &other, &third]));
                }
            }
        }
        assert_eq!(superstate([&Activated(RO), &Attached(RW)]), Activated(RW));
    }
}
