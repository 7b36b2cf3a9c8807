//! What the messages do, class by class.
//!
//! A message is looked up by its name. One that has no handler here does what follows from the
//! table alone, or answers that it is not implemented. So a handler here also takes the place of
//! what would follow: `VM.create`, or the setter of a field that a running machine must hear of.

pub(crate) mod carry;
pub mod event;
pub mod field_only;
pub mod host;
#[cfg(test)]
mod life;
pub(crate) mod message;
pub mod network;
pub mod pbd;
pub(crate) mod pif;
pub mod pool;
pub mod session;
pub mod sr;
pub mod task;
#[cfg(test)]
mod tests;
mod told;
pub mod vbd;
pub mod vdi;
pub mod vif;
pub mod vm_config;
pub(crate) mod vm_lifecycle;

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::dispatch::{Handler, Hook};

/// A list of messages with their handlers.
pub type Calls = &'static [(&'static str, Handler)];

/// All lists.
const LISTS: &[Calls] = &[
    event::CALLS,
    host::CALLS,
    message::CALLS,
    network::CALLS,
    pbd::CALLS,
    pif::CALLS,
    pool::CALLS,
    session::CALLS,
    sr::CALLS,
    field_only::CALLS,
    task::CALLS,
    vbd::CALLS,
    vdi::CALLS,
    vif::CALLS,
    vif::SETTINGS,
    vm_config::ASKED,
    vm_config::CALLS,
    vm_config::MEMORY,
    vm_lifecycle::CALLS,
];

/// What belongs to writing fields, in lists.
const HOOKS: &[&[Hook]] =
    &[host::HOOKS, network::HOOKS, pbd::HOOKS, vbd::HOOKS, vdi::HOOKS, vif::HOOKS];

/// Who carries out a message, if somebody does.
pub(crate) fn find(name: &str) -> Option<Handler> {
    static ALL: OnceLock<HashMap<&'static str, Handler>> = OnceLock::new();
    let all = ALL.get_or_init(|| LISTS.iter().flat_map(|list| list.iter().copied()).collect());
    all.get(name).copied()
}

/// What belongs to writing this field of this class.
pub(crate) fn hooks(class: &str, field: &str) -> Vec<&'static Hook> {
    let hooks = HOOKS.iter().flat_map(|list| list.iter());
    hooks.filter(|hook| hook.field.split_once('.') == Some((class, field))).collect()
}
