//! Front-ends that stop within a message: nobody else stands still because of them.
//!
//! Before an upgrade lets anybody stand still, it waits for those that are within a message, and
//! sends away who is so for too long; everybody is served meanwhile. Who has begun another message
//! since then is hardly waited for.

use std::time::{Duration, Instant};

use vhost_user::{SessionHandle, StopSignal, Woken};

/// How long front-ends may take over messages that they have begun, while everybody is served.
pub(crate) const GRACE: Duration = Duration::from_millis(500);
/// The same, while others stand still, and for each that is looked at when that is over.
const LATE_GRACE: Duration = Duration::from_millis(50);
/// Longest work on a message that has come and is to be answered: it is ours.
const WORK_GRACE: Duration = Duration::from_millis(500);
/// How often is looked whether a front-end is within a message by now.
const LOOK: Duration = Duration::from_millis(10);

/// Waits until a front-end is not within a message, all served meanwhile: until this moment, or for
/// a little where waiting for others has taken longer. False: it is within one still.
pub(crate) fn wait_message_boundary(session: &SessionHandle, until: Instant) -> bool {
    session.await_message(until.max(Instant::now() + LATE_GRACE))
}

/// Waits for the end of a control thread, `done`, whose session was `asked` to stand still then. True:
/// it does not end, and its front-end is to be sent away.
pub(crate) fn missed_deadline(
    done: &StopSignal,
    asked: Instant,
    session: impl Fn() -> Option<SessionHandle>,
) -> bool {
    let mut next = asked + LATE_GRACE;
    loop {
        let left = next.saturating_duration_since(Instant::now());
        if let Ok(Woken::Stopped) = done.wait(None, Some(left)) {
            return false;
        }
        let now = Instant::now();
        let is_within = session().is_some_and(|session| !session.await_message(now + LOOK));
        if is_within || now > asked + WORK_GRACE {
            return true;
        }
        next = Instant::now() + LOOK;
    }
}
