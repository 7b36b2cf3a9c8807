//! The daemon is killed at random points during operations on several VMs, and again during
//! recovery. No VM is lost, and records match the host.

mod there;
mod tried;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use testkit::reconnecting::Random;
use testkit::rounds;
use tokio::sync::Notify;
use toolstack::sim::{SimBehaviour, SimResult};

use there::HostState;
use tried::Try;

use super::simulated_host::*;
use crate::ops::pending_op::TRIES;

/// Number of VMs with concurrent operations.
const MACHINES: usize = 3;
/// Most driver calls until a kill.
const CALLS_MAX: u64 = 40;
/// Longest duration of a call in microseconds. Concurrent calls end in any order.
const CALL_US_MAX: u64 = 3_000;
/// Longer than any wait here on a busy host.
const PATIENCE: Duration = Duration::from_secs(120);

/// Kills the daemon before or after a random driver call. Early calls are more likely, because some
/// operations have only one or two.
fn kill_after(sim_host: &SimulatedHost, chance: &mut Random) -> Arc<Notify> {
    let most = 1 + chance.below(CALLS_MAX);
    let (last, seed) = (chance.below(most), chance.number());
    let sim_result = if chance.below(2) == 0 { SimResult::Hangs } else { SimResult::HangsDone };
    let (event, calls) = (Arc::new(Notify::new()), AtomicU64::new(0));
    let comes = event.clone();
    sim_host.sim.rule(move |call| {
        if call.number == u64::MAX {
            return SimBehaviour::default();
        }
        let number = calls.fetch_add(1, Ordering::Relaxed);
        if number == last {
            comes.notify_one();
            return SimBehaviour::ends(sim_result);
        }
        let takes = Random::new(seed.wrapping_add(number)).below(CALL_US_MAX);
        SimBehaviour::takes(Duration::from_micros(takes))
    });
    event
}

/// Ends a life: at once, or after some observed changes are stored.
async fn dies(sim_host: &SimulatedHost, chance: &mut Random) {
    if chance.below(2) == 0 {
        tokio::time::sleep(Duration::from_micros(chance.below(CALL_US_MAX))).await;
    }
    sim_host.killed();
}

/// Runs a life with one operation on each VM, and kills it within them.
fn first(chance: &mut Random) -> (SimulatedHost, Vec<Try>) {
    life(async {
        let sim_host = SimulatedHost::new().await;
        let mut tries = Vec::new();
        for _ in 0..MACHINES {
            tries.push(Try::new(&sim_host, chance).await);
        }
        let killed = kill_after(&sim_host, chance);
        let [one, two, three] = &tries[..] else { panic!("{MACHINES}") };
        let all =
            async { tokio::join!(one.call(&sim_host), two.call(&sim_host), three.call(&sim_host)) };
        tokio::select! {
            biased;
            () = killed.notified() => {}
            _ = all => {}
        }
        dies(&sim_host, chance).await;
        (sim_host, tries)
    })
}

/// Runs a life that is killed while it starts.
fn next(sim_host: SimulatedHost, chance: &mut Random) -> SimulatedHost {
    life(async {
        let sim_host = sim_host.opened().await;
        let killed = kill_after(&sim_host, chance);
        tokio::select! {
            biased;
            () = killed.notified() => {}
            () = sim_host.begin(BOOT) => {}
        }
        dies(&sim_host, chance).await;
        sim_host
    })
}

async fn at_the_end(sim_host: SimulatedHost, tries: &[Try]) {
    let sim_host = sim_host.again(BOOT).await;
    let quiet = sim_host.until(|sim_host| tries.iter().all(|one| one.is_quiet(sim_host)));
    tokio::time::timeout(PATIENCE, quiet).await.unwrap();
    let there = HostState::of(&sim_host).await;
    assert_eq!(sim_host.messages(), Vec::<String>::new(), "no guest has ended by itself");
    there.assert_disks(&sim_host);
    tries.iter().for_each(|one| one.assert_goal(&sim_host));
    for one in tries.iter().filter(|one| one.is_there(&sim_host)) {
        one.assert_true(&sim_host, &there);
        one.works(&sim_host).await;
    }
    sim_host.assert_clean();
}

fn round(seed: u64) {
    let mut chance = Random::new(seed);
    let (mut sim_host, tries) = first(&mut chance);
    // Stays below the number of attempts at which a pending op is abandoned.
    for _ in 1..TRIES {
        if chance.below(3) == 0 {
            sim_host = next(sim_host, &mut chance);
        }
    }
    sim_host.sim.rule(|_| SimBehaviour::default());
    life(at_the_end(sim_host, &tries));
}

/// Each round has its own seed. `RINGWAY_SEED` sets the first one.
#[test]
fn wherever_the_daemon_is_killed_no_machine_is_lost_and_records_are_true() {
    let begin = std::env::var("RINGWAY_SEED").ok().and_then(|seed| seed.parse().ok());
    let begin = begin.unwrap_or_else(|| u64::from(std::process::id()) << 16);
    for seed in (begin..).take(rounds(50, 500)) {
        println!("RINGWAY_SEED={seed}");
        round(seed);
    }
}
