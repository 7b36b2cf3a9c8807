//! One operation on a VM during which the daemon is killed.

use std::sync::OnceLock;

use testkit::reconnecting::Random;
use xenapi::table::{vbd, vdi, vif, vm};

use super::HostState;
use super::*;
use crate::tests::interfaces::device;

/// Operations on halted VMs.
const TO_HALTED: [&str; 9] = [
    "VM.start",
    "VM.start",
    "VM.destroy",
    "VM.power_state_reset",
    "VDI.create",
    "VDI.destroy",
    "VDI.resize",
    "VBD.insert",
    "VBD.eject",
];
/// Operations on running VMs.
const TO_RUNNING: [&str; 16] = [
    "VM.clean_shutdown",
    "VM.hard_shutdown",
    "VM.shutdown",
    "VM.clean_reboot",
    "VM.hard_reboot",
    "VM.pause",
    "VM.power_state_reset",
    "VBD.plug",
    "VBD.unplug",
    "VBD.insert",
    "VBD.eject",
    "VIF.plug",
    "VIF.unplug",
    "VDI.create",
    "VDI.destroy",
    "VDI.resize",
];
/// Operations on paused VMs.
const TO_PAUSED: [&str; 4] =
    ["VM.unpause", "VM.unpause", "VM.hard_shutdown", "VM.power_state_reset"];
/// Size of a resized VDI, in bytes.
const GROWN: i64 = 2 * DISK_BYTES;

/// Operation on one VM, and its result.
pub(super) struct Try {
    machine: Ref,
    /// VBDs of the VM. The second one is created after the start.
    slots: [Ref; 2],
    /// VDI of the first VBD.
    disk: Ref,
    /// CD drive. The next field is its medium.
    drive: Ref,
    disc: Ref,
    /// VIF of the VM.
    card: Ref,
    /// VDI without a VBD.
    spare: Ref,
    op: &'static str,
    /// Power state before the operation.
    power: String,
    domid: Value,
    /// Result of the call, if it was answered.
    answer: OnceLock<Value>,
}

