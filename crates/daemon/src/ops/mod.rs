//! Operations on machines and devices: how they run, what they have in progress, and settings that
//! change while a guest runs.

pub(crate) mod current_ops;
pub(crate) mod live_settings;
pub(crate) mod message;
pub(crate) mod pending_op;
pub(crate) mod run;
pub(crate) mod vbd_settings;
pub(crate) mod vif_settings;
