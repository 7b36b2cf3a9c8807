//! Run of all cells, one after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use memory::Mapping;
use model::calibration::{Calibrate, Calibration, CellReport};
use reactor::{Context, Reactor, Snapshot};
use share::CONFIRM_ROUNDS;

use crate::device::identity;
use crate::load::{Load, LoadOptions, LoadResult};
use crate::other_use::DeviceCounts;
use crate::profile::{confirm_piece, profile};
use crate::{CalibrateError, Cell, Scratch, cells};

/// Share of a cell's time in which others are watched for.
const WATCH: u32 = 10;
/// A cell takes this share of its time while others use the device.
const SHARE: u32 = 4;
/// Time without an answer from which the storage counts as hung.
const HANGS: Duration = Duration::from_secs(30);
/// Most outstanding bytes of a cell.
const MOST_BYTES: usize = 4 << 20;

/// Progress of a measurement. Any thread may read it.
#[derive(Debug, Default)]
pub struct Progress {
    /// Cells that are done.
    pub done: AtomicU32,
    /// All cells; 0 while the scratch file is written.
    pub total: AtomicU32,
    /// Time until the end in milliseconds, as far as is known.
    pub left_ms: AtomicU64,
}

/// Measures a storage. Takes about the time that `options` states, and the time of writing the
/// scratch file.
///
/// # Errors
/// The storage cannot be measured, fails or hangs, or `stop` was set.
pub fn run(
    options: &Calibrate,
    stop: &Arc<AtomicBool>,
    progress: &Progress,
) -> Result<Calibration, CalibrateError> {
    let scratch = Scratch::open(&options.path, options.size_bytes, options.write, stop)?;
    let block = scratch.disk().geometry().block_size;
    let mut plan = cells(block, false, options.short);
    if scratch.is_writable() {
        plan.extend(cells(block, true, options.short));
    }
    let count = u32::try_from(plan.len()).unwrap_or(u32::MAX);
    progress.total.store(count, Ordering::Relaxed);
    let time = Duration::from_secs(options.load_seconds().into());
    // The time is that of all cells, with those that confirm a gain from splitting.
    let each = time / (count + 2 * CONFIRM_ROUNDS as u32);
    let mut measurement = Measurement::new(&scratch, stop, each)?;
    let began = Instant::now();
    let mut reports = Vec::with_capacity(plan.len());
    for (done, cell) in (0..).zip(plan) {
        progress.done.store(done, Ordering::Relaxed);
        let left = time.saturating_sub(began.elapsed());
        progress.left_ms.store(left.as_millis() as u64, Ordering::Relaxed);
        reports.push(measurement.cell(cell, false)?);
    }
    let mut profile = profile(identity(scratch.device()), &reports)?;
    confirm_piece(&mut profile, |cell| measurement.cell(cell, true))?;
    let others_percent = measurement.others_percent();
    Ok(Calibration {
        path: scratch.path().into(),
        scratch_bytes: scratch.file_bytes(),
        others_percent,
        cells: reports,
        profile,
        stored: None,
    })
}

/// State of a running measurement.
struct Measurement<'a> {
    scratch: &'a Scratch,
    stop: &'a Arc<AtomicBool>,
    reactor: Reactor,
    memory: Arc<Mapping>,
    /// Time of a cell.
    each: Duration,
    /// Cells before which others were watched for, and those in which others used the device.
    watched: u32,
    disturbed: u32,
    seed: u64,
}

impl<'a> Measurement<'a> {
    fn new(
        scratch: &'a Scratch,
        stop: &'a Arc<AtomicBool>,
        each: Duration,
    ) -> Result<Self, CalibrateError> {
        let start = |error: std::io::Error| CalibrateError::Start(error);
        let reactor = Reactor::spawn("calibrate").map_err(start)?;
        let memory =
            Mapping::private(MOST_BYTES).map_err(|error| start(std::io::Error::other(error)))?;
        fill(&memory);
        let (watched, disturbed, seed) = (0, 0, 1);
        Ok(Self {
            scratch,
            stop,
            reactor,
            memory: Arc::new(memory),
            each,
            watched,
            disturbed,
            seed,
        })
    }

    /// Measures one cell, whose requests are pieces of one if `split`. A pause with a look at others
    /// comes first.
    fn cell(&mut self, cell: Cell, split: bool) -> Result<CellReport, CalibrateError> {
        let watch = self.each / WATCH;
        let is_used = self.others_use_device(watch)?;
        let rest = self.each - watch;
        let load = if is_used { rest / SHARE } else { rest };
        let result = self.load(cell, split, load)?;
        self.pause(rest - load)?;
        let Cell { write, bytes, depth } = cell;
        if let Some(source) = result.error {
            let path = self.scratch.path().into();
            return Err(CalibrateError::Request { path, bytes, source });
        }
        let mut times = Snapshot::default();
        times.add(&result.times);
        let summary = times.summary();
        let rate = u128::from(result.bytes) * 1_000_000_000 / u128::from(result.ns.max(1));
        let bytes_per_second = u64::try_from(rate).unwrap_or(u64::MAX);
        let (p50_ns, p99_ns) = (summary.p50_ns, summary.p99_ns);
        Ok(CellReport { write, bytes, depth, bytes_per_second, p50_ns, p99_ns })
    }

