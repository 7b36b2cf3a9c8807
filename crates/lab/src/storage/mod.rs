//! Many disks on one storage: totals, shares and splitting, on models of devices and on files.
//!
//! The models are those of `ringway-io` (`{"model":...}`): the same device for every system of a run,
//! whatever the host's own storage does. Each disk has clients that sleep until they are called, and
//! every completion is on record. `guest_weights` has real guests instead.

pub mod coalesce;
pub mod fairness;
mod files;
pub mod guest_weights;
pub mod lun_scale;
mod models;
mod rates;
mod records;
mod served;
pub mod splitting;
mod streams;
pub mod write_cache;
