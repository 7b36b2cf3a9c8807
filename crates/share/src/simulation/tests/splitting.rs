//! Splitting, and settings that are found without search.

use super::{CONNECTIONS, KIB, MIB, NETWORK, SECOND, length, profile};
use crate::device::sample;
use crate::device::{DeviceConfig, Flash, Model};
use crate::profile::{OpKind, Piece, Profile};
use crate::simulation::workload::Workload;
use crate::simulation::world::Scenario;

const STRIPED: Model = Model::Flash(Flash::STRIPED);
const UNSTRIPED: Model = Model::Flash(Flash::UNSTRIPED);

/// Returns the throughput of so many disks with a profile, from `from_ns` on.
fn rate(
    device: &DeviceConfig,
    profile: Profile,
    disks: usize,
    workload: &Workload,
    from_ns: u64,
) -> f64 {
    let mut scenario = Scenario::new(device.clone(), Some(profile));
    scenario.warm_up_ns = from_ns;
    scenario.length_ns = from_ns + length(SECOND, SECOND / 4);
    (0..disks).for_each(|_| scenario.add(100, workload.clone()));
    scenario.run().total()
}

fn whole(profile: Profile) -> Profile {
    Profile { piece: None, ..profile }
}

/// The bar: within 10% of the best cell of 512 KiB in flight as 1 to 128 independent requests. The
/// device alone reaches it. A split request waits for its slowest piece, the cell's requests do not
/// wait for each other: 91%. Each wait also costs a wake-up of the reactor: 89%.
#[test]
fn striped_flash_gains_from_splitting() {
    let device = DeviceConfig::from(STRIPED);
    let profile = profile(STRIPED);
    let large = Workload { think_ns: 0, ..Workload::reads(512 * KIB, 1) };
    let split = rate(&device, profile, 1, &large, SECOND / 4);
    let unsplit = rate(&device, whole(profile), 1, &large, SECOND / 4);
    assert!(split >= 1.6 * unsplit, "split {split}, whole {unsplit}");
    let counts = [1, 2, 4, 8, 16, 32, 64, 128];
    let best = |cells: [f64; 8]| cells.into_iter().fold(0.0, f64::max);
    let on_device = |bytes: u64, depth, pieces| {
        sample(&device, OpKind::Read, bytes, depth, pieces).bytes_per_second as f64
    };
    let cells = counts.map(|count| on_device(512 * KIB / count, count, 1));
    let pieces = 512 * KIB / profile.piece.expect("the flash is striped").bytes;
    let gain = on_device(512 * KIB, 1, pieces) / best(cells);
    assert!(gain >= 0.9, "{gain} of {cells:?}");
    let cells = counts.map(|count| {
        let cell = Workload { think_ns: 0, ..Workload::reads(512 * KIB / count, count) };
        let mut scenario = Scenario::new(STRIPED, None);
        scenario.add(100, cell);
        scenario.run().total()
    });
    assert!(split >= 0.88 * best(cells), "{split} of {cells:?}");
}

#[test]
fn splitting_never_costs_throughput() {
    for model in [STRIPED, UNSTRIPED] {
        let device = DeviceConfig::from(model);
        let profile = profile(model);
        for (disks, depth) in [(1, 1), (1, 4), (1, 16), (10, 1), (10, 16)] {
            for bytes in [128 * KIB, 512 * KIB, 4 * MIB] {
                let workload = Workload::reads(bytes, depth);
                let split = rate(&device, profile, disks, &workload, SECOND / 4);
                let unsplit = rate(&device, whole(profile), disks, &workload, SECOND / 4);
                assert!(split >= 0.99 * unsplit, "{model:?} {disks} {depth} {bytes}");
            }
        }
    }
    assert_eq!(profile(UNSTRIPED).piece, None);
}

/// Asserts that the profile is within 15% of the best of many fixed depths and pieces.
fn assert_near_best(device: &DeviceConfig, profile: Profile, from_ns: u64) {
    for (disks, workload) in [
        (1, Workload::reads(4 * MIB, 1)),
        (1, Workload::reads(512 * KIB, 1)),
        (8, Workload::reads(128 * KIB, 16)),
        (20, Workload::reads(4 * KIB, 16)),
    ] {
        let fixed = |percent: u64, bytes: Option<u64>| {
            let piece = bytes.map(|bytes| Piece { bytes, gain_percent: 0 });
            let knee_ns = profile.knee_ns * percent / 100;
            // A latency of seconds never tightens the depth.
            let profile = Profile { knee_ns, piece, latency_ns: 5 * SECOND, ..profile };
            rate(device, profile, disks, &workload, from_ns)
        };
        // Pieces as large as a request change nothing.
        let pieces = [16 * KIB, 64 * KIB, 256 * KIB, MIB].into_iter();
        let pieces = pieces.filter(|bytes| *bytes < workload.bytes).map(Some).chain([None]);
        let pieces: Vec<_> = pieces.collect();
        let settings = [50, 100, 200].into_iter();
        let settings =
            settings.flat_map(|percent| pieces.iter().map(move |piece| (percent, *piece)));
        let best = settings.map(|(percent, bytes)| (fixed(percent, bytes), percent, bytes));
        let best = best.max_by(|a, b| a.0.total_cmp(&b.0)).expect("settings");
        let found = rate(device, profile, disks, &workload, from_ns);
        assert!(found >= 0.85 * best.0, "{disks} disks, {workload:?}: {found}, best {best:?}");
    }
}

#[test]
fn connections_with_a_limit_are_used_side_by_side() {
    let model = Model::Pipe(CONNECTIONS);
    assert_near_best(&model.into(), profile(model), SECOND / 2);
}

#[test]
fn network_storage_has_enough_in_flight() {
    let model = Model::Pipe(NETWORK);
    assert_near_best(&model.into(), profile(model), SECOND / 2);
}

#[test]
fn a_degraded_device_is_used_well_two_seconds_later() {
    for model in [STRIPED, Model::Pipe(crate::device::Pipe::ARRAY), Model::Pipe(NETWORK)] {
        // A quarter of the speed from the first tenth of a second on.
        let from = SECOND / 10;
        let device = DeviceConfig { model, speeds: vec![(from, 25)] };
        assert_near_best(&device, profile(model), from + 2 * SECOND);
    }
}
