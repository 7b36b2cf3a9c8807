//! Reactors from which the host takes the CPU, now and then, for up to 20 ms.
//!
//! Others pass a reactor over after a millisecond. What they get meanwhile stays theirs.

use super::{KIB, MS, SECOND, length, profile};
use crate::device::{Flash, Model, Pipe};
use crate::simulation::report::Report;
use crate::simulation::workload::Workload;
use crate::simulation::world::Scenario;

/// Longest stalls, in nanoseconds.
const STALLS: [u64; 3] = [2 * MS, 5 * MS, 20 * MS];

/// Runs hogs of these weights, one reactor after the other, with stalls of up to `stall`.
fn run(model: Model, reactors: usize, weights: &[u64], stall: u64) -> Report {
    let mut scenario = Scenario::new(model, Some(profile(model)));
    scenario.reactors = reactors;
    scenario.stalls = stall;
    scenario.length_ns = length(300 * SECOND, 10 * SECOND);
    for (at, weight) in weights.iter().enumerate() {
        scenario.add(*weight, Workload::reads(128 * KIB, 32).on(&[at % reactors]));
    }
    scenario.run()
}

#[test]
fn weights_hold_while_reactors_stall() {
    for model in [Model::Pipe(Pipe::ARRAY), Model::Flash(Flash::STRIPED)] {
        for stall in STALLS {
            let report = run(model, 2, &[100, 200, 400, 800, 100, 200, 400, 800], stall);
            assert!(report.spread(0..8) <= 1.03, "{stall}: {}", report.line());
        }
    }
}

#[test]
fn a_reactor_that_stalled_does_not_keep_others_out_until_it_has_caught_up() {
    let waits = |stall| {
        let report = run(Model::Pipe(Pipe::ARRAY), 2, &[1000, 10], stall);
        (report.disks[1].longest_wait, report.spread(0..2), report.line())
    };
    let (usual, ..) = waits(0);
    for stall in STALLS {
        let (wait, spread, line) = waits(stall);
        assert!(wait <= usual + 3 * stall, "{stall}: waits {wait} ns: {line}");
        // Up to a fifteenth of the time goes by in stalls.
        assert!(spread <= 1.15, "{stall}: {line}");
    }
}
