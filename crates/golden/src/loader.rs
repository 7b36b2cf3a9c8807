//! Threads that load blocks. One of each lane stays while a disk uses the image, so that no request can
//! wait without a thread. The others end after some seconds of silence.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ::disk::{IoError, WarmPhase};
use model::spec::BootSet;
use rustix::io::Errno;

use crate::background::{FLIGHTS_MAX, Next, Purpose};
use crate::image::{CachedImage, count};
use crate::link::Link;
use crate::state::{Lane, State};
use crate::{SourceError, boot_set, digest};

/// Threads of an image: for the cache file, and for the source.
const THREADS: [usize; 2] = [4, 2 * FLIGHTS_MAX];
/// Silence after which a thread ends.
const SILENCE: Duration = Duration::from_secs(5);
/// Attempts of a block that the source answers with an error.
const ATTEMPTS: u32 = 3;

/// Work of a thread.
enum Work {
    Load(u32, Purpose),
    /// Calculate the digest of the image.
    Check,
    /// Nothing came for a while.
    Silence,
    End,
}

/// Starts a thread for each lane that has none.
///
/// # Errors
/// The kernel refuses a thread.
pub(crate) fn start(image: &Arc<CachedImage>) -> std::io::Result<()> {
    for lane in [Lane::CacheFile, Lane::Source] {
        start_thread(image, lane, 1)?;
    }
    Ok(())
}

/// Starts the threads that fetch ahead. Fewer fetch ahead, too.
pub(crate) fn start_background(image: &Arc<CachedImage>) {
    image.bell.notify_all();
    while matches!(start_thread(image, Lane::Source, FLIGHTS_MAX), Ok(true)) {}
}

/// Starts a thread of a lane that has less than `most`. Returns whether it did.
fn start_thread(image: &Arc<CachedImage>, lane: Lane, most: usize) -> std::io::Result<bool> {
    let at = lane as usize;
    let mut state = image.state();
    if state.threads[at] >= most {
        return Ok(false);
    }
    state.threads[at] += 1;
    drop(state);
    let its_image = Arc::clone(image);
    let thread = std::thread::Builder::new().name("golden-loader".into());
    let started = thread.spawn(move || run(&its_image, lane));
    if started.is_err() {
        image.state().threads[at] -= 1;
    }
    started.map(|_| true)
}

/// Queues a block and starts a thread if that helps.
pub(crate) fn enqueue(
    image: &Arc<CachedImage>,
    mut state: MutexGuard<'_, State>,
    lane: Lane,
    block: u32,
) {
    state.queues[lane as usize].push_back(block);
    drop(state);
    image.bell.notify_all();
    let Err(error) = start_thread(image, lane, THREADS[lane as usize]) else { return };
    let mut state = image.state();
    if state.threads[lane as usize] == 0 {
        tracing::error!("no thread of the golden image {} can start: {error}", image.source);
        let blocks = std::mem::take(&mut state.queues[lane as usize]);
        drop(state);
        blocks.into_iter().for_each(|block| image.fail(block, IoError::Storage(Errno::AGAIN)));
    }
}

fn run(image: &Arc<CachedImage>, lane: Lane) {
    let mut link = Link::default();
    let mut is_silent = false;
    loop {
        match next(image, lane, is_silent) {
            Work::Load(block, purpose) => {
                is_silent = false;
                match lane {
                    Lane::CacheFile => load(image, block),
                    Lane::Source => fetch(image, block, purpose, &mut link),
                }
                store_boot_set(image, false);
            }
            Work::Check => digest::check(image, &mut link),
            Work::Silence => {
                is_silent = true;
                // A server may close a silent connection.
                link = Link::default();
                store_boot_set(image, true);
            }
            Work::End => return store_boot_set(image, true),
        }
    }
}

/// Stores the boot set, if enough is new.
fn store_boot_set(image: &CachedImage, is_silent: bool) {
    let new = image.state().recorder.as_mut().and_then(|recorder| recorder.take_new(is_silent));
    let Some(blocks) = new else { return };
    let stored = boot_set::write(&image.boot_path, &BootSet::new(&image.identity, blocks));
    let mut state = image.state();
    let is_news = state.recorder.as_mut().is_some_and(|it| it.note_outcome(stored.is_ok()));
    if let (Err(error), true) = (stored, is_news) {
        tracing::warn!("cannot store the boot set of {}: {error}", image.source);
    }
}

/// Waits for work. After a silence that the thread knows of, it waits without end.
fn next(image: &CachedImage, lane: Lane, was_silent: bool) -> Work {
    let at = lane as usize;
    let silent_at = Instant::now() + SILENCE;
    let mut state = image.state();
    loop {
        let now = Instant::now();
        let mut until =
            (!was_silent || state.users == 0 || state.threads[at] > 1).then_some(silent_at);
        if lane == Lane::Source && state.retry(now) {
            image.bell.notify_all();
        }
        if let Some(block) = state.queues[at].pop_front() {
            return Work::Load(block, Purpose::Request);
        }
        if lane == Lane::Source {
            // A source that is gone is for requests first.
            match state.retry_at.map_or_else(|| next_ahead(image, &mut state), Next::At) {
                Next::Block(block, purpose) => return Work::Load(block, purpose),
                Next::Check => return Work::Check,
                Next::At(at) => until = Some(at),
                Next::Nothing => {}
            }
        }
        let waited = match until {
            Some(until) if until <= now => {
                // The last thread stays while a disk uses the image.
                if state.threads[at] == 1 && state.users > 0 {
                    return Work::Silence;
                }
                state.threads[at] -= 1;
                return Work::End;
            }
            Some(until) => image
                .bell
                .wait_timeout(state, until - now)
                .map(|waited| waited.0)
                .map_err(|error| error.into_inner().0),
            None => image.bell.wait(state).map_err(PoisonError::into_inner),
        };
        state = waited.unwrap_or_else(|state| state);
    }
}

/// Begins the flight of the next block to fetch ahead.
fn next_ahead(image: &CachedImage, state: &mut State) -> Next {
    if state.users == 0 {
        return Next::Nothing;
    }
    let is_stored = |block| image.file.as_ref().is_some_and(|file| file.may_have(block));
    let State { background, ram, flights, .. } = state;
    let (in_memory, flying) =
        (|block| ram.contains_key(&block), |block| flights.contains_key(&block));
    let next = background.next(image.blocks(), in_memory, flying, is_stored);
    if let Next::Block(block, _) = next {
        flights.insert(block, Vec::new());
    }
    next
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

/// Fetches a block from the source.
fn fetch(image: &Arc<CachedImage>, block: u32, purpose: Purpose, link: &mut Link) {
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
    if state.problem.is_none() {
        tracing::warn!("the golden image {}: {error}; requests wait", image.source);
    }
    state.pause(error.to_string());
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
