//! Calibration of a device model: the matrix of patterns, each alone in a closed loop.

use super::{Command, Device, DeviceConfig, Model, Random};
use crate::error::ShareError;
use crate::profile::{OpKind, Profile, Sample, Turn};

const KIB: u64 = 1024;
/// Sizes of requests, in bytes.
const SIZES: [u64; 6] = [4 * KIB, 16 * KIB, 64 * KIB, 128 * KIB, 512 * KIB, 1024 * KIB];
/// Size whose requests are split.
const SPLIT: u64 = 512 * KIB;

/// Runs a pattern and returns its throughput and latency.
pub(crate) fn sample(
    config: &DeviceConfig,
    kind: OpKind,
    bytes: u64,
    depth: u64,
    pieces: u64,
) -> Sample {
    let mut device = Device::new(config.clone());
    let mut random = Random::new(7);
    let sequential = matches!(config.model, Model::Spindle(_));
    let (mut now, mut started, mut completed, mut latency) = (0, 0, 0, 0);
    let (mut done, mut begun, mut left) = (Vec::new(), Vec::new(), Vec::new());
    let mut start = |device: &mut Device, now, begun: &mut Vec<u64>, left: &mut Vec<u64>| {
        let place = if sequential { started * bytes } else { random.below(1 << 21) * 4096 };
        for piece in 0..pieces {
            let size = bytes / pieces;
            let offset = place + piece * size;
            device.submit(now, Command { id: started, kind, offset, bytes: size });
        }
        begun.push(now);
        left.push(pieces);
        started += 1;
    };
    for _ in 0..depth {
        start(&mut device, now, &mut begun, &mut left);
    }
    // A start-up of four rounds is not counted.
    let (warm_up, rounds) = (4 * depth, 4 * depth + (4000 / pieces).max(20 * depth));
    let mut from = 0;
    while completed < rounds {
        let Some(next) = device.next_event() else { break };
        now = next;
        device.reap(now, &mut done);
        for id in std::mem::take(&mut done) {
            left[id as usize] -= 1;
            if left[id as usize] > 0 {
                continue;
            }
            completed += 1;
            if completed == warm_up {
                from = now;
            } else if completed > warm_up {
                latency += now - begun[id as usize];
            }
            start(&mut device, now, &mut begun, &mut left);
        }
    }
    let counted = completed.saturating_sub(warm_up).max(1);
    let rate = u128::from(counted * bytes) * 1_000_000_000 / u128::from((now - from).max(1));
    let bytes_per_second = u64::try_from(rate).unwrap_or(u64::MAX);
    Sample { kind, bytes, depth, pieces, bytes_per_second, latency_ns: latency / counted }
}

/// Returns the profile of a model at full speed, as a calibration of the device measures it. It takes
/// some hundredths of a second.
///
/// # Errors
/// A number of the profile is outside of its range.
pub fn calibrate(model: Model) -> Result<Profile, ShareError> {
    let spins = matches!(model, Model::Spindle(_));
    Profile::fit(&samples(model), spins.then_some(Turn::DEFAULT))
}

/// Returns the samples from which the profile of a model comes.
pub(crate) fn samples(model: Model) -> Vec<Sample> {
    let config = &DeviceConfig::from(model);
    let spins = matches!(config.model, Model::Spindle(_));
    let depths: &[u64] = if spins {
        &[1, 2]
    } else {
        &[1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512]
    };
    let mut samples = Vec::new();
    for bytes in SIZES {
        samples.extend(depths.iter().map(|depth| sample(config, OpKind::Read, bytes, *depth, 1)));
    }
    for bytes in [SIZES[0], SIZES[5]] {
        samples.push(sample(config, OpKind::Write, bytes, depths.last().copied().unwrap_or(1), 1));
    }
    let splits = [2, 4, 8, 16, 32, 64, 128];
    samples.extend(splits.map(|pieces| sample(config, OpKind::Read, SPLIT, 1, pieces)));
    samples
}
