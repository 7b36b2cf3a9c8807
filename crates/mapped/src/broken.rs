//! Channel of a disk that cannot serve.

use ::disk::{Channel, Completion, IoError, Request, SubmitOutcome};
use reactor::Context;
use rustix::io::Errno;

/// Fails every request.
#[derive(Debug)]
pub(crate) struct BrokenChannel;

impl Channel for BrokenChannel {
    fn submit(&mut self, _: &mut Context<'_>, request: Request) -> SubmitOutcome {
        SubmitOutcome::Done(request.complete(Err(IoError::Storage(Errno::IO))))
    }

    fn reap(&mut self, _: &mut Context<'_>, _: &mut Vec<Completion>) {}

    fn waiting(&self) -> usize {
        0
    }

    fn fail_stalled(&mut self, _: &mut Context<'_>) {}

    fn abandon(&mut self) {}
}
