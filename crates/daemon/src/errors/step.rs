//! Conversion of failed steps to API errors.

use std::time::Duration;

use error_causes::error_chain;
use model::plan::StepAction;
use toolstack::hv::HvError;
use toolstack::machines::StepError;
use toolstack::net::NetError;
use toolstack::ringway_io::DatapathError;
use toolstack::sr::SrError;
use xenapi::table::{vbd, vif};
use xenapi::{ApiError, NULL_REF, codes};

use super::{About, storage_failed};
use crate::db::{Ref, View};

/// Name of the program that runs guests.
const EMULATOR: &str = "qemu";

/// Object of a step.
enum On {
    /// Device that is being attached.
    Coming(&'static str, Ref),
    /// Device that is being detached.
    Going(&'static str, Ref),
    /// Guest that was sent a request.
    Guest,
    /// Domain that is being created.
    Domain,
    /// Object that has no specific error code.
    Other,
}

impl On {
    fn is_interface(&self) -> bool {
        matches!(self, Self::Coming("VIF", _) | Self::Going("VIF", _))
    }
}

fn on(view: &View<'_>, verb: StepAction) -> On {
    let disk = |id: &dyn ToString| {
        let found = view.by_uuid(&vbd::CLASS, &id.to_string()).cloned();
        ("VBD", found.unwrap_or_else(|_| Ref::from(NULL_REF)))
    };
    let nic = |id: &dyn ToString| {
        let found = view.by_uuid(&vif::CLASS, &id.to_string()).cloned();
        ("VIF", found.unwrap_or_else(|_| Ref::from(NULL_REF)))
    };
    let coming = |(class, device)| On::Coming(class, device);
    let going = |(class, device)| On::Going(class, device);
    match verb {
        StepAction::VbdReset(vbd)
        | StepAction::VbdAttach(vbd, _)
        | StepAction::VbdActivate(vbd)
        | StepAction::VbdPlug(vbd)
        | StepAction::VbdInsert(vbd) => coming(disk(&vbd)),
        StepAction::VbdUnplug(vbd)
        | StepAction::VbdDeactivate(vbd)
        | StepAction::VbdDetach(vbd)
        | StepAction::VbdEject(vbd) => going(disk(&vbd)),
        StepAction::VifCreate(vif) | StepAction::VifPlug(vif) => coming(nic(&vif)),
        StepAction::VifUnplug(vif) | StepAction::VifDestroy(vif) => going(nic(&vif)),
        StepAction::DomainAsk(_) | StepAction::DomainAwaitEnd => On::Guest,
        StepAction::TakeMemory(_)
        | StepAction::TakeBootPlace
        | StepAction::DomainCreate(_)
        | StepAction::DomainRun => On::Domain,
        StepAction::DomainPause
        | StepAction::DomainKill
        | StepAction::DomainForget
        | StepAction::Record => On::Other,
    }
}

/// Converts a failed step to an API error.
pub(super) fn failed(
    view: &View<'_>,
    verb: StepAction,
    error: &StepError,
    about: &About,
) -> ApiError {
    let on = on(view, verb);
    match error {
        StepError::Late(timeout) => late(&on, timeout.after, error, about),
        StepError::Sr(SrError::Late { after, .. }) => late(&on, *after, error, about),
        StepError::Sr(error) => storage(view, &on, error, about),
        StepError::Io(DatapathError::Late { deadline, .. }) => late(&on, *deadline, error, about),
        // A VIF step involves no storage, so it must not report a storage error.
        StepError::Io(_) if on.is_interface() => rejected(&on, error),
        StepError::Io(error) => codes::sr_backend_failure("DATAPATH", "", error_chain(error)),
        StepError::Hv(HvError::Late { after, .. }) => late(&on, *after, error, about),
        StepError::Hv(error) => hypervisor(&on, error, about),
        StepError::Net(NetError::Late(_)) => late(&on, Duration::ZERO, error, about),
        StepError::Memory { needed, available } => {
            codes::not_enough_memory(needed.to_string(), available.to_string())
        }
        StepError::Net(_) => rejected(&on, error),
        StepError::NoDriver(kind) => codes::sr_unknown_driver(kind.as_str()),
    }
}

/// Converts a cause on the host, such as a bridge that is none, to an API error.
fn rejected(on: &On, error: &StepError) -> ApiError {
    match on {
        On::Coming(class, device) => {
            codes::device_attach_rejected(*class, device.as_str(), error_chain(error))
        }
        On::Going(class, device) => {
            codes::device_detach_rejected(*class, device.as_str(), error_chain(error))
        }
        On::Guest | On::Domain | On::Other => codes::internal(error_chain(error)),
    }
}

/// Converts a missed deadline to an API error.
fn late(on: &On, after: Duration, error: &StepError, about: &About) -> ApiError {
    match on {
        On::Coming(class, device) => codes::device_attach_timeout(*class, device.as_str()),
        On::Going(class, device) => codes::device_detach_timeout(*class, device.as_str()),
        On::Guest => codes::vm_shutdown_timeout(about.vm.as_str(), after.as_secs().to_string()),
        On::Domain => codes::emulator_failed(about.vm.as_str(), EMULATOR, error_chain(error)),
        On::Other => codes::internal(error_chain(error)),
    }
}

fn storage(view: &View<'_>, on: &On, error: &SrError, about: &About) -> ApiError {
    let (On::Coming(_, device) | On::Going(_, device)) = on else {
        return storage_failed(error, &about.sr, None);
    };
    let About { sr, vdi, .. } = About::vbd(view, device, model::vbd::VbdOp::Attach);
    match error {
        // The error names the SR, so that the user knows which storage to repair.
        SrError::Vanished { .. } => codes::sr_not_attached(sr.as_str()),
        error => storage_failed(error, &sr, Some(&vdi)),
    }
}

fn hypervisor(on: &On, error: &HvError, about: &About) -> ApiError {
    let vm = about.vm.as_str();
    match (error, on) {
        (HvError::Boot { why }, _) => codes::bootloader_failed(vm, why.as_str()),
        (HvError::Start { .. }, _) | (_, On::Domain) => {
            codes::emulator_failed(vm, EMULATOR, error_chain(error))
        }
        (HvError::Refused { .. }, On::Coming(class, device)) => {
            codes::device_attach_rejected(*class, device.as_str(), error_chain(error))
        }
        (HvError::Refused { .. }, On::Going(class, device)) => {
            codes::device_detach_rejected(*class, device.as_str(), error_chain(error))
        }
        // The guest, or QEMU, does not do this now.
        (HvError::Refused { .. }, _) => codes::operation_not_allowed(error_chain(error)),
        (HvError::Absent, _) => codes::bad_power_state(vm, "running", "halted"),
        _ => codes::internal(error_chain(error)),
    }
}
