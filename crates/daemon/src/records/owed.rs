//! What a machine is owed: an end, a reboot or a start that a daemon has begun, and that the next
//! one brings to its end.
//!
//! # Model
//! A key of the machine's `other_config` says what it is, from the change in which it begins to the
//! change that records what it has come to. The former is stored before anything is done, so a
//! domain that is gone was ended by somebody who wanted that, and no guest has crashed; and a
//! machine that was to run again does. What begins later takes the place of what was there.
//!
//! Whoever fails in good order says so and owes nothing more. What ends the daemon each time is
//! tried [`TRIES`] times.

use model::id::Domid;
use model::vm::{PowerState, VmOp};
use xenapi::table::vm;
use xenapi::{ApiError, Value};

use super::fields::int;
use crate::db::{Ref, Tx, View};

/// The key, in `VM.other_config`.
pub(crate) const OWED: &str = "owed_operation";
/// How often daemons that come after the first one try.
pub(crate) const TRIES: u8 = 3;

/// What a machine is owed, in the key as `hard_reboot 0 17 OpaqueRef:…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PendingOp {
    /// What was begun.
    pub(crate) op: VmOp,
    /// How often daemons have tried it since.
    pub(crate) tries: u8,
    /// The domain that there was when it began.
    pub(crate) domid: Option<Domid>,
    /// Whose it is, as `current_operations` call it.
    pub(crate) by: String,
}

/// What is owed from the beginning of an operation on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PendingOpIntent {
    /// As which operation the next daemon goes on.
    pub(crate) op: VmOp,
    /// How often daemons have tried it before.
    pub(crate) tries: u8,
    /// It is owed when the operation has ended, too: as the start that follows an end.
    pub(crate) stays: bool,
}

impl PendingOpIntent {
    /// The operation itself, begun for the first time.
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

/// Whether an operation ends the machine's domain, so that there is no way back.
pub(crate) fn ends(op: VmOp) -> bool {
    use VmOp::{CleanShutdown, HardShutdown, PowerStateReset};
    reboots(op) || matches!(op, CleanShutdown | HardShutdown | PowerStateReset)
}

/// Whether it makes another domain after that.
pub(crate) fn reboots(op: VmOp) -> bool {
    matches!(op, VmOp::CleanReboot | VmOp::HardReboot)
}

/// What a machine is owed. What is not in order is nothing: anybody may write into that map.
pub(crate) fn of(view: &View<'_>, machine: &Ref) -> Option<PendingOp> {
    let Ok(Value::Map(config)) = view.get(machine, vm::Field::other_config) else { return None };
    match config.get(OWED) {
        Some(Value::Str(text)) => PendingOp::parse(text),
        _ => None,
    }
}

/// From here on a machine is owed this.
///
/// # Errors
/// The machine is gone.
pub(crate) fn begin(
    tx: &mut Tx<'_>,
    machine: &Ref,
    pending_op_intent: PendingOpIntent,
    by: &str,
) -> Result<(), ApiError> {
    // Where it has none any more, an earlier try has ended it.
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

/// A machine is owed nothing more, if it was by this one.
///
/// # Errors
/// The machine is gone.
pub(crate) fn over(tx: &mut Tx<'_>, machine: &Ref, by: &str) -> Result<(), ApiError> {
    match of(&tx.view(), machine) {
        Some(pending_op) if pending_op.by == by => forget(tx, machine),
        _ => Ok(()),
    }
}

/// A machine is owed nothing more, by nobody.
///
/// # Errors
/// The machine is gone.
pub(crate) fn forget(tx: &mut Tx<'_>, machine: &Ref) -> Result<(), ApiError> {
    set(tx, machine, None)
}

/// What has become of a machine is recorded: what it was owed may be done with that.
///
/// # Errors
/// The machine is gone.
pub(super) fn became(tx: &mut Tx<'_>, machine: &Ref, power: PowerState) -> Result<(), ApiError> {
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
