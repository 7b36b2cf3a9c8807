//! A daemon at its default paths, where clients of XenServer find it. `/run` and `/var/lib` are in
//! a mount namespace of their own.
#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use std::process::{Command, Stdio};

use testkit::process::find_binary;

/// Shell script: `$1` is `xe`, the other arguments start the daemon.
const SCRIPT: &str = r#"
set -eu
mount -t tmpfs none /run
mount -t tmpfs none /var/lib
xe=$1; shift
"$@" >/run/told &
daemon=$!
trap 'kill -9 $daemon 2>/dev/null || :' EXIT
until [ -s /run/told ]; do kill -0 $daemon; sleep 0.02; done
readlink /var/lib/xcp/xapi
HOME=/run "$xe" -s /var/lib/xcp/xapi host-list --minimal | grep -q .
kill $daemon
wait $daemon
[ ! -L /var/lib/xcp/xapi ] && [ ! -e /var/lib/xcp ]
echo gone
"#;

#[test]
fn the_usual_socket_is_found_where_xenservers_is() {
    let config = tempfile::NamedTempFile::new().unwrap();
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private", "sh", "-c", SCRIPT, "sh"])
        .arg(find_binary("xe").unwrap())
        .arg(env!("CARGO_BIN_EXE_ringwayd"))
        .args(["--hypervisor", "simulator", "--listen", "127.0.0.1:0,plain", "--config"])
        .arg(config.path())
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::null());
    let output = command.output().expect("needs root and `unshare` of Debian's util-linux");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}{stderr}");
    assert_eq!(stdout.lines().collect::<Vec<_>>(), ["/run/ringway/ringwayd.sock", "gone"]);
}
