//! Reboot: stop and start in one plan. Each disk goes on by itself from its detach to its attach,
//! so a fast one does not wait for a slow one in between.

use super::build::Draft;
use super::start::raise;
use super::stop::ask;
use super::{Ask, Cancel, MachineState, Plan};

pub(super) fn hard(state: &MachineState) -> Plan {
    let mut draft = Draft::new(state);
    let cleared = draft.clear(None, Cancel::Before);
    raise(&mut draft, &cleared, false);
    draft.finish()
}

pub(super) fn clean(state: &MachineState) -> Plan {
    let mut draft = Draft::new(state);
    let ended = ask(&mut draft, Ask::Reboot);
    let cleared = draft.clear(ended, Cancel::Never);
    raise(&mut draft, &cleared, false);
    draft.finish()
}
