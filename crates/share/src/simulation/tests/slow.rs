//! Requests that hang, and devices that become slower.

use super::{KIB, MIB, MS, SECOND, profile};
use crate::device::{DeviceConfig, Flash, Model, Pipe};
use crate::profile::{Op, OpKind, Piece, Profile};
use crate::simulation::report::Report;
use crate::simulation::workload::Workload;
use crate::simulation::world::Scenario;

/// Runs ten disks, and one whose eleventh request hangs.
fn run(model: Model, profile: Profile, bytes: u64, hung: u64) -> Report {
    let mut scenario = Scenario::new(model, Some(profile));
    scenario.reactors = 2;
    (0..10).for_each(|at| scenario.add(100, Workload::reads(bytes, 4).on(&[at % 2])));
    scenario.add(100, Workload { hangs: Some(10), ..Workload::reads(hung, 1).on(&[0]) });
    scenario.run()
}

#[test]
fn a_request_that_hangs_holds_no_other() {
    for model in [Model::Pipe(Pipe::ARRAY), Model::Flash(Flash::STRIPED)] {
        for (bytes, hung) in [(128 * KIB, 128 * KIB), (128 * KIB, 4 * MIB), (4 * MIB, 4 * MIB)] {
            for piece in
                [None, profile(model).piece, Some(Piece { bytes: 16 * KIB, gain_percent: 0 })]
            {
                let profile = Profile { piece, ..profile(model) };
                let report = run(model, profile, bytes, hung);
                let waits = report.disks[..10].iter().map(|disk| disk.longest_wait).max().unwrap();
                // Four rounds of all disks: a quarter of the tokens is left.
                let bound = 4 * 11 * profile.cost(Op::new(OpKind::Read, bytes.max(hung))) + 3 * MS;
                assert!(waits <= bound, "{model:?}: {bytes} beside {hung}: waits {waits} ns");
                // After a second, its tokens are back.
                let later = report.disks[..10].iter().flat_map(|disk| &disk.timeline[150..450]);
                let rate = later.sum::<u64>() as f64 / 3.0;
                assert!(rate >= 0.9 * 800e6, "{model:?}: {bytes} beside {hung}: {rate}");
            }
        }
    }
}

#[test]
fn latency_tightens_the_depth_and_it_recovers() {
    for model in [Model::Pipe(Pipe::ARRAY), Model::Flash(Flash::STRIPED)] {
        let knee = profile(model).knee_ns;
        // A fifth of the speed, from the first to the third second.
        let speeds = vec![(SECOND, 20), (3 * SECOND, 100)];
        let mut scenario = Scenario::new(DeviceConfig { model, speeds }, Some(profile(model)));
        (0..10).for_each(|_| scenario.add(100, Workload::reads(128 * KIB, 32)));
        scenario.length_ns = 2_900 * MS;
        let slow = scenario.run();
        assert!(slow.depth <= knee * 6 / 10, "{model:?}: {} of {knee}", slow.depth);
        assert!(slow.depths.0 >= knee / 2, "{model:?}: {:?} of {knee}", slow.depths);
        scenario.length_ns = 6 * SECOND;
        let healthy = scenario.run();
        assert_eq!(healthy.depth, knee, "{model:?}");
    }
}
