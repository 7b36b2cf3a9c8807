//! Threads of owners. A process has at most [`THREADS`] of them, apart from those that storage
//! blocks: if no owner gets a thread for a second, there is one thread more.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Threads at a time.
const THREADS: usize = 256;
/// Time after which threads that do not come back no longer count.
const BLOCKED: Duration = Duration::from_secs(1);

/// Work that a thread does until there is silence.
pub(crate) trait Run: Send + Sync {
    /// Works until there is silence.
    fn run(&self);

    /// Ends the work if it is silent. Returns whether it is.
    fn end_silence(&self) -> bool;
}

/// Bounded set of threads.
pub(crate) struct Threads {
    most: usize,
    blocked: Duration,
    state: Mutex<State>,
    /// Notified when the queue becomes empty.
    bell: Condvar,
}

#[derive(Default)]
struct State {
    threads: usize,
    running: Vec<Weak<dyn Run>>,
    queue: VecDeque<Arc<dyn Run>>,
    /// Number of works that left the queue.
    begun: u64,
    has_watcher: bool,
}

/// The threads of this process.
pub(crate) static OWNERS: Threads = Threads::new(THREADS, BLOCKED);

impl Threads {
    const fn new(most: usize, blocked: Duration) -> Self {
        let state = State {
            threads: 0,
            running: Vec::new(),
            queue: VecDeque::new(),
            begun: 0,
            has_watcher: false,
        };
        Self { most, blocked, state: Mutex::new(state), bell: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs work on a thread, now or when one is free.
    pub(crate) fn start(&'static self, work: Arc<dyn Run>) {
        let mut state = self.state();
        state.queue.push_back(work);
        if state.threads < self.most {
            return self.add_thread(state);
        }
        let running: Vec<_> = state.running.iter().filter_map(Weak::upgrade).collect();
        drop(state);
        let _makes_way = running.iter().any(|one| one.end_silence());
        self.watch();
    }

    fn add_thread(&'static self, mut state: MutexGuard<'_, State>) {
        state.threads += 1;
        drop(state);
        let thread = std::thread::Builder::new().name("image-owner".into());
        if let Err(error) = thread.spawn(|| self.run_thread()) {
            tracing::error!("an image's owner cannot start: {error}; its requests wait");
            self.state().threads -= 1;
            self.watch();
        }
    }

    fn run_thread(&self) {
        loop {
            let mut state = self.state();
            let Some(work) = state.queue.pop_front() else {
                state.threads -= 1;
                return;
            };
            state.begun += 1;
            if state.queue.is_empty() {
                self.bell.notify_all();
            }
            state.running.push(Arc::downgrade(&work));
            drop(state);
            work.run();
            let ended = Arc::downgrade(&work);
            self.state().running.retain(|one| !one.ptr_eq(&ended));
        }
    }

    /// Adds threads while those that there are do not come back.
    fn watch(&'static self) {
        if std::mem::replace(&mut self.state().has_watcher, true) {
            return;
        }
        let watch = || {
            let mut state = self.state();
            while !state.queue.is_empty() {
                let begun = state.begun;
                let is_waiting = |state: &mut State| !state.queue.is_empty();
                let waited = self.bell.wait_timeout_while(state, self.blocked, is_waiting);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                if state.begun == begun && !state.queue.is_empty() {
                    self.add_thread(state);
                    state = self.state();
                }
            }
            state.has_watcher = false;
        };
        let thread = std::thread::Builder::new().name("image-owners".into());
        if let Err(error) = thread.spawn(watch) {
            tracing::error!("images wait for a thread of their owner: {error}");
            self.state().has_watcher = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Work that says that it begins, and ends when it is told so.
    struct Work {
        began: Sender<u32>,
        number: u32,
        end: Mutex<Receiver<()>>,
        is_silent: AtomicBool,
        ended_early: Sender<()>,
    }

    impl Run for Work {
        fn run(&self) {
            self.began.send(self.number).unwrap();
            self.end.lock().unwrap().recv().unwrap();
        }

        fn end_silence(&self) -> bool {
            self.is_silent.load(Ordering::Relaxed) && self.ended_early.send(()).is_ok()
        }
    }

    fn work(number: u32, began: &Sender<u32>) -> (Arc<Work>, Sender<()>) {
        let (sender, end) = channel();
        let (began, end, is_silent) = (began.clone(), Mutex::new(end), AtomicBool::new(false));
        let ended_early = sender.clone();
        (Arc::new(Work { began, number, end, is_silent, ended_early }), sender)
    }

    fn threads(blocked: Duration) -> &'static Threads {
        Box::leak(Box::new(Threads::new(1, blocked)))
    }

    #[test]
    fn work_waits_for_a_thread_and_a_silent_one_makes_way() {
        let threads = threads(Duration::from_secs(3600));
        let (began, begins) = channel();
        let [(first, _a), (second, b), (third, _c)] = [1, 2, 3].map(|one| work(one, &began));
        first.is_silent.store(true, Ordering::Relaxed);
        threads.start(first);
        assert_eq!(begins.recv(), Ok(1));
        threads.start(second);
        assert_eq!(begins.recv(), Ok(2), "the first one was silent");
        threads.start(third);
        assert_eq!(threads.state().threads, 1);
        assert!(begins.try_recv().is_err());
        b.send(()).unwrap();
        assert_eq!(begins.recv(), Ok(3));
    }

    #[test]
    fn a_thread_that_storage_blocks_does_not_count_for_long() {
        let threads = threads(Duration::from_millis(20));
        let (began, begins) = channel();
        let [(first, a), (second, b), (third, c)] = [1, 2, 3].map(|one| work(one, &began));
        threads.start(first);
        threads.start(second);
        threads.start(third);
        assert_eq!([0; 3].map(|_| begins.recv().unwrap()), [1, 2, 3]);
        [a, b, c].iter().for_each(|end| end.send(()).unwrap());
    }
}
