//! Conversion of refusals and failures to API errors, in one table.
//!
//! Lower layers know neither references nor error codes. [`About`] has the references of the
//! requested operation. A test covers every entry of the table.

mod about;
mod step;
#[cfg(test)]
mod tests;

use error_causes::error_chain;
use model::refusal::{Feature, Refusal, states};
use toolstack::machines::OpError;
use toolstack::sr::SrError;
use xenapi::{ApiError, NULL_REF, codes};

pub use about::About;

use crate::db::{Db, Ref};

/// Converts a refusal to an API error.
pub fn refused(db: &Db, refusal: Refusal, about: &About) -> ApiError {
    let error = about.refused(refusal.clone());
    match refusal {
        // The error names the task of the operation that is under way.
        Refusal::OtherOperation { op } => {
            let (class, object) = about.under_way(op);
            let by = db.read(|view| about::carried_out_by(view, class, object, op));
            let by = by.as_ref().map_or(NULL_REF, Ref::as_str);
            codes::other_operation(class, object.as_str(), op.name(), by)
        }
        _ => error,
    }
}

/// Converts a failed operation to an API error.
pub fn failed(db: &Db, error: OpError, about: &About) -> ApiError {
    match error {
        OpError::Refused(refusal) => refused(db, refusal, about),
        OpError::Busy => db.read(|view| about::busy(view, about)),
        // The cancelled task replaces this null reference by its own.
        OpError::Cancelled => codes::task_cancelled(NULL_REF),
        OpError::Failed { verb, error } => db.read(|view| step::failed(view, verb, &error, about)),
    }
}

impl About {
    /// Converts a refusal to an API error without reading records. A conflicting operation is
    /// reported without its task.
    pub fn refused(&self, refusal: Refusal) -> ApiError {
        let vm = self.vm.as_str();
        let device = || self.object.as_str();
        match refusal {
            Refusal::Blocked { reason } => codes::operation_blocked(device(), reason),
            Refusal::BadPowerState { expected, actual } => {
                codes::bad_power_state(vm, states(expected), actual.error_name())
            }
            Refusal::OtherOperation { op } => {
                let (class, object) = self.under_way(op);
                codes::other_operation(class, object.as_str(), op.name(), NULL_REF)
            }
            Refusal::IsTemplate => codes::vm_is_template(vm),
            Refusal::NotTemplate => codes::provision_only_template(),
            Refusal::IsSnapshot => codes::vm_is_snapshot(vm),
            Refusal::LacksFeature(Feature::Shutdown) => codes::vm_lacks_shutdown(vm),
            Refusal::LacksFeature(_) => codes::vm_lacks_feature(vm),
            Refusal::MissingDrivers => codes::vm_missing_drivers(vm),
            Refusal::AlreadyAttached => codes::device_already_attached(device()),
            Refusal::AlreadyDetached => codes::device_already_detached(device()),
            Refusal::NotUnpluggable => codes::vbd_not_unpluggable(device()),
            Refusal::Empty => codes::vbd_is_empty(device()),
            Refusal::NotEmpty => codes::vbd_not_empty(device()),
            Refusal::NotRemovable => codes::vbd_not_removable(device()),
            Refusal::VdiInUse => codes::vdi_in_use(self.vdi.as_str(), self.operation),
            Refusal::VdiReadOnly => codes::vdi_read_only(self.vdi.as_str()),
            Refusal::VdiMissing => codes::vdi_missing(self.sr.as_str(), self.vdi.as_str()),
            Refusal::SrNotAttached => codes::sr_not_attached(self.sr.as_str()),
            Refusal::SrAttached => codes::sr_has_pbd(self.sr.as_str()),
            Refusal::SrNoPbd => codes::sr_has_no_pbds(self.sr.as_str()),
            Refusal::SrNotEmpty => codes::sr_not_empty(),
            Refusal::Unsupported => codes::sr_operation_not_supported(self.sr.as_str()),
            Refusal::DeviceTaken(number) => codes::device_already_exists(number.to_string()),
            Refusal::NoSuchDevice(device) => codes::invalid_device(device),
            Refusal::NotEnoughMemory { needed_bytes, available_bytes } => {
                codes::not_enough_memory(needed_bytes.to_string(), available_bytes.to_string())
            }
            Refusal::NotImplemented => {
                codes::not_implemented(format!("{}.{}", self.class, self.operation))
            }
            refusal
            @ (Refusal::NotSnapshot | Refusal::IsControlDomain | Refusal::NotAllowed(_)) => {
                codes::operation_not_allowed(refusal.to_string())
            }
        }
    }
}

/// Converts an SR error to an API error. `vdi` is the affected VDI, if there is one.
pub fn storage_failed(error: &SrError, sr: &Ref, vdi: Option<&Ref>) -> ApiError {
    let backend = |status: &str| codes::sr_backend_failure(status, "", error_chain(error));
    match error {
        SrError::Late { .. } => backend("TIMEOUT"),
        SrError::Config { .. } => backend("CONFIG"),
        SrError::NotAttached => codes::sr_not_attached(sr.as_str()),
        SrError::Unsupported => codes::sr_operation_not_supported(sr.as_str()),
        SrError::Vanished { .. } => backend("VANISHED"),
        SrError::NoVolume(id) => {
            let vdi = vdi.map_or_else(|| id.to_string(), Ref::to_string);
            codes::vdi_missing(sr.as_str(), vdi)
        }
        SrError::NotEmpty { .. } => codes::sr_not_empty(),
        SrError::Full { needed, free } => codes::sr_full(needed.to_string(), free.to_string()),
        SrError::Os { .. } => backend("OS"),
        SrError::Worker(_) => backend("WORKER"),
        SrError::Datapath(_) => backend("DATAPATH"),
    }
}
