//! DHCP and DNS by dnsmasq: one process for each network, bound to its bridge.
//!
//! The process outlives its starter. It is found again by its configuration file, which is unique
//! to the network, and only in this network namespace. Processes of containers or of other users do
//! not match.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use super::super::NetError;
use super::process::{ProcessMatch, end};
use super::spec::Spec;
use super::tool::Tool;

/// Name of the program.
const PROGRAM: &str = "dnsmasq";
/// Most leases at once. dnsmasq stores all in memory.
const LEASES_MAX: u32 = 4096;

/// User accounts of this host.
const ACCOUNTS: &str = "/etc/passwd";
/// User that Debian's package creates.
const ACCOUNT: &str = "dnsmasq";
/// User that dnsmasq changes to by default.
const NOBODY: &str = "nobody";

/// Files of a network's dnsmasq.
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

    /// Returns the argument with which it is started.
    fn word(&self) -> String {
        format!("--conf-file={}", self.conf.display())
    }

    fn text(&self, spec: &Spec, accounts: &str) -> String {
        let (first, last) = spec.subnet.guests();
        let (bridge, mask) = (spec.name.bridge(), spec.subnet.mask());
        let leases = spec.subnet.count().min(LEASES_MAX);
        // Otherwise dnsmasq runs as `nobody`, as other programs do.
        let has_account = user(accounts, ACCOUNT).is_some();
        let user = if has_account { format!("user={ACCOUNT}\n") } else { String::new() };
        // Without NAT there is no route to other networks.
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

    /// Returns the number of leases.
    pub(super) fn leases(&self) -> usize {
        std::fs::read_to_string(&self.leases).map_or(0, |text| text.lines().count())
    }
}

/// Starts dnsmasq, unless it runs with the same configuration. With `anew` it always restarts,
/// because its bridge was recreated.
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

/// Ends dnsmasq, if it runs.
pub(super) async fn stop(files: &Files) -> Result<(), NetError> {
    for process in running(files) {
        let ended = tokio::task::spawn_blocking(move || end(&process)).await;
        if !ended.unwrap_or(false) {
            return Err(NetError::Late(format!("the end of dnsmasq {}", files.word())));
        }
    }
    Ok(())
}

/// Returns whether dnsmasq runs.
pub(super) fn is_running(files: &Files) -> bool {
    !running(files).is_empty()
}

/// Returns the processes that were started with the configuration file.
fn running(files: &Files) -> Vec<OwnedFd> {
    let accounts = std::fs::read_to_string(ACCOUNTS).unwrap_or_default();
    let (word, owners) = (files.word(), owners(&accounts));
    ProcessMatch { program: PROGRAM, first_arg: &word, owners: &owners }.running()
}

/// Returns the users that a matching process may have: root and this process's user, who may start
/// it, and the user that it changes to.
fn owners(accounts: &str) -> Vec<u32> {
    let becomes = [ACCOUNT, NOBODY].into_iter().find_map(|name| user(accounts, name));
    [0, geteuid().as_raw()].into_iter().chain(becomes).collect()
}

/// Returns the id of a user.
fn user(accounts: &str, name: &str) -> Option<u32> {
    let mut all = accounts.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let fields = all.find(|fields| fields.first() == Some(&name))?;
    fields.get(2)?.parse().ok()
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

    #[test]
    fn it_is_of_root_or_ours_or_of_the_user_that_it_becomes() {
        let ours = geteuid().as_raw();
        let both = "root:x:0:0\nnot-dnsmasq:x:7:7\nnobody:x:65534:65534\ndnsmasq:x:999:65534\n";
        assert_eq!(owners(both), [0, ours, 999]);
        assert_eq!(owners(&both.replace("\ndnsmasq", "\nother")), [0, ours, 65_534]);
        assert_eq!(owners("dnsmasq\nnobody:x:many\n"), [0, ours]);
    }
}
