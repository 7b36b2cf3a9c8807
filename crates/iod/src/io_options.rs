//! Command line of `ringway-io`.

use std::os::fd::RawFd;
use std::path::PathBuf;

use clap::Parser;

use crate::blk_options::mode;
use crate::metrics::Address;

/// Serve many disks to virtual machines over vhost-user, controlled over a socket.
///
/// The control socket takes JSON-RPC 2.0, one object a line: disk.attach, disk.activate,
/// disk.deactivate, disk.pause, disk.resume, disk.detach, disk.resize, disk.caps, stats, metrics,
/// shutdown. `ringway io` is a client for it. SIGTERM and SIGINT detach everything and end the
/// process. Logs go to standard error; RINGWAY_LOG=debug shows more of them.
#[derive(Clone, Debug, Parser)]
#[command(name = "ringway-io", version)]
pub struct IoOptions {
    /// Unix socket to listen on for calls; a service manager may give it as the one of LISTEN_FDS
    #[arg(long, value_name = "PATH", required_unless_present = "probe")]
    pub control: Option<PathBuf>,
    /// Permissions of the control socket, octal
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = mode)]
    pub control_mode: u32,
    /// Number of reactor threads; without it, one for each CPU and at most 16
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
    /// Serve under the keeper at the other end of standard input
    #[arg(long, hide = true)]
    pub worker: bool,
    /// Print as JSON what io_uring can do on this host, and exit
    #[arg(long)]
    pub probe: bool,
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
        for (line, named) in [
            ("ringway-io", "--control"),
            ("ringway-io --control /c --reactors 0", "--reactors"),
            ("ringway-io --control /c --frob", "--frob"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(named), "{line}: {error}");
        }
    }
}
