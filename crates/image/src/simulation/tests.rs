//! Runs of the simulation.

use super::qcow2::Qcow2Options;
use super::storage::SimFile;
use super::toy::{GRANULES, Toy, ToyOptions};
use super::vhd::VhdOptions;
use super::*;
use crate::planted::{Bug, plant};
use crate::qcow2::Qcow2Format;
use crate::vhd::VhdFormat;

const MIX: Mix<ToyOptions> =
    Mix::new(ToyOptions { has_blocks: true, punches: true }, (0, GRANULES));

/// Steps of a run without planted bugs: `make soak` runs a thousand million in all.
fn steps() -> u64 {
    if std::env::var_os("RINGWAY_SOAK").is_some() { 6_250_000 } else { 250_000 }
}

const SEEDS: u64 = 20;

/// Mixes of runs without planted bugs.
fn mixes() -> [Mix<ToyOptions>; 8] {
    let toy = |has_blocks, punches| ToyOptions { has_blocks, punches };
    let blocks = Mix { format: toy(true, true), ..MIX };
    let fills = Mix { format: toy(false, true), ..MIX };
    let narrow =
        Mix { format: toy(true, false), granules: (4, 6), operations: [6, 8, 0, 4, 2], ..MIX };
    [
        blocks,
        fills,
        narrow,
        Mix { format: toy(false, false), ..narrow },
        Mix { eio: true, ..blocks },
        Mix { eio: true, ..fills },
        // Rings fill up and are folded.
        Mix { operations: [4, 14, 0, 1, 0], crash_every: 5000, ..blocks },
        // Successors die while they take over.
        Mix { crash_every: 60, ..blocks },
    ]
}

/// Runs mixes with several seeds.
fn run<F: SimFormat>(mixes: &[Mix<F::Options>], seeds: u64, steps: u64) -> Seen {
    let mut all = Seen::default();
    for mix in mixes {
        let mut sum = Seen::default();
        for seed in 1..=seeds {
            let seen = World::<F>::new(seed, *mix).run(steps);
            sum += seen.unwrap_or_else(|violation| panic!("seed {seed} {mix:?}: {}", violation.0));
        }
        println!("{mix:?}\n  {sum:?}");
        assert!(sum.acknowledged > 1000 && sum.kills > 100 && sum.cuts > 100, "{sum:?}");
        // No round runs out of space, because all that it needs is reserved.
        assert!(mix.eio || sum.failed == 0, "{sum:?}");
        assert!(sum.reclaimed > 0 && sum.evictions > 0 && sum.rounds > 0, "{sum:?}");
        all += sum;
    }
    all
}

#[test]
fn no_rule_is_broken() {
    run::<Toy>(&mixes(), SEEDS, steps());
}

/// With subclusters, over a backing: data, a mixed, a compressed and a zero granule.
const EXTENDED: Qcow2Options = Qcow2Options {
    create: ("extended_l2=on,cluster_size=16k", 16384 * 6),
    commands: &[
        "write -q -c -P 3 32k 16k",
        "write -q -P 1 0 16k",
        "write -q -P 2 16k 512",
        "write -q -z 48k 16k",
    ],
    first: 0,
    granules: 6,
    cells: 4,
    has_below: true,
    room: 12,
};

/// All that a snapshot uses is shared, its L2 table too.
const SNAPSHOT: Qcow2Options = Qcow2Options {
    commands: &[
        "write -q -c -P 3 32k 16k",
        "write -q -P 1 0 16k",
        "write -q -P 2 16k 512",
        "snapshot",
    ],
    ..EXTENDED
};

/// Small clusters.
pub(super) const SMALL: Qcow2Options = Qcow2Options {
    create: ("cluster_size=512", 512 * 70),
    commands: &["write -q -c -P 3 512 512", "write -q -P 1 0 512", "snapshot"],
    // Granules of two L2 tables.
    first: 60,
    granules: 8,
    cells: 1,
    has_below: false,
    room: 16,
};

const PLAIN: Qcow2Options = Qcow2Options {
    create: ("cluster_size=4k", 4096 * 6),
    commands: &[
        "write -q -c -P 3 8k 4k",
        "write -q -P 1 0 8k",
        "snapshot",
        "write -q -P 4 0 4k",
        "write -q -z 12k 4k",
    ],
    room: 10,
    ..EXTENDED
};

fn usual(format: Qcow2Options) -> Mix<Qcow2Options> {
    Mix::new(format, (0, format.granules))
}

