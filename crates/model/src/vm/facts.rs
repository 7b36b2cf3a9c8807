//! Facts about a machine that its gate reads.

use std::collections::BTreeMap;

use super::{PowerState, VmOp};

/// Reported guest ability: present, absent or not reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tristate {
    /// The guest reports that it has the ability.
    Yes,
    /// The guest reports that it does not have the ability.
    No,
    /// The guest has not reported the ability.
    #[default]
    Unknown,
}

impl Tristate {
    /// All values.
    pub const ALL: [Self; 3] = [Self::Yes, Self::No, Self::Unknown];
}

/// Abilities that the guest has reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuestFeatures {
    /// Paravirtual drivers. A guest with such drivers is assumed to have all other abilities that
    /// it has not denied.
    pub drivers: Tristate,
    /// Shutdown and reboot on request.
    pub shutdown: Tristate,
    /// Plugging and unplugging of disks.
    pub hotplug_vbd: Tristate,
    /// Plugging and unplugging of network interfaces.
    pub hotplug_vif: Tristate,
}

/// Requirement on the guest's reported abilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// The guest must have reported the ability: advertised operations work.
    Strict,
    /// The guest must not have denied the ability. A call is tried, because a guest that has just
    /// started has reported nothing yet.
    Lenient,
}

/// Facts about one machine that its gate reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmFacts {
    /// Power state.
    pub power: PowerState,
    /// Whether it is a template. Snapshots are templates too.
    pub is_template: bool,
    /// Whether it is a template that came with the host.
    pub is_default_template: bool,
    /// Whether it is a snapshot.
    pub is_snapshot: bool,
    /// Whether it is the control domain.
    pub is_control_domain: bool,
    /// Running operations.
    pub current: Vec<VmOp>,
    /// Blocked operations, each with its reason.
    pub blocked: BTreeMap<VmOp, String>,
    /// Reported guest abilities.
    pub guest: GuestFeatures,
}

impl VmFacts {
    /// Creates the facts of an ordinary machine in this state whose guest has reported nothing.
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
