//! Command line of `ringway-io`.

use std::os::fd::RawFd;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::blk_options::mode;
use crate::metrics::Address;
use crate::poll_options::PollOptions;

/// Serve many disks and NICs to virtual machines over vhost-user, controlled over a socket.
///
/// The control socket takes JSON-RPC 2.0, one object a line: disk.attach, disk.activate,
/// disk.deactivate, disk.pause, disk.resume, disk.detach, disk.resize, disk.caps, disk.poll,
/// poll.defaults, nic.attach, nic.detach, nic.poll, nic.limits, network.uplink, stats, metrics, upgrade,
/// shutdown.
/// `ringway io` is a client for it. Logs go to standard error; RINGWAY_LOG=debug shows more of them.
///
/// NICs of one network are ports of a switch. A network is made by the first nic.attach in it and goes
/// with its last NIC; network.uplink brings the host to it by a TAP device. When a worker dies, NICs
/// come back for front-ends that connect again; an upgrade goes on with all of them.
///
/// There are two processes: this one keeps specs, sockets and the bytes of memory disks, and
/// starts a worker, which serves. A worker that dies is replaced, and disks and guests go on. A
/// worker whose keeper dies goes on serving; started again with the same --control, this program
/// keeps it again. SIGTERM and SIGINT to either of them detach everything and end both; the second
/// signal ends both at once.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "ringway-io",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub struct IoOptions {
    /// What to do, if not to serve
    #[command(subcommand)]
    pub command: Option<IoCommand>,
    /// Unix socket to listen on for calls; a service manager may give it as the one of LISTEN_FDS
    #[arg(long, value_name = "PATH", required_unless_present = "probe")]
    pub control: Option<PathBuf>,
    /// Permissions of the control socket, octal
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = mode)]
    pub control_mode: u32,
    /// Number of reactor threads; without it, one for each CPU and at most 4, 8 or 16 by the host's
    /// memory (`ringway doctor` tells), and networks use no more than one for two CPUs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub reactors: Option<u16>,
    /// Serve OpenMetrics over HTTP at /metrics: unix:PATH, ADDRESS:PORT, or a port of the loopback
    #[arg(long, value_name = "WHERE")]
    pub metrics: Option<Address>,
    /// Write a newline to this descriptor when calls are taken
    #[arg(long, value_name = "FDNUM")]
    pub ready_fd: Option<RawFd>,
    /// End when the process that started this one ends
    #[arg(long)]
    pub die_with_parent: bool,
    /// Longest pause before a worker that died again and again is replaced, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 5000)]
    pub restart_pause_max: u32,
    /// Print as JSON what io_uring can do on this host and how many reactors there would be
    #[arg(long)]
    pub probe: bool,
    /// Of disks for which nothing else is set, by disk.attach or disk.poll; changed while they run
    /// by poll.defaults
    #[command(flatten)]
    pub polling: PollOptions,
    /// Serve under the keeper at the other end of standard input
    #[arg(long, hide = true)]
    pub worker: bool,
}

/// What `ringway-io` does beside serving.
#[derive(Clone, Debug, Subcommand)]
pub enum IoCommand {
    /// Have another program go on with all disks of a running ringway-io; guests stay connected
    /// and see a pause of some milliseconds
    ///
    /// The new program is started beside the running one and takes everything over: connections,
    /// guest memory, open images with their locks. If it does not confirm within 5 seconds, cannot
    /// read the state, or a disk's storage does not end its requests, everything goes on as before
    /// and the exit code is 1.
    Upgrade(UpgradeOptions),
}

/// Options of `ringway-io upgrade`.
#[derive(Clone, Debug, Args)]
pub struct UpgradeOptions {
    /// Control socket of the running ringway-io
    #[arg(long, value_name = "PATH")]
    pub control: PathBuf,
    /// The new program; without it, the file that is now where the running one was started from
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
