//! Profile of a storage, from the cells that were measured.

use model::calibration::{CellReport, PROFILE_VERSION, RequestCost, StorageDevice, StorageProfile};

/// Share of the best throughput that counts as the best.
const NEAR_BEST: f64 = 0.95;
/// Sizes of requests whose depth makes the knee, in bytes.
const KNEE_BYTES: std::ops::RangeInclusive<u32> = 4 << 10..=256 << 10;
/// The knee is at most this many times the time of a request alone.
const SLACK: u64 = 4;
/// Sizes of whole requests that may be split, in bytes.
const SPLIT_BYTES: std::ops::RangeInclusive<u32> = 256 << 10..=1 << 20;
/// Smallest piece of a split request, in bytes.
const SMALLEST_PIECE: u32 = 4 << 10;
/// Smallest gain for which requests are split.
const SPLIT_GAIN: f64 = 1.1;
/// Median time of a random read alone from which a device may be a spindle, in nanoseconds.
const SEEK_NS: u64 = 2_000_000;
/// A device that serves many random reads faster than one by this factor has no single arm.
const ARMS: f64 = 4.0;
/// Bytes for which a latency is told.
const SMALL: u32 = 4 << 10;

const MIB: f64 = 1_048_576.0;
const NS: f64 = 1e9;

/// Cells of one direction.
#[derive(Clone)]
struct Direction(Vec<CellReport>);

/// Returns the profile of a device. `None` without any reads of at least 4 KiB.
pub fn profile(device: StorageDevice, cells: &[CellReport]) -> Option<StorageProfile> {
    let of = |write| Direction(cells.iter().copied().filter(|cell| cell.write == write).collect());
    let (reads, writes) = (of(false), of(true));
    let read_cost = reads.cost()?;
    let write_cost = writes.cost().unwrap_or(read_cost);
    let knee_of = |direction: &Direction, cost| direction.knee_ns(cost).unwrap_or(0);
    let knee_ns = knee_of(&reads, read_cost).max(knee_of(&writes, write_cost));
    let alone = reads.alone()?;
    let deep = reads.best(alone.bytes)?;
    let is_slow = alone.p50_ns > SEEK_NS;
    let seeks = is_slow && (deep.bytes_per_second as f64) < ARMS * alone.bytes_per_second as f64;
    let piece = if seeks { None } else { reads.piece() };
    Some(StorageProfile {
        version: PROFILE_VERSION,
        device,
        reads: read_cost,
        writes: write_cost,
        knee_ns: knee_ns.max(alone.p50_ns),
        requests_min: reads.enough_large().max(writes.enough_large()).max(1),
        latency_ns: alone.p50_ns,
        piece_bytes: piece.map(|(bytes, _)| bytes),
        piece_gain_percent: piece.map_or(0, |(_, gain)| ((gain - 1.0) * 100.0) as u32),
        seeks,
    })
}

impl Direction {
    /// Returns the sizes at which more requests at a time were not faster: their best is the device's
    /// limit. Returns all sizes if there is none.
    fn sizes_at_limit(&self) -> Vec<u32> {
        let all = self.sizes();
        let is_at_limit = |bytes: u32| {
            let deepest = self.of_size(bytes).map(|cell| cell.depth).max();
            self.enough_depth(bytes).is_some_and(|depth| Some(depth) < deepest)
        };
        let some: Vec<_> = all.iter().copied().filter(|bytes| is_at_limit(*bytes)).collect();
        if some.is_empty() { all } else { some }
    }

