//! Threads that load blocks. One of each lane stays while a disk uses the image, so that no request can
//! wait without a thread. The others end after some seconds of silence.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ::disk::IoError;
use model::spec::BootSet;
use rustix::io::Errno;

use crate::background::{FLIGHTS_MAX, Next, Purpose};
use crate::fetch::{fetch, load};
use crate::image::CachedImage;
use crate::link::Link;
use crate::stalled::Stalled;
use crate::state::{Lane, State};
use crate::{SourceError, boot_set, digest};

/// Threads of an image: for the cache file, and for the source.
const THREADS: [usize; 2] = [4, 2 * FLIGHTS_MAX];
/// Silence after which a thread ends.
const SILENCE: Duration = Duration::from_secs(5);
/// Time for which no more connections are tried after the source has refused one beside others.
const ENOUGH: Duration = Duration::from_secs(60);

/// Work of a thread.
enum Work {
    Load(u32, Purpose),
    /// Connect to the source. Until then, other threads take the blocks.
    Connect,
    /// Calculate the digest of the image.
    Check,
    /// Nothing came for a while.
    Silence,
    End,
}

/// Outcome of a look for work.
enum Found {
    Work(Work),
    Nothing,
    /// The source is gone or the rate is reached until this time.
    NothingUntil(Instant),
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
    let is_enough = state.enough_until.is_some_and(|until| Instant::now() < until);
    if state.threads[at] >= most || lane == Lane::Source && state.threads[at] > 0 && is_enough {
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
        match next(image, lane, is_silent, link.is_made()) {
            Work::Load(block, purpose) => {
                is_silent = false;
                match lane {
                    Lane::CacheFile => load(image, block),
                    Lane::Source => fetch(image, block, purpose, &mut link),
                }
                store_boot_set(image, false);
            }
            Work::Connect => {
                is_silent = false;
                let made = link.make(image);
                image.state().connecting -= 1;
                if made.is_err_and(|error| note_failed_connection(image, &error)) {
                    return;
                }
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

/// Notes a failed connection. Returns whether the thread is superfluous, because others have
/// connections: servers limit their number, and may let one more wait without an answer (`qemu-nbd`
/// takes one). Without any connection the source is gone.
fn note_failed_connection(image: &CachedImage, error: &SourceError) -> bool {
    let mut state = image.state();
    let connections = image.connections.load(Ordering::Relaxed);
    let is_limit = matches!(error, SourceError::Unreachable(_)) && connections > 0;
    if !is_limit || state.threads[Lane::Source as usize] < 2 {
        note_gone(image, &mut state, error);
        return false;
    }
    let (now, source) = (Instant::now(), image.source.to_string());
    if state.enough_until.is_none() {
        tracing::info!(
            "the source {source} does not take more connections than {connections} ({error}); \
             reads are faster if it takes {}, for example by `qemu-nbd --shared`",
            THREADS[Lane::Source as usize]
        );
    }
    state.enough_until = Some(now + ENOUGH);
    state.threads[Lane::Source as usize] -= 1;
    drop(state);
    Stalled::of_process().leave_alone(&source, now, ENOUGH);
    // Its blocks are for those that have connections.
    image.bell.notify_all();
    true
}

/// Notes that the source is gone, so that requests wait.
pub(crate) fn note_gone(image: &CachedImage, state: &mut State, error: &SourceError) {
    if state.problem.is_none() {
        tracing::warn!("the golden image {}: {error}; requests wait", image.source);
    }
    state.pause(error.to_string());
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
fn next(image: &CachedImage, lane: Lane, was_silent: bool, is_connected: bool) -> Work {
    let at = lane as usize;
    let silent_at = Instant::now() + SILENCE;
    let mut state = image.state();
    loop {
        let now = Instant::now();
        let until = match find(image, &mut state, lane, is_connected, now) {
            Found::Work(work) => return work,
            Found::NothingUntil(until) => Some(until),
            Found::Nothing if was_silent && state.users > 0 && state.threads[at] == 1 => None,
            Found::Nothing => Some(silent_at),
        };
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

/// Finds work of a lane for a thread. Requests come first, also when the source is gone.
fn find(
    image: &CachedImage,
    state: &mut State,
    lane: Lane,
    is_connected: bool,
    now: Instant,
) -> Found {
    let at = lane as usize;
    if lane == Lane::CacheFile {
        let block = state.queues[at].pop_front();
        return block
            .map_or(Found::Nothing, |block| Found::Work(Work::Load(block, Purpose::Request)));
    }
    if state.retry(now) {
        image.bell.notify_all();
    }
    // While the source is gone, a thread without a connection lets the blocks wait.
    let connects_first = !is_connected && state.retry_at.is_none();
    let queue = &mut state.queues[at];
    if connects_first && !queue.is_empty() {
        // One connection for each block is enough.
        return if queue.len() > state.connecting {
            begin_connecting(state)
        } else {
            Found::Nothing
        };
    }
    if let Some(block) = queue.pop_front() {
        return Found::Work(Work::Load(block, Purpose::Request));
    }
    match state.retry_at.map_or_else(|| next_ahead(image, state), Next::At) {
        Next::Block(block, purpose) if connects_first => {
            state.flights.remove(&block);
            state.background.end(block, purpose, false);
            begin_connecting(state)
        }
        Next::Block(block, purpose) => Found::Work(Work::Load(block, purpose)),
        Next::Check => Found::Work(Work::Check),
        Next::At(at) => Found::NothingUntil(at),
        Next::Nothing => Found::Nothing,
    }
}

fn begin_connecting(state: &mut State) -> Found {
    state.connecting += 1;
    Found::Work(Work::Connect)
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
