//! Answers block-status queries on a thread that may wait for the storage.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use disk::{Disk, Extent, IoError};
use reactor::{Handle, PollerId};

use crate::connection::Connection;

/// Most extents in one reply. A client that needs more sends another request.
pub(crate) const EXTENTS_MAX: usize = 1024;

/// Block-status query. Each connection has a bounded number of them.
#[derive(Debug)]
pub(crate) struct ExtentQuery {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) limit: usize,
    /// Reactor, connection and request that wait for the result.
    pub(crate) reactor: Handle,
    pub(crate) connection: PollerId,
    pub(crate) tag: u32,
}

/// Starts a thread that answers the block-status queries of one disk. The thread ends when all
/// senders are dropped. If the storage hangs, the thread keeps the disk open until then. No other
/// thread waits for it.
pub(crate) fn start(disk: Arc<dyn Disk>) -> io::Result<Sender<ExtentQuery>> {
    let (ask, questions) = channel();
    std::thread::Builder::new()
        .name("nbd-extents".into())
        .spawn(move || answer(disk, questions))?;
    Ok(ask)
}

fn answer(disk: Arc<dyn Disk>, questions: Receiver<ExtentQuery>) {
    for extent_query in questions {
        let ExtentQuery { offset, len, limit, reactor, connection, tag } = extent_query;
        let found: Result<Vec<Extent>, IoError> = disk.extents(offset, len, limit);
        // A connection that has ended needs no answer.
        let _ = reactor.send(move |context| {
            context.with_poller(connection, |connection: &mut Connection, _| {
                connection.extents_found(tag, found);
            });
        });
    }
}
