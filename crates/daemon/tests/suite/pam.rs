//! The daemon on a host with its own users: real PAM, groups and shadow passwords, in a private
//! `/etc`.
#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::geteuid;
use testkit::process::find_binary;
use xenapi::Value;
use xenapi::client::{Address, Client, ClientError};
use xenapi::envelope::Encoding;

/// Name, password hash of `crypt`, and day on which the account expires.
type User = (&'static str, &'static str, &'static str);

/// Users. The password of root is `root-secret`, and so on.
const USERS: [User; 5] = [
    (
        "root",
        "$6$rounds=1000$U5uclRXw72eKFSfF$VpxgwSEjNYOy4eG6BoLKaUjGcBW/3IZhnrzD2g821U1PJYMSIUGa7wih\
         iEJfRORkQ0QwtSPJp/uNLopSnUz2M1",
        "",
    ),
    (
        "ann",
        "$6$rounds=1000$2pXI1RYaIJ.S7fbK$tWqeg/4Ks3.jJ6HNyXG0kp4HM0PUXySr3FaZBajbqgIa6lu/YWWrPVPS\
         rsochTNsEjJDu8Q/HzaHzXLCoTftZ0",
        "",
    ),
    (
        "bob",
        "$6$rounds=1000$QmOLcgwYlOXxQxxO$ob0H0umcg6kElqrSPSIgMnfN4EWtJ5q.gjVJpYRdDGbP4gZumFRCP4xX\
         snPbYVEdwFEwPHssXeGZKy4Mu03PL1",
        "",
    ),
    (
        "carl",
        "$6$rounds=1000$9qTZgtoclczxvIND$xZL6uE/4XiTtuVavV7eZC/WqGU6KXvqgI4Xsh1WMDABpV1MmGyDES3gf\
         Gp3rXks3U9CAIzFP8jG86NwtqQNZX0",
        "",
    ),
    // This user has the password of bob, but the account has expired.
    (
        "dora",
        "$6$rounds=1000$QmOLcgwYlOXxQxxO$ob0H0umcg6kElqrSPSIgMnfN4EWtJ5q.gjVJpYRdDGbP4gZumFRCP4xX\
         snPbYVEdwFEwPHssXeGZKy4Mu03PL1",
        "1",
    ),
];

fn uid(at: usize) -> usize {
    if at == 0 { 0 } else { 20_000 + at }
}

/// Creates an `/etc` with these users for PAM and for user and group lookups.
fn make_etc(etc: &Path) {
    let write = |name: &str, mode: u32, text: &str| {
        let path = etc.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    };
    let lines = |line: fn(usize, &User) -> String| {
        USERS.iter().enumerate().map(|(at, user)| line(at, user)).collect::<String>()
    };
    let passwd =
        lines(|at, (name, ..)| format!("{name}:x:{0}:{0}::/nowhere:/bin/false\n", uid(at)));
    write("passwd", 0o644, &passwd);
    let shadow =
        lines(|_, (name, hash, until)| format!("{name}:{hash}:19000:0:99999:7::{until}:\n"));
    write("shadow", 0o600, &shadow);
    let groups =
        "root:x:0:\nringway-admin:x:30001:ann\nringway-ro:x:30002:bob,dora\nann:x:20001:\n";
    write("group", 0o644, groups);
    write("nsswitch.conf", 0o644, "passwd: files\ngroup: files\nshadow: files\n");
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/pam.d/ringway");
    write("pam.d/ringway", 0o644, &fs::read_to_string(shipped).unwrap());
    // Libraries must be found as before.
    for known in ["ld.so.cache", "ld.so.conf"] {
        // Some hosts lack these files.
        let _none = fs::copy(Path::new("/etc").join(known), etc.join(known));
    }
}

/// A daemon with that `/etc`.
struct Daemon {
    process: Child,
    dir: tempfile::TempDir,
    port: u16,
}

impl Daemon {
    fn start() -> Self {
        assert!(geteuid().is_root(), "only root can give a process an /etc of its own");
        // Socket paths must be short.
        let dir = tempfile::Builder::new().prefix("rw-").tempdir_in("/tmp").unwrap();
        let etc = dir.path().join("etc");
        make_etc(&etc);
        fs::write(dir.path().join("config"), "").unwrap();
        let script = "mount --bind \"$1\" /etc && shift && exec \"$@\"";
        let mut process = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"])
            .arg(&etc)
            .arg(env!("CARGO_BIN_EXE_ringwayd"))
            .args(["--slices", "off", "--hypervisor", "simulator"])
            .args(["--listen", "127.0.0.1:0,plain", "--state"])
            .arg(dir.path().join("state"))
            .arg("--config")
            .arg(dir.path().join("config"))
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let words = line.split_whitespace();
        let port = words.filter_map(|word| word.strip_suffix(",plain")?.rsplit(':').next());
        let port = port.map(|port| port.parse().unwrap()).next();
        Self { process, dir, port: port.unwrap_or_else(|| panic!("it does not serve: {line}")) }
    }

    /// Logs a user in over the network.
    fn log_in(&self, user: &str, password: &str) -> Result<Client, ClientError> {
        let address = Address::Plain("127.0.0.1".to_owned(), self.port);
        let mut client = Client::connect(address, Encoding::Json)?;
        client.login(user, password, "test")?;
        Ok(client)
    }

    fn refused(&self, user: &str, password: &str) -> String {
        self.log_in(user, password).unwrap_err().code().unwrap().to_owned()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The process may have ended.
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}

/// Makes a change. Returns the code if it is refused.
fn writes(client: &mut Client) -> Result<(), String> {
    let pools = client.records("pool").unwrap();
    let params = [Value::text(&pools[0].0), Value::text("a pool")];
    let written = client.call("pool.set_name_label", &params);
    written.map(drop).map_err(|error| error.code().unwrap().to_owned())
}

#[test]
fn users_of_the_host_have_the_roles_of_their_groups() {
    let daemon = Daemon::start();
    assert!(!daemon.dir.path().join("state/password").exists(), "the host has passwords");
    for admin in ["root", "ann"] {
        let mut client = daemon.log_in(admin, &format!("{admin}-secret")).unwrap();
        assert_eq!(writes(&mut client), Ok(()), "{admin}");
    }
    let mut bob = daemon.log_in("bob", "bob-secret").unwrap();
    assert_eq!(writes(&mut bob), Err("RBAC_PERMISSION_DENIED".to_owned()));
    for (user, password, code) in [
        ("carl", "carl-secret", "SESSION_AUTHORIZATION_FAILED"),
        ("dora", "bob-secret", "SESSION_AUTHORIZATION_FAILED"),
        ("ann", "bob-secret", "SESSION_AUTHENTICATION_FAILED"),
        ("nobody", "x", "SESSION_AUTHENTICATION_FAILED"),
    ] {
        assert_eq!(daemon.refused(user, password), code, "{user}");
        // A successful login resets the delay of the next failure.
        daemon.log_in("bob", "bob-secret").unwrap();
    }
}

/// `xe` says what is wrong with the user, and not only a code.
#[test]
fn a_user_without_a_role_reads_a_sentence() {
    let daemon = Daemon::start();
    let output = Command::new(find_binary("xe").unwrap())
        .args(["-s", "127.0.0.1", "-p", &daemon.port.to_string()])
        .args(["-u", "carl", "-pw", "carl-secret", "vm-list"])
        .env("HOME", daemon.dir.path())
        .env_remove("XE_EXTRA_ARGS")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*output.stdout), (Some(1), &b""[..]), "{stderr}");
    for part in [
        "The password is right, but the account has expired or has no role",
        "add the user to the group ringway-admin or ringway-ro",
        "user: carl",
        "reason: the user has no role here",
    ] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
}

#[test]
fn root_changes_its_password_on_the_host() {
    let daemon = Daemon::start();
    let mut root = daemon.log_in("root", "root-secret").unwrap();
    let mut other = daemon.log_in("root", "root-secret").unwrap();
    let words = ["root-secret", "a longer secret of root"].map(Value::text);
    root.call("session.change_password", &words).unwrap();
    assert_eq!(writes(&mut root), Ok(()));
    let ended = other.records("pool").unwrap_err();
    assert_eq!(ended.code(), Some("SESSION_INVALID"));
    assert_eq!(daemon.refused("root", "root-secret"), "SESSION_AUTHENTICATION_FAILED");
    daemon.log_in("root", "a longer secret of root").unwrap();
    let shadow = fs::read_to_string(daemon.dir.path().join("etc/shadow")).unwrap();
    assert!(!shadow.contains(USERS[0].1) && shadow.contains(USERS[1].1), "{shadow}");
}
