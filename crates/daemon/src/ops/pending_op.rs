//! Pending ops: a shutdown, reboot or start that a daemon has begun and the next daemon finishes.
//!
//! # Model
//! A key in the VM's `other_config` describes the pending op. The change that begins the operation
//! sets it, and the change that records the result removes it. The first change is persisted before
//! the operation acts. So after a restart, a missing domain was ended on purpose and is no crash,
//! and a VM that should run again is started. A later operation replaces the key.
//!
//! An operation that fails in an orderly way removes the key. An operation during which the daemon
//! dies each time is attempted [`TRIES`] times.

use model::id::Domid;
use model::vm::{PowerState, VmOp};
use xenapi::table::vm;
use xenapi::{ApiError, Value};

use crate::db::{Ref, Tx, View};
use crate::records::fields::int;

/// Key in `VM.other_config`.
pub(crate) const OWED: &str = "owed_operation";
/// Number of attempts by later daemons.
pub(crate) const TRIES: u8 = 3;

/// Pending op of a VM. Its text in the key is `hard_reboot 0 17 OpaqueRef:...`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PendingOp {
    /// Operation that was begun.
    pub(crate) op: VmOp,
    /// Number of attempts by later daemons so far.
    pub(crate) tries: u8,
    /// Domain at the beginning of the operation.
    pub(crate) domid: Option<Domid>,
    /// Key of the operation in `current_operations`.
    pub(crate) by: String,
}

/// Pending op to record when an operation begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PendingOpIntent {
    /// Operation that the next daemon continues.
    pub(crate) op: VmOp,
    /// Number of earlier attempts.
    pub(crate) tries: u8,
    /// Whether it stays pending after the operation has ended, such as the start that follows a
    /// guest exit.
    pub(crate) stays: bool,
}

impl PendingOpIntent {
    /// Creates the intent for the first attempt of this operation.
    pub(crate) fn this(op: VmOp) -> Self {
        Self { op, tries: 0, stays: false }
    }
}

impl PendingOp {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let (op, tries, domid, by) = (words.next()?, words.next()?, words.next()?, words.next()?);
        let op = VmOp::parse(op).filter(|op| *op == VmOp::Start || ends(*op))?;
        let domid = u32::try_from(domid.parse::<i64>().ok()?).ok().map(Domid);
        let pending_op = Self { op, tries: tries.parse().ok()?, domid, by: by.to_owned() };
        words.next().is_none().then_some(pending_op)
    }

    fn text(&self) -> String {
        let Self { op, tries, domid, by } = self;
        let domid = domid.map_or(-1, |Domid(number)| i64::from(number));
        format!("{} {tries} {domid} {by}", op.name())
    }
}

/// Returns whether an operation ends the VM's domain, which cannot be undone.
pub(crate) fn ends(op: VmOp) -> bool {
    use VmOp::{CleanShutdown, HardShutdown, PowerStateReset};
    reboots(op) || matches!(op, CleanShutdown | HardShutdown | PowerStateReset)
}

/// Returns whether an operation creates a new domain after that.
pub(crate) fn reboots(op: VmOp) -> bool {
    matches!(op, VmOp::CleanReboot | VmOp::HardReboot)
}

/// Returns the pending op of a VM. Invalid text counts as none, because clients can write to the
/// map.
pub(crate) fn of(view: &View<'_>, machine: &Ref) -> Option<PendingOp> {
    let Ok(Value::Map(config)) = view.get(machine, vm::Field::other_config) else { return None };
    match config.get(OWED) {
        Some(Value::Str(text)) => PendingOp::parse(text),
        _ => None,
    }
}

/// Records a pending op.
///
/// # Errors
/// `HANDLE_INVALID` if the VM does not exist.
pub(crate) fn begin(
    tx: &mut Tx<'_>,
    machine: &Ref,
    pending_op_intent: PendingOpIntent,
    by: &str,
) -> Result<(), ApiError> {
    // If the VM has no domain now, an earlier attempt has ended it.
    let before = of(&tx.view(), machine).filter(|pending_op| pending_op.by == by);
    let domid = domid(&tx.view(), machine)?.or(before.and_then(|pending_op| pending_op.domid));
    let pending_op = PendingOp {
        op: pending_op_intent.op,
        tries: pending_op_intent.tries,
        domid,
        by: by.to_owned(),
    };
    set(tx, machine, Some(Value::Str(pending_op.text())))
}

/// Removes the pending op of a VM if it has this key.
///
/// # Errors
/// `HANDLE_INVALID` if the VM does not exist.
pub(crate) fn over(tx: &mut Tx<'_>, machine: &Ref, by: &str) -> Result<(), ApiError> {
    match of(&tx.view(), machine) {
        Some(pending_op) if pending_op.by == by => forget(tx, machine),
        _ => Ok(()),
    }
}

/// Removes the pending op of a VM.
///
/// # Errors
/// `HANDLE_INVALID` if the VM does not exist.
pub(crate) fn forget(tx: &mut Tx<'_>, machine: &Ref) -> Result<(), ApiError> {
    set(tx, machine, None)
}

/// Removes the pending op if the new power state completes it.
///
/// # Errors
/// `HANDLE_INVALID` if the VM does not exist.
pub(crate) fn became(tx: &mut Tx<'_>, machine: &Ref, power: PowerState) -> Result<(), ApiError> {
    let Some(pending_op) = of(&tx.view(), machine) else { return Ok(()) };
    let has_another = pending_op.domid != domid(&tx.view(), machine)?;
    let is_up = matches!(power, PowerState::Running | PowerState::Paused);
    let is_done = match pending_op.op {
        VmOp::Start => is_up,
        op if reboots(op) => is_up && has_another,
        _ => !is_up,
    };
    if is_done { forget(tx, machine) } else { Ok(()) }
}

fn domid(view: &View<'_>, machine: &Ref) -> Result<Option<Domid>, ApiError> {
    Ok(u32::try_from(int(view, machine, vm::Field::domid)?).ok().map(Domid))
}

fn set(tx: &mut Tx<'_>, machine: &Ref, to: Option<Value>) -> Result<(), ApiError> {
    tx.set_key(machine, vm::Field::other_config, OWED, to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        for op in VmOp::ALL {
            let pending_op =
                PendingOp { op: *op, tries: 2, domid: Some(Domid(17)), by: "OpaqueRef:a".into() };
            let known = *op == VmOp::Start || ends(*op);
            assert_eq!(PendingOp::parse(&pending_op.text()), known.then_some(pending_op), "{op:?}");
        }
        let start = PendingOp { op: VmOp::Start, tries: 0, domid: None, by: "x".into() };
        assert_eq!(start.text(), "start 0 -1 x");
        assert_eq!(PendingOp::parse("start 0 -1 x"), Some(start));
        for bad in [
            "",
            "start",
            "start 0 -1",
            "start 0 -1 x y",
            "start 256 -1 x",
            "start -1 -1 x",
            "start 0 one x",
            "destroy 0 -1 x",
            "Start 0 -1 x",
        ] {
            assert_eq!(PendingOp::parse(bad), None, "{bad}");
        }
    }
}
