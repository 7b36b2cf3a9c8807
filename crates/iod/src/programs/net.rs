//! The `ringway-net` program, which runs one switch.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use net::Mac;
use net::port::{PortId, PortPolicy};
use vhost_user::{Access, Listener, StopSignal};

use crate::inherited_fds::{adopt, connected, report_ready};
use crate::options::net::{CAPABILITIES, NetOptions, PORTS_MAX};
use crate::pool::{Pool, PoolSize};
use crate::served_disk::{SocketRole, policy};
use crate::served_nic::{
    NetControl, NetMetrics, NicConfig, NicError, NicSessionThread, ServedNic, SwitchNetwork,
    SwitchReporter, Uplink, flood_limit,
};
use crate::{limits, signals};

/// Process name in process lists.
const PROGRAM: &str = "ringway-net";

/// Runs the program with the arguments of this process.
pub fn main() -> ExitCode {
    // QEMU's convention: this option overrides all others, even invalid ones.
    if std::env::args_os().any(|arg| arg == OsStr::new("--print-capabilities")) {
        return crate::print(PROGRAM, CAPABILITIES);
    }
    let options = NetOptions::parse();
    crate::prepare();
    crate::exit(PROGRAM, run(&options).map(|()| ExitCode::SUCCESS))
}

fn run(options: &NetOptions) -> anyhow::Result<()> {
    let (ports, most) = (options.port.len(), PORTS_MAX);
    anyhow::ensure!(
        ports <= most,
        "{ports} ports are more than the {most} of one switch: start another one"
    );
    let sources = sources(options)?;
    let limit = limits::raise_open_files();
    let ready = options.ready_fd.map(adopt).transpose().context("--ready-fd")?;
    let signals = signals::watch().context("cannot watch for signals")?;
    let pairs = options.queues.saturating_mul(u16::try_from(sources.len()).unwrap_or(u16::MAX));
    let asked = options.reactors.map(|reactors| PoolSize::asked(reactors.into()));
    let size = asked.unwrap_or_else(|| PoolSize::of_host().beside_guests().at_most(pairs));
    let pool = Arc::new(Pool::start(size).context("cannot start reactors")?);
    let nics = (0..sources.len()).map(|_| limits::of_nic(options.queues)).sum();
    pool.memory_budget().limit_files(limit.saturating_sub(limits::of_disks([], nics)));
    let switch_network = SwitchNetwork::new(pool, options.mtu)?;
    switch_network.set_polling(policy(options.polling.spec().resolve()));
    serve(options, sources, &switch_network, ready, signals)
}

/// Returns the socket path of each NIC, and how its front-ends connect.
fn sources(options: &NetOptions) -> anyhow::Result<Vec<(PathBuf, SocketRole)>> {
    if let Some(fd) = options.fd {
        let source = connected(fd).with_context(|| format!("--fd {fd}"))?;
        return Ok(vec![(format!("fd:{fd}").into(), SocketRole::Connected(source))]);
    }
    let access = access(options);
    let source = |socket: PathBuf| {
        let source = if options.connect {
            SocketRole::Connect(socket.clone())
        } else {
            SocketRole::Listen(Arc::new(Listener::bind(&socket, &access)?))
        };
        Ok((socket, source))
    };
    options.sockets().into_iter().map(source).collect()
}

