//! Manual page of `ringwayd`: its options and further explanations.

use clap::CommandFactory;
use daemon::options::Options;

/// All configuration keys with their defaults.
pub(crate) const CONFIGURATION: &str = r#"state = "/var/lib/ringway"
run = "/run/ringway"
listen = ["0.0.0.0:443", "127.0.0.1:80,plain"]
socket = "/run/ringway/ringwayd.sock"
hypervisor = "qemu"
#password-file = "/etc/ringway/passwords"

[boot]
# Kernels and ramdisks are taken from here only.
directories = ["/boot", "/usr/share/ringway/guest"]

[limits]
# Device steps at once: on the host (fewer where memory is small: "ringway doctor" says how many),
# of a machine, of a storage repository.
worker-pool-size = 16
machine = 10
sr = 12
# A step that takes longer gives its place on the host to another, in milliseconds.
stuck-ms = 2000
# VMs that boot at once while the host's CPUs are busy; usually two for each CPU, 4 to 25.
boots = 25
# Storage that does not answer has failed, in seconds; files of a directory have 30 s, or half of
# it if that is more.
attach-deadline-s = 60
# An operation waits for its turn at a machine, in seconds.
queue-deadline-s = 120

[identity]
# What clients are told that this host is. Some do more for a brand that they know.
product-brand = "Ringway"
product-version = "7.0.0"
platform-version = "2.1.0"

[slices]
# Control groups that keep CPU time for control: auto, off, or required.
mode = "auto"
# What their names begin with; without systemd only.
name = "ringway"
# Weights, from 1 to 10000.
control-weight = 1000
datapath-weight = 200
guests-weight = 100

[storage]
# Measurement of storage repositories at their first plug: auto, or off.
calibrate = "auto"

[web]
# Directory of web pages, such as XO Lite, that are sent from / on. There is no default.
#directory = "/usr/share/xo-lite"
# Pages of other servers that may call, each SCHEME://HOST[:PORT].
origins = []
"#;

const BEFORE: &str = ".SH CONFIGURATION
The file is in the language TOML. All that can be in it, as it is if nothing is said:
.PP
.nf
";

const AFTER: &str = ".fi
.SH SIGNALS
.TP
.B SIGTERM, SIGINT
End the daemon in order. Machines and whatever serves their disks go on, and the daemon that is
started next finds them.
.SH ENVIRONMENT
.TP
.B RINGWAY_LOG
What is told on standard error, as
.B info
or
.BR daemon=debug .
.TP
.B NOTIFY_SOCKET
Where a service manager is told that the daemon serves.
.SH FILES
.TP
.I /etc/ringway/ringwayd.toml
The configuration.
.TP
.I /etc/pam.d/ringway
If it is there, users of the host log in by it.
.TP
.I /var/lib/ringway/password
Else the password of root is here, made at the first start.
.TP
.I /var/lib/ringway/state.redb
The records.
.TP
.I /var/lib/ringway/certificate.pem
The certificate of TLS with its key, made at the first start.
.TP
.I /var/lib/ringway/sr/
The storage that the first start makes: a directory of disks.
.TP
.I /run/ringway/ringwayd.sock
The socket, for root.
.TP
.I /run/ringway/ringwayd.sock.control
Where its clients join the control slice.
.TP
.I /var/lib/xcp/xapi
A link to it while the daemon serves, for programs that know XenServer; only if nothing else is
there, and the socket is in its usual place.
.SH SEE ALSO
.BR xe (1),
.BR ringway (1),
.BR ringway-io (8)
";

/// Returns the page in roff format.
pub(crate) fn page() -> std::io::Result<String> {
    let mut options = Vec::new();
    clap_mangen::Man::new(Options::command()).section("8").render(&mut options)?;
    let options = String::from_utf8_lossy(&options);
    Ok(format!("{options}{BEFORE}{}{AFTER}", escaped(CONFIGURATION)))
}

/// Escapes a text for roff.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}
