//! The bounds of disks in memory and in the page cache: nothing but the copy of what the requests would
//! read, by glibc's memcpy, or by one system call for each.

use std::fs::File;
use std::hint::black_box;
use std::io::IoSliceMut;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use rustix::io::{Errno, ReadWriteFlags};

use super::client::{Load, Window, tally};
use crate::cpu::{self, Placement};
use crate::experiment::Sample;

/// Pages begin at multiples of this.
const PAGE_BYTES: usize = 4096;

/// Copies what the load's requests would read, from a disk's worth of memory into as many buffers as
/// it has requests in flight, by glibc's memcpy on the backend's CPU.
///
/// # Errors
/// If there is no thread, or too little memory.
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
        // Written page by page: what the allocator gives is one page of zeroes otherwise.
        source.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = 3);
        copies(load, window, disk_bytes as u64, |offset, target| {
            let offset = from + usize::try_from(offset)?;
            let source = source.get(offset..offset + target.len()).context("past the end")?;
            target.copy_from_slice(source);
            Ok(())
        })
    })
}

/// Reads what the load's requests would read from a file, by one call for each that does not wait for
/// storage, on the backend's CPU; by another that does where the file system knows no such calls.
///
/// # Errors
/// If there is no thread, or the file is shorter.
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
        // As many as the client has in flight, so that the clock does not weigh on small ones.
        for slot in 0..depth {
            let at = to + slot * bytes;
            copy(addresses(), target.get_mut(at..at + bytes).context("past the end")?)?;
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

/// The first page's place in an allocation.
fn aligned(memory: &[u8]) -> usize {
    memory.as_ptr().align_offset(PAGE_BYTES).min(PAGE_BYTES)
}

/// What reading the clock adds to a time.
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
