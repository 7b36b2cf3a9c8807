//! The daemon is killed at points by chance, while several machines are worked on, and again while
//! the next one goes on: no machine is lost, and records are true.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use testkit::lasting::Random;
use testkit::rounds;
use tokio::sync::Notify;
use toolstack::sim::{End, Fate};
use xenapi::table::{vbd, vdi, vm};

use super::*;
use crate::records::owed::TRIES;

/// Machines that are worked on at once.
const MACHINES: usize = 3;
/// Calls of drivers until the end of a life, at most.
const CALLS_MAX: u64 = 40;
/// Longest time that a call takes, in microseconds: those beside each other end in any order.
const CALL_US_MAX: u64 = 3_000;
/// Longer than anything here takes on a busy host.
const PATIENCE: Duration = Duration::from_secs(120);
/// What is done to machines that are halted.
const TO_HALTED: [&str; 4] = ["VM.start", "VM.start", "VM.destroy", "VM.power_state_reset"];
/// What is done to machines that run.
const TO_RUNNING: [&str; 9] = [
    "VM.clean_shutdown",
    "VM.hard_shutdown",
    "VM.shutdown",
    "VM.clean_reboot",
    "VM.hard_reboot",
    "VM.pause",
    "VM.power_state_reset",
    "VBD.plug",
    "VBD.unplug",
];

/// What is done to one machine, and what was told of it.
struct Try {
    machine: Ref,
    /// Its disks; the second one is not in the machine when it is started.
    slots: [Ref; 2],
    op: &'static str,
    /// Before it.
    power: String,
    domid: Value,
    answered: AtomicBool,
}

