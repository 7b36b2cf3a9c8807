use std::io;
use std::time::Duration;

use model::id::{Domid, Uuid, VbdId, VdiId, VifId};
use model::plan::{GuestRequest, StepAction};
use model::refusal::OngoingOp;
use model::vbd::VbdOp;
use model::vdi::VdiOp;
use model::vdi::automaton::Access;
use model::vif::VifOp;
use model::vm::{PowerState, VmOp};
use toolstack::hv::HvError;
use toolstack::machines::{StepError, StepTimeout};
use toolstack::net::NetError;
use toolstack::ringway_io::DatapathError;
use xenapi::Value;
use xenapi::table::{sr, vbd, vdi, vif, vm};

use super::*;
use crate::random;

/// A VM with a disk and a VIF, by reference.
struct World {
    db: Db,
    vm: Ref,
    vbd: Ref,
    vif: Ref,
    vdi: Ref,
    sr: Ref,
}

fn id() -> Uuid {
    Uuid::from_random([1; 16])
}

fn world() -> World {
    let db = Db::new(0, random::bytes, |_| Ok(()));
    let made = db.change(|tx| {
        let uuid = || Value::text(id().to_string());
        let sr = tx.create(&sr::CLASS, Vec::new())?;
        let vm = tx.create(&vm::CLASS, Vec::new())?;
        let vdi = tx.create(&vdi::CLASS, vec![(vdi::Field::SR.into(), sr.value())])?;
        let slot = vec![
            (vbd::Field::uuid.into(), uuid()),
            (vbd::Field::VM.into(), vm.value()),
            (vbd::Field::VDI.into(), vdi.value()),
        ];
        let nic = vec![(vif::Field::uuid.into(), uuid()), (vif::Field::VM.into(), vm.value())];
        let (vbd, vif) = (tx.create(&vbd::CLASS, slot)?, tx.create(&vif::CLASS, nic)?);
        Ok((vm, vbd, vif, vdi, sr))
    });
    let (vm, vbd, vif, vdi, sr) = made.unwrap();
    World { db, vm, vbd, vif, vdi, sr }
}

/// Expected error of each refusal. Names stand for references.
fn refusals() -> Vec<(Refusal, Vec<&'static str>)> {
    let bad = Refusal::BadPowerState {
        expected: &[PowerState::Halted, PowerState::Suspended],
        actual: PowerState::Running,
    };
    let memory = Refusal::NotEnoughMemory { needed_bytes: 2, available_bytes: 1 };
    let under_way = |op| Refusal::OtherOperation { op };
    let other = "OTHER_OPERATION_IN_PROGRESS";
    vec![
        (Refusal::Blocked { reason: "no".into() }, vec!["OPERATION_BLOCKED", "vbd", "no"]),
        (bad, vec!["VM_BAD_POWER_STATE", "vm", "halted, suspended", "running"]),
        (under_way(OngoingOp::Vm(VmOp::Start)), vec![other, "VM", "vm", "start", NULL_REF]),
        (under_way(OngoingOp::Vbd(VbdOp::Plug)), vec![other, "VBD", "vbd", "plug", NULL_REF]),
        (under_way(OngoingOp::Vdi(VdiOp::Resize)), vec![other, "VDI", "vdi", "resize", NULL_REF]),
        (
            under_way(OngoingOp::Sr(model::sr::SrOp::Scan)),
            vec![other, "SR", "sr", "scan", NULL_REF],
        ),
        (under_way(OngoingOp::Vif(VifOp::Plug)), vec![other, "VBD", "vbd", "plug", NULL_REF]),
        (Refusal::IsTemplate, vec!["VM_IS_TEMPLATE", "vm"]),
        (Refusal::NotTemplate, vec!["PROVISION_ONLY_ALLOWED_ON_TEMPLATE"]),
        (Refusal::IsSnapshot, vec!["VM_IS_SNAPSHOT", "vm"]),
        (Refusal::NotSnapshot, vec!["OPERATION_NOT_ALLOWED", "the machine is no snapshot"]),
        (
            Refusal::IsControlDomain,
            vec!["OPERATION_NOT_ALLOWED", "the machine is the control domain"],
        ),
        (Refusal::LacksFeature(Feature::Shutdown), vec!["VM_LACKS_FEATURE_SHUTDOWN", "vm"]),
        (Refusal::LacksFeature(Feature::HotplugVbd), vec!["VM_LACKS_FEATURE", "vm"]),
        (Refusal::LacksFeature(Feature::HotplugVif), vec!["VM_LACKS_FEATURE", "vm"]),
        (Refusal::MissingDrivers, vec!["VM_MISSING_PV_DRIVERS", "vm"]),
        (Refusal::AlreadyAttached, vec!["DEVICE_ALREADY_ATTACHED", "vbd"]),
        (Refusal::AlreadyDetached, vec!["DEVICE_ALREADY_DETACHED", "vbd"]),
        (Refusal::NotUnpluggable, vec!["VBD_NOT_UNPLUGGABLE", "vbd"]),
        (Refusal::Empty, vec!["VBD_IS_EMPTY", "vbd"]),
        (Refusal::NotEmpty, vec!["VBD_NOT_EMPTY", "vbd"]),
        (Refusal::NotRemovable, vec!["VBD_NOT_REMOVABLE_MEDIA", "vbd"]),
        (Refusal::VdiInUse, vec!["VDI_IN_USE", "vdi", "plug"]),
        (Refusal::VdiReadOnly, vec!["VDI_READONLY", "vdi"]),
        (Refusal::VdiMissing, vec!["VDI_MISSING", "sr", "vdi"]),
        (Refusal::SrNotAttached, vec!["SR_NOT_ATTACHED", "sr"]),
        (Refusal::SrAttached, vec!["SR_HAS_PBD", "sr"]),
        (Refusal::SrNoPbd, vec!["SR_HAS_NO_PBDS", "sr"]),
        (Refusal::SrNotEmpty, vec!["SR_NOT_EMPTY"]),
        (Refusal::Unsupported, vec!["SR_OPERATION_NOT_SUPPORTED", "sr"]),
        (Refusal::DeviceTaken(7), vec!["DEVICE_ALREADY_EXISTS", "7"]),
        (Refusal::NoSuchDevice("x".into()), vec!["INVALID_DEVICE", "x"]),
        (memory, vec!["HOST_NOT_ENOUGH_FREE_MEMORY", "2", "1"]),
        (Refusal::NotAllowed("so".into()), vec!["OPERATION_NOT_ALLOWED", "so"]),
        (Refusal::NotImplemented, vec!["NOT_IMPLEMENTED", "VBD.plug"]),
    ]
}

