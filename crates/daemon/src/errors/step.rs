//! Steps that failed.

use std::time::Duration;

use model::plan::StepAction;
use toolstack::hv::HvError;
use toolstack::machines::StepError;
use toolstack::net::NetError;
use toolstack::ringway_io::DatapathError;
use toolstack::sr::SrError;
use xenapi::table::{vbd, vif};
use xenapi::{ApiError, NULL_REF, codes};

use super::{About, sentence, storage_failed};
use crate::db::{Ref, View};

/// What runs guests.
const EMULATOR: &str = "qemu";

/// What a step works on.
enum On {
    /// A device that comes.
    Coming(&'static str, Ref),
    /// A device that goes.
    Going(&'static str, Ref),
    /// The guest, which is asked.
    Guest,
    /// The domain, while it is made.
    Domain,
    /// Something that clients have no word for.
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
        StepAction::VbdAttach(vbd, _)
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
        StepAction::TakeMemory(_) | StepAction::DomainCreate(_) | StepAction::DomainRun => {
            On::Domain
        }
        StepAction::DomainPause
        | StepAction::DomainKill
        | StepAction::DomainForget
        | StepAction::Record => On::Other,
    }
}

/// Why this step failed.
pub(super) fn failed(
    view: &View<'_>,
    verb: StepAction,
    error: &StepError,
    about: &About,
) -> ApiError {
    let on = on(view, verb);
    match error {
        StepError::Late { after } => late(&on, *after, error, about),
        StepError::Sr(SrError::Late { after, .. }) => late(&on, *after, error, about),
        StepError::Sr(error) => storage(view, &on, error, about),
        StepError::Io(DatapathError::Late { deadline, .. }) => late(&on, *deadline, error, about),
        // No storage has a part in it.
        StepError::Io(error) if on.is_interface() => codes::internal(sentence(error)),
        StepError::Io(error) => codes::sr_backend_failure("DATAPATH", "", sentence(error)),
        StepError::Hv(HvError::Late { after, .. }) => late(&on, *after, error, about),
        StepError::Hv(error) => hypervisor(&on, error, about),
        StepError::Net(NetError::Late(_)) => late(&on, Duration::ZERO, error, about),
        StepError::Memory { needed, available } => {
            codes::not_enough_memory(needed.to_string(), available.to_string())
        }
        StepError::Net(_) | StepError::NoDriver(_) => codes::internal(sentence(error)),
    }
}

/// It did not end in time.
fn late(on: &On, after: Duration, error: &StepError, about: &About) -> ApiError {
    match on {
        On::Coming(class, device) => codes::device_attach_timeout(*class, device.as_str()),
        On::Going(class, device) => codes::device_detach_timeout(*class, device.as_str()),
        On::Guest => codes::vm_shutdown_timeout(about.vm.as_str(), after.as_secs().to_string()),
        On::Domain => codes::emulator_failed(about.vm.as_str(), EMULATOR, sentence(error)),
        On::Other => codes::internal(sentence(error)),
    }
}

fn storage(view: &View<'_>, on: &On, error: &SrError, about: &About) -> ApiError {
    let (On::Coming(_, device) | On::Going(_, device)) = on else {
        return storage_failed(error, &about.sr, None);
    };
    let About { sr, vdi, .. } = About::vbd(view, device, model::vbd::VbdOp::Attach);
    match error {
        // Whoever starts a machine is told which storage to see to.
        SrError::Vanished { .. } => codes::sr_not_attached(sr.as_str()),
        error => storage_failed(error, &sr, Some(&vdi)),
    }
}

fn hypervisor(on: &On, error: &HvError, about: &About) -> ApiError {
    let vm = about.vm.as_str();
    match (error, on) {
        (HvError::Boot { why }, _) => codes::bootloader_failed(vm, why.as_str()),
        (HvError::Start { .. }, _) | (_, On::Domain) => {
            codes::emulator_failed(vm, EMULATOR, sentence(error))
        }
        (HvError::Refused { .. }, On::Going(class, device)) => {
            codes::device_detach_rejected(*class, device.as_str(), sentence(error))
        }
        _ => codes::internal(sentence(error)),
    }
}
