//! `kill -9` of the daemon at random times during operations on VMs. No VM is lost, records match
//! the host, and no resources leak.

mod true_records;
mod worked;

use std::time::Duration;

use testkit::reconnecting::Random;
use testkit::rounds;
use xenapi::Value;
use xenapi::client::PendingCall;

use true_records::{assert_host, groups_are, settled};
use worked::Worked;

use super::records::{of, record, start};
use super::world::{PATIENCE, World};

/// Latest time of a kill after the calls, in microseconds: about what the operations take on an
/// idle host.
const LATEST_US: u64 = 900_000;
/// Number of VMs without an operating system, for operations that need no guest.
const PLAIN: usize = 2;
/// One of this many rounds includes an operation that needs a guest.
const GUEST_EVERY: u64 = 4;
/// Name and largest number of VDIs that are created and destroyed.
const LOOSE: &str = "loose";
const LOOSE_MOST: usize = 3;

struct Host {
    world: World,
    plain: Vec<Worked>,
    guest: Worked,
    /// Number of the last word that the guest wrote and flushed.
    written: u64,
    chance: Random,
}

impl Host {
    fn new(seed: u64) -> Self {
        let mut world = World::with_slices();
        let net = [("name_label", Value::text("n")), ("other_config", record([]))];
        let net = world.made("network.create", &[record(net)]);
        let plain = (0..PLAIN).map(|n| {
            let machine = world.plain(&format!("plain{n}"));
            Worked::new(&mut world, &net, machine, false)
        });
        let plain = plain.collect();
        let machine = world.guest("guest");
        let guest = Worked::new(&mut world, &net, machine, true);
        Self { world, plain, guest, written: 0, chance: Random::new(seed) }
    }

    /// Asserts that a running guest sees its disks and its last word, then writes and flushes
    /// another one.
    fn write(&mut self) {
        let machine = &self.guest.machine;
        if self.world.power(machine) != "Running" {
            assert_eq!(machine.stored(self.written), word(self.written));
            return;
        }
        let (slots, _) = self.guest.devices();
        let mut shell = self.world.shell(machine);
        self.world.until("a guest that sees its disks", |world| {
            let mut is_in = |slot: &&str| world.record("VBD", slot).flag("currently_attached");
            let disks = slots.iter().filter(|slot| is_in(slot)).count();
            let seen = shell.run("ls -d /sys/block/vd* | wc -l", PATIENCE).unwrap();
            seen == disks.to_string()
        });
        assert_eq!(machine.read(&mut shell, self.written), word(self.written));
        self.written += 1;
        machine.write(&mut shell, self.written, &word(self.written));
    }

    /// Begins the creation of a VDI, or the destruction of one without a VBD.
    fn ask_of_disks(&mut self) -> (&'static str, PendingCall) {
        let mut loose = self.world.client.records("VDI").unwrap();
        let is_made_here = |disk: &xenapi::client::Record| disk.text("name_label") == LOOSE;
        loose.retain(|(_, disk)| is_made_here(disk) && !disk.flag("missing"));
        let ends = self.chance.below(2) == 0 || loose.len() >= LOOSE_MOST;
        let (op, params) = match loose.first() {
            Some((disk, _)) if ends => ("VDI.destroy", of(disk)),
            _ => ("VDI.create", vec![self.world.new_disk(LOOSE)]),
        };
        (op, self.world.client.begin(op, &params).unwrap())
    }

    fn round(&mut self) {
        let with_guest = self.chance.below(GUEST_EVERY) == 0;
        if with_guest {
            self.write();
        }
        let worked = self.plain.iter_mut().chain(with_guest.then_some(&mut self.guest));
        let mut asked: Vec<_> =
            worked.map(|one| one.ask(&mut self.world, &mut self.chance)).collect();
        asked.push(self.ask_of_disks());
        let after = Duration::from_micros(self.chance.below(LATEST_US));
        let ops: Vec<_> = asked.iter().map(|(op, _)| *op).collect();
        println!("{ops:?}, killed after {after:?}");
        // The time of the kill is the test parameter.
        std::thread::sleep(after);
        self.world.killed();
        self.settles();
    }

    /// Waits until all operations have ended, and asserts that the records match the host.
    fn settles(&mut self) {
        let all: Vec<&Worked> = self.plain.iter().chain([&self.guest]).collect();
        all.iter().for_each(|one| settled(&mut self.world, one));
        assert_host(&mut self.world, &all);
    }

    /// Asserts that every VM can be used from its current state, and that its shutdown leaves no
    /// resources.
    fn ends(&mut self) {
        let all = || self.plain.iter().chain([&self.guest]).map(|one| &one.machine);
        for machine in all() {
            match self.world.power(machine).as_str() {
                "Running" => {}
                "Paused" => drop(self.world.call("VM.unpause", &of(&machine.reference))),
                _ => drop(self.world.call("VM.start", &start(&machine.reference))),
            }
            assert_eq!(self.world.power(machine), "Running");
        }
        self.write();
        for machine in self.plain.iter().chain([&self.guest]).map(|one| &one.machine) {
            self.world.call("VM.hard_shutdown", &of(&machine.reference));
        }
        assert_eq!(self.guest.machine.stored(self.written), word(self.written));
        assert_eq!(self.world.daemon.leftovers(), Vec::<String>::new());
        groups_are(&self.world, &[]);
    }
}

fn word(number: u64) -> String {
    if number == 0 { String::new() } else { format!("word-{number}") }
}

/// `RINGWAY_SEED` repeats the random choices, but not the timing of the host.
#[test]
fn wherever_the_daemon_is_killed_no_machine_is_lost_and_records_are_true() {
    let seed = std::env::var("RINGWAY_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    println!("RINGWAY_SEED={seed}");
    let mut host = Host::new(seed);
    for _ in 0..rounds(6, 500) {
        host.round();
    }
    host.ends();
}
