//! Weights, unused shares, floors, changes.

use crate::device::{Flash, Model, Pipe};
use crate::simulation::calibrate::calibrate;
use crate::simulation::workload::Workload;
use crate::simulation::world::Scenario;
use crate::simulation::{KIB, SECOND};

#[test]
fn shares_follow_weights() {
    for device in [Model::Pipe(Pipe::ARRAY), Model::Flash(Flash::STRIPED)] {
    let profile = calibrate(&device.into());
    println!("{profile:?}");
    for reactors in [1, 2, 8] {
        let mut scenario = Scenario::new(device, Some(profile));
        scenario.reactors = reactors;
        scenario.length_ns = 62 * SECOND;
        scenario.warm_up_ns = 2 * SECOND;
        for at in 0..32 {
            let queues: Vec<usize> = (0..=at % 3).map(|q| (at * at + q) % reactors).collect();
            scenario.add([50, 100, 200, 400][at % 4], Workload::reads(128 * KIB, 16).on(&queues));
        }
        println!("{reactors}: {}", scenario.run().line());
    }}
}
