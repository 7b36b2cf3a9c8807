//! Threads that load blocks. They end after some seconds of silence.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::SourceError;
use crate::boot_set;
use crate::image::{CachedImage, Lane, State, count};
use crate::source::{Connection, connect};

/// Threads of an image: for the cache file, and for the source.
const THREADS: [usize; 2] = [4, 8];
/// Silence after which a thread ends.
const SILENCE: Duration = Duration::from_secs(5);
/// Attempts of a block that the source answers with an error.
const ATTEMPTS: u32 = 3;
/// First and longest pause before a source that is gone is tried again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Queues a block and starts a thread if that helps.
pub(crate) fn enqueue(
    image: &Arc<CachedImage>,
    mut state: MutexGuard<'_, State>,
    lane: Lane,
    block: u32,
) {
    let at = lane as usize;
    let (Some(queue), Some(most)) = (state.queues.get_mut(at), THREADS.get(at)) else { return };
    queue.push_back(block);
    let waiting = queue.len();
    let Some(threads) = state.threads.get_mut(at) else { return };
    let starts = *threads < *most && waiting > 0;
    if starts {
        *threads += 1;
    }
    drop(state);
    image.bell.notify_all();
    if !starts {
        return;
    }
    let its_image = Arc::clone(image);
    let thread = std::thread::Builder::new().name("golden-loader".into());
    if let Err(error) = thread.spawn(move || run(&its_image, lane)) {
        tracing::error!("a thread of a golden image cannot start: {error}; its requests wait");
        if let Some(threads) = image.state().threads.get_mut(at) {
            *threads -= 1;
        }
    }
}

fn run(image: &Arc<CachedImage>, lane: Lane) {
    let mut connection = None;
    while let Some(block) = next(image, lane) {
        match lane {
            Lane::CacheFile => load(image, block),
            Lane::Source => fetch(image, block, &mut connection),
        }
        store_boot_set(image, false);
    }
    store_boot_set(image, true);
}

/// Stores the boot set, if enough is new.
fn store_boot_set(image: &CachedImage, is_silent: bool) {
    let mut state = image.state();
    let new = state.recorder.as_mut().and_then(|recorder| recorder.take_new(is_silent));
    drop(state);
    let Some(blocks) = new else { return };
    if let Err(error) = boot_set::write(&image.boot_path, &image.identity, blocks) {
        tracing::warn!("cannot store the boot set of {}: {error}", image.source);
    }
}

/// Starts threads that fetch ahead.
pub(crate) fn start_ahead(image: &Arc<CachedImage>) {
    let mut state = image.state();
    let is_stored = |block| image.file.as_ref().is_some_and(|file| file.may_have(block));
    let first: Vec<u32> = (0..THREADS[1] / 2).map_while(|_| state.begin_ahead(is_stored)).collect();
    drop(state);
    first.into_iter().for_each(|block| enqueue(image, image.state(), Lane::Source, block));
}

