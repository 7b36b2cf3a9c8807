//! Checks of the programs that Ringway starts, and of their features on this host.

use std::path::Path;

use serde::Deserialize;

use super::Finding;
use crate::net::internal;
use crate::qemu::{self, Engine, QemuError, Version};

/// Oldest tested QEMU: Debian 12's.
const QEMU_MIN: Version = Version { major: 7, minor: 2, micro: 0 };
/// Setting by which an administrator disables io_uring: 0 for no process, 1 for unprivileged
/// processes, 2 for all. Absent before Linux 6.6.
const IO_URING_DISABLED: &str = "/proc/sys/kernel/io_uring_disabled";

/// Output of `ringway-io --probe`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Probe {
    usable: bool,
    problem: Option<String>,
    complete: bool,
    defer_taskrun: bool,
    /// Number of reactors that would run, and the reason.
    reactors: Option<String>,
}

/// Checks io_uring and reactors, as the datapath itself finds them.
pub(super) async fn datapath(ringway_io: Option<&Path>) -> Vec<Finding> {
    let switch = std::fs::read_to_string(IO_URING_DISABLED).unwrap_or_default();
    let Some(program) = ringway_io else {
        return vec![Finding::failure(
            "io_uring",
            "ringway-io was not found, so io_uring was not tested",
            "build it with `cargo build --release`, or install the whole package",
        )];
    };
    match probed(&qemu::ask(program, &["--probe"]).await) {
        Ok(probe) => {
            let reactors = judge_reactors(&probe);
            [judge_io_uring(switch.trim(), probe)].into_iter().chain(reactors).collect()
        }
        Err(finding) => vec![finding],
    }
}

fn probed(answer: &Result<String, QemuError>) -> Result<Probe, Finding> {
    const CHECK: &str = "io_uring";
    let probe = match answer {
        Ok(text) => text.lines().find_map(|line| serde_json::from_str::<Probe>(line).ok()),
        Err(error) => {
            let advice = "run `ringway-io --probe` to see why";
            return Err(Finding::failure(CHECK, error.to_string(), advice));
        }
    };
    probe.ok_or_else(|| {
        let found = "`ringway-io --probe` printed no JSON";
        Finding::failure(CHECK, found, "install ringway and ringway-io of one version")
    })
}

/// Judges the reactors. An older version of `ringway-io` reports none.
fn judge_reactors(probe: &Probe) -> Option<Finding> {
    let found = format!("{}; --reactors asks for more or fewer", probe.reactors.as_ref()?);
    Some(Finding::ok("reactors", found))
}

fn judge_io_uring(switch: &str, probe: Probe) -> Finding {
    const CHECK: &str = "io_uring";
    let allow = format!("allow it: sysctl kernel.io_uring_disabled=0 (it is {switch:?} now)");
    if !probe.usable {
        let why = probe.problem.unwrap_or_else(|| "no reason was given".into());
        let advice = match switch {
            "" | "0" => "allow it in the container's seccomp profile, or use Linux 6.1 or newer",
            _ => &allow,
        };
        return Finding::failure(CHECK, format!("not usable: {why}"), advice);
    }
    if !probe.complete {
        let why = probe.problem.unwrap_or_else(|| "some operations are missing".into());
        return Finding::warning(CHECK, why, "use Linux 6.1 or newer");
    }
    let with = if probe.defer_taskrun { "usable, with deferred task work" } else { "usable" };
    Finding::ok(CHECK, with)
}

/// Checks QEMU's version, and the devices that a machine needs.
pub(super) async fn qemu(program: Option<&Path>) -> Vec<Finding> {
    let Some(program) = program else {
        let advice = "install it: apt-get install qemu-system-x86";
        return vec![Finding::failure("QEMU", "qemu-system-x86_64 is not in PATH", advice)];
    };
    let mut findings = vec![judge_version(qemu::version(program).await)];
    for (check, option, part) in [
        ("QEMU device", "-device", "vhost-user-blk-pci"),
        ("QEMU memory", "-object", "memory-backend-memfd"),
    ] {
        let parts = qemu::ask(program, &[option, "help"]).await;
        findings.push(judge_part(check, part, parts.as_deref().unwrap_or_default()));
    }
    findings
}

fn judge_version(version: Result<(String, Version), QemuError>) -> Finding {
    match version {
        Ok((line, version))
            if version >= QEMU_MIN && Engine::tcg(version) == Engine::TcgInTurns =>
        {
            Finding::ok("QEMU", format!("{line}; without KVM a guest's CPUs run one at a time"))
        }
        Ok((line, version)) if version >= QEMU_MIN => Finding::ok("QEMU", line),
        Ok((line, _)) => {
            let advice = format!("use QEMU {QEMU_MIN} or newer; older ones are not tested");
            Finding::failure("QEMU", line, advice)
        }
        Err(error) => Finding::failure("QEMU", error.to_string(), "reinstall qemu-system-x86"),
    }
}