/// Serves until a signal arrives, or until no front-end of some NIC can connect any more.
fn serve(
    options: &NetOptions,
    sources: Vec<(PathBuf, SocketRole)>,
    switch_network: &Arc<SwitchNetwork>,
    ready: Option<OwnedFd>,
    signals: OwnedFd,
) -> anyhow::Result<()> {
    let ended = StopSignal::new().context("cannot make a signal")?;
    let uplink = uplink(options, switch_network, sources.len())?;
    let mut all: Vec<(Arc<ServedNic>, NicSessionThread)> = Vec::new();
    let started = (0..).zip(sources).try_for_each(|(number, (socket, source))| {
        let spec = NicConfig {
            port: PortId(number),
            policy: PortPolicy {
                flood: flood_limit(options.flood_limit),
                ..switch_network.policy()
            },
            mac: mac(&socket, number),
            socket,
            pairs: options.queues,
            multiqueue: !options.no_mq,
            poll: options.polling.spec(),
        };
        let nic = ServedNic::new(switch_network, spec)?;
        let nic_session_thread = nic.serve(source, Some(ended.clone()))?;
        all.push((nic, nic_session_thread));
        anyhow::Ok(())
    });
    let reporting =
        started.and_then(|()| start_reporting(options, switch_network, &all, uplink.as_ref()));
    let waited = reporting.and_then(|_reporting| {
        tracing::info!(ports = all.len(), queues = options.queues, "serving");
        ready.map_or(Ok(()), |ready| report_ready(&ready)).context("--ready-fd")?;
        ended.wait(Some(signals.as_fd()), None).context("cannot wait for signals")
    });
    all.iter().for_each(|(nic, _)| nic.hang_up());
    let end = |(nic, nic_session_thread): (Arc<ServedNic>, NicSessionThread)| {
        let ended = nic_session_thread.wait();
        nic.log_counts();
        ended
    };
    let ends: Vec<_> = all.into_iter().map(end).collect();
    waited?;
    ends.into_iter().collect::<Result<(), _>>()?;
    Ok(())
}

/// Longest time that the previous owner of the TAP device, which has ended, may still hold it.
const PATIENCE: Duration = Duration::from_secs(2);

/// Opens the uplink to the host, if one is requested. Its port follows those of the front-ends.
fn uplink(
    options: &NetOptions,
    switch_network: &Arc<SwitchNetwork>,
    front_ends: usize,
) -> Result<Option<Uplink>, NicError> {
    let open = |name: &String| Uplink::open(switch_network, host(front_ends), name, PATIENCE);
    options.tap.as_ref().map(open).transpose()
}

/// Serves callers and scrapers on their sockets, if configured, until the returned values are
/// dropped.
fn start_reporting(
    options: &NetOptions,
    switch_network: &Arc<SwitchNetwork>,
    all: &[(Arc<ServedNic>, NicSessionThread)],
    uplink: Option<&Uplink>,
) -> anyhow::Result<(Option<NetControl>, Option<NetMetrics>)> {
    let nics: Vec<_> = all.iter().map(|(nic, _)| Arc::clone(nic)).collect();
    let switch_reporter =
        SwitchReporter::new(switch_network, &nics, uplink, options.polling.spec().resolve());
    let metrics = options.metrics.as_ref();
    let metrics = metrics.map(|address| NetMetrics::start(address, Arc::clone(&switch_reporter)));
    let control = options.control.as_ref();
    let control = control.map(|path| NetControl::start(path, &access(options), switch_reporter));
    Ok((control.transpose()?, metrics.transpose()?))
}

/// Returns the host's port, which follows the ports of `front_ends` front-ends.
fn host(front_ends: usize) -> PortId {
    PortId(u16::try_from(front_ends).unwrap_or(u16::MAX))
}

/// Returns the permissions of the sockets.
fn access(options: &NetOptions) -> Access {
    Access { mode: options.socket_mode, group: options.socket_group.clone() }
}

/// Returns a MAC address for a driver whose front-end sets none. It is always the same for a
/// socket, and different for each port.
fn mac(socket: &Path, number: u16) -> Mac {
    // 64-bit FNV-1a.
    let hash =
        socket.as_os_str().as_bytes().iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
        });
    let ([a, b, c, ..], [d, e]) = (hash.to_be_bytes(), number.to_be_bytes());
    // Locally administered and unicast (IEEE 802, 8.2).
    Mac([2, a, b, c, d, e])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_of_stations_and_differ() {
        let of = |path: &str, number| mac(Path::new(path), number);
        assert!(of("/a", 0).is_station());
        assert_eq!(of("/a", 0), of("/a", 0));
        assert!(of("/a", 0) != of("/b", 0) && of("/a", 0) != of("/a", 1));
    }
}
