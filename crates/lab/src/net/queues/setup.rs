//! Measures switches with guests.

use std::path::PathBuf;

use anyhow::Result;
use testkit::process::RingwayNet;

use super::path::OURS;
use crate::cpu::{self, Placement};
use crate::experiment::Sample;
use crate::in_process::InProcessServer;
use crate::net::guests::{self, End, Streams};
use crate::net::relay;
use crate::net::systems::System;
use crate::net::tap;

/// Measures QEMU guests, which use all pairs.
pub(super) fn emulated(pairs: u16, streams: Streams, at: Placement) -> Result<Sample> {
    let running = OURS.start_anywhere(2, pairs, at)?;
    let [server, client] = [0, 1].map(|n| End::emulated(&running.socket(n), n, pairs));
    let _server = server.listen(streams)?;
    streams.measure(&client, Some(&|| running.time_s()))
}

/// Measures a switch with two guests. NICs have `pairs` pairs, of which guests use `used`. `put`
/// assigns CPUs to guests.
pub(super) fn switch(
    system: System,
    [pairs, used]: [u16; 2],
    put: impl Fn([End; 2]) -> [End; 2],
    streams: Streams,
    at: Placement,
) -> Result<Sample> {
    let running = system.start_anywhere(2, pairs, at)?;
    let front = |n| front(system, running.socket(n), at.client);
    let fronts = [front(0)?, front(1)?];
    let [server, client] = put([0, 1].map(|n| End::vhost_user(&fronts[n].0, used)));
    let _server = server.listen(streams)?;
    streams.measure(&client, Some(&|| running.time_s()))
}

/// Returns the socket of a port for a guest, through a relay if the switch is not ours.
fn front(
    system: System,
    socket: PathBuf,
    cpu: usize,
) -> Result<(PathBuf, Option<InProcessServer>)> {
    if system.is_ours() {
        return Ok((socket, None));
    }
    let front = socket.with_extension("relay");
    let relay = relay::start(front.clone(), socket, cpu)?;
    Ok((front, Some(relay)))
}

/// Measures a guest and the host, which is at our switch through a TAP device.
pub(super) fn host(pairs: u16, streams: Streams) -> Result<Sample> {
    let dir = tempfile::Builder::new().prefix("rwlab-").tempdir()?;
    let (socket, device) = (dir.path().join("a"), tap::name("u", 0));
    let sockets = [socket.clone()];
    let pairs_word = pairs.to_string();
    let switch = RingwayNet::start(&sockets, &["--queues", &pairs_word, "--tap", &device])?;
    tap::up(&device)?;
    // The device of the previous sample may still exist with its address.
    tap::ip(&format!("addr replace {}/24 dev {device}", guests::ADDRESSES[0]))?;
    let _servers = guests::host_listens(streams.repeats)?;
    let time = || cpu::process_time_s(switch.process.id());
    streams.measure(&End::vhost_user(&socket, pairs), Some(&time))
}
