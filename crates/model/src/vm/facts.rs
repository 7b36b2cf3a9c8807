//! What a gate reads of a machine.

use std::collections::BTreeMap;

use super::{PowerState, VmOp};

/// Said, denied, or not said yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tristate {
    /// Said.
    Yes,
    /// Denied.
    No,
    /// Not known.
    #[default]
    Unknown,
}

impl Tristate {
    /// All three.
    pub const ALL: [Self; 3] = [Self::Yes, Self::No, Self::Unknown];
}

/// What the guest has said that it can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuestFeatures {
    /// It uses paravirtual devices. Such a guest is taken to be able to do all of the rest that it
    /// has not denied.
    pub drivers: Tristate,
    /// It shuts down and reboots when asked.
    pub shutdown: Tristate,
    /// It takes and gives back disks while it runs.
    pub hotplug_vbd: Tristate,
    /// It takes and gives back network interfaces while it runs.
    pub hotplug_vif: Tristate,
}

/// How much a guest must have said before it is asked for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// It must have said that it can: what is advertised works.
    Strict,
    /// It must not have denied it: what is called is tried, for a guest that has just been started
    /// has not said anything yet.
    Lenient,
}

/// Everything that a gate reads of one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmFacts {
    /// Whether it runs.
    pub power: PowerState,
    /// It is a template. Snapshots are templates too.
    pub is_template: bool,
    /// It is a template that came with the host.
    pub is_default_template: bool,
    /// It is a snapshot.
    pub is_snapshot: bool,
    /// It is the control domain.
    pub is_control_domain: bool,
    /// Operations under way.
    pub current: Vec<VmOp>,
    /// Operations that somebody has blocked, each with the reason given.
    pub blocked: BTreeMap<VmOp, String>,
    /// What the guest has said.
    pub guest: GuestFeatures,
}

impl VmFacts {
    /// An ordinary machine in this state, of whose guest nothing is known.
    pub fn new(power: PowerState) -> Self {
        Self {
            power,
            is_template: false,
            is_default_template: false,
            is_snapshot: false,
            is_control_domain: false,
            current: Vec::new(),
            blocked: BTreeMap::new(),
            guest: GuestFeatures::default(),
        }
    }
}
