//! Check of idle CPUs: their sleep state limits how fast guests and the datapath wake each other.

use std::path::Path;

use super::Finding;

/// Parameter of the cpuidle governor of virtual machines
/// (Documentation/virt/guest-halt-polling.rst).
const HALT_POLL: &str = "sys/module/haltpoll/parameters/guest_halt_poll_ns";
const GOVERNOR: &str = "sys/devices/system/cpu/cpuidle/current_governor";
/// The kernel's default of that parameter, in nanoseconds.
const DEFAULT_NS: u64 = 200_000;

/// Checks whether idle CPUs of this host halt at once, if the host is a virtual machine. `root` is
/// `/` except in tests.
pub(super) fn idle_cpus(root: &Path) -> Finding {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
    let halt_poll = read(HALT_POLL).trim().parse().ok();
    judge(&read("proc/cpuinfo"), read(GOVERNOR).trim(), halt_poll)
}

fn judge(cpuinfo: &str, governor: &str, halt_poll_ns: Option<u64>) -> Finding {
    const CHECK: &str = "idle CPUs";
    let mut flags = cpuinfo.lines().filter(|line| line.starts_with("flags"));
    let virtual_machine =
        flags.next().is_some_and(|line| line.split_whitespace().any(|flag| flag == "hypervisor"));
    match (virtual_machine, governor, halt_poll_ns) {
        (true, "haltpoll", Some(0)) => Finding::warning(
            CHECK,
            "of this virtual machine halt at once: to wake a thread there takes long",
            format!(
                "guests and the datapath wake each other sooner after `echo {DEFAULT_NS} >/{HALT_POLL}`, \
                 the kernel's default: a CPU that becomes idle stays awake for so many nanoseconds at most"
            ),
        ),
        (true, "haltpoll", Some(ns)) => Finding::ok(
            CHECK,
            format!("of this virtual machine stay awake for {} us before they halt", ns / 1000),
        ),
        (true, ..) => Finding::ok(CHECK, "of this virtual machine are left to its hypervisor"),
        (false, "", _) => Finding::ok(CHECK, "halt"),
        (false, governor, _) => Finding::ok(CHECK, format!("sleep as {governor} says")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    const GUEST: &str = "model name: x\nflags\t\t: fpu hypervisor lahf_lm\n";
    const BARE: &str = "model name: x\nflags\t\t: fpu lahf_lm\n";

    #[test]
    fn a_virtual_machine_whose_cpus_halt_at_once_is_told_what_to_do() {
        let finding = judge(GUEST, "haltpoll", Some(0));
        assert_eq!(finding.level, Level::Warning);
        assert!(finding.advice.unwrap().contains("echo 200000 >/sys/module/haltpoll/"));
        for (cpuinfo, governor, ns) in [
            (GUEST, "haltpoll", Some(200_000)),
            (GUEST, "haltpoll", None),
            (GUEST, "menu", Some(0)),
            (GUEST, "", None),
            (BARE, "menu", Some(0)),
            (BARE, "", None),
            ("", "", None),
        ] {
            assert_eq!(judge(cpuinfo, governor, ns).level, Level::Ok, "{governor} {ns:?}");
        }
    }

    #[test]
    fn what_is_not_there_is_no_finding() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(idle_cpus(root.path()).level, Level::Ok);
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/cpuinfo", GUEST);
        write(GOVERNOR, "haltpoll\n");
        write(HALT_POLL, "0\n");
        assert_eq!(idle_cpus(root.path()).level, Level::Warning);
        write(HALT_POLL, "50000\n");
        assert!(idle_cpus(root.path()).found.contains("50 us"));
    }
}