#[test]
fn no_rule_is_broken_by_qcow2() {
    let mixes = [
        usual(EXTENDED),
        usual(SNAPSHOT),
        usual(SMALL),
        usual(PLAIN),
        Mix { eio: true, ..usual(EXTENDED) },
        Mix { eio: true, ..usual(PLAIN) },
        Mix { full: true, ..usual(EXTENDED) },
        Mix { full: true, ..usual(SNAPSHOT) },
        Mix { full: true, ..usual(PLAIN) },
        Mix { crash_every: 60, ..usual(SNAPSHOT) },
        // The storage is full most of the time.
        usual(Qcow2Options { room: 5, ..EXTENDED }),
        usual(Qcow2Options { room: 5, ..SMALL }),
    ];
    run::<Qcow2Format<SimFile>>(&mixes, SEEDS, steps() / 10);
}

/// The next cluster needs a refcount block.
const NEW_BLOCK: Qcow2Options = Qcow2Options {
    create: ("cluster_size=512,refcount_bits=64", 512 * 4200),
    commands: &["write -q -P 1 0 58k"],
    first: 4090,
    room: 30,
    ..SMALL
};

/// A few clusters more need a larger refcount table.
const NEW_TABLE: Qcow2Options =
    Qcow2Options { commands: &["write -q -P 1 0 1980k"], room: 300, ..NEW_BLOCK };

/// Many short runs, because an image grows once.
#[test]
fn no_rule_is_broken_where_refcounts_grow() {
    let block = Mix { crash_every: 250, ..usual(NEW_BLOCK) };
    run::<Qcow2Format<SimFile>>(&[block], 100, steps() / 100);
    // The owner reads all refcounts before it finds a free cluster.
    let table = Mix { crash_every: 1500, ..usual(NEW_TABLE) };
    run::<Qcow2Format<SimFile>>(&[table], 100, steps() / 40);
}

/// Only the layer below has data.
const NEW: Qcow2Options = Qcow2Options { commands: &[], ..EXTENDED };

/// Many short runs, because a granule is below until its first write.
#[test]
fn no_rule_is_broken_where_lower_files_are_noted() {
    let seen = run::<Qcow2Format<SimFile>>(&[usual(NEW)], 400, steps() / 250);
    assert!(seen.notes > 400, "{seen:?}");
}

/// Bits of a granule that is stored as a whole, and of one that is stored in part: of a block of
/// 4 KiB, too.
const WHOLE: [u8; 16] = [0xff; 16];
const PART: [u8; 16] = [0xff, 0, 0, 0, 0xc0, 0, 0, 0, 0xff, 0, 0, 0, 0, 0, 0, 0];

/// Three blocks of 512 KiB, of which the second one is absent.
pub(super) const DYNAMIC: VhdOptions = VhdOptions {
    size: 3 << 19,
    stored: &[(4, WHOLE), (5, PART), (6, WHOLE), (16, PART)],
    first: 5,
    granules: 12,
    has_below: false,
    room: 5,
};

/// The disk ends within 4 KiB, so granules are filled.
pub(super) const ODD: VhdOptions = VhdOptions { size: (3 << 19) - 512, ..DYNAMIC };

/// Over a parent, which no bit can hide: channels write zeroes instead of discards.
const OVER: VhdOptions = VhdOptions { has_below: true, ..DYNAMIC };

fn vhd(format: VhdOptions) -> Mix<VhdOptions> {
    let discards = if format.has_below { 0 } else { 3 };
    Mix { operations: [7, 7, 1, discards, 2], ..Mix::new(format, (0, format.granules)) }
}

#[test]
fn no_rule_is_broken_by_vhd() {
    // Whole blocks are discarded, and new ones get their space.
    let whole = Mix {
        operations: [5, 4, 1, 12, 3],
        ..vhd(VhdOptions { first: 8, granules: 8, room: 2, ..DYNAMIC })
    };
    let mixes = [
        vhd(DYNAMIC),
        vhd(ODD),
        whole,
        Mix { eio: true, ..vhd(DYNAMIC) },
        Mix { full: true, ..vhd(DYNAMIC) },
        Mix { full: true, ..vhd(ODD) },
        Mix { crash_every: 60, ..vhd(DYNAMIC) },
    ];
    run::<VhdFormat<SimFile>>(&mixes, SEEDS, steps() / 20);
    // Nothing is reclaimed there.
    for seed in 1..=SEEDS {
        let seen = World::<VhdFormat<SimFile>>::new(seed, vhd(OVER)).run(steps() / 20);
        seen.unwrap_or_else(|violation| panic!("seed {seed}: {}", violation.0));
    }
}

