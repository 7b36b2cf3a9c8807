//! Start of a worker under a keeper: its inputs and its link to the keeper.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use anyhow::Context;
use rustix::fs::{Mode, OFlags};
use vhost_user::StopSignal;

use crate::inherited_fds::adopt;
use crate::keeper_client::{KeeperClient, SAY_DEADLINE};
use crate::keeper_link::{KeeperMessage, Link, PreservedEntry};

/// Inputs of a new worker.
#[derive(Debug)]
pub(crate) struct WorkerInit {
    pub(crate) keeper_client: KeeperClient,
    /// Link to the keeper.
    pub(crate) link: Arc<Link>,
    /// Link to the worker that serves until this one takes over. `None` if no worker serves.
    pub(crate) predecessor: Option<Link>,
}

/// Takes the link on standard input, and receives the state that the keeper preserves.
///
/// # Errors
/// Standard input is not a link, or the keeper ended before it sent everything.
pub(crate) fn begin(program: &str) -> anyhow::Result<WorkerInit> {
    let link = take_link().context(
        "standard input is not a keeper's link; this option is for the program's own use",
    )?;
    // The worker was started through a link in /proc, so its process name would be `exe`.
    if let Ok(name) = std::ffi::CString::new(program) {
        let _ = rustix::thread::set_name(&name);
    }
    let mut holdings = BTreeMap::new();
    let (mut keeper_info, mut way) = (None, None);
    loop {
        let (record, fds) = link.receive()?.context("the keeper has ended")?;
        match record {
            KeeperMessage::Restore { what } => {
                let (key, preserved_entry) = PreservedEntry::read(what, fds)?;
                holdings.insert(key, preserved_entry);
            }
            KeeperMessage::Keeper(info) => keeper_info = Some(info),
            KeeperMessage::TakeOver => way = fds.into_iter().next(),
            KeeperMessage::Begin => break,
            KeeperMessage::Done { .. } | KeeperMessage::Ping => {}
            KeeperMessage::Stop => anyhow::bail!("the keeper stopped this worker before it began"),
        }
    }
    let link = Arc::new(link);
    let keeper_info = keeper_info.context("the keeper sent no process id")?;
    let keeper_client = KeeperClient::open(Arc::clone(&link), keeper_info, holdings, way.is_some());
    Ok(WorkerInit { keeper_client, link, predecessor: way.map(Link::new) })
}

fn take_link() -> io::Result<Link> {
    let link: OwnedFd = adopt(0)?;
    let kind = rustix::net::sockopt::socket_type(&link)?;
    if kind != rustix::net::SocketType::SEQPACKET {
        return Err(rustix::io::Errno::NOTSOCK.into());
    }
    // Replace standard input: no child inherits the link then, and closing our end is visible to
    // the keeper.
    let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(null)?;
    let link = Link::new(link);
    link.limit_waits(SAY_DEADLINE)?;
    Ok(link)
}

/// Starts a thread that receives messages of the keeper. It signals `end` when the process must
/// end.
///
/// # Errors
/// The process cannot start more threads.
pub(crate) fn spawn_keeper_thread(
    keeper_client: &KeeperClient,
    link: Arc<Link>,
    end: &StopSignal,
) -> io::Result<()> {
    let (keeper_client, end) = (keeper_client.clone(), end.clone());
    std::thread::Builder::new()
        .name("keeper".into())
        .spawn(move || keeper_client.run_link(&link, &end))
        .map(drop)
}
