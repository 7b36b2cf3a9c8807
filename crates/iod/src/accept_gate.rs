//! Who takes connections from a listening socket that one worker shares with the next.
//!
//! ```text
//!   taking --shut--> shut --open--> taking
//!      \               \
//!       +-----stop------+---------> stopped
//! ```
//! Two workers have every listening socket between the start of the second and the end of the
//! first. Whoever is taken by one that is about to end loses the answer, so the one that hands over
//! shuts its gates before the word that makes the other serve: whoever comes then waits in the
//! backlog. [`AcceptGate::pause`] returns when nobody takes any more, and those that were taken before
//! count until they are served.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use vhost_user::StopSignal;

/// Of one listening socket.
#[derive(Debug)]
pub(crate) struct AcceptGate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Wakes whoever takes connections.
    wake: StopSignal,
    /// Nobody may take any, for now.
    shut: bool,
    /// Nobody ever may.
    stopped: bool,
    /// Somebody takes them.
    taking: bool,
    /// Connections that were taken and are not yet served.
    visitors: usize,
}

impl AcceptGate {
    /// One that is open.
    ///
    /// # Errors
    /// The process may open no more descriptors.
    pub(crate) fn new() -> io::Result<Self> {
        let wake = StopSignal::new()?;
        let state = State { wake, shut: false, stopped: false, taking: false, visitors: 0 };
        Ok(Self { state: Mutex::new(state), changed: Condvar::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Single values: a panic elsewhere leaves them whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until connections may be taken, by one thread; `None`: never again.
    pub(crate) fn enter(&self) -> Option<AcceptPermit<'_>> {
        let closed = |state: &mut State| state.shut && !state.stopped;
        let waited = self.changed.wait_while(self.state(), closed);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if state.stopped {
            return None;
        }
        state.taking = true;
        Some(AcceptPermit { gate: self, wake: state.wake.clone() })
    }

    /// From here on nobody takes a connection, until [`Self::resume`].
    ///
    /// # Errors
    /// The process may open no more descriptors; the gate is as it was.
    pub(crate) fn pause(&self) -> io::Result<()> {
        // For the time after the next opening: that cannot fail.
        let fresh = StopSignal::new()?;
        let mut state = self.state();
        state.shut = true;
        std::mem::replace(&mut state.wake, fresh).stop();
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| state.taking));
        Ok(())
    }

    /// Connections are taken again.
    pub(crate) fn resume(&self) {
        self.state().shut = false;
        self.changed.notify_all();
    }

    /// Nobody ever takes a connection again. Does not wait.
    pub(crate) fn stop(&self) {
        let mut state = self.state();
        state.stopped = true;
        state.wake.stop();
        self.changed.notify_all();
    }

    /// Counts a connection until it is served.
    pub(crate) fn admit(self: &Arc<Self>) -> ConnectionGuard {
        self.state().visitors += 1;
        ConnectionGuard(Arc::clone(self))
    }

    /// Waits until nobody takes connections and those that were taken are served, or for `until`.
    pub(crate) fn served(&self, until: Instant) {
        let left = until.saturating_duration_since(Instant::now());
        let busy = |state: &mut State| state.taking || state.visitors > 0;
        drop(self.changed.wait_timeout_while(self.state(), left, busy));
    }
}

/// The right to take connections; whoever has it lets go of it when [`Self::wake`] is given.
#[derive(Debug)]
pub(crate) struct AcceptPermit<'a> {
    gate: &'a AcceptGate,
    wake: StopSignal,
}

impl AcceptPermit<'_> {
    /// Given when it is over.
    pub(crate) fn wake(&self) -> &StopSignal {
        &self.wake
    }

    /// Waits until fewer than `most` connections are being served; false: it is over.
    pub(crate) fn has_room(&self, most: usize) -> bool {
        let full = |state: &mut State| !state.shut && !state.stopped && state.visitors >= most;
        let waited = self.gate.changed.wait_while(self.gate.state(), full);
        let state = waited.unwrap_or_else(PoisonError::into_inner);
        !state.shut && !state.stopped
    }
}

impl Drop for AcceptPermit<'_> {
    fn drop(&mut self) {
        self.gate.state().taking = false;
        self.gate.changed.notify_all();
    }
}

/// A connection that counts until it is served, also by a panic.
#[derive(Debug)]
pub(crate) struct ConnectionGuard(Arc<AcceptGate>);

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.state().visitors -= 1;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const FAR: Duration = Duration::from_secs(60);

    fn far() -> Instant {
        Instant::now() + FAR
    }

    #[test]
    fn nobody_takes_while_it_is_shut_and_nobody_ever_when_it_is_stopped() {
        let gate = AcceptGate::new().unwrap();
        let (said, heard) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while let Some(accept_permit) = gate.enter() {
                    said.send("takes").unwrap();
                    accept_permit.wake().wait(None, None).unwrap();
                    said.send("rests").unwrap();
                }
                said.send("ends").unwrap();
            });
            for _ in 0..100 {
                assert_eq!(heard.recv_timeout(FAR), Ok("takes"));
                gate.pause().unwrap();
                // Said before `shut` returned.
                assert_eq!(heard.try_recv(), Ok("rests"));
                // Twice is as once.
                gate.pause().unwrap();
                assert!(heard.try_recv().is_err());
                gate.resume();
            }
            assert_eq!(heard.recv_timeout(FAR), Ok("takes"));
            gate.stop();
            assert_eq!(heard.recv_timeout(FAR), Ok("rests"));
            assert_eq!(heard.recv_timeout(FAR), Ok("ends"));
        });
        gate.resume();
        assert!(gate.enter().is_none());
        // Nobody is there to wait for.
        gate.pause().unwrap();
        gate.served(far());
    }

    #[test]
    fn visitors_count_until_they_are_served() {
        let gate = Arc::new(AcceptGate::new().unwrap());
        let accept_permit = gate.enter().unwrap();
        let connection_guards = [gate.admit(), gate.admit()];
        assert!(accept_permit.has_room(3));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| accept_permit.has_room(2));
            drop(connection_guards);
            assert!(waits.join().unwrap());
        });
        let connection_guard = gate.admit();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| accept_permit.has_room(1));
            gate.stop();
            assert!(!waits.join().unwrap());
        });
        drop(accept_permit);
        // So long and no longer.
        gate.served(Instant::now() + Duration::from_millis(1));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| gate.served(far()));
            drop(connection_guard);
            waits.join().unwrap();
        });
    }
}
