//! Bars of the scheduler, in virtual time. Each holds for the stated length with `RINGWAY_SOAK`;
//! plain tests run a fraction of it.

mod equal;
mod random;
mod slow;
mod sparse;
mod spindle;
mod splitting;
mod stalls;
mod weights;

use std::sync::OnceLock;

use super::is_soak;
use super::{KIB, MIB, MS, SECOND, US};
use crate::device::calibrate;
use crate::device::{Connections, Flash, Model, Pipe, Spindle};
use crate::profile::Profile;

/// Storage at the end of a network: 1 GB/s, a round trip of 2 ms.
const NETWORK: Pipe = Pipe {
    bytes_per_second: 1_000_000_000,
    request_ns: 1_000,
    latency_ns: 2 * MS,
    queue: 256,
    connections: Connections { count: 1, bytes_per_second: 100_000_000_000 },
};

/// Array that serves each connection with 220 MB/s.
const CONNECTIONS: Pipe =
    Pipe { connections: Connections { count: 4, bytes_per_second: 220_000_000 }, ..Pipe::ARRAY };

/// Devices of the tests.
const MODELS: [Model; 6] = [
    Model::Pipe(Pipe::ARRAY),
    Model::Flash(Flash::STRIPED),
    Model::Flash(Flash::UNSTRIPED),
    Model::Spindle(Spindle::DISK),
    Model::Pipe(NETWORK),
    Model::Pipe(CONNECTIONS),
];

/// Returns the profile of one of the models, calibrated once.
fn profile(model: Model) -> Profile {
    static PROFILES: OnceLock<Vec<Profile>> = OnceLock::new();
    let profiles = PROFILES.get_or_init(|| {
        MODELS.iter().map(|model| calibrate(*model).expect("a model has a profile")).collect()
    });
    let at = MODELS.iter().position(|other| *other == model).expect("a model of the tests");
    profiles[at]
}

/// Returns a length that is the stated one under `RINGWAY_SOAK`, and the plain one without.
fn length(stated: u64, plain: u64) -> u64 {
    if is_soak() { stated } else { plain }
}
