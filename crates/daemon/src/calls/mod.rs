//! Handlers of messages, by class.
//!
//! A message is found by its name. Messages without a handler here are generic or answered with
//! "not implemented". A handler here replaces the generic behaviour, such as `VM.create` or the
//! setter of a field that affects a running VM.

pub mod event;
pub mod field_only;
pub mod host;
pub mod network;
pub mod pbd;
pub(crate) mod pif;
pub mod pool;
pub mod session;
pub mod sr;
pub mod task;
#[cfg(test)]
mod tests;
pub mod vbd;
pub mod vdi;
pub mod vif;
pub mod vm_config;
pub(crate) mod vm_lifecycle;

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::dispatch::{Handler, Hook};

/// List of messages with their handlers.
pub type Calls = &'static [(&'static str, Handler)];

/// All lists of handlers.
const LISTS: &[Calls] = &[
    event::CALLS,
    host::CALLS,
    crate::ops::message::CALLS,
    network::CALLS,
    pbd::CALLS,
    pif::CALLS,
    pif::REFUSED,
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

/// All lists of field hooks.
const HOOKS: &[&[Hook]] = &[
    host::HOOKS,
    network::HOOKS,
    pbd::HOOKS,
    vbd::HOOKS,
    vdi::HOOKS,
    vif::HOOKS,
    vm_config::HOOKS,
];

/// Returns the handler of a message, if it has one.
pub(crate) fn find(name: &str) -> Option<Handler> {
    static ALL: OnceLock<HashMap<&'static str, Handler>> = OnceLock::new();
    let all = ALL.get_or_init(|| LISTS.iter().flat_map(|list| list.iter().copied()).collect());
    all.get(name).copied()
}

/// Returns the hooks of a field.
pub(crate) fn hooks(class: &str, field: &str) -> Vec<&'static Hook> {
    let hooks = HOOKS.iter().flat_map(|list| list.iter());
    hooks.filter(|hook| hook.field.split_once('.') == Some((class, field))).collect()
}
