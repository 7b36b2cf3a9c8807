//! Parts of a disk that have something, or that differ from another disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use image::BitSet;
use model::spec::Backend;

use super::ImageCallError;
use super::source::{Source, common_image};

/// Returns the units of a disk in which something is stored. `unit` is their size in bytes.
pub(super) fn stored(
    source: &mut Source,
    unit: u64,
    stop: &AtomicBool,
) -> Result<BitSet, ImageCallError> {
    units(source.size(), unit, stop, |at, end| source.next_data(at, end))
}

/// Returns the units of a disk, with its tree, that differ from those of another tree: those that an
/// image above the common one has, or, if no image is common, those whose bytes differ. `unit` is
/// their size in bytes, at most 2 MiB.
pub(super) fn changed(
    (source, tree): (&mut Source, &Backend),
    base: &Backend,
    unit: u64,
    stop: &Arc<AtomicBool>,
) -> Result<BitSet, ImageCallError> {
    let common = common_image(tree, base);
    let mut base = Source::open(base, stop, false)?;
    let size = source.size();
    if let Some(common) = common {
        return units(size, unit, stop, |at, end| {
            let theirs = base.next_change(at, end, &common)?;
            Ok(source.next_change(at, end, &common)?.min(theirs))
        });
    }
    let candidates = units(size, unit, stop, |at, end| {
        let theirs = base.next_data(at, end)?;
        Ok(source.next_data(at, end)?.min(theirs))
    })?;
    let mut differing = BitSet::new(candidates.limit());
    let [mut ours, mut theirs] = [vec![0; unit as usize], vec![0; unit as usize]];
    for one in candidates.iter() {
        check_stop(stop)?;
        source.read(one * unit, &mut ours)?;
        base.read(one * unit, &mut theirs)?;
        if ours != theirs {
            differing.insert(one);
        }
    }
    Ok(differing)
}

/// Returns the units of a disk in which `next` finds something.
fn units(
    size: u64,
    unit: u64,
    stop: &AtomicBool,
    mut next: impl FnMut(u64, u64) -> Result<u64, ImageCallError>,
) -> Result<BitSet, ImageCallError> {
    let mut units = BitSet::new(size.div_ceil(unit));
    let mut at = 0;
    while at < size {
        check_stop(stop)?;
        let found = next(at, size)?;
        if found < size {
            units.insert(found / unit);
        }
        at = (found / unit + 1) * unit;
    }
    Ok(units)
}

/// Returns an error if the caller has stopped the call.
pub(super) fn check_stop(stop: &AtomicBool) -> Result<(), ImageCallError> {
    if stop.load(Ordering::Relaxed) {
        return Err(ImageCallError::Refused("stopped before the end of the disk".into()));
    }
    Ok(())
}