fn pick(from: &[&'static str], chance: &mut Random) -> &'static str {
    let at = usize::try_from(chance.below(from.len() as u64)).unwrap();
    from[at]
}

/// Kills the daemon at a call, counted from here: before it is done, or after.
fn kill_after(world: &World, chance: &mut Random) -> Arc<Notify> {
    let (last, seed) = (chance.below(CALLS_MAX), chance.number());
    let end = if chance.below(2) == 0 { End::Hangs } else { End::HangsDone };
    let (came, calls) = (Arc::new(Notify::new()), AtomicU64::new(0));
    let comes = came.clone();
    world.sim.rule(move |call| {
        if call.number == u64::MAX {
            return Fate::default();
        }
        let number = calls.fetch_add(1, Ordering::Relaxed);
        if number == last {
            comes.notify_one();
            return Fate::ends(end);
        }
        let takes = Random::new(seed.wrapping_add(number)).below(CALL_US_MAX);
        Fate::takes(Duration::from_micros(takes))
    });
    came
}

/// The life ends: at once, or when some of what it has noted is stored.
async fn dies(world: &World, chance: &mut Random) {
    if chance.below(2) == 0 {
        tokio::time::sleep(Duration::from_micros(chance.below(CALL_US_MAX))).await;
    }
    world.killed();
}

async fn prepare(world: &World, chance: &mut Random) -> Try {
    let machine = world.machine().await;
    let (first, _) = world.device(&machine).await;
    let runs = chance.below(4) > 0;
    if runs {
        world.start(&machine).await;
    }
    let (second, _) = world.device(&machine).await;
    let op = pick(if runs { &TO_RUNNING[..] } else { &TO_HALTED[..] }, chance);
    if op == "VBD.unplug" {
        world.done("VBD.plug", [second.value()]).await;
    }
    let (power, domid) = (world.power(&machine), world.get(&machine, vm::Field::domid));
    let answered = AtomicBool::new(false);
    Try { machine, slots: [first, second], op, power, domid, answered }
}

impl Try {
    async fn call(&self, world: &World) {
        let params = match self.op {
            "VM.start" => vec![self.machine.value(), no(), no()],
            "VBD.plug" | "VBD.unplug" => vec![self.slots[1].value()],
            _ => vec![self.machine.value()],
        };
        world.trial.call(self.op, params).await.unwrap();
        self.answered.store(true, Ordering::Relaxed);
    }

    fn is_there(&self, world: &World) -> bool {
        world.trial.house.db.read(|view| view.object(&vm::CLASS, &self.machine).is_ok())
    }

    fn is_quiet(&self, world: &World) -> bool {
        !self.is_there(world)
            || world.owed(&self.machine).is_none()
                && world.get(&self.machine, vm::Field::current_operations) == none()
    }

    /// What was told is so, and what was begun is done, or was not begun.
    fn assert_goal(&self, world: &World) {
        let answered = self.answered.load(Ordering::Relaxed);
        if self.op == "VM.destroy" {
            assert!(!answered || !self.is_there(world));
            return;
        }
        let domid = world.get(&self.machine, vm::Field::domid);
        let (power, same) = (world.power(&self.machine), domid == self.domid);
        let as_before = power == self.power && same;
        let plugged = world.attached(&self.slots[1]);
        let is_done = match self.op {
            "VM.start" => power == "Running",
            "VM.clean_reboot" | "VM.hard_reboot" => power == "Running" && !same,
            "VM.pause" => power == "Paused" && same,
            "VBD.plug" => as_before && plugged,
            "VBD.unplug" => as_before && !plugged,
            _ => power == "Halted",
        };
        assert!(is_done || as_before && !answered, "{} {power} {domid:?}", self.op);
    }

    /// The host has what the records say.
    fn assert_true(&self, world: &World, there: &There) {
        let domain = there.domains.get(&world.id(&self.machine).to_string());
        let run = match world.power(&self.machine).as_str() {
            "Running" => Some("Some(Running)"),
            "Paused" => Some("Some(Paused)"),
            _ => None,
        };
        assert_eq!(domain.map(|(_, run)| run.as_str()), run, "{}", self.op);
        let domid = domain.map_or(-1, |(domid, _)| *domid);
        assert_eq!(world.get(&self.machine, vm::Field::domid), Value::Int(domid));
        for slot in &self.slots {
            let uuid = text(&world.get(slot, vbd::Field::uuid)).to_owned();
            let disk = Ref::from(text(&world.get(slot, vbd::Field::VDI)));
            let disk = text(&world.get(&disk, vdi::Field::uuid)).to_owned();
            let attached = world.attached(slot);
            let has = |start: String| there.lines.iter().any(|line| line.starts_with(&start));
            assert_eq!(has(format!("disk {uuid}: true")), attached, "{}", self.op);
            assert_eq!(has(format!("disk {uuid}")), attached, "{}", self.op);
            assert_eq!(has(format!("volume {disk}")), attached, "{}", self.op);
        }
    }
}

/// What is on the simulated host, from its words.
struct There {
    lines: Vec<String>,
    /// Number and state, by the machine's UUID.
    domains: BTreeMap<String, (i64, String)>,
}

impl There {
    fn of(world: &World) -> Self {
        let lines = world.sim.leftovers();
        let domain = |line: &String| {
            let (domid, rest) = line.strip_prefix("domain ")?.split_once(" of ")?;
            let (uuid, _) = rest.split_once(' ')?;
            let (_, run) = rest.rsplit_once(": ")?;
            Some((uuid.to_owned(), (domid.parse().ok()?, run.to_owned())))
        };
        let domains = lines.iter().filter_map(domain).collect();
        Self { lines, domains }
    }
}

/// A life with an operation of each machine, which ends somewhere in them.
fn first(chance: &mut Random) -> (World, Vec<Try>) {
    life(async {
        let world = World::new().await;
        let mut tries = Vec::new();
        for _ in 0..MACHINES {
            tries.push(prepare(&world, chance).await);
        }
        let killed = kill_after(&world, chance);
        let [one, two, three] = &tries[..] else { panic!("{MACHINES}") };
        let all = async { tokio::join!(one.call(&world), two.call(&world), three.call(&world)) };
        tokio::select! {
            biased;
            () = killed.notified() => {}
            _ = all => {}
        }
        dies(&world, chance).await;
        (world, tries)
    })
}

/// A life that ends while it begins.
fn next(world: World, chance: &mut Random) -> World {
    life(async {
        let world = world.opened().await;
        let killed = kill_after(&world, chance);
        tokio::select! {
            biased;
            () = killed.notified() => {}
            () = world.begin(BOOT) => {}
        }
        dies(&world, chance).await;
        world
    })
}

async fn at_the_end(world: World, tries: &[Try]) {
    let world = world.again(BOOT).await;
    let quiet = world.until(|world| tries.iter().all(|one| one.is_quiet(world)));
    tokio::time::timeout(PATIENCE, quiet).await.unwrap();
    let there = There::of(&world);
    assert_eq!(world.messages(), Vec::<String>::new(), "no guest has ended by itself");
    tries.iter().for_each(|one| one.assert_goal(&world));
    for one in tries.iter().filter(|one| one.is_there(&world)) {
        one.assert_true(&world, &there);
        match world.power(&one.machine).as_str() {
            "Running" => {}
            "Paused" => world.done("VM.unpause", [one.machine.value()]).await,
            _ => world.start(&one.machine).await,
        }
        assert_eq!(world.power(&one.machine), "Running");
        assert!(world.attached(&one.slots[0]));
        world.done("VM.hard_shutdown", [one.machine.value()]).await;
    }
    world.assert_clean();
}

fn round(seed: u64) {
    let mut chance = Random::new(seed);
    let (mut world, tries) = first(&mut chance);
    // Fewer than after which nobody tries any more.
    for _ in 1..TRIES {
        if chance.below(3) == 0 {
            world = next(world, &mut chance);
        }
    }
    world.sim.rule(|_| Fate::default());
    life(at_the_end(world, &tries));
}

/// A seed is that of one round: `RINGWAY_SEED` begins with another.
#[test]
fn wherever_the_daemon_is_killed_no_machine_is_lost_and_records_are_true() {
    let begin = std::env::var("RINGWAY_SEED").ok().and_then(|seed| seed.parse().ok());
    let begin = begin.unwrap_or_else(|| u64::from(std::process::id()) << 16);
    for seed in (begin..).take(rounds(35, 400)) {
        println!("RINGWAY_SEED={seed}");
        round(seed);
    }
}
