//! VLANs of ports, and tags of frames (IEEE 802.1Q, 6.9, 8.6.1, 8.6.4).

use crate::frame::Tag;

/// Number of a VLAN: 1 to 4094.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VlanId(u16);

/// Error for an invalid VLAN number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not a VLAN number (1 to 4094)")]
pub struct VlanError(pub u16);

impl TryFrom<u16> for VlanId {
    type Error = VlanError;

    fn try_from(number: u16) -> Result<Self, VlanError> {
        if (1..=4094).contains(&number) { Ok(Self(number)) } else { Err(VlanError(number)) }
    }
}

impl From<VlanId> for u16 {
    fn from(id: VlanId) -> Self {
        id.0
    }
}

/// VLANs of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Vlan {
    /// All VLANs: frames keep their tags, and frames without a tag are in no VLAN.
    #[default]
    Trunk,
    /// One VLAN, whose frames have no tag at this port.
    Access(VlanId),
}

/// Change of a frame's tag when the frame leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagAction {
    /// Keep the tag as it is.
    Keep,
    /// Insert this tag.
    Push(Tag),
    /// Replace the tag by this one.
    Replace(Tag),
    /// Remove the tag.
    Pop,
}

impl Vlan {
    /// Returns the VLAN of a frame that enters with `tag`; 0 for no VLAN. Returns `None` if the
    /// frame may not enter.
    pub fn enter(self, tag: Option<Tag>) -> Option<u16> {
        let vlan = tag.map_or(0, Tag::vlan);
        match self {
            // 4095 is reserved (IEEE 802.1Q, table 9-2).
            Self::Trunk => (vlan != 0xfff).then_some(vlan),
            // A tag may carry a priority, but no VLAN, not even the port's own.
            Self::Access(id) => (vlan == 0).then_some(id.0),
        }
    }

    /// Returns whether a frame of `vlan` may leave here.
    pub fn carries(self, vlan: u16) -> bool {
        match self {
            Self::Trunk => true,
            Self::Access(id) => id.0 == vlan,
        }
    }

    /// Returns the change of the tag of a frame of `vlan` that entered with `tag`, if it leaves
    /// here.
    pub fn leave(self, vlan: u16, tag: Option<Tag>) -> TagAction {
        match (self, tag) {
            (Self::Access(_), None) => TagAction::Keep,
            (Self::Access(_), Some(_)) => TagAction::Pop,
            (Self::Trunk, None) if vlan == 0 => TagAction::Keep,
            (Self::Trunk, None) => TagAction::Push(Tag(vlan)),
            (Self::Trunk, Some(tag)) if tag.vlan() == vlan => TagAction::Keep,
            // The priority is preserved.
            (Self::Trunk, Some(tag)) => TagAction::Replace(Tag(tag.0 & 0xf000 | vlan)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        for wrong in [0, 4095, 4096, u16::MAX] {
            assert_eq!(VlanId::try_from(wrong), Err(VlanError(wrong)));
        }
        assert_eq!(u16::from(VlanId::try_from(4094).unwrap()), 4094);
    }

    #[test]
    fn every_way_in_and_out() {
        let access = |number: u16| Vlan::Access(number.try_into().unwrap());
        let priority = Tag(0xa000);
        for (vlan, tag, entered) in [
            (Vlan::Trunk, None, Some(0)),
            (Vlan::Trunk, Some(priority), Some(0)),
            (Vlan::Trunk, Some(Tag(0xa007)), Some(7)),
            (Vlan::Trunk, Some(Tag(0xffff)), None),
            (access(7), None, Some(7)),
            (access(7), Some(priority), Some(7)),
            (access(7), Some(Tag(7)), None),
            (access(7), Some(Tag(8)), None),
        ] {
            assert_eq!(vlan.enter(tag), entered, "{vlan:?} {tag:?}");
        }
        for (vlan, of, tag, left) in [
            (access(7), 7, None, TagAction::Keep),
            (access(7), 7, Some(Tag(0xa007)), TagAction::Pop),
            (Vlan::Trunk, 0, None, TagAction::Keep),
            (Vlan::Trunk, 0, Some(priority), TagAction::Keep),
            (Vlan::Trunk, 7, Some(Tag(0xa007)), TagAction::Keep),
            (Vlan::Trunk, 7, None, TagAction::Push(Tag(7))),
            (Vlan::Trunk, 7, Some(priority), TagAction::Replace(Tag(0xa007))),
        ] {
            assert_eq!(vlan.leave(of, tag), left, "{vlan:?} {of} {tag:?}");
        }
        assert!(Vlan::Trunk.carries(7) && access(7).carries(7));
        assert!(!access(7).carries(0) && !access(7).carries(8));
    }
}
