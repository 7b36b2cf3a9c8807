//! Classes of the API, one file each.

mod prelude;

pub mod auth;
pub mod blob;
pub mod bond;
pub mod console;
pub mod event;
pub mod host;
pub mod host_cpu;
pub mod host_metrics;
pub mod message;
pub mod network;
pub mod pbd;
pub mod pif;
pub mod pif_metrics;
pub mod pool;
pub mod role;
pub mod secret;
pub mod session;
pub mod sm;
pub mod sr;
pub mod subject;
pub mod task;
pub mod vbd;
pub mod vbd_metrics;
pub mod vdi;
pub mod vif;
pub mod vif_metrics;
pub mod vlan;
pub mod vm;
pub mod vm_guest_metrics;
pub mod vm_metrics;

const CLASSES: &[&super::Class] = &[
    &session::CLASS,
    &auth::CLASS,
    &subject::CLASS,
    &role::CLASS,
    &task::CLASS,
    &event::CLASS,
    &pool::CLASS,
    &vm::CLASS,
    &vm_metrics::CLASS,
    &vm_guest_metrics::CLASS,
    &host::CLASS,
    &host_metrics::CLASS,
    &host_cpu::CLASS,
    &network::CLASS,
    &vif::CLASS,
    &vif_metrics::CLASS,
    &pif::CLASS,
    &pif_metrics::CLASS,
    &bond::CLASS,
    &vlan::CLASS,
    &sm::CLASS,
    &sr::CLASS,
    &vdi::CLASS,
    &vbd::CLASS,
    &vbd_metrics::CLASS,
    &pbd::CLASS,
    &console::CLASS,
    &blob::CLASS,
    &message::CLASS,
    &secret::CLASS,
];

/// Returns all classes in the order of their listing.
pub fn classes() -> &'static [&'static super::Class] {
    CLASSES
}