impl World {
    /// Returns the error with references replaced by names.
    fn details_by_name(&self, error: &ApiError) -> Vec<String> {
        let names = [("vm", &self.vm), ("vbd", &self.vbd), ("vif", &self.vif)];
        let names = names.into_iter().chain([("vdi", &self.vdi), ("sr", &self.sr)]);
        let names: Vec<_> = names.collect();
        let name = |detail: String| {
            let found = names.iter().find(|(_, reference)| reference.as_str() == detail);
            found.map_or(detail, |(name, _)| (*name).to_owned())
        };
        error.details().into_iter().map(name).collect()
    }

    fn plug(&self) -> About {
        self.db.read(|view| About::vbd(view, &self.vbd, VbdOp::Plug))
    }
}

#[test]
fn each_refusal_has_its_code() {
    let world = world();
    let about = world.plug();
    let mut kinds = std::collections::BTreeSet::new();
    for (refusal, expected) in refusals() {
        let kind = format!("{refusal:?}");
        kinds.insert(kind.split([' ', '(', '{']).next().unwrap().to_owned());
        assert_eq!(world.details_by_name(&about.refused(refusal.clone())), expected, "{refusal:?}");
        let error = refused(&world.db, refusal, &about);
        let code = xenapi::error_text::code(&error.code).unwrap();
        assert_eq!(code.params.len(), error.params.len(), "{error}");
    }
    assert_eq!(kinds.len(), 29, "one of each kind: {kinds:?}");
}

#[test]
fn what_stands_in_the_way_is_told_with_its_task() {
    let world = world();
    let start = || Refusal::OtherOperation { op: OngoingOp::Vm(VmOp::Start) };
    let mark = |task: &str| {
        let field = vm::Field::current_operations;
        world.db.change(|tx| tx.set_key(&world.vm, field, task, Some(Value::text("start"))))
    };
    mark("OpaqueRef:task").unwrap();
    let error = refused(&world.db, start(), &world.plug());
    let expected = ["OTHER_OPERATION_IN_PROGRESS", "VM", "vm", "start", "OpaqueRef:task"];
    assert_eq!(world.details_by_name(&error), expected);
    let about = About::vm(&world.vm, VmOp::Pause);
    assert_eq!(world.details_by_name(&failed(&world.db, OpError::Busy, &about)), expected);
    let cancelled = failed(&world.db, OpError::Cancelled, &about);
    assert_eq!(cancelled.details(), ["TASK_CANCELLED", NULL_REF]);
}

fn os(what: &str) -> io::Error {
    io::Error::other(what.to_owned())
}

