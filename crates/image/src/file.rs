//! File of an image, as formats see it.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// File that stores an image. Formats are `async`, so that one source runs in production, where
/// each call blocks, and in a simulation, where each call suspends.
#[allow(async_fn_in_trait, reason = "an owner stays on its thread")]
pub trait ImageFile {
    /// Fills `out` from byte `offset`.
    async fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;
    /// Writes `data` at byte `offset`.
    async fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;
    /// Makes all completed writes durable.
    async fn sync(&self) -> io::Result<()>;
    /// Makes a range read as zeroes and frees its storage.
    async fn punch(&self, offset: u64, len: u64) -> io::Result<()>;
}

/// Runs a future whose calls all block. `None` if it suspended: its file belongs to a simulation.
pub fn run_now<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}
