//! DHCP and DNS by dnsmasq: one process for each network, which knows nothing but its bridge.
//!
//! It is nobody's child: it goes on when whoever has started it ends. It is found again by the file
//! that it was started with, which is this network's alone, and only in this network namespace:
//! processes of containers are not ours.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::super::NetError;
use super::spec::Spec;
use super::tool::Tool;

/// How long it may take to end by itself.
const END_DEADLINE: Duration = Duration::from_secs(5);
/// Most addresses that are given away at once: it keeps all in memory.
const LEASES_MAX: u32 = 4096;

/// The users of this host. Debian's package makes one for it.
const ACCOUNTS: &str = "/etc/passwd";

/// Its files.
#[derive(Clone, Debug)]
pub(super) struct Files {
    conf: PathBuf,
    leases: PathBuf,
    pid: PathBuf,
}

impl Files {
    pub(super) fn within(dir: &Path) -> Self {
        let file = |name| dir.join(name);
        Self { conf: file("dnsmasq.conf"), leases: file("leases"), pid: file("dnsmasq.pid") }
    }

    /// The word that it is started with.
    fn word(&self) -> String {
        format!("--conf-file={}", self.conf.display())
    }

    fn text(&self, spec: &Spec, accounts: &str) -> String {
        let (first, last) = spec.subnet.guests();
        let (bridge, mask) = (spec.name.bridge(), spec.subnet.mask());
        let leases = spec.subnet.count().min(LEASES_MAX);
        // Else it is nobody, whom others are too.
        let has_account = accounts.lines().any(|line| line.starts_with("dnsmasq:"));
        let user = if has_account { "user=dnsmasq\n" } else { "" };
        // Without NAT there is no way to anywhere.
        let router = if spec.nat { "" } else { "dhcp-option=option:router\n" };
        format!(
            "# Written by `ringway net create {name}`, which writes it again.\n\
             interface={bridge}\n\
             except-interface=lo\n\
             bind-interfaces\n\
             no-hosts\n\
             domain-needed\n\
             bogus-priv\n\
             dhcp-authoritative\n\
             dhcp-range={first},{last},{mask},12h\n\
             dhcp-lease-max={leases}\n\
             {user}{router}dhcp-leasefile={lease_file}\n\
             pid-file={pid}\n",
            name = spec.name,
            lease_file = self.leases.display(),
            pid = self.pid.display(),
        )
    }

    /// Addresses that are given away.
    pub(super) fn leases(&self) -> usize {
        std::fs::read_to_string(&self.leases).map_or(0, |text| text.lines().count())
    }
}

/// Starts it, unless one runs that was started with the same. `anew`: also then, since what it
/// listened at is gone.
pub(super) async fn start(
    tool: &Tool,
    files: &Files,
    spec: &Spec,
    anew: bool,
) -> Result<(), NetError> {
    let accounts = std::fs::read_to_string(ACCOUNTS).unwrap_or_default();
    let text = files.text(spec, &accounts);
    let same = std::fs::read_to_string(&files.conf).is_ok_and(|old| old == text);
    let running = is_running(files);
    if running && same && !anew {
        return Ok(());
    }
    stop(files).await?;
    std::fs::write(&files.conf, text).map_err(|error| NetError::Refused {
        what: format!("writing {}", files.conf.display()),
        why: error.to_string(),
    })?;
    tool.run(&[&files.word()], "").await.map(drop)
}

/// Ends it, if it runs.
pub(super) async fn stop(files: &Files) -> Result<(), NetError> {
    for process in running(files) {
        let ended = tokio::task::spawn_blocking(move || end(&process)).await;
        if !ended.unwrap_or(false) {
            return Err(NetError::Late(format!("the end of dnsmasq {}", files.word())));
        }
    }
    Ok(())
}

/// Whether it runs.
pub(super) fn is_running(files: &Files) -> bool {
    !running(files).is_empty()
}

/// Ends a process in order, else at once; whether it has ended.
fn end(process: &OwnedFd) -> bool {
    [Signal::TERM, Signal::KILL].into_iter().any(|signal| {
        // It may have gone by itself.
        let _gone = pidfd_send_signal(process, signal);
        let mut ended = [PollFd::new(process, PollFlags::IN)];
        let deadline = Timespec { tv_sec: END_DEADLINE.as_secs() as i64, tv_nsec: 0 };
        poll(&mut ended, Some(&deadline)).is_ok_and(|ready| ready > 0)
    })
}

/// Those that were started with the file, in this network namespace.
fn running(files: &Files) -> Vec<OwnedFd> {
    let (word, here) = (files.word(), std::fs::read_link("/proc/self/ns/net").ok());
    let is_it = |id: i32| {
        let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0);
        let first = words.next().unwrap_or_default();
        first.ends_with(b"dnsmasq")
            && words.next() == Some(word.as_bytes())
            && std::fs::read_link(format!("/proc/{id}/ns/net")).ok() == here
    };
    let ids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let found = ids.filter(|id| is_it(*id)).filter_map(|id| {
        let process = pidfd_open(Pid::from_raw(id)?, PidfdFlags::empty()).ok()?;
        // The id may have come to mean another one before it was held.
        is_it(id).then_some(process)
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_knows_its_bridge_and_nothing_else() {
        let spec = |nat| Spec {
            name: "lan".parse().unwrap(),
            subnet: "10.5.0.0/24".parse().unwrap(),
            nat,
            dhcp: true,
        };
        let files = Files::within(Path::new("/state/lan"));
        let text = files.text(&spec(true), "root:x:0:0\ndnsmasq:x:999:65534\n");
        for line in [
            "interface=rw-lan",
            "except-interface=lo",
            "bind-interfaces",
            "dhcp-range=10.5.0.2,10.5.0.254,255.255.255.0,12h",
            "dhcp-lease-max=253",
            "pid-file=/state/lan/dnsmasq.pid",
            "user=dnsmasq",
            "dhcp-leasefile=/state/lan/leases",
        ] {
            assert!(text.lines().any(|one| one == line), "{line}: {text}");
        }
        assert!(!text.contains("option:router"));
        let without = files.text(&spec(false), "");
        assert!(without.contains("\ndhcp-option=option:router\n") && !without.contains("user="));
    }
}