    /// Returns the sizes of requests from 4 KiB on, in ascending order.
    fn sizes(&self) -> Vec<u32> {
        let mut sizes: Vec<_> = self.0.iter().map(|cell| cell.bytes).collect();
        sizes.retain(|bytes| *bytes >= SMALL);
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    fn of_size(&self, bytes: u32) -> impl Iterator<Item = &CellReport> {
        self.0.iter().filter(move |cell| cell.bytes == bytes && cell.bytes_per_second > 0)
    }

    /// Returns the fastest cell with requests of this size.
    fn best(&self, bytes: u32) -> Option<&CellReport> {
        self.of_size(bytes).max_by_key(|cell| cell.bytes_per_second)
    }

    /// Returns the smallest depth that is about as fast as the best.
    fn enough_depth(&self, bytes: u32) -> Option<u32> {
        let enough = self.best(bytes)?.bytes_per_second as f64 * NEAR_BEST;
        let cells = self.of_size(bytes).filter(|cell| cell.bytes_per_second as f64 >= enough);
        cells.map(|cell| cell.depth).min()
    }

    /// Returns the smallest depth at which large requests are about as fast as the best.
    fn enough_large(&self) -> u32 {
        let large = self.sizes().into_iter().filter(|bytes| SPLIT_BYTES.contains(bytes));
        large.filter_map(|bytes| self.enough_depth(bytes)).max().unwrap_or(0)
    }

    /// Returns the cell of one small request at a time.
    fn alone(&self) -> Option<&CellReport> {
        let bytes = *self.sizes().first()?;
        self.of_size(bytes).find(|cell| cell.depth == 1)
    }

    /// Returns the cost of requests: the line through the device times of all sizes at their best,
    /// by least squares of the relative error.
    fn cost(&self) -> Option<RequestCost> {
        let times: Vec<(f64, f64)> = self
            .sizes_at_limit()
            .into_iter()
            .filter_map(|bytes| Some((f64::from(bytes), self.best(bytes)?)))
            .map(|(bytes, best)| (bytes, bytes * NS / best.bytes_per_second as f64))
            .collect();
        // Without a second size, all time belongs to the bytes.
        let (mut request, mut byte) = match times.as_slice() {
            [] => return None,
            [(bytes, ns)] => (0.0, ns / bytes),
            _ => line(&times),
        };
        if request < 0.0 {
            (request, byte) =
                (0.0, through_origin(times.iter().map(|(bytes, ns)| (bytes / ns, 1.0))));
        } else if byte < 0.0 {
            (request, byte) = (through_origin(times.iter().map(|(_, ns)| (1.0 / ns, 1.0))), 0.0);
        }
        Some(RequestCost {
            request_ns: request.round() as u64,
            mib_ns: (byte * MIB).round() as u64,
        })
    }

    /// Returns the device time of requests in flight that the best throughput needs, for the size that
    /// needs most.
    fn knee_ns(&self, cost: RequestCost) -> Option<u64> {
        let sizes = self.sizes_at_limit().into_iter().filter(|bytes| KNEE_BYTES.contains(bytes));
        let of_size = |bytes: u32| {
            let depth = u64::from(self.enough_depth(bytes)?);
            let alone = self.of_size(bytes).find(|cell| cell.depth == 1)?.p50_ns;
            // A device that always has work needs as much as it does while one request takes (Little
            // 1961). Results that scatter could make it many times that.
            Some(cost.of(bytes.into()).saturating_mul(depth).min(alone.saturating_mul(SLACK)))
        };
        sizes.filter_map(of_size).max()
    }

    /// Returns the size of pieces that is best for single large requests, and its gain.
    fn piece(&self) -> Option<(u32, f64)> {
        let wholes: Vec<_> = self.0.iter().filter(|cell| cell.depth == 1).copied().collect();
        let wholes: Vec<_> =
            wholes.into_iter().filter(|cell| SPLIT_BYTES.contains(&cell.bytes)).collect();
        let gain = |bytes: u32| {
            let gains = wholes.iter().filter_map(|whole| {
                let mut pieces = self.of_size(bytes);
                let pieces =
                    pieces.find(|cell| cell.depth.checked_mul(bytes) == Some(whole.bytes))?;
                Some(pieces.bytes_per_second as f64 / whole.bytes_per_second.max(1) as f64)
            });
            let logarithms: Vec<_> = gains.map(f64::ln).collect();
            let count = logarithms.len();
            (count > 0).then(|| (logarithms.iter().sum::<f64>() / count as f64).exp())
        };
        let largest = *SPLIT_BYTES.start();
        let pieces = self.sizes().into_iter();
        let pieces = pieces.filter(|bytes| (SMALLEST_PIECE..largest).contains(bytes));
        let gains = pieces.filter_map(|bytes| Some((bytes, gain(bytes)?)));
        gains.max_by(|one, other| one.1.total_cmp(&other.1)).filter(|(_, gain)| *gain >= SPLIT_GAIN)
    }
}

/// Returns `a` and `b` for which the relative errors of `a + b * x` are smallest.
fn line(points: &[(f64, f64)]) -> (f64, f64) {
    // Normal equations of 1 = a / y + b * x / y.
    let sum =
        |term: fn(f64, f64) -> f64| points.iter().map(|(x, y)| term(1.0 / y, x / y)).sum::<f64>();
    let (uu, uv, vv) = (sum(|u, _| u * u), sum(|u, v| u * v), sum(|_, v| v * v));
    let (u, v) = (sum(|u, _| u), sum(|_, v| v));
    let determinant = uu * vv - uv * uv;
    ((u * vv - v * uv) / determinant, (v * uu - u * uv) / determinant)
}

/// Returns `c` for which the errors of `c * x` against `y` are smallest.
fn through_origin(points: impl Iterator<Item = (f64, f64)>) -> f64 {
    let (xy, xx) = points.fold((0.0, 0.0), |(xy, xx), (x, y)| (xy + x * y, xx + x * x));
    xy / xx
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells;

    /// Cells of a device with `channels` channels. A request takes `request_ns` and `byte_ns` for each
    /// byte on one of them; it is spread over channels of 16 KiB each if `striped`.
    fn measure(channels: u32, request_ns: f64, byte_ns: f64) -> Vec<CellReport> {
        let cell = |cell: crate::Cell| {
            let slow = if cell.write { 3.0 } else { 1.0 };
            let ns = slow * (request_ns + byte_ns * f64::from(cell.bytes));
            let busy = f64::from(cell.depth.min(channels));
            let rate = busy * f64::from(cell.bytes) * NS / ns;
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
        use crate::Cell;
        [false, true].iter().flat_map(|write| cells(512, *write, false)).map(cell).collect()
    }

    #[test]
    fn the_costs_and_the_knee_of_flash_are_found() {
        let found = profile(StorageDevice::default(), &measure(16, 80_000.0, 0.5)).unwrap();
        // Sixteen requests at a time: a sixteenth of the time each.
        let near = |found: u64, wanted: f64| (found as f64 / wanted - 1.0).abs() < 0.02;
        assert!(near(found.reads.request_ns, 5_000.0), "{found:?}");
        assert!(near(found.reads.mib_ns, 0.5 / 16.0 * MIB), "{found:?}");
        assert!(near(found.writes.request_ns, 15_000.0), "{found:?}");
        // 16 writes of the largest size of which the matrix has more than 16 at a time.
        assert!(near(found.knee_ns, 3.0 * (80_000.0 + 0.5 * 131_072.0)), "{found:?}");
        assert!(near(found.latency_ns, 82_048.0) && !found.seeks, "{found:?}");
        assert_eq!(found.requests_min, 16, "{found:?}");
        // 16 pieces of 64 KiB use all channels.
        assert!(found.piece_bytes.is_some() && found.piece_gain_percent > 100, "{found:?}");
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
        assert_eq!(profile(StorageDevice::default(), &[]), None);
        cells.iter_mut().for_each(|cell| cell.bytes_per_second = 0);
        assert_eq!(profile(StorageDevice::default(), &cells), None);
    }
}
