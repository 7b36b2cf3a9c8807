//! `kill -9` of the daemon at moments by chance, while machines are worked on: none is lost, records
//! are true, nothing is left over.

use std::time::{Duration, Instant};

use testkit::lasting::Random;
use testkit::process::PROCESS_DEADLINE;
use testkit::rounds;
use xenapi::Value;
use xenapi::client::Begun;

use super::world::{Machine, World, interface, of, record, start};

/// Latest moment of a death after the operations were asked for, in microseconds: about what they
/// take on a host that has nothing else to do.
const LATEST_US: u64 = 900_000;
/// Machines without an operating system: what needs no guest is done to them.
const PLAIN: usize = 2;
/// In one round of so many, something is asked of a guest.
const GUEST_EVERY: u64 = 4;
/// What nobody may have told after all.
const NEVER: [&str; 5] = [
    "VM_CRASHED",
    "VM_RESTART_FAILED",
    "VM_END_FAILED",
    "VM_AUTO_POWERON_FAILED",
    "VM_NOT_RECORDED",
];

/// What is done to machines with and without an operating system, by their power state.
fn ops(power: &str, has_system: bool) -> &'static [&'static str] {
    match (power, has_system) {
        ("Halted", _) => &["VM.start"],
        ("Paused", _) => &["VM.unpause", "VM.hard_shutdown", "VM.hard_reboot"],
        (_, false) => &["VM.hard_reboot", "VM.hard_shutdown", "VM.pause", "VM.power_state_reset"],
        (_, true) => &["VM.clean_reboot", "VM.clean_shutdown", "VM.hard_reboot"],
    }
}

struct Host {
    world: World,
    plain: Vec<Machine>,
    guest: Machine,
    /// What the guest has written and flushed last, by number.
    written: u64,
    chance: Random,
}

impl Host {
    fn new(seed: u64) -> Self {
        let mut world = World::with_slices();
        let plain: Vec<_> = (0..PLAIN).map(|n| world.plain(&format!("plain{n}"))).collect();
        let guest = world.guest("guest");
        let net = [("name_label", Value::text("n")), ("other_config", record([]))];
        let net = world.made("network.create", &[record(net)]);
        for machine in plain.iter().chain([&guest]) {
            world.made("VIF.create", &[interface(&machine.reference, &net)]);
        }
        Self { world, plain, guest, written: 0, chance: Random::new(seed) }
    }

    /// Asks for something that the machine can do now.
    fn ask(&mut self, at: Option<usize>) -> (&'static str, Begun) {
        let machine = at.map_or(&self.guest, |at| &self.plain[at]);
        let ops = ops(&self.world.power(machine), at.is_none());
        let op = ops[usize::try_from(self.chance.below(ops.len() as u64)).unwrap()];
        let params =
            if op == "VM.start" { start(&machine.reference) } else { of(&machine.reference) };
        (op, self.world.client.begin(op, &params).unwrap())
    }

    /// A guest that runs writes a word and flushes it; what it has written before is there.
    fn write(&mut self) {
        if self.world.power(&self.guest) != "Running" {
            assert_eq!(self.guest.stored(self.written), self.word());
            return;
        }
        let mut shell = self.world.shell(&self.guest);
        assert_eq!(self.guest.read(&mut shell, self.written), self.word());
        self.written += 1;
        let word = self.word();
        self.guest.write(&mut shell, self.written, &word);
    }

    fn word(&self) -> String {
        if self.written == 0 { String::new() } else { format!("word-{}", self.written) }
    }

    fn round(&mut self) {
        let with_guest = self.chance.below(GUEST_EVERY) == 0;
        if with_guest {
            self.write();
        }
        let plain = (0..PLAIN).map(Some);
        let asked: Vec<_> = plain.chain(with_guest.then_some(None)).collect();
        let asked: Vec<_> = asked.into_iter().map(|at| self.ask(at)).collect();
        let after = Duration::from_micros(self.chance.below(LATEST_US));
        let ops: Vec<_> = asked.iter().map(|(op, _)| *op).collect();
        println!("{ops:?}, killed after {after:?}");
        // The moment is what is tried here.
        std::thread::sleep(after);
        self.world.killed();
        self.settles();
    }

    /// Everything comes to an end, and is as it is recorded.
    fn settles(&mut self) {
        let all: Vec<&Machine> = self.plain.iter().chain([&self.guest]).collect();
        let world = &mut self.world;
        for machine in all {
            world.until("true records", |world| {
                let up = world.power(machine) != "Halted";
                let attached = world.record("VBD", &machine.slot).flag("currently_attached");
                let domid = world.domid(machine) != -1;
                let is_true = up == world.lives(machine) && attached == up && domid == up;
                world.is_quiet(machine) && is_true
            });
            let told = world.messages(machine);
            let bad = told.iter().find(|name| NEVER.contains(&name.as_str()));
            assert_eq!(bad, None, "{told:?}: {}", world.shown());
        }
        // One emulator for each that is up, and as many domains.
        let up: Vec<_> =
            self.plain.iter().chain([&self.guest]).filter(|one| world.lives(one)).collect();
        let count = up.len();
        let left = world.daemon.leftovers();
        let of = |what: &str| left.iter().filter(|line| line.starts_with(what)).count();
        assert_eq!((of("process"), of("domain"), of("disk")), (count, count, count), "{left:?}");
        assert_eq!(of("lock"), count, "{left:?}");
        groups_are(world, &up);
        // All are on one network, which has an uplink as long as somebody is.
        assert_eq!((of("nic"), of("uplink")), (count, count.min(1)), "{left:?}");
    }

    /// Every machine works from where it is, and leaves nothing.
    fn ends(&mut self) {
        for machine in self.plain.iter().chain([&self.guest]) {
            match self.world.power(machine).as_str() {
                "Running" => {}
                "Paused" => drop(self.world.call("VM.unpause", &of(&machine.reference))),
                _ => drop(self.world.call("VM.start", &start(&machine.reference))),
            }
            assert_eq!(self.world.power(machine), "Running");
        }
        self.write();
        for machine in self.plain.iter().chain([&self.guest]) {
            self.world.call("VM.hard_shutdown", &of(&machine.reference));
        }
        assert_eq!(self.guest.stored(self.written), self.word());
        assert_eq!(self.world.daemon.leftovers(), Vec::<String>::new());
        groups_are(&self.world, &[]);
    }
}

/// The control groups of machines are those of these, with an emulator in each. The kernel takes one
/// out a moment after its end.
fn groups_are(world: &World, up: &[&Machine]) {
    let Some(slices) = world.daemon.slices() else { return };
    let began = Instant::now();
    loop {
        let groups = slices.leaves("guests");
        let all_there = up.iter().all(|one| groups.get(&one.uuid).is_some_and(|of| of.len() == 1));
        if all_there && groups.len() == up.len() {
            return;
        }
        assert!(began.elapsed() < PROCESS_DEADLINE, "{groups:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// `RINGWAY_SEED` repeats the choices, not the moments of the host.
#[test]
fn wherever_the_daemon_is_killed_no_machine_is_lost_and_records_are_true() {
    let seed = std::env::var("RINGWAY_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    println!("RINGWAY_SEED={seed}");
    let mut host = Host::new(seed);
    for _ in 0..rounds(15, 100) {
        host.round();
    }
    host.ends();
}
