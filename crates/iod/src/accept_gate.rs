//! Gate that controls which worker accepts connections on a listening socket that two workers
//! share.
//!
//! ```text
//!   accepting --pause--> paused --resume--> accepting
//!       \                  \
//!        +------stop--------+-------------> stopped
//! ```
//! During an upgrade, both workers have every listening socket open. A client whose connection an
//! ending worker accepts gets no answer. So the source pauses its gates before it sends `Go`, and
//! new connections wait in the backlog for the destination. [`AcceptGate::pause`] returns when no
//! thread accepts any more. Accepted connections count until they are served.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use vhost_user::StopSignal;

/// Gate of one listening socket.
#[derive(Debug)]
pub(crate) struct AcceptGate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Wakes the accepting thread.
    wake: StopSignal,
    /// True while no thread may accept; [`AcceptGate::resume`] clears it.
    paused: bool,
    /// True if no thread may accept ever again.
    stopped: bool,
    /// True while a thread accepts.
    taking: bool,
    /// Number of accepted connections that are not served yet.
    connections: usize,
}

impl AcceptGate {
    /// Creates an open gate.
    ///
    /// # Errors
    /// The process cannot open more descriptors.
    pub(crate) fn new() -> io::Result<Self> {
        let wake = StopSignal::new()?;
        let state = State { wake, paused: false, stopped: false, taking: false, connections: 0 };
        Ok(Self { state: Mutex::new(state), changed: Condvar::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state consists of single values, so a panic elsewhere cannot leave it inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a thread may accept connections. Only one thread may call it. Returns `None` if
    /// the gate is stopped.
    pub(crate) fn enter(&self) -> Option<AcceptPermit<'_>> {
        let closed = |state: &mut State| state.paused && !state.stopped;
        let waited = self.changed.wait_while(self.state(), closed);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if state.stopped {
            return None;
        }
        state.taking = true;
        Some(AcceptPermit { gate: self, wake: state.wake.clone() })
    }

    /// Stops accepting until [`Self::resume`] is called, and waits until no thread accepts.
    ///
    /// # Errors
    /// The process cannot open more descriptors. The gate is unchanged then.
    pub(crate) fn pause(&self) -> io::Result<()> {
        // Create the next wake-up signal now, so that resuming cannot fail.
        let fresh = StopSignal::new()?;
        let mut state = self.state();
        state.paused = true;
        std::mem::replace(&mut state.wake, fresh).stop();
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| state.taking));
        Ok(())
    }

    /// Allows accepting again.
    pub(crate) fn resume(&self) {
        self.state().paused = false;
        self.changed.notify_all();
    }

    /// Stops accepting for ever. Does not wait.
    pub(crate) fn stop(&self) {
        let mut state = self.state();
        state.stopped = true;
        state.wake.stop();
        self.changed.notify_all();
    }

    /// Counts a connection until its guard is dropped.
    pub(crate) fn admit(self: &Arc<Self>) -> ConnectionGuard {
        self.state().connections += 1;
        ConnectionGuard(Arc::clone(self))
    }

    /// Waits until no thread accepts and all accepted connections are served, at most until
    /// `until`.
    pub(crate) fn served(&self, until: Instant) {
        let left = until.saturating_duration_since(Instant::now());
        let busy = |state: &mut State| state.taking || state.connections > 0;
        drop(self.changed.wait_timeout_while(self.state(), left, busy));
    }
}

/// Permission to accept connections. The holder drops it when [`Self::wake`] is signalled.
#[derive(Debug)]
pub(crate) struct AcceptPermit<'a> {
    gate: &'a AcceptGate,
    wake: StopSignal,
}

impl AcceptPermit<'_> {
    /// Returns the signal that revokes this permit.
    pub(crate) fn wake(&self) -> &StopSignal {
        &self.wake
    }

    /// Waits until fewer than `most` connections are being served. Returns false if the permit is
    /// revoked.
    pub(crate) fn has_room(&self, most: usize) -> bool {
        let full = |state: &mut State| !state.paused && !state.stopped && state.connections >= most;
        let waited = self.gate.changed.wait_while(self.gate.state(), full);
        let state = waited.unwrap_or_else(PoisonError::into_inner);
        !state.paused && !state.stopped
    }
}

impl Drop for AcceptPermit<'_> {
    fn drop(&mut self) {
        self.gate.state().taking = false;
        self.gate.changed.notify_all();
    }
}

/// Accepted connection. It counts until it is dropped, also after a panic.
#[derive(Debug)]
pub(crate) struct ConnectionGuard(Arc<AcceptGate>);

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.state().connections -= 1;
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
        let (sender, receiver) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while let Some(accept_permit) = gate.enter() {
                    sender.send("takes").unwrap();
                    accept_permit.wake().wait(None, None).unwrap();
                    sender.send("rests").unwrap();
                }
                sender.send("ends").unwrap();
            });
            for _ in 0..100 {
                assert_eq!(receiver.recv_timeout(FAR), Ok("takes"));
                gate.pause().unwrap();
                // The thread sent this before `pause` returned.
                assert_eq!(receiver.try_recv(), Ok("rests"));
                // A second pause changes nothing.
                gate.pause().unwrap();
                assert!(receiver.try_recv().is_err());
                gate.resume();
            }
            assert_eq!(receiver.recv_timeout(FAR), Ok("takes"));
            gate.stop();
            assert_eq!(receiver.recv_timeout(FAR), Ok("rests"));
            assert_eq!(receiver.recv_timeout(FAR), Ok("ends"));
        });
        gate.resume();
        assert!(gate.enter().is_none());
        // There is no thread to wait for.
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
        // The wait ends at the deadline.
        gate.served(Instant::now() + Duration::from_millis(1));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| gate.served(far()));
            drop(connection_guard);
            waits.join().unwrap();
        });
    }
}
