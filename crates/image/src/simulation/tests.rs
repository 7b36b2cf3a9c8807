//! Runs of the simulation.

use super::*;
use crate::planted::{Bug, plant};

/// Steps of a run without planted bugs: `make soak` runs a thousand million in all.
fn steps() -> u64 {
    if std::env::var_os("RINGWAY_SOAK").is_some() { 6_250_000 } else { 250_000 }
}

const SEEDS: u64 = 20;

/// Mixes of runs without planted bugs.
fn mixes() -> [Mix; 8] {
    let toy = |has_blocks, punches| ToyOptions { has_blocks, punches };
    let blocks = Mix { toy: toy(true, true), ..MIX };
    let fills = Mix { toy: toy(false, true), ..MIX };
    let narrow =
        Mix { toy: toy(true, false), granules: (4, 6), operations: [6, 8, 0, 4, 2], ..MIX };
    [
        blocks,
        fills,
        narrow,
        Mix { toy: toy(false, false), ..narrow },
        Mix { eio: true, ..blocks },
        Mix { eio: true, ..fills },
        // Rings fill up and are folded.
        Mix { operations: [4, 14, 0, 1, 0], crash_every: 5000, ..blocks },
        // Successors die while they take over.
        Mix { crash_every: 60, ..blocks },
    ]
}

#[test]
fn no_rule_is_broken() {
    for mix in mixes() {
        let mut sum = Seen::default();
        for seed in 1..=SEEDS {
            let seen = World::new(seed, mix).run(steps());
            sum += seen.unwrap_or_else(|violation| panic!("seed {seed} {mix:?}: {}", violation.0));
        }
        println!("{mix:?}\n  {sum:?}");
        assert!(sum.acknowledged > 10_000 && sum.kills > 100 && sum.cuts > 100, "{sum:?}");
        assert!(sum.reclaimed > 0 && sum.evictions > 0 && sum.rounds > 0, "{sum:?}");
    }
}

/// Steps within which each planted bug is found.
const BUG_STEPS: u64 = 10_000_000;

/// Plants a bug and returns the step at which a rule is broken.
fn find(bug: Bug, mix: Mix) -> Option<u64> {
    plant(Some(bug));
    let mut world = World::new(7, mix);
    let outcome = world.run(BUG_STEPS);
    plant(None);
    outcome.err().map(|_| world.now)
}

/// Mixes of operations that find the bugs.
fn mix_for(bug: Bug) -> Mix {
    let fills = Mix { toy: ToyOptions { has_blocks: false, punches: true }, ..MIX };
    match bug {
        Bug::BusyGranted => fills,
        // Harmless where freed space is punched.
        Bug::RecordNotCanceled | Bug::JournalNotFolded => Mix {
            toy: ToyOptions { has_blocks: true, punches: false },
            granules: (4, 6),
            operations: [6, 8, 0, 4, 2],
            ..MIX
        },
        _ => MIX,
    }
}

#[test]
fn every_planted_bug_is_found() {
    let all = [
        Bug::EpochIgnored,
        Bug::FreedBeforeDurable,
        Bug::CommitsForgotten,
        Bug::ReferencesBeforeData,
        Bug::NoRefcount,
        Bug::NewestWritten,
        Bug::BusyGranted,
        Bug::EarlyAcknowledgement,
        Bug::LatePunch,
        Bug::NoSyncAtTakeover,
        Bug::DurableWithoutRound,
        Bug::DirtyEvicted,
        Bug::NoRecord,
        Bug::RecordNotCanceled,
        Bug::JournalNotFolded,
    ];
    let found = all.map(|bug| (bug, find(bug, mix_for(bug))));
    println!("{found:?}");
    let missed: Vec<_> = found.iter().filter(|(_, step)| step.is_none()).collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}