fn pick(from: &[&'static str], chance: &mut Random) -> &'static str {
    let at = usize::try_from(chance.below(from.len() as u64)).unwrap();
    from[at]
}

impl Try {
    pub(super) async fn new(sim_host: &SimulatedHost, chance: &mut Random) -> Self {
        let machine = sim_host.machine().await;
        let (first, disk) = sim_host.device(&machine).await;
        let drive = sim_host.made("VBD.create", [sim_host.slot(&machine, None, "CD")]).await;
        let (disc, spare) = (sim_host.disk().await, sim_host.disk().await);
        let net = record([("name_label", Value::text("n")), ("other_config", none())]);
        let net = sim_host.made("network.create", [net]).await;
        let card = [device(&machine, &net, "")];
        let (ops, before) = match chance.below(5) {
            0 => (&TO_HALTED[..], "Halted"),
            1 => (&TO_PAUSED[..], "Paused"),
            _ => (&TO_RUNNING[..], "Running"),
        };
        let op = pick(ops, chance);
        let mut made = None;
        if op != "VIF.plug" {
            made = Some(sim_host.made("VIF.create", card.clone()).await);
        }
        if op == "VBD.eject" {
            sim_host.done("VBD.insert", [drive.value(), disc.value()]).await;
        }
        if before != "Halted" {
            sim_host.start(&machine).await;
        }
        if before == "Paused" {
            sim_host.done("VM.pause", [machine.value()]).await;
        }
        let card = match made {
            Some(made) => made,
            None => sim_host.made("VIF.create", card).await,
        };
        let (second, _) = sim_host.device(&machine).await;
        if op == "VBD.unplug" {
            sim_host.done("VBD.plug", [second.value()]).await;
        }
        let (power, domid) = (sim_host.power(&machine), sim_host.get(&machine, vm::Field::domid));
        let (slots, answer) = ([first, second], OnceLock::new());
        Self { machine, slots, disk, drive, disc, card, spare, op, power, domid, answer }
    }

    pub(super) async fn call(&self, sim_host: &SimulatedHost) {
        let params = match self.op {
            "VM.start" => vec![self.machine.value(), no(), no()],
            "VBD.plug" | "VBD.unplug" => vec![self.slots[1].value()],
            "VBD.insert" => vec![self.drive.value(), self.disc.value()],
            "VBD.eject" => vec![self.drive.value()],
            "VIF.plug" | "VIF.unplug" => vec![self.card.value()],
            "VDI.create" => vec![sim_host.new_disk()],
            "VDI.destroy" => vec![self.spare.value()],
            "VDI.resize" => vec![self.disk.value(), Value::Int(GROWN)],
            _ => vec![self.machine.value()],
        };
        let answer = sim_host.test_app.call(self.op, params).await.unwrap();
        self.answer.set(answer).unwrap();
    }

    pub(super) fn is_there(&self, sim_host: &SimulatedHost) -> bool {
        sim_host.test_app.app.db.read(|view| view.object(&vm::CLASS, &self.machine).is_ok())
    }

    pub(super) fn is_quiet(&self, sim_host: &SimulatedHost) -> bool {
        !self.is_there(sim_host)
            || sim_host.owed(&self.machine).is_none()
                && sim_host.get(&self.machine, vm::Field::current_operations) == none()
    }

    /// Asserts that an answered operation is done, and that an unanswered one is either done or not
    /// begun.
    pub(super) fn assert_goal(&self, sim_host: &SimulatedHost) {
        let is_answered = self.answer.get().is_some();
        let has_disk = |disk: &Ref| {
            sim_host.test_app.app.db.read(|view| view.object(&vdi::CLASS, disk).is_ok())
        };
        if self.op == "VM.destroy" {
            assert!(!is_answered || !self.is_there(sim_host));
            return;
        }
        let domid = sim_host.get(&self.machine, vm::Field::domid);
        let (power, same) = (sim_host.power(&self.machine), domid == self.domid);
        let as_before = power == self.power && same;
        let plugged = sim_host.attached(&self.slots[1]);
        let is_done = match self.op {
            "VM.start" => power == "Running",
            "VM.clean_reboot" | "VM.hard_reboot" => power == "Running" && !same,
            "VM.pause" => power == "Paused" && same,
            "VM.unpause" => power == "Running" && same,
            "VBD.plug" => as_before && plugged,
            "VBD.unplug" => as_before && !plugged,
            "VBD.insert" => as_before && self.is_loaded(sim_host),
            "VBD.eject" => as_before && !self.is_loaded(sim_host),
            "VIF.plug" => as_before && self.is_on(sim_host),
            "VIF.unplug" => as_before && !self.is_on(sim_host),
            "VDI.resize" => {
                let bytes = sim_host.get(&self.disk, vdi::Field::virtual_size);
                as_before && bytes == Value::Int(GROWN)
            }
            "VDI.create" => {
                let made = self.answer.get().map(|made| Ref::from(text(made)));
                as_before && made.is_some_and(|made| has_disk(&made))
            }
            "VDI.destroy" => as_before && !has_disk(&self.spare),
            _ => power == "Halted",
        };
        assert!(is_done || as_before && !is_answered, "{} {power} {domid:?}", self.op);
    }

    /// Returns whether the medium is in the drive.
    fn is_loaded(&self, sim_host: &SimulatedHost) -> bool {
        let is_empty = sim_host.get(&self.drive, vbd::Field::empty) == yes();
        let inside = sim_host.get(&self.drive, vbd::Field::VDI);
        assert_eq!(inside == self.disc.value(), !is_empty, "{}: {inside:?}", self.op);
        !is_empty
    }

    fn is_on(&self, sim_host: &SimulatedHost) -> bool {
        sim_host.get(&self.card, vif::Field::currently_attached) == yes()
    }

    /// Asserts that the host matches the records.
    pub(super) fn assert_true(&self, sim_host: &SimulatedHost, there: &HostState) {
        let domain = there.domains.get(&sim_host.id(&self.machine).to_string());
        let run = match sim_host.power(&self.machine).as_str() {
            "Running" => Some("Some(Running)"),
            "Paused" => Some("Some(Paused)"),
            _ => None,
        };
        assert_eq!(domain.map(|(_, run)| run.as_str()), run, "{}", self.op);
        let domid = domain.map_or(-1, |(domid, _)| *domid);
        assert_eq!(sim_host.get(&self.machine, vm::Field::domid), Value::Int(domid));
        let id = |of: &Ref, field: FieldIx| text(&sim_host.get(of, field)).to_owned();
        for slot in &self.slots {
            let uuid = id(slot, vbd::Field::uuid.into());
            let disk = Ref::from(text(&sim_host.get(slot, vbd::Field::VDI)));
            let disk = id(&disk, vdi::Field::uuid.into());
            let attached = sim_host.attached(slot);
            assert_eq!(there.has(&format!("disk {uuid}: true")), attached, "{}", self.op);
            assert_eq!(there.has(&format!("disk {uuid}")), attached, "{}", self.op);
            assert_eq!(there.has(&format!("volume {disk}")), attached, "{}", self.op);
        }
        let disc = id(&self.disc, vdi::Field::uuid.into());
        let is_read = domain.is_some() && self.is_loaded(sim_host);
        assert_eq!(there.has(&format!("volume {disc}")), is_read, "{}", self.op);
        let card = id(&self.card, vif::Field::uuid.into());
        assert_eq!(there.has(&format!("nic {card}")), self.is_on(sim_host), "{}", self.op);
    }

    /// Asserts that the VM can be used from its current state and shut down.
    pub(super) async fn works(&self, sim_host: &SimulatedHost) {
        match sim_host.power(&self.machine).as_str() {
            "Running" => {}
            "Paused" => sim_host.done("VM.unpause", [self.machine.value()]).await,
            _ => sim_host.start(&self.machine).await,
        }
        assert_eq!(sim_host.power(&self.machine), "Running");
        assert!(sim_host.attached(&self.slots[0]));
        sim_host.done("VM.hard_shutdown", [self.machine.value()]).await;
    }
}
