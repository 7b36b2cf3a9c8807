//! Requests that hang.

use super::{KIB, MIB, MS, US, profile};
use crate::device::{Flash, Model, Pipe};
use crate::profile::{Op, OpKind, Profile};
use crate::simulation::report::Report;
use crate::simulation::workload::Workload;
use crate::simulation::world::Scenario;

/// Runs ten disks, and one whose tenth request hangs.
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
            let profile = Profile { piece: None, ..profile(model) };
            let report = run(model, profile, bytes, hung);
            let waits = report.disks[..10].iter().map(|disk| disk.longest_wait).max().unwrap();
            // Two rounds of all disks, with half of the tokens.
            let bound = 4 * 11 * profile.cost(Op::new(OpKind::Read, bytes.max(hung))) + 3 * MS;
            println!("{bytes} {hung}: {} {} {}", waits / US, bound / US, report.line());
            assert!(waits <= bound, "{model:?}: {bytes} beside {hung}: waits {waits} ns");
        }
    }
}

#[test]
fn pieces_that_hang_hold_others_for_little_more_than_a_second() {
    for model in [Model::Pipe(Pipe::ARRAY), Model::Flash(Flash::STRIPED)] {
        let report = run(model, profile(model), 128 * KIB, 4 * MIB);
        let waits = report.disks[..10].iter().map(|disk| disk.longest_wait).max().unwrap();
        println!("{} {}", waits / US, report.line());
        assert!(waits <= 1_200 * MS, "{model:?}: waits {waits} ns");
        let later: u64 = report.disks[..10].iter().flat_map(|d| &d.timeline[300..500]).sum();
        assert!(later as f64 >= 0.9 * 2.0 * 810e6, "{model:?}: {later} bytes in the last seconds");
    }
}
