//! Profile of a storage, from the cells that were measured, and its form for the scheduler.

use model::calibration::{CellReport, PROFILE_VERSION, RequestCost, StorageDevice, StorageProfile};
use share::{CONFIRM_BYTES, Cost, OpKind, Piece, Profile, Sample, ShareError, Turn};

use crate::Cell;

/// Median time of a random read alone from which a device may be a spindle, in nanoseconds.
const SEEK_NS: u64 = 2_000_000;
/// A device that serves many random reads faster than one by this factor has no single arm.
const ARMS: u64 = 4;
/// Bytes of the smallest read that counts.
const SMALL: u32 = 4 << 10;
/// Least number of requests at a time that the scheduler takes.
const REQUESTS_MIN: u64 = 2;
/// Cost of a flush in costs of a write.
const FLUSH_WRITES: u64 = 4;
/// Bytes in a MiB.
const MIB: u128 = 1 << 20;

/// Returns the profile of a device.
///
/// # Errors
/// No read of at least 4 KiB was measured, or a result is outside of its range.
pub fn profile(device: StorageDevice, cells: &[CellReport]) -> Result<StorageProfile, ShareError> {
    let alone = alone(cells).ok_or(ShareError::Samples("reads"))?;
    let of_size = |cell: &&CellReport| !cell.write && cell.bytes == alone.bytes;
    let best = cells.iter().filter(of_size).map(|cell| cell.bytes_per_second).max();
    let has_arms = best.unwrap_or(0) >= alone.bytes_per_second.saturating_mul(ARMS);
    let seeks = alone.p50_ns > SEEK_NS && !has_arms;
    let mut samples: Vec<_> = cells.iter().flat_map(samples).collect();
    if !cells.iter().any(|cell| cell.write) {
        // A device that was only read: a write costs as much as a read.
        let reads = samples.clone();
        samples.extend(reads.into_iter().map(|read| Sample { kind: OpKind::Write, ..read }));
    }
    let fitted = Profile::fit(&samples, seeks.then_some(Turn::DEFAULT))?;
    let cost = |cost: Cost| RequestCost {
        request_ns: cost.request_ns,
        mib_ns: u64::try_from(u128::from(cost.byte_ps) * MIB / 1000).unwrap_or(u64::MAX),
    };
    let mut profile = StorageProfile {
        version: PROFILE_VERSION,
        device,
        reads: cost(fitted.read),
        writes: cost(fitted.write),
        knee_ns: fitted.knee_ns,
        requests_min: to_u32(fitted.requests_min),
        latency_ns: alone.p50_ns,
        piece_bytes: None,
        piece_gain_percent: 0,
        seeks,
    };
    set_piece(&mut profile, fitted.piece);
    Ok(profile)
}

/// Measures whole and split requests again, if the profile has a piece. It keeps the piece if the gain
/// is larger than the spread of the samples.
///
/// # Errors
/// Those of `measure`.
pub(crate) fn confirm_piece<E>(
    profile: &mut StorageProfile,
    mut measure: impl FnMut(Cell) -> Result<CellReport, E>,
) -> Result<(), E> {
    let Some(bytes) = profile.piece_bytes else { return Ok(()) };
    let piece = Piece { bytes: bytes.into(), gain_percent: profile.piece_gain_percent.into() };
    let confirmed = piece.confirm(|pieces| {
        let bytes = to_u32(CONFIRM_BYTES / pieces);
        let cell = Cell { write: false, bytes, depth: to_u32(pieces) };
        Ok(measure(cell)?.bytes_per_second)
    })?;
    set_piece(profile, confirmed);
    Ok(())
}

fn set_piece(profile: &mut StorageProfile, piece: Option<Piece>) {
    profile.piece_bytes = piece.map(|piece| to_u32(piece.bytes));
    profile.piece_gain_percent = piece.map_or(0, |piece| to_u32(piece.gain_percent));
}

