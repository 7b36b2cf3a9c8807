//! Loading of one block: from the cache file, or from the source.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ::disk::{IoError, WarmPhase};
use rustix::io::Errno;

use crate::SourceError;
use crate::background::Purpose;
use crate::image::{CachedImage, count};
use crate::link::Link;
use crate::loader::{enqueue, note_gone};
use crate::state::Lane;

/// Attempts of a block that the source answers with an error.
const ATTEMPTS: u32 = 3;

/// Loads a block from the cache file. If that does not have it whole, the source has.
pub(crate) fn load(image: &Arc<CachedImage>, block: u32) {
    let mut data = vec![0; image.bytes_of(block)];
    if image.file.as_ref().is_some_and(|file| file.read(block, &mut data)) {
        count(&image.counters.loaded);
        image.publish(block, &Arc::new(data));
    } else {
        enqueue(image, image.state(), Lane::Source, block);
    }
}

/// Fetches a block from the source.
pub(crate) fn fetch(image: &Arc<CachedImage>, block: u32, purpose: Purpose, link: &mut Link) {
    let mut data = vec![0; image.bytes_of(block)];
    // Another process may have stored it since. A block that is known was tried before.
    let news = image.file.as_ref().filter(|file| !file.may_have(block));
    if news.is_some_and(|file| file.read(block, &mut data)) {
        count(&image.counters.loaded);
        return end(image, block, purpose, data);
    }
    {
        let mut state = image.state();
        if state.retry_at.is_some() {
            // The source is gone. One attempt at its time is enough.
            return state.park(block, purpose);
        }
    }
    wait_rate(image, data.len());
    let offset = u64::from(block) * crate::BLOCK_BYTES;
    let mut attempt = 1;
    let error = loop {
        match link.read(image, offset, &mut data) {
            Ok(()) => {
                store(image, block, &data);
                count(&image.counters.fetched);
                let bytes = data.len() as u64;
                image.counters.fetched_bytes.fetch_add(bytes, Ordering::Relaxed);
                image.state().resume();
                return end(image, block, purpose, data);
            }
            Err(SourceError::Failed(_)) if attempt < ATTEMPTS => attempt += 1,
            Err(error) => break error,
        }
        // A source that cannot even be connected to has no trouble with this block alone.
        *link = Link::default();
    };
    *link = Link::default();
    if let SourceError::Failed(problem) = &error {
        tracing::warn!("block {block} of the golden image {}: {problem}", image.source);
        let mut state = image.state();
        if purpose == Purpose::Warm {
            let problem = Some(format!("block {block}: {problem}"));
            state.background.end_warm(WarmPhase::Failed, problem);
        }
        state.background.end(block, purpose, true);
        drop(state);
        return image.fail(block, IoError::Storage(Errno::IO));
    }
    let mut state = image.state();
    note_gone(image, &mut state, &error);
    state.park(block, purpose);
}

/// Ends the flight of a block that is there.
fn end(image: &CachedImage, block: u32, purpose: Purpose, data: Vec<u8>) {
    let is_stored = image.file.as_ref().is_some_and(|file| file.may_have(block));
    let mut state = image.state();
    if purpose == Purpose::Warm && !is_stored {
        let full = "the cache file has as many blocks as `cache_size` allows";
        let problem = state.file_problem.clone().unwrap_or_else(|| full.into());
        state.background.end_warm(WarmPhase::Failed, Some(problem));
    }
    state.background.end(block, purpose, true);
    // Nothing is driven out of memory for a block that no request wants.
    if purpose == Purpose::Warm && is_stored && state.flights.get(&block).is_some_and(Vec::is_empty)
    {
        state.flights.remove(&block);
        return;
    }
    drop(state);
    image.publish(block, &Arc::new(data));
}

/// Writes a block to the cache file. The log tells the first failure of several.
pub(crate) fn store(image: &CachedImage, block: u32, data: &[u8]) {
    let Some(file) = &image.file else { return };
    let problem = file.write(block, data).err().map(|error| error.to_string());
    let mut state = image.state();
    match (&state.file_problem, &problem) {
        (None, Some(problem)) => tracing::warn!(
            "the cache file of {}: {problem}; new blocks stay in memory only",
            image.source
        ),
        (Some(_), None) => tracing::info!("the cache file of {} takes blocks again", image.source),
        _ => {}
    }
    state.file_problem = problem;
}

/// Waits until the rate of the source allows a number of bytes.
pub(crate) fn wait_rate(image: &CachedImage, bytes: usize) {
    let Some(rate) = image.rate else { return };
    let now = Instant::now();
    let mut state = image.state();
    let from = state.busy_until.map_or(now, |until| until.max(now));
    state.busy_until = Some(from + Duration::from_secs_f64(bytes as f64 / rate as f64));
    drop(state);
    std::thread::sleep(from - now);
}
