//! Clients of many disks at once: each keeps its requests outstanding, pauses, or comes and goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use testkit::driver::{Queue, Waker};

use super::records::{Done, Record, Records};
use crate::blk::client::{ClientQueue, Load, PATIENCE, Window, fill_buffers, offsets, submit};

/// Client of one queue of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stream {
    /// Number of the disk.
    pub(super) disk: usize,
    pub(super) load: Load,
    /// Pause after each completion.
    pub(super) think: Duration,
    /// Length of the periods in which the stream runs and pauses in turns, if it does.
    pub(super) turns: Option<Duration>,
}

impl Stream {
    pub(super) fn new(disk: usize, load: Load) -> Self {
        Self { disk, load, think: Duration::ZERO, turns: None }
    }

    /// Returns the end of the pause that a moment is in, as a time since the start.
    fn pause_until(&self, now: Duration) -> Option<Duration> {
        let turn = self.turns?.as_nanos().max(1);
        let number = now.as_nanos() / turn;
        let end = || Duration::from_nanos(u64::try_from((number + 1) * turn).unwrap_or(u64::MAX));
        (!number.is_multiple_of(2)).then(end)
    }
}

mod phase {
    pub(super) const RUN: u8 = 0;
    pub(super) const STOP: u8 = 1;
    pub(super) const ABANDON: u8 = 2;
}

/// Something to do at a time since the start.
pub(super) type Event<'a> = (Duration, Box<dyn FnMut() -> Result<()> + 'a>);

/// Runs all streams for the window, and events at their times, in order.
///
/// # Errors
/// A request or an event fails, or the backend stops answering.
pub(super) fn run(
    streams: Vec<(Stream, ClientQueue)>,
    window: Window,
    events: Vec<Event<'_>>,
) -> Result<Records> {
    let state = Arc::new(AtomicU8::new(phase::RUN));
    let (send, ended) = channel();
    let (mut wakers, mut threads) = (Vec::new(), Vec::new());
    let start = Instant::now();
    for (number, (stream, client_queue)) in streams.into_iter().enumerate() {
        wakers.push(client_queue.queue.waker());
        let (state, send) = (Arc::clone(&state), send.clone());
        let work = move || {
            let _ = send.send(Client::new(stream, client_queue, number, start).run(&state));
        };
        let made = thread::Builder::new().name(format!("stream {number}")).spawn(work);
        threads.push(made.context("cannot start a client")?.thread().clone());
    }
    let length = window.warm + window.measure;
    let mut happened = Ok(());
    for (at, mut event) in events {
        thread::sleep((start + at).saturating_duration_since(Instant::now()));
        happened = happened.and_then(|()| event());
    }
    thread::sleep((start + length).saturating_duration_since(Instant::now()));
    state.store(phase::STOP, Ordering::Release);
    threads.iter().for_each(Thread::unpark);
    let all = collect(&ended, &state, &wakers, &threads)?;
    happened?;
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    Ok(Records { all, window: (ns(window.warm), ns(length)) })
}

/// Collects the records. Wakes clients that still wait for their backend, and makes them fail.
fn collect(
    ended: &Receiver<Result<Record>>,
    state: &AtomicU8,
    wakers: &[Waker],
    threads: &[Thread],
) -> Result<Vec<Record>> {
    let (mut all, until) = (Vec::new(), Instant::now() + PATIENCE);
    while all.len() < wakers.len() {
        let left = until.saturating_duration_since(Instant::now());
        let Ok(record) = ended.recv_timeout(left) else {
            state.store(phase::ABANDON, Ordering::Release);
            wakers.iter().try_for_each(Waker::wake)?;
            threads.iter().for_each(Thread::unpark);
            let last = ended.recv_timeout(PATIENCE).context("a client cannot be stopped")?;
            return last.and_then(|_| bail!("the backend stopped answering"));
        };
        all.push(record?);
    }
    Ok(all)
}

