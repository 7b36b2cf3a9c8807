//! Command line of `ringway-net`: QEMU's conventions for backend programs, and Ringway's own
//! options.

use std::os::fd::RawFd;
use std::path::PathBuf;

use clap::{ArgGroup, Parser};

use crate::metrics::Address;
use crate::options::blk::mode;
use crate::options::poll::PollOptions;
use crate::served_nic::PAIRS_MAX;

/// Output of `--print-capabilities`: `VHostUserBackendCapabilities` in QEMU's `vhost-user.json`.
pub const CAPABILITIES: &str = r#"{"type":"net"}"#;
/// Most ports of one switch on the command line. Each port needs a thread and some descriptors.
pub const PORTS_MAX: usize = 256;

/// Switch frames between virtual machines over vhost-user.
///
/// Each --port is a NIC of one virtual machine or of any other vhost-user front-end. The switch
/// learns which MAC address is at which port. With --socket-path or --fd it serves one NIC,
/// following QEMU's conventions for backend programs. With --tap the host has a port, too. SIGTERM,
/// SIGINT and SIGHUP end the program cleanly. Logs go to standard error, without waiting for their
/// reader; RINGWAY_LOG=debug logs more.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "ringway-net",
    version,
    after_help = EXAMPLE,
    group = ArgGroup::new("ports").args(["port", "socket_path", "fd"]).required(true),
)]
pub struct NetOptions {
    /// Unix socket of a front-end; repeat it for each NIC
    #[arg(long, value_name = "PATH")]
    pub port: Vec<PathBuf>,
    /// Unix socket of the front-end of the only NIC
    #[arg(long, value_name = "PATH")]
    pub socket_path: Option<PathBuf>,
    /// Number of an open socket that is connected to the front-end. The program ends when this
    /// connection ends
    #[arg(long, value_name = "FDNUM")]
    pub fd: Option<RawFd>,
    /// Connect to front-ends that listen, and retry until they do
    #[arg(long, conflicts_with = "fd")]
    pub connect: bool,
    /// Connect the host to the switch by this TAP device. A device that does not exist is created
    ///
    /// An existing device must be multi-queue (ip tuntap add dev NAME mode tap multi_queue
    /// vnet_hdr). A created device is removed when this program ends. The host configures
    /// addresses, MTU and bridge, and sets the link up (ip link set dev NAME up).
    #[arg(long, value_name = "NAME")]
    pub tap: Option<String>,
    /// Print the capabilities of this program as JSON, and exit
    #[arg(long)]
    pub print_capabilities: bool,

    /// Queue pairs of each NIC
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=i64::from(PAIRS_MAX)))]
    pub queues: u16,
    /// Offer one queue pair and no control queue, whatever --queues says
    #[arg(long)]
    pub no_mq: bool,
    /// Limit of frames per second that each port may flood: to groups, and to stations that the
    /// switch has not learnt. A frame of more than 1518 bytes counts as several. 0 is no limit
    /// [default: 10000]
    #[arg(long, value_name = "FRAMES")]
    pub flood_limit: Option<u32>,
    /// Largest packet in bytes (MTU)
    #[arg(long, value_name = "BYTES", default_value_t = 1500,
        value_parser = clap::value_parser!(u16).range(68..))]
    pub mtu: u16,
    /// Number of reactor threads [default: one for every two CPUs, since guests need CPUs too, and
    /// at most one for each queue pair]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub reactors: Option<u16>,

    /// Unix socket for the calls stats and metrics, used by ringway top, ringway why and ringway io
    #[arg(long, value_name = "SOCKET")]
    pub control: Option<PathBuf>,
    /// Serve metrics as OpenMetrics text: unix:PATH, ADDRESS:PORT, or a port of the loopback
    /// interface
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<Address>,
    /// Permissions of the sockets, octal, for example 660
    #[arg(long, value_name = "MODE", value_parser = mode)]
    pub socket_mode: Option<u32>,
    /// Group that owns the sockets, by name or number
    #[arg(long, value_name = "GROUP")]
    pub socket_group: Option<String>,
    /// Write a newline to this descriptor when front-ends can connect
    #[arg(long, value_name = "FDNUM")]
    pub ready_fd: Option<RawFd>,

    /// How queues wait for frames
    #[command(flatten)]
    pub polling: PollOptions,
}

const EXAMPLE: &str = "Example, two machines of QEMU with two pairs of queues each:
  ringway-net --port /tmp/a.sock --port /tmp/b.sock --queues 2 &
  qemu-system-x86_64 -m 512M -smp 2 -object memory-backend-memfd,id=m,size=512M,share=on \\
    -machine q35,memory-backend=m -chardev socket,id=c,path=/tmp/a.sock \\
    -netdev vhost-user,id=n,chardev=c,queues=2 -device virtio-net-pci,netdev=n,mq=on ...

With the host at the same switch, under an address of its own:
  ringway-net --port /tmp/a.sock --port /tmp/b.sock --tap rwt0 &
  ip addr add 10.9.0.1/24 dev rwt0 && ip link set dev rwt0 up

To see what it does, with ringway-net ... --control /tmp/net.sock:
  ringway top --control /tmp/net.sock
  ringway why a --control /tmp/net.sock

User-Mode Linux uses one pair of several until its guest asks for more, for example by
  ethtool -L eth0 combined 2";

impl NetOptions {
    /// Returns the socket paths, in order. With `--fd` there are none.
    pub fn sockets(&self) -> Vec<PathBuf> {
        self.port.iter().chain(&self.socket_path).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(options: &[&str]) -> Result<NetOptions, String> {
        let all = ["ringway-net"].iter().chain(options);
        NetOptions::try_parse_from(all).map_err(|error| error.to_string())
    }

    #[test]
    fn ports_or_one_socket() {
        let two = parse(&["--port", "/a", "--port", "/b", "--queues", "2"]).unwrap();
        assert_eq!(two.sockets(), [PathBuf::from("/a"), PathBuf::from("/b")]);
        assert_eq!((two.queues, two.mtu, two.no_mq, &two.tap), (2, 1500, false, &None));
        let uplink = parse(&["--socket-path", "/a", "--tap", "rwt0"]).unwrap();
        assert_eq!(uplink.tap.as_deref(), Some("rwt0"));
        assert_eq!(parse(&["--socket-path", "/a"]).unwrap().sockets().len(), 1);
        assert!(parse(&["--fd", "3"]).unwrap().sockets().is_empty());
        for (wrong, named) in [
            (&[][..], "--port"),
            (&["--port", "/a", "--socket-path", "/b"], "--socket-path"),
            (&["--fd", "3", "--connect"], "--connect"),
            (&["--port", "/a", "--queues", "0"], "--queues"),
            (&["--port", "/a", "--queues", "128"], "--queues"),
            (&["--port", "/a", "--mtu", "67"], "--mtu"),
            (&["--tap", "rwt0"], "--port"),
            (&["--port", "/a", "--tap", "rwt0", "--tap", "rwt1"], "--tap"),
        ] {
            let error = parse(wrong).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }
}
