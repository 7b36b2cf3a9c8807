//! Bounds of disks in memory and in the page cache: only the copy of the data. Either glibc's
//! memcpy or one system call per request does the copy.

use std::fs::File;
use std::hint::black_box;
use std::io::IoSliceMut;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use memory::{HUGE_PAGE, Mapping, ThreadMapping};
use rustix::io::{Errno, ReadWriteFlags};

use super::client::{Load, Window, tally};
use crate::cpu::{self, Placement};
use crate::experiment::Sample;

/// Page size in bytes.
const PAGE_BYTES: usize = 4096;

/// Copies the data of the load's requests with glibc's memcpy on the backend's CPU. The source has
/// the size of the disk. The target has one buffer per request in flight.
///
/// # Errors
/// The thread cannot be created, or memory is too small.
pub(super) fn memcpy(
    placement: Placement,
    load: Load,
    window: Window,
    disk_bytes: u64,
) -> Result<Sample> {
    on_backend(placement, move || {
        let disk_bytes = usize::try_from(disk_bytes)?;
        let mut source = vec![1u8; disk_bytes + PAGE_BYTES];
        let from = aligned(&source);
        // Writes to every page, because freshly allocated memory is a single zero page.
        source.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = 3);
        copies(load, window, disk_bytes as u64, |offset, target| {
            let offset = from + usize::try_from(offset)?;
            let source = source.get(offset..offset + target.len()).context("past the end")?;
            target.copy_from_slice(source);
            Ok(())
        })
    })
}

/// Copies as [`memcpy`] does, from huge pages. The target has 4 KiB pages, as the client's memory.
///
/// # Errors
/// The thread cannot be created, memory is too small, or the kernel has no huge pages.
pub(super) fn memcpy_huge(
    placement: Placement,
    load: Load,
    window: Window,
    disk_bytes: u64,
) -> Result<Sample> {
    on_backend(placement, move || {
        let source = Arc::new(Mapping::memfd("ringway-lab", disk_bytes)?);
        let source = ThreadMapping::over(source);
        let piece = vec![3; PAGE_BYTES];
        for offset in (0..source.len()).step_by(PAGE_BYTES) {
            ensure!(source.write(offset, &piece), "past the end");
        }
        for offset in (0..source.len()).step_by(HUGE_PAGE) {
            let bytes = HUGE_PAGE.min(source.len() - offset);
            // It fails now and then, such as for a page that another CPU has just written.
            let is_huge = (0..3).any(|_| source.mapping().collapse(offset, bytes).is_ok());
            ensure!(is_huge, "cannot make huge pages: free some memory, or use Linux 6.1 or newer");
        }
        copies(load, window, disk_bytes, |offset, target| {
            ensure!(source.read(usize::try_from(offset)?, target), "past the end");
            Ok(())
        })
    })
}

/// Reads the data of the load's requests from a file, on the backend's CPU. Each request is one
/// call that does not wait for storage. If that would wait or the file system does not support it,
/// a second call waits.
///
/// # Errors
/// The thread cannot be created, or the file is too short.
pub(super) fn preadv2(
    placement: Placement,
    load: Load,
    window: Window,
    (file, disk_bytes): (File, u64),
) -> Result<Sample> {
    on_backend(placement, move || {
        copies(load, window, disk_bytes, |offset, target| {
            let wanted = target.len();
            let mut slices = [IoSliceMut::new(target)];
            let mut read = |how| rustix::io::preadv2(&file, &mut slices, offset, how);
            let read = match read(ReadWriteFlags::NOWAIT) {
                Err(Errno::AGAIN | Errno::OPNOTSUPP) => read(ReadWriteFlags::empty()),
                done => done,
            };
            let read = read.context("cannot read the file")?;
            ensure!(read == wanted, "{read} bytes instead of {wanted}");
            Ok(())
        })
    })
}

fn on_backend(
    placement: Placement,
    copy: impl FnOnce() -> Result<Sample> + Send + 'static,
) -> Result<Sample> {
    let copy = move || {
        cpu::pin(placement.backend)?;
        copy()
    };
    thread::spawn(copy).join().map_err(|_| anyhow!("the copying thread panicked"))?
}

fn copies(
    load: Load,
    window: Window,
    disk_bytes: u64,
    mut copy: impl FnMut(u64, &mut [u8]) -> Result<()>,
) -> Result<Sample> {
    let (bytes, depth) = (load.bytes, usize::from(load.depth));
    let mut target = vec![2u8; bytes * depth + PAGE_BYTES];
    let to = aligned(&target);
    let mut addresses = super::client::addresses(load, disk_bytes);
    let clock_ns = clock_ns();
    let mut latency_ns = tally::histogram()?;
    let begin = Instant::now();
    let (mut counting, mut count) = (begin, 0usize);
    let mut warm = true;
    loop {
        let start = Instant::now();
        if warm && start - begin >= window.warm {
            (warm, counting, count) = (false, start, 0);
            latency_ns.reset();
        } else if !warm && start - counting >= window.measure && count > 0 {
            break;
        }
        // Measures a batch of the client's queue depth, so that reading the clock does not dominate
        // small copies.
        for slot in 0..depth {
            let at = to + slot * bytes;
            copy(addresses()?, target.get_mut(at..at + bytes).context("past the end")?)?;
            black_box(&mut target);
            count += 1;
        }
        let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        latency_ns.saturating_record((ns.saturating_sub(clock_ns) / depth as u64).max(1));
    }
    let iops = count as f64 / counting.elapsed().as_secs_f64();
    let micros = |q: f64| latency_ns.value_at_quantile(q) as f64 / 1e3;
    let metrics = [
        ("requests", count as f64),
        ("errors", 0.0),
        ("iops", iops),
        ("mib_per_s", iops * bytes as f64 / f64::from(1 << 20)),
        ("p50_us", micros(0.5)),
        ("p99_us", micros(0.99)),
    ];
    Ok(metrics.map(|(name, value)| (name.to_owned(), value)).into())
}

/// Returns the offset of the first page boundary in an allocation.
fn aligned(memory: &[u8]) -> usize {
    memory.as_ptr().align_offset(PAGE_BYTES).min(PAGE_BYTES)
}

/// Returns the time that reading the clock adds, in nanoseconds.
fn clock_ns() -> u64 {
    let each = (0..1000).map(|_| Instant::now().elapsed().as_nanos());
    u64::try_from(each.min().unwrap_or(0)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Duration;

    use super::*;
    use crate::alone;

    #[test]
    fn copies_are_counted() {
        let _alone = alone();
        let placement = Placement::choose().unwrap();
        let load = Load { bytes: 128 << 10, depth: 8, ..Load::default() };
        let window = Window::of(Duration::from_millis(10));
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; 4 << 20]).unwrap();
        let read = |file: &File, bytes| {
            preadv2(placement, load, window, (file.try_clone().unwrap(), bytes))
        };
        for sample in [memcpy(placement, load, window, 4 << 20), read(&file, 4 << 20)] {
            let sample = sample.unwrap();
            assert!(sample["requests"] >= 8.0 && sample["requests"] % 8.0 == 0.0, "{sample:?}");
        }
        assert!(read(&file, 8 << 20).is_err(), "past the end");
    }
}