/// Running client.
struct Client {
    stream: Stream,
    queue: Queue,
    offsets: offsets::Offsets,
    start: Instant,
    free: Vec<u16>,
    /// Time of the submission in each slot, in nanoseconds since the start.
    sent_ns: Vec<u64>,
    /// Time before which no request is sent, in nanoseconds since the start.
    next_ns: u64,
    done: Vec<Done>,
    failed: u64,
}

impl Client {
    fn new(stream: Stream, client_queue: ClientQueue, number: usize, start: Instant) -> Self {
        let ClientQueue { queue, disk_bytes, .. } = client_queue;
        let load = stream.load;
        Self {
            offsets: offsets::Offsets::new(load, disk_bytes / load.bytes as u64, number),
            stream,
            queue,
            start,
            free: (0..load.depth).collect(),
            sent_ns: vec![0; load.depth.into()],
            next_ns: 0,
            done: Vec::new(),
            failed: 0,
        }
    }

    fn run(mut self, state: &AtomicU8) -> Result<Record> {
        fill_buffers(&mut self.queue, self.stream.load)?;
        self.queue.want_calls(true);
        let depth = usize::from(self.stream.load.depth);
        loop {
            let phase = state.load(Ordering::Acquire);
            let is_idle = self.free.len() == depth;
            match phase {
                phase::ABANDON => bail!("the backend stopped answering"),
                phase::STOP if is_idle => break,
                _ => {}
            }
            let pause = if phase == phase::RUN { self.send()? } else { None };
            if self.reap() > 0 {
                continue;
            }
            match pause {
                Some(pause) if self.free.len() == depth => thread::park_timeout(pause),
                _ => self.queue.sleep()?,
            }
        }
        ensure!(self.failed == 0, "{} requests failed", self.failed);
        let Stream { disk, load, .. } = self.stream;
        Ok(Record { disk, bytes: load.bytes, done: self.done })
    }

    /// Sends a request in every free slot, unless the stream pauses. Returns the length of the pause.
    fn send(&mut self) -> Result<Option<Duration>> {
        let now = self.start.elapsed();
        let now_ns = now.as_nanos() as u64;
        if let Some(until) = self.stream.pause_until(now) {
            return Ok(Some(until - now));
        }
        if now_ns < self.next_ns {
            return Ok(Some(Duration::from_nanos(self.next_ns - now_ns)));
        }
        for slot in self.free.drain(..) {
            submit(&mut self.queue, self.stream.load, self.offsets.next()?, slot)?;
            if let Some(sent) = self.sent_ns.get_mut(usize::from(slot)) {
                *sent = now_ns;
            }
        }
        self.queue.kick()?;
        Ok(None)
    }

    /// Collects completions and returns their number.
    fn reap(&mut self) -> u32 {
        let Self { queue, start, free, sent_ns, done, failed, .. } = self;
        let mut end_ns = 0;
        let count = queue.completions(|slot, ret| {
            if end_ns == 0 {
                end_ns = start.elapsed().as_nanos() as u64;
            }
            free.push(slot);
            *failed += u64::from(ret != 0);
            let sent = sent_ns.get(usize::from(slot)).copied().unwrap_or(end_ns);
            done.push(Done { end_ns, latency_ns: end_ns.saturating_sub(sent) });
        });
        if count > 0 {
            self.next_ns = end_ns + self.stream.think.as_nanos() as u64;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_comes_and_goes_pauses_every_second_turn() {
        let turns = Some(Duration::from_millis(100));
        let stream = Stream { turns, ..Stream::new(0, Load::default()) };
        let until = |ms| stream.pause_until(Duration::from_millis(ms)).map(|it| it.as_millis());
        assert_eq!([0, 99, 100, 199, 200].map(until), [None, None, Some(200), Some(200), None]);
        assert_eq!(Stream::new(0, Load::default()).pause_until(Duration::from_secs(9)), None);
    }
}
