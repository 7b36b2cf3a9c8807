//! Command line of `ringway-io`.

use std::os::fd::RawFd;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::metrics::Address;
use crate::options::blk::mode;
use crate::options::poll::PollOptions;
use crate::options::share::ShareOptions;

/// Serve many disks and NICs to virtual machines over vhost-user, controlled over a socket.
///
/// The control socket takes JSON-RPC 2.0, one object a line. `ringway io` is a client for it, for
/// example `ringway io disk.attach id=d socket=/run/d.sock backend.file=/img/a.raw`; `ringway io
/// --help` names all calls. Logs go to standard error; RINGWAY_LOG=debug logs more.
///
/// NICs of one network are ports of a switch. The first nic.attach in a network creates it, and the
/// detach of its last NIC removes it. network.uplink connects the host to a network by a TAP
/// device. When a worker dies, its successor serves NICs again for front-ends that reconnect. An
/// upgrade keeps all of them connected.
///
/// There are two processes. This one, the keeper, stores specs, sockets and the bytes of memory
/// disks, and starts a worker, which serves. The keeper replaces a worker that dies, and disks and
/// guests continue. A worker whose keeper dies continues to serve. If you start this program again
/// with the same --control, it adopts that worker. SIGTERM, SIGINT and SIGHUP to either process
/// detach everything and end both; the second signal ends both at once. SIGUSR1, SIGUSR2, SIGALRM
/// and SIGXFSZ have no effect. Logs go to standard error, without waiting for their reader.
/// RINGWAY_LOG=debug logs more; RINGWAY_LOG_LIMIT=BYTES bounds the file.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "ringway-io",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub struct IoOptions {
    /// Command to run instead of serving
    #[command(subcommand)]
    pub command: Option<IoCommand>,
    /// Unix socket to listen on for calls. A service manager may pass this socket through
    /// LISTEN_FDS
    #[arg(long, value_name = "PATH", required_unless_present = "probe")]
    pub control: Option<PathBuf>,
    /// Permissions of the control socket, octal
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = mode)]
    pub control_mode: u32,
    /// Number of reactor threads [default: one for each CPU, at most 4, 8 or 16 depending on the
    /// host's memory; see `ringway doctor`]. By default, networks use at most one for every two
    /// CPUs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub reactors: Option<u16>,
    /// Serve OpenMetrics over HTTP at /metrics: unix:PATH, ADDRESS:PORT, or a port of the loopback
    /// interface
    #[arg(long, value_name = "WHERE")]
    pub metrics: Option<Address>,
    /// Write a newline to this descriptor when calls are accepted
    #[arg(long, value_name = "FDNUM")]
    pub ready_fd: Option<RawFd>,
    /// End when the process that started this one ends
    #[arg(long)]
    pub die_with_parent: bool,
    /// Longest pause before a worker that dies repeatedly is restarted, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 5000)]
    pub restart_pause_max: u32,
    /// Print as JSON which io_uring features this host has and how many reactors would run
    #[arg(long)]
    pub probe: bool,
    /// Polling of disks for which disk.attach and disk.poll set nothing else. poll.defaults changes
    /// it at run time
    #[command(flatten)]
    pub polling: PollOptions,
    /// Storages that several processes share
    #[command(flatten)]
    pub sharing: ShareOptions,
    /// Serve under the keeper at the other end of standard input
    #[arg(long, hide = true)]
    pub worker: bool,
}

/// Commands of `ringway-io` other than serving.
#[derive(Clone, Debug, Subcommand)]
pub enum IoCommand {
    /// Replace the program of a running ringway-io. Guests stay connected and see a pause of some
    /// milliseconds
    ///
    /// The new program starts beside the running one and takes over connections, guest memory, and
    /// open images with their locks. It must confirm within 5 seconds and be able to read the
    /// state, and each disk's storage must complete its requests. Otherwise the upgrade is
    /// cancelled, the running program continues as before, and the exit code is 1.
    Upgrade(UpgradeOptions),
}

/// Options of `ringway-io upgrade`.
#[derive(Clone, Debug, Args)]
pub struct UpgradeOptions {
    /// Control socket of the running ringway-io
    #[arg(long, value_name = "PATH")]
    pub control: PathBuf,
    /// New program [default: the file that is now at the path of the running program]
    #[arg(long, value_name = "PATH")]
    pub binary: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        IoOptions::command().debug_assert();
        let parse = |line: &str| IoOptions::try_parse_from(line.split(' '));
        let options = parse("ringway-io --control /c --ready-fd 0 --die-with-parent").unwrap();
        assert_eq!(options.control_mode, 0o600);
        assert!(options.die_with_parent && options.ready_fd == Some(0));
        assert!(parse("ringway-io --probe").is_ok());
        let upgrade = parse("ringway-io upgrade --control /c --binary /b").unwrap().command;
        assert!(matches!(upgrade, Some(IoCommand::Upgrade(_))));
        for (line, named) in [
            ("ringway-io", "--control"),
            ("ringway-io upgrade", "--control"),
            ("ringway-io --reactors 1 upgrade --control /c", "--reactors"),
            ("ringway-io --control /c --reactors 0", "--reactors"),
            ("ringway-io --control /c --poll maybe", "--poll"),
            ("ringway-io --control /c --poll-max-us 10001", "0..=10000"),
            ("ringway-io --control /c --poll-idle-threshold 101", "0..=100"),
            ("ringway-io --control /c --frob", "--frob"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(named), "{line}: {error}");
        }
    }
}
