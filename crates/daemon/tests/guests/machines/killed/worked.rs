//! A VM under test, and the operations possible on it.

use testkit::reconnecting::Random;
use xenapi::Value;
use xenapi::client::PendingCall;

use crate::machines::records::{interface, of, slot, start, with};
use crate::machines::world::{Machine, World};

/// Growth of a disk in each resize, in bytes.
const GROWS: i64 = 1 << 20;

/// A VM with its removable devices.
pub(super) struct Worked {
    pub(super) machine: Machine,
    pub(super) has_system: bool,
    net: String,
    /// CD drive. The next field is its medium.
    pub(super) drive: String,
    pub(super) disc: String,
    /// VDI that is plugged while the VM runs. The next field is its VBD.
    spare: String,
    pub(super) slot: Option<String>,
    /// VIF that is plugged at the start. The next field is one that is plugged while the VM runs.
    pub(super) vif: String,
    pub(super) second: Option<String>,
}

impl Worked {
    pub(super) fn new(world: &mut World, net: &str, machine: Machine, has_system: bool) -> Self {
        let vm = machine.reference.as_str();
        let vif = world.made("VIF.create", &[interface(vm, net)]);
        let (disc, spare) = (world.disk(), world.disk());
        let drive = world.made("VBD.create", &[slot(vm, None)]);
        let (net, second) = (net.to_owned(), None);
        Self { machine, has_system, net, drive, disc, spare, slot: None, vif, second }
    }

    /// Returns all disk VBDs without the CD drive, and all VIFs.
    pub(super) fn devices(&self) -> (Vec<&str>, Vec<&str>) {
        let disks = std::iter::once(&self.machine.slot).chain(&self.slot);
        let nics = std::iter::once(&self.vif).chain(&self.second);
        (disks.map(String::as_str).collect(), nics.map(String::as_str).collect())
    }

    /// Begins a random operation that is possible now.
    pub(super) fn ask(
        &mut self,
        world: &mut World,
        chance: &mut Random,
    ) -> (&'static str, PendingCall) {
        let power = world.power(&self.machine);
        if power == "Halted" {
            self.lets_go(world);
        }
        let ops = self.ops(world, &power);
        let op = ops[usize::try_from(chance.below(ops.len() as u64)).unwrap()];
        let params = self.params(world, op);
        (op, world.client.begin(op, &params).unwrap())
    }

    /// Destroys devices that were plugged while the VM ran, which the next start would attach.
    fn lets_go(&mut self, world: &mut World) {
        if let Some(slot) = self.slot.take() {
            world.call("VBD.destroy", &of(&slot));
        }
        if let Some(vif) = self.second.take() {
            world.call("VIF.destroy", &of(&vif));
        }
    }

    fn ops(&self, world: &mut World, power: &str) -> Vec<&'static str> {
        let is_empty = world.record("VBD", &self.drive).flag("empty");
        let medium = if is_empty { "VBD.insert" } else { "VBD.eject" };
        let mut ops = vec![medium, "VDI.resize"];
        ops.extend(match (power, self.has_system) {
            ("Halted", _) => &["VM.start", "VM.start", "VM.start"][..],
            ("Paused", _) => &["VM.unpause", "VM.hard_shutdown", "VM.hard_reboot"],
            (_, false) => {
                &["VM.hard_reboot", "VM.hard_shutdown", "VM.pause", "VM.power_state_reset"]
            }
            (_, true) => &["VM.clean_reboot", "VM.clean_shutdown", "VM.hard_reboot"],
        });
        if power == "Running" {
            let mut is_in = |class, device: &Option<String>| {
                let flag = |one| world.record(class, one).flag("currently_attached");
                device.as_deref().is_some_and(flag)
            };
            for (is_in, [plug, unplug]) in [
                (is_in("VBD", &self.slot), ["VBD.plug", "VBD.unplug"]),
                (is_in("VIF", &self.second), ["VIF.plug", "VIF.unplug"]),
            ] {
                // An unplug needs a guest that releases the device.
                match is_in {
                    false => ops.extend([plug; 2]),
                    true if self.has_system => ops.extend([unplug; 2]),
                    true => {}
                }
            }
        }
        ops
    }

    fn params(&mut self, world: &mut World, op: &str) -> Vec<Value> {
        let machine = self.machine.reference.as_str();
        match op {
            "VM.start" => start(machine),
            "VBD.insert" => with(&self.drive, [Value::text(&*self.disc)]),
            "VBD.eject" => of(&self.drive),
            "VDI.resize" => {
                let disk = self.machine.disk.as_str();
                let bytes = world.record("VDI", disk).int("virtual_size") + GROWS;
                with(disk, [Value::Int(bytes)])
            }
            "VBD.plug" | "VBD.unplug" => {
                let made = || world.made("VBD.create", &[slot(machine, Some(&self.spare))]);
                of(self.slot.get_or_insert_with(made))
            }
            "VIF.plug" | "VIF.unplug" => {
                let made = || world.made("VIF.create", &[interface(machine, &self.net)]);
                of(self.second.get_or_insert_with(made))
            }
            _ => of(machine),
        }
    }
}
