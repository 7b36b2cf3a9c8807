//! The metrics socket. The keeper preserves it like all listening sockets. So no other process can
//! take the address between two workers, and no scrape is refused.

use std::net::TcpListener;
use std::os::fd::AsFd;

use anyhow::Context;
use serde_json::json;
use vhost_user::{Access, Listener, StopSignal};

use super::Address;
use super::server::{Socket, bind};
use crate::handover;
use crate::keeper_client::KeeperClient;
use crate::keeper_link::{Link, PreservedEntry};

/// Key of the socket.
const METRICS: &str = "metrics";

/// Returns the key and the socket at `address`, for a keeper to preserve.
///
/// # Errors
/// The address is in use, or this process may not use it.
pub(crate) fn hold(address: &Address) -> anyhow::Result<(&'static str, PreservedEntry)> {
    let socket = bind(address)?;
    let preserved_entry =
        held(&socket, address).context("cannot preserve the socket of --metrics")?;
    if let Socket::Unix(listener) = socket {
        listener.close_keep_files();
    }
    Ok((METRICS, preserved_entry))
}

fn held(socket: &Socket, address: &Address) -> std::io::Result<PreservedEntry> {
    let data = json!({ "address": address.to_string() });
    let (mut sockets, mut fds) = (Vec::new(), Vec::new());
    match socket {
        Socket::Unix(listener) => sockets.push(listener.parts()?),
        Socket::Tcp(listener) => fds.push(listener.as_fd().try_clone_to_owned()?),
    }
    Ok(PreservedEntry { sockets, data, fds, stop_ms: 0 })
}

/// Returns the socket at `address`: the preserved one, or a new one, which is preserved from then
/// on. Returns `None` if the address did not become free before the shutdown.
///
/// # Errors
/// The address is in use, or this process may not use it.
pub(crate) fn take(
    address: &Address,
    keeper_client: &KeeperClient,
    predecessor: Option<&Link>,
    enough: &StopSignal,
) -> anyhow::Result<Option<Socket>> {
    match keeper_client.entry(METRICS).transpose()? {
        Some(preserved_entry) if preserved_entry.data["address"] == address.to_string() => {
            return Ok(Some(watched(found(preserved_entry)?, keeper_client)));
        }
        Some(_) => drop_preserved(keeper_client)?,
        None => {}
    }
    // A worker of an older version owns the socket until it has ended.
    if let Some(way) = predecessor
        && !handover::await_end(way, enough)?
    {
        return Ok(None);
    }
    let socket = bind(address)?;
    keeper_client.preserve(METRICS, held(&socket, address)?)?;
    Ok(Some(watched(socket, keeper_client)))
}

fn watched(socket: Socket, keeper_client: &KeeperClient) -> Socket {
    if let Socket::Unix(listener) = &socket {
        keeper_client.watch_socket(listener, Access::default());
    }
    socket
}

/// Closes a preserved socket that no one would serve any more.
///
/// # Errors
/// The keeper does not answer.
pub(crate) fn drop_preserved(keeper_client: &KeeperClient) -> anyhow::Result<()> {
    if let Some(preserved_entry) = keeper_client.entry(METRICS).transpose()? {
        preserved_entry.remove();
        keeper_client.forget_key(METRICS)?;
    }
    Ok(())
}

fn found(preserved_entry: PreservedEntry) -> anyhow::Result<Socket> {
    let (socket, fd) =
        (preserved_entry.sockets.into_iter().next(), preserved_entry.fds.into_iter().next());
    match (socket, fd) {
        (Some(parts), _) => Ok(Socket::Unix(Listener::adopt(parts)?)),
        (None, Some(fd)) => Ok(Socket::Tcp(TcpListener::from(fd))),
        (None, None) => anyhow::bail!("the preserved record of --metrics has no socket"),
    }
}