    /// Pauses, and returns whether others used the device meanwhile.
    fn others_use_device(&mut self, time: Duration) -> Result<bool, CalibrateError> {
        let device = self.scratch.device();
        let before = DeviceCounts::read(device);
        self.pause(time)?;
        let (Some(before), Some(after)) = (before, DeviceCounts::read(device)) else {
            return Ok(false);
        };
        self.watched += 1;
        let is_used = before.is_used_until(after);
        self.disturbed += u32::from(is_used);
        Ok(is_used)
    }

    fn others_percent(&self) -> Option<u8> {
        let percent = (self.disturbed * 100).checked_div(self.watched)?;
        u8::try_from(percent).ok()
    }

    /// Does nothing for a time.
    fn pause(&self, time: Duration) -> Result<(), CalibrateError> {
        std::thread::sleep(time);
        self.check_stop()
    }

    fn check_stop(&self) -> Result<(), CalibrateError> {
        if self.stop.load(Ordering::Relaxed) { Err(CalibrateError::Stopped) } else { Ok(()) }
    }

    /// Runs the load of a cell.
    fn load(
        &mut self,
        cell: Cell,
        split: bool,
        time: Duration,
    ) -> Result<LoadResult, CalibrateError> {
        let (report, result) = sync_channel(1);
        let options = LoadOptions {
            size: self.scratch.size(),
            ns: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
            seed: self.seed,
            split,
            stop: Arc::clone(self.stop),
            report,
        };
        self.seed += 1;
        let (disk, memory) = (Arc::clone(self.scratch.disk()), Arc::clone(&self.memory));
        let make = move |context: &mut Context<'_>| {
            let channel = disk.open_channel(context);
            Ok::<_, ()>(Load::start(context, channel, cell, memory, options))
        };
        let started = self.reactor.handle().call(|context| context.add_poller(None, make));
        let ended = || CalibrateError::Start(std::io::Error::other("the reactor has ended"));
        started.map_err(|_| ended())?.map_err(|()| ended())?;
        let result = result.recv_timeout(time + HANGS);
        result.map_err(|_| CalibrateError::Hangs {
            path: self.scratch.path().into(),
            seconds: HANGS.as_secs(),
        })
    }
}

/// Fills memory with bytes that do not compress.
fn fill(memory: &Mapping) {
    let mut random = crate::load::Random(7);
    for cell in memory.cells() {
        cell.store(random.next(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn options(path: &Path) -> Calibrate {
        let size_bytes = Some(64 << 20);
        Calibrate { short: true, seconds: Some(2), size_bytes, ..Calibrate::new(path) }
    }

    #[test]
    fn a_folder_is_measured_and_nothing_stays_in_it() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (stop, progress) = (Arc::default(), Progress::default());
        let found = run(&options(folder.path()), &stop, &progress).unwrap();
        assert_eq!(found.scratch_bytes, 64 << 20);
        assert_eq!(found.cells.len(), progress.total.load(Ordering::Relaxed) as usize);
        // On a busy host, no request of a cell may end in the cell's short time.
        let ran = |cell: &CellReport| cell.p50_ns > 0 && cell.p99_ns >= cell.p50_ns;
        assert!(found.cells.iter().all(ran), "{found:?}");
        assert!(found.cells.iter().any(|cell| cell.bytes_per_second > 0), "{found:?}");
        assert!(found.cells.iter().any(|cell| cell.write) && found.profile.knee_ns > 0);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn pieces_of_one_request_are_measured_together() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let stop = Arc::default();
        let scratch = Scratch::open(folder.path(), Some(64 << 20), false, &stop).unwrap();
        let each = Duration::from_millis(100);
        let mut measurement = Measurement::new(&scratch, &stop, each).unwrap();
        let cell = Cell { write: false, bytes: 64 << 10, depth: 16 };
        let result = measurement.load(cell, true, each).unwrap();
        // All pieces of each request have ended.
        assert!(result.requests > 0 && result.requests.is_multiple_of(16), "{result:?}");
        assert_eq!(result.all_bytes, result.requests << 16);
        assert!(result.error.is_none(), "{result:?}");
    }

    #[test]
    fn a_measurement_that_is_stopped_ends_and_leaves_nothing() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let stop = Arc::new(AtomicBool::new(true));
        let error = run(&options(folder.path()), &stop, &Progress::default()).unwrap_err();
        assert!(matches!(error, CalibrateError::Stopped), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_cannot_be_measured_is_refused_with_the_next_step() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "x").unwrap();
        let missing = folder.path().join("missing");
        let too_large = Calibrate { size_bytes: Some(1 << 60), ..options(folder.path()) };
        for (options, told) in [
            (options(&file), "is a file; name its folder"),
            (options(&missing), "cannot open"),
            (options(Path::new("/dev/null")), "is a file; name its folder"),
            (options(Path::new("/proc")), "free bytes"),
            (too_large, "free bytes"),
        ] {
            let error = run(&options, &Arc::default(), &Progress::default()).unwrap_err();
            assert!(error.to_string().contains(told), "{error}");
        }
    }
}
