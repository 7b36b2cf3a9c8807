//! Equal disks.

use crate::device::{Model, Pipe};
use crate::simulation::calibrate::calibrate;
use crate::simulation::workload::Workload;
use crate::simulation::world::Scenario;
use crate::simulation::{KIB, MIB, SECOND};
use crate::profile::Piece;

#[test]
fn a_total_never_falls() {
    let device = Model::Pipe(Pipe::ARRAY);
    let profile = calibrate(&device.into());
    println!("{profile:?}");
    for split in [false, true] {
    for reactors in [1, 2, 8] {
    for count in [1, 2, 4, 8, 20, 50, 100] {
        let mut profile = profile;
        profile.piece = split.then_some(Piece{bytes: 512*KIB, gain_percent: 0});
        let mut scenario = Scenario::new(device, Some(profile));
        scenario.reactors = reactors;
        scenario.length_ns = 62 * SECOND;
        scenario.warm_up_ns = 2 * SECOND;
        for at in 0..count {
            let queues: Vec<usize> = (0..=at % 8).map(|q| if reactors == 1 {0} else if at % 10 > 0 { 0 } else {(at / 10 + q) % reactors}).collect();
            scenario.add(100, Workload::reads(4 * MIB, 1).sequential().on(&queues));
        }
        println!("{split} {reactors} {count}: {}", scenario.run().line());
    }}}
}