/// Expected errors of failed steps.
fn steps() -> Vec<(StepAction, StepError, Vec<&'static str>)> {
    let (vbd, vif) = (VbdId(id()), VifId(id()));
    let (attach, unplug) = (StepAction::VbdAttach(vbd, Access::Rw), StepAction::VbdUnplug(vbd));
    let create = StepAction::DomainCreate(Domid(1));
    let after = Duration::from_secs(60);
    let late = || StepError::Late(StepTimeout { after });
    let slow = || "x".to_owned();
    let volume = VdiId(Uuid::from_random([2; 16]));
    vec![
        (attach, late(), vec!["DEVICE_ATTACH_TIMEOUT", "VBD", "vbd"]),
        (unplug, late(), vec!["DEVICE_DETACH_TIMEOUT", "VBD", "vbd"]),
        (StepAction::VifPlug(vif), late(), vec!["DEVICE_ATTACH_TIMEOUT", "VIF", "vif"]),
        (StepAction::VifUnplug(vif), late(), vec!["DEVICE_DETACH_TIMEOUT", "VIF", "vif"]),
        (
            StepAction::DomainAsk(GuestRequest::Shutdown),
            late(),
            vec!["VM_SHUTDOWN_TIMEOUT", "vm", "60"],
        ),
        (StepAction::DomainAwaitEnd, late(), vec!["VM_SHUTDOWN_TIMEOUT", "vm", "60"]),
        (create, late(), vec!["FAILED_TO_START_EMULATOR", "vm", "qemu", "did not end within 60 s"]),
        (
            attach,
            StepError::Sr(SrError::Late { what: slow(), after }),
            vec!["DEVICE_ATTACH_TIMEOUT", "VBD", "vbd"],
        ),
        (attach, StepError::Sr(SrError::NotAttached), vec!["SR_NOT_ATTACHED", "sr"]),
        (
            attach,
            StepError::Sr(SrError::Vanished { path: "/p".into() }),
            vec!["SR_NOT_ATTACHED", "sr"],
        ),
        (attach, StepError::Sr(SrError::NoVolume(volume)), vec!["VDI_MISSING", "sr", "vdi"]),
        (attach, StepError::Sr(SrError::NotEmpty { volumes: 1 }), vec!["SR_NOT_EMPTY"]),
        (attach, StepError::Sr(SrError::Full { needed: 2, free: 1 }), vec!["SR_FULL", "2", "1"]),
        (
            attach,
            StepError::Sr(SrError::Os { what: "stat /p".into(), source: os("EIO") }),
            vec!["SR_BACKEND_FAILURE", "OS", "", "stat /p: EIO"],
        ),
        (
            attach,
            StepError::Io(DatapathError::Late { what: slow(), deadline: after }),
            vec!["DEVICE_ATTACH_TIMEOUT", "VBD", "vbd"],
        ),
        (
            attach,
            StepError::Io(DatapathError::Unusable),
            vec![
                "SR_BACKEND_FAILURE",
                "DATAPATH",
                "",
                "a call on this connection was interrupted; connect again",
            ],
        ),
    ]
}

/// Expected errors of failed domain and network steps.
fn steps_of_domains() -> Vec<(StepAction, StepError, Vec<&'static str>)> {
    let (vif, unplug) = (VifId(id()), StepAction::VbdUnplug(VbdId(id())));
    let create = StepAction::DomainCreate(Domid(1));
    vec![
        (
            create,
            StepError::Hv(HvError::Boot { why: "no kernel".into() }),
            vec!["BOOTLOADER_FAILED", "vm", "no kernel"],
        ),
        (
            create,
            StepError::Hv(HvError::Start { why: "died".into() }),
            vec!["FAILED_TO_START_EMULATOR", "vm", "qemu", "the emulator did not start: died"],
        ),
        (
            unplug,
            StepError::Hv(HvError::Refused { what: "unplug".into(), why: "busy".into() }),
            vec!["DEVICE_DETACH_REJECTED", "VBD", "vbd", "unplug: busy"],
        ),
        (
            StepAction::VifCreate(vif),
            StepError::Net(NetError::Late("ip".into())),
            vec!["DEVICE_ATTACH_TIMEOUT", "VIF", "vif"],
        ),
        (
            StepAction::TakeMemory(2),
            StepError::Memory { needed: 2, available: 1 },
            vec!["HOST_NOT_ENOUGH_FREE_MEMORY", "2", "1"],
        ),
        (
            StepAction::DomainPause,
            StepError::Hv(HvError::Absent),
            vec!["VM_BAD_POWER_STATE", "vm", "running", "halted"],
        ),
        (
            StepAction::DomainAwaitEnd,
            StepError::Hv(HvError::Refused { what: "asking".into(), why: "not yet".into() }),
            vec!["OPERATION_NOT_ALLOWED", "asking: not yet"],
        ),
    ]
}

#[test]
fn each_step_that_fails_has_its_code() {
    let world = world();
    let about = About::vm(&world.vm, VmOp::Start);
    for (verb, error, expected) in steps().into_iter().chain(steps_of_domains()) {
        let what = format!("{verb:?} {error:?}");
        let error = failed(&world.db, OpError::Failed { verb, error }, &about);
        assert_eq!(world.details_by_name(&error), expected, "{what}");
        let code = xenapi::error_text::code(&error.code).unwrap();
        assert_eq!(code.params.len(), error.params.len(), "{error}");
    }
}