/// Waits for a block to load. `None` after some silence.
fn next(image: &CachedImage, lane: Lane) -> Option<u32> {
    let at = lane as usize;
    let silent_at = Instant::now() + SILENCE;
    let mut state = image.state();
    loop {
        let now = Instant::now();
        if lane == Lane::Source && state.retry_at.is_some_and(|retry_at| retry_at <= now) {
            state.retry_at = None;
            let parked = std::mem::take(&mut state.parked);
            let wanted: Vec<u32> =
                parked.into_iter().filter(|block| state.is_wanted(*block)).collect();
            if wanted.is_empty() {
                state.problem = None;
            }
            state.queues[1].extend(wanted);
            image.bell.notify_all();
        }
        if let Some(block) = state.queues.get_mut(at)?.pop_front() {
            return Some(block);
        }
        // A source that is gone is for requests first.
        if lane == Lane::Source && state.retry_at.is_none() {
            let is_stored = |block| image.file.as_ref().is_some_and(|file| file.may_have(block));
            if let Some(block) = state.begin_ahead(is_stored) {
                return Some(block);
            }
        }
        let retry_at = state.retry_at.filter(|_| lane == Lane::Source);
        let until = retry_at.unwrap_or(silent_at);
        if until <= now {
            *state.threads.get_mut(at)? -= 1;
            return None;
        }
        let waited = image.bell.wait_timeout(state, until - now);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// Loads a block from the cache file. If that does not have it whole, the source has.
fn load(image: &Arc<CachedImage>, block: u32) {
    let mut data = vec![0; image.bytes_of(block)];
    if image.file.as_ref().is_some_and(|file| file.read(block, &mut data)) {
        count(&image.counters.loaded);
        image.publish(block, &Arc::new(data));
    } else {
        enqueue(image, image.state(), Lane::Source, block);
    }
}

fn fetch(image: &Arc<CachedImage>, block: u32, connection: &mut Option<Box<dyn Connection>>) {
    {
        let mut state = image.state();
        if state.retry_at.is_some() {
            // The source is gone. One attempt at its time is enough.
            state.parked.push(block);
            state.wake_waiters(block);
            return;
        }
    }
    wait_rate(image, image.bytes_of(block));
    let mut data = vec![0; image.bytes_of(block)];
    let offset = u64::from(block) * crate::BLOCK_BYTES;
    let mut attempt = 1;
    let error = loop {
        match read(image, connection, offset, &mut data) {
            Ok(()) => {
                store(image, block, &data);
                count(&image.counters.fetched);
                let bytes = data.len() as u64;
                image.counters.fetched_bytes.fetch_add(bytes, Ordering::Relaxed);
                {
                    let mut state = image.state();
                    (state.problem, state.pauses) = (None, 0);
                }
                return image.publish(block, &Arc::new(data));
            }
            Err(SourceError::Failed(_)) if attempt < ATTEMPTS => attempt += 1,
            Err(error) => break error,
        }
    };
    *connection = None;
    if let SourceError::Failed(problem) = &error {
        tracing::warn!("block {block} of the golden image {}: {problem}", image.source);
        return image.fail(block);
    }
    park(image, block, &error);
}

fn read(
    image: &CachedImage,
    connection: &mut Option<Box<dyn Connection>>,
    offset: u64,
    data: &mut [u8],
) -> Result<(), SourceError> {
    let connection = match connection {
        Some(connection) => connection,
        None => {
            // A source without the image is like one that cannot be reached.
            let made = connect(&image.source)
                .map_err(|error| SourceError::Unreachable(error.to_string()))?;
            if made.version().identity(&image.source) != image.identity {
                return Err(crate::source::changed("it has another image now"));
            }
            connection.insert(made)
        }
    };
    connection.read_at(offset, data)
}

/// Lets a block wait until the source is back.
fn park(image: &CachedImage, block: u32, error: &SourceError) {
    let mut state = image.state();
    if state.problem.is_none() {
        tracing::warn!("the golden image {}: {error}; requests wait", image.source);
    }
    state.problem = Some(error.to_string());
    let pause = PAUSES.0.saturating_mul(1 << state.pauses.min(10)).min(PAUSES.1);
    state.pauses += 1;
    state.retry_at = Some(Instant::now() + pause);
    state.parked.push(block);
    state.wake_waiters(block);
}

/// Writes a block to the cache file. A file that has no room stays as it is.
fn store(image: &CachedImage, block: u32, data: &[u8]) {
    let Some(file) = &image.file else { return };
    let is_new = !file.may_have(block);
    if is_new && image.state().stored >= image.file_blocks {
        return;
    }
    match file.write(block, data) {
        Ok(()) => image.state().stored += u64::from(is_new),
        Err(error) => {
            tracing::warn!(
                "the cache file of {}: {error}; its blocks stay in memory",
                image.source
            );
        }
    }
}

/// Waits until the rate of the source allows a number of bytes.
fn wait_rate(image: &CachedImage, bytes: usize) {
    let Some(rate) = image.rate else { return };
    let now = Instant::now();
    let mut state = image.state();
    let from = state.busy_until.map_or(now, |until| until.max(now));
    state.busy_until = Some(from + Duration::from_secs_f64(bytes as f64 / rate as f64));
    drop(state);
    std::thread::sleep(from - now);
}
