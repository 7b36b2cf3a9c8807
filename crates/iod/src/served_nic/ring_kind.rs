//! Kinds of rings in reports and handover records.

use model::report;
use nic::RingKind;

/// Converts a kind to its report type.
pub(super) fn to_report(kind: RingKind) -> report::RingKind {
    match kind {
        RingKind::Receive => report::RingKind::Receive,
        RingKind::Transmit => report::RingKind::Transmit,
        RingKind::Control => report::RingKind::Control,
    }
}

/// Converts a kind from its report type. Returns `None` if NICs have no such ring.
pub(super) fn from_report(kind: report::RingKind) -> Option<RingKind> {
    match kind {
        report::RingKind::Receive => Some(RingKind::Receive),
        report::RingKind::Transmit => Some(RingKind::Transmit),
        report::RingKind::Control => Some(RingKind::Control),
        report::RingKind::Request => None,
    }
}
