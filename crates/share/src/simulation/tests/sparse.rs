//! A sparse reader among hogs.

use crate::device::{Flash, Model, Pipe};
use crate::simulation::calibrate::calibrate;
use crate::simulation::workload::Workload;
use crate::simulation::world::Scenario;
use crate::simulation::{KIB, MS, SECOND};

#[test]
fn a_sparse_reader() {
    for device in [Model::Pipe(Pipe::ARRAY), Model::Flash(Flash::STRIPED)] {
    let profile = calibrate(&device.into());
    let sparse = |reactor| { let mut w = Workload::reads(4 * KIB, 1).on(&[reactor]); w.think_ns = 4 * MS; w};
    let mut scenario = Scenario::new(device, Some(profile));
    scenario.add(100, sparse(0));
    println!("alone: {}", scenario.run().line());
    for profile in [None, Some(profile)] {
    for reactors in [1, 2, 8] {
        let mut scenario = Scenario::new(device, profile);
        scenario.reactors = reactors;
        scenario.length_ns = 6 * SECOND;
        scenario.warm_up_ns = 1 * SECOND;
        scenario.add(100, sparse(reactors - 1));
        for at in 0..99 {
            scenario.add(100, Workload::reads(128 * KIB, 32).on(&[at % reactors]));
        }
        println!("{reactors}: {}", scenario.run().line());
    }}}
}