fn to_u32(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// Returns the cell of one small read at a time.
fn alone(cells: &[CellReport]) -> Option<&CellReport> {
    let reads = cells.iter().filter(|cell| !cell.write && cell.bytes >= SMALL);
    let alone = reads.filter(|cell| cell.depth == 1 && cell.bytes_per_second > 0);
    alone.min_by_key(|cell| cell.bytes)
}

/// Returns the samples in a cell: requests of its depth, and one large request in so many pieces.
fn samples(cell: &CellReport) -> impl Iterator<Item = Sample> + use<> {
    let (bytes, depth) = (u64::from(cell.bytes), u64::from(cell.depth));
    let whole = Sample {
        kind: if cell.write { OpKind::Write } else { OpKind::Read },
        bytes,
        depth,
        pieces: 1,
        bytes_per_second: cell.bytes_per_second,
        latency_ns: cell.p50_ns,
    };
    let split = Sample { bytes: bytes * depth, depth: 1, pieces: depth, ..whole };
    [Some(whole), (depth > 1).then_some(split)].into_iter().flatten()
}

/// Converts a profile to the scheduler's form.
pub fn scheduler_profile(profile: &StorageProfile) -> Profile {
    let cost = |cost: RequestCost| Cost {
        request_ns: cost.request_ns.max(1),
        byte_ps: u64::try_from((u128::from(cost.mib_ns) * 1000).div_ceil(MIB)).unwrap_or(u64::MAX),
    };
    let piece = profile.piece_bytes.map(|bytes| Piece {
        bytes: bytes.into(),
        gain_percent: profile.piece_gain_percent.into(),
    });
    Profile {
        read: cost(profile.reads),
        write: cost(profile.writes),
        flush_ns: profile.writes.request_ns.saturating_mul(FLUSH_WRITES),
        knee_ns: profile.knee_ns,
        latency_ns: profile.latency_ns.saturating_add(profile.knee_ns),
        requests_min: u64::from(profile.requests_min).max(REQUESTS_MIN),
        piece,
        turn: profile.seeks.then_some(Turn::DEFAULT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cell, cells};

    /// Cells of a device with `channels` channels. A request takes `request_ns` and `byte_ns` for each
    /// byte on one of them; it is spread over channels of 16 KiB each if `striped`.
    fn measure(channels: u32, request_ns: f64, byte_ns: f64) -> Vec<CellReport> {
        let cell = |cell: Cell| {
            let slow = if cell.write { 3.0 } else { 1.0 };
            let ns = slow * (request_ns + byte_ns * f64::from(cell.bytes));
            let busy = f64::from(cell.depth.min(channels));
            let rate = busy * f64::from(cell.bytes) * 1e9 / ns;
            let wait = (ns * f64::from(cell.depth.max(channels) / channels)) as u64;
            let Cell { write, bytes, depth } = cell;
            CellReport {
                write,
                bytes,
                depth,
                bytes_per_second: rate as u64,
                p50_ns: wait,
                p99_ns: wait,
            }
        };
        [false, true].iter().flat_map(|write| cells(512, *write, false)).map(cell).collect()
    }

    #[test]
    fn the_costs_and_the_knee_of_flash_are_found() {
        let found = profile(StorageDevice::default(), &measure(16, 80_000.0, 0.5)).unwrap();
        // Sixteen requests at a time: a sixteenth of the time each.
        let near = |found: u64, wanted: f64| (found as f64 / wanted - 1.0).abs() < 0.02;
        assert!(near(found.reads.request_ns, 5_000.0), "{found:?}");
        assert!(near(found.reads.mib_ns, 0.5 / 16.0 * 1_048_576.0), "{found:?}");
        assert!(near(found.writes.request_ns, 15_000.0), "{found:?}");
        // 16 writes of the largest size of which the matrix has more than 16 at a time.
        assert!(near(found.knee_ns, 3.0 * (80_000.0 + 0.5 * 131_072.0)), "{found:?}");
        assert!(near(found.latency_ns, 82_048.0) && !found.seeks, "{found:?}");
        assert_eq!(found.requests_min, 16, "{found:?}");
        // 16 pieces of 64 KiB use all channels.
        assert!(found.piece_bytes.is_some() && found.piece_gain_percent > 100, "{found:?}");
    }

    #[test]
    fn a_piece_stays_if_split_requests_are_faster_again() {
        let mut found = profile(StorageDevice::default(), &measure(16, 80_000.0, 0.5)).unwrap();
        let bytes = found.piece_bytes.unwrap();
        let report = |cell: Cell, rate| {
            assert_eq!(cell.total(), 1 << 20);
            assert!([1 << 20, bytes].contains(&cell.bytes) && !cell.write);
            let Cell { write, bytes, depth } = cell;
            let cell =
                CellReport { write, bytes, depth, bytes_per_second: rate, p50_ns: 1, p99_ns: 1 };
            Ok::<_, ()>(cell)
        };
        confirm_piece(&mut found, |cell| report(cell, if cell.depth == 1 { 100 } else { 180 }))
            .unwrap();
        assert_eq!((found.piece_bytes, found.piece_gain_percent), (Some(bytes), 80));
        confirm_piece(&mut found, |cell| report(cell, 100)).unwrap();
        assert_eq!((found.piece_bytes, found.piece_gain_percent), (None, 0));
        // Without a piece, nothing is measured.
        assert_eq!(confirm_piece(&mut found, |_| Err("measured")), Ok(()));
    }

    #[test]
    fn a_device_with_one_channel_is_not_split() {
        let found = profile(StorageDevice::default(), &measure(1, 80_000.0, 0.5)).unwrap();
        assert_eq!((found.piece_bytes, found.piece_gain_percent), (None, 0));
    }

    #[test]
    fn a_spindle_is_recognised_by_its_times() {
        let found = profile(StorageDevice::default(), &measure(1, 8_000_000.0, 7.0)).unwrap();
        assert!(found.seeks && found.piece_bytes.is_none(), "{found:?}");
        // Network storage is as slow, and serves many at a time.
        let found = profile(StorageDevice::default(), &measure(64, 8_000_000.0, 7.0)).unwrap();
        assert!(!found.seeks, "{found:?}");
    }

    #[test]
    fn odd_results_give_no_odd_costs() {
        let mut cells = measure(1, 0.0, 0.5);
        cells
            .iter_mut()
            .filter(|cell| cell.bytes == 4096)
            .for_each(|cell| cell.bytes_per_second *= 2);
        let found = profile(StorageDevice::default(), &cells).unwrap();
        assert!(found.reads.request_ns < 100 && found.reads.mib_ns > 0, "{found:?}");
        cells.retain(|cell| cell.bytes == 4096 && !cell.write);
        let found = profile(StorageDevice::default(), &cells).unwrap();
        assert_eq!(found.reads, found.writes);
        let none = Err(ShareError::Samples("reads"));
        assert_eq!(profile(StorageDevice::default(), &[]), none);
        cells.iter_mut().for_each(|cell| cell.bytes_per_second = 0);
        assert_eq!(profile(StorageDevice::default(), &cells), none);
    }

    #[test]
    fn the_scheduler_gets_what_was_fitted() {
        let found = profile(StorageDevice::default(), &measure(16, 80_000.0, 0.5)).unwrap();
        let scheduled = scheduler_profile(&found);
        assert_eq!(scheduled.check(), Ok(()));
        assert_eq!((scheduled.read.request_ns, scheduled.read.byte_ps), (5_000, 31), "{found:?}");
        assert_eq!(scheduled.piece.map(|piece| piece.bytes), found.piece_bytes.map(u64::from));
        assert!(scheduled.latency_ns > scheduled.knee_ns && scheduled.turn.is_none());
        let absurd = StorageProfile { knee_ns: u64::MAX, ..found };
        assert!(scheduler_profile(&absurd).check().is_err());
    }
}