/// Steps within which each planted bug is found.
const BUG_STEPS: u64 = 10_000_000;

/// Plants a bug and returns the seed and step at which a rule is broken.
fn find<F: SimFormat>(
    bug: Bug,
    mix: Mix<F::Options>,
    seeds: std::ops::Range<u64>,
    steps: u64,
) -> Option<(u64, u64)> {
    plant(Some(bug));
    let found = seeds.into_iter().find_map(|seed| {
        let mut world = World::<F>::new(seed, mix);
        world.run(steps).err().map(|_| (seed, world.now))
    });
    plant(None);
    found
}

/// Mixes of operations that find the bugs.
fn mix_for(bug: Bug) -> Mix<ToyOptions> {
    let fills = Mix { format: ToyOptions { has_blocks: false, punches: true }, ..MIX };
    match bug {
        Bug::BusyGranted => fills,
        // Harmless where freed space is punched.
        Bug::RecordNotCanceled | Bug::JournalNotFolded => Mix {
            format: ToyOptions { has_blocks: true, punches: false },
            granules: (4, 6),
            operations: [6, 8, 0, 4, 2],
            ..MIX
        },
        _ => MIX,
    }
}

const ALL_BUGS: [Bug; 15] = [
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

#[test]
fn every_planted_bug_is_found() {
    let found = ALL_BUGS.map(|bug| (bug, find::<Toy>(bug, mix_for(bug), 7..8, BUG_STEPS)));
    println!("{found:?}");
    let missed: Vec<_> = found.iter().filter(|(_, step)| step.is_none()).collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}

/// All planted bugs but two: what a former process cleared never looks free here, and a record that
/// stays is harmless where freed space is punched.
#[test]
fn planted_bugs_are_found_in_qcow2() {
    let runs = |bug| match bug {
        Bug::BusyGranted => (PLAIN, 1, 1_000_000),
        Bug::JournalNotFolded => (SNAPSHOT, 10, 1_000_000),
        Bug::EpochIgnored => (EXTENDED, 20, 1_000_000),
        Bug::BlocksNotSynced => (NEW_BLOCK, 1000, 2500),
        Bug::ReplacedFreedEarly => (EXTENDED, 200, 2500),
        Bug::LowerIsTop => (NEW, 200, 1000),
        _ => (EXTENDED, 1, 1_000_000),
    };
    let harmless = [Bug::NoSyncAtTakeover, Bug::RecordNotCanceled];
    let mut bugs: Vec<_> = ALL_BUGS.into_iter().filter(|bug| !harmless.contains(bug)).collect();
    bugs.extend([Bug::BlocksNotSynced, Bug::ReplacedFreedEarly, Bug::LowerIsTop]);
    let find_one = |bug| {
        let (options, seeds, steps) = runs(bug);
        find::<Qcow2Format<SimFile>>(bug, usual(options), 7..7 + seeds, steps)
    };
    let found: Vec<_> = bugs.into_iter().map(|bug| (bug, find_one(bug))).collect();
    println!("{found:?}");
    let missed: Vec<_> = found.iter().filter(|(_, step)| step.is_none()).collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}

/// Bugs that show in a VHD. Others need refcounts, or are harmless: a place that is given again too
/// early is zero, and belongs to the same granule.
#[test]
fn planted_bugs_are_found_in_vhd() {
    let whole = VhdOptions { first: 8, granules: 8, room: 2, ..DYNAMIC };
    let found = [
        (Bug::CommitsForgotten, DYNAMIC, 20_000),
        (Bug::ReferencesBeforeData, DYNAMIC, 50_000),
        (Bug::NoRefcount, whole, 5000),
        (Bug::NewestWritten, OVER, 200_000),
        (Bug::BusyGranted, ODD, 20_000),
        (Bug::EarlyAcknowledgement, DYNAMIC, 20_000),
        (Bug::DurableWithoutRound, DYNAMIC, 50_000),
        (Bug::DirtyEvicted, DYNAMIC, 20_000),
        (Bug::NoRecord, DYNAMIC, 20_000),
    ]
    .map(|(bug, options, steps)| {
        (bug, find::<VhdFormat<SimFile>>(bug, vhd(options), 7..207, steps))
    });
    println!("{found:?}");
    let missed: Vec<_> = found.iter().filter(|(_, step)| step.is_none()).collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}