fn judge_part(check: &'static str, part: &str, help: &str) -> Finding {
    let named = help.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    if named.into_iter().any(|word| word == part) {
        Finding::ok(check, format!("has {part}"))
    } else {
        let advice = "use a QEMU that was built with it, as Debian's qemu-system-x86 is";
        Finding::failure(check, format!("{part} is missing"), advice)
    }
}

/// Checks the tools for networks.
pub(super) fn tools() -> Finding {
    judge_tools(&internal::missing())
}

fn judge_tools(missing: &[internal::Named]) -> Finding {
    const CHECK: &str = "networks";
    if missing.is_empty() {
        return Finding::ok(CHECK, "ip, nft and dnsmasq are there");
    }
    let (names, packages): (Vec<_>, Vec<_>) = missing.iter().copied().unzip();
    let found = format!("not there: {}", names.join(", "));
    let install = format!("install them: apt-get install {}", packages.join(" "));
    if missing.contains(&internal::IP) {
        return Finding::failure(CHECK, found, format!("ringwayd needs ip; {install}"));
    }
    Finding::warning(CHECK, found, format!("only `ringway net` needs them; {install}"))
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    fn probe(json: &str) -> Finding {
        judge_io_uring("0", probed(&Ok(format!("{json}\n"))).unwrap())
    }

    #[test]
    fn io_uring_is_judged_by_the_datapath() {
        let full = r#"{"usable":true,"problem":null,"defer_taskrun":true,"complete":true}"#;
        assert_eq!(probe(full).level, Level::Ok);
        let old = r#"{"usable":true,"problem":"no X","defer_taskrun":false,"complete":false}"#;
        assert_eq!(probe(old).level, Level::Warning);
        let none = r#"{"usable":false,"problem":"EPERM","complete":false}"#;
        assert_eq!(probe(none).level, Level::Failure);
        assert_eq!(probed(&Ok("usage: ...".into())).unwrap_err().level, Level::Failure);
        let forbidden = judge_io_uring("2", probed(&Ok(none.into())).unwrap());
        assert!(forbidden.advice.unwrap().contains("io_uring_disabled=0"));
    }

    #[test]
    fn how_many_reactors_there_would_be_is_told_with_the_reason() {
        let output = r#"{"usable":true,"reactors":"2, one for each of 2 CPUs"}"#;
        let finding = judge_reactors(&probed(&Ok(output.into())).unwrap()).unwrap();
        assert_eq!((finding.check, finding.level), ("reactors", Level::Ok));
        assert!(finding.found.starts_with("2, one for each of 2 CPUs"), "{finding:?}");
        assert_eq!(judge_reactors(&probed(&Ok("{}".into())).unwrap()), None);
    }

    #[test]
    fn tools_that_are_missing_are_named_with_their_packages() {
        assert_eq!(judge_tools(&[]).level, Level::Ok);
        let nft = ("nft", "nftables");
        assert_eq!(judge_tools(&[nft]).level, Level::Warning);
        let finding = judge_tools(&[internal::IP, nft]);
        assert_eq!((finding.level, &*finding.found), (Level::Failure, "not there: ip, nft"));
        assert!(finding.advice.unwrap().ends_with("apt-get install iproute2 nftables"));
    }

    #[test]
    fn qemu_must_be_new_enough() {
        let version = |text: &str| Ok((text.to_owned(), Version::find(text).unwrap()));
        let old = judge_version(version("QEMU emulator version 7.2.22"));
        assert_eq!((old.level, old.found.ends_with("run one at a time")), (Level::Ok, true));
        let new = judge_version(version("QEMU emulator version 10.0.0"));
        assert_eq!((new.level, &*new.found), (Level::Ok, "QEMU emulator version 10.0.0"));
        assert_eq!(judge_version(version("QEMU emulator version 6.2.0")).level, Level::Failure);
    }

    #[test]
    fn parts_are_found_by_their_whole_name() {
        let help = "name \"vhost-user-blk-pci\", bus PCI\nname \"vhost-user-blk-pci-x\", bus PCI";
        assert_eq!(judge_part("d", "vhost-user-blk-pci", help).level, Level::Ok);
        assert_eq!(judge_part("d", "vhost-user-blk", help).level, Level::Failure);
    }
}
