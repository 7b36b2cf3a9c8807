//! Ends of TCP streams.

use std::fmt::Display;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use testkit::guest::{Guest, Kind, Machine, UML_NIC};
use testkit::process::{Process, find_tool};

use super::{ADDRESSES, PORT, Streams, turns};

/// CPUs of a QEMU guest, as many as its NIC has queue pairs at most. Its driver uses no more pairs
/// than CPUs.
const CPUS: u32 = 8;

fn mac(station: usize) -> String {
    format!("02:00:00:00:00:{station:02x}")
}

/// Returns a command that makes a guest use this number of queue pairs at a vhost-user socket.
pub(super) fn use_pairs(pairs: impl Display) -> String {
    format!("ethtool -L eth0 combined {pairs}")
}

/// Guest with its NIC.
#[derive(Debug, Clone)]
pub(in crate::net) struct End {
    kind: Kind,
    machine: Machine,
    /// Commands in the guest that set up the NIC, and the name of the NIC.
    setup: String,
    nic: &'static str,
}

impl End {
    /// Returns a User-Mode Linux guest at a vhost-user socket, with this number of queue pairs.
    pub(in crate::net) fn vhost_user(socket: &Path, pairs: u16) -> Self {
        let more = if pairs > 1 {
            // The guest has one CPU, so its driver starts with one pair.
            format!("\n{} || exit 4", use_pairs(pairs))
        } else {
            String::new()
        };
        let machine = Machine::with_nic(socket);
        Self { kind: Kind::Uml, machine, setup: format!("{UML_NIC}{more}"), nic: "eth0" }
    }

    /// Returns a QEMU guest at a vhost-user socket, which uses all pairs of its NIC. `station`
    /// determines the MAC address.
    pub(in crate::net) fn emulated(socket: &Path, station: usize, pairs: u16) -> Self {
        Self::of_qemu(Machine::with_pci_nic(socket, pairs, &mac(station)))
    }

    /// Returns a QEMU guest at a TAP device of the host, which uses all its queues.
    pub(in crate::net) fn emulated_tap(device: &str, station: usize, pairs: u16) -> Self {
        Self::of_qemu(Machine::with_tap_nic(device, pairs, &mac(station)))
    }

    fn of_qemu(machine: Machine) -> Self {
        // The guest is the same for any number of pairs.
        let machine = Machine { cpus: CPUS, ..machine };
        // The guest starts a DHCP client, but there is no DHCP server.
        let setup = "pkill udhcpc\nip link set eth0 up".to_owned();
        Self { kind: Kind::Qemu, machine, setup, nic: "eth0" }
    }

    /// Returns a User-Mode Linux guest at a TAP device of the host.
    pub(in crate::net) fn tap(device: &str) -> Self {
        let append = format!("vec0:transport=tap,ifname={device},depth=128,gro=1");
        let machine = Machine { append, ..Machine::default() };
        Self { kind: Kind::Uml, machine, setup: "ip link set vec0 up".to_owned(), nic: "vec0" }
    }

    /// Pins all threads of the guest to this CPU of the host.
    pub(in crate::net) fn on(mut self, cpu: usize) -> Self {
        self.machine.cpu = Some(cpu);
        self
    }

    pub(super) fn start(&self, address: &str, script: &str) -> Result<Guest> {
        let Self { kind, machine, setup, nic } = self;
        let script = format!("{setup}\nip addr add {address}/24 dev {nic}\n{script}");
        Ok(Guest::start(*kind, machine, &script)?)
    }

    /// Boots the guest as the listening end.
    pub(in crate::net) fn listen(&self, streams: Streams) -> Result<Guest> {
        let runs = streams.repeats;
        let beside = streams.turns.map_or_else(String::new, |_| turns::take_orders());
        let (first, last) = (PORT + 1, PORT + runs);
        let script = format!(
            "{beside}
             mkfifo /tmp/said && exec 3<>/tmp/said || exit 4
             for port in $(seq {first} {last}); do iperf3 -s -p $port --forceflush >&3 & done
             listening=0
             while [ $listening -lt {runs} ]; do
                 read -r line <&3
                 case $line in *listening*) listening=$((listening + 1)) ;; esac
             done
             iperf3 -s -p {PORT} >/dev/null &
             while read -r line <&3; do :; done"
        );
        self.start(ADDRESSES[0], &script)
    }
}

/// Starts iperf3 on the host as the listening end, with a server for each run.
pub(in crate::net) fn host_listens(runs: usize) -> Result<Vec<Process>> {
    // The server of the first port starts last. A client that reaches it also finds the others.
    (PORT..=PORT + runs).rev().map(server).collect()
}

/// Starts a server on the host and waits until it listens.
fn server(port: usize) -> Result<Process> {
    let mut command = Command::new(find_tool("iperf3", "iperf3")?);
    command.args(["-s", "--forceflush", "-B", ADDRESSES[0], "-p"]).arg(port.to_string());
    let mut server = Process::start(command.stdout(Stdio::piped()))?;
    let out = server.child().stdout.take().context("a server has an output")?;
    let mut lines = BufReader::new(out).lines();
    let listens = lines.by_ref().map_while(Result::ok).any(|line| line.contains("listening"));
    if !listens {
        return Err(server.error("ended before it listened").into());
    }
    // Reads its further output, so that the server does not block.
    std::thread::spawn(move || lines.for_each(drop));
    Ok(server)
}
