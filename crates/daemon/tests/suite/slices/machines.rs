//! Control groups of real VMs and their datapaths.

use std::collections::BTreeSet;
use std::fs::DirEntry;
use std::time::Duration;

use rustix::process::Pid;
use tempfile::NamedTempFile;
use testkit::guest::boot_config;
use testkit::process::eventually;
use testkit::ringwayd::{Ringwayd, Slices};

/// A daemon with a VM that has a disk.
struct Host {
    daemon: Ringwayd,
    slices: Slices,
    vm: String,
    sr: String,
    _config: NamedTempFile,
}

impl Host {
    /// Starts the daemon and the VM. `None` on a host that allows no control groups.
    fn start() -> Option<Self> {
        let host = Self::halted()?;
        host.xe(&["vm-start", "vm=m"]);
        Some(host)
    }

    /// Starts the daemon without starting the VM.
    fn halted() -> Option<Self> {
        let config = boot_config().unwrap();
        let path = config.path().display().to_string();
        let daemon = Ringwayd::with_slices(&["--config", &path]).unwrap()?;
        let slices = daemon.slices().unwrap();
        let xe = |words: &[&str]| daemon.xe_prints(words).unwrap();
        let vm = xe(&["vm-install", "template=Ringway test guest", "new-name-label=m"]);
        xe(&["vm-disk-add", "vm=m", "disk-size=1MiB", "device=0"]);
        let sr = xe(&["pool-list", "params=default-SR", "--minimal"]);
        Some(Self { daemon, slices, vm, sr, _config: config })
    }

    fn xe(&self, words: &[&str]) -> String {
        self.daemon.xe_prints(words).unwrap()
    }

    /// Returns the processes of this program.
    fn processes(&self, program: &str) -> BTreeSet<u32> {
        let started = self.daemon.started().into_iter();
        let of = |words: &str| words.split(' ').next().is_some_and(|name| name.contains(program));
        started.filter(|(_, words)| of(words)).map(|(pid, _)| pid).collect()
    }

    /// Returns whether all processes are in their groups, and no others are.
    fn is_right(&self) -> bool {
        let (qemu, io) = (self.processes("qemu-system"), self.processes("ringway-io"));
        assert_eq!((qemu.len(), io.len()), (1, 2), "{:?}", self.daemon.started());
        self.slices.leaves("guests") == [(self.vm.clone(), qemu)].into()
            && self.slices.leaves("datapath") == [(self.sr.clone(), io)].into()
            && self.slices.members("control/daemon").contains(&self.daemon.process.id())
    }

    /// Returns the time slices of all threads of the daemon, QEMU and the datapath.
    fn time_slices(&self) -> BTreeSet<Option<Duration>> {
        let (qemu, io) = (self.processes("qemu-system"), self.processes("ringway-io"));
        let processes = qemu.union(&io).copied().chain([self.daemon.process.id()]);
        let threads =
            processes.flat_map(|of| std::fs::read_dir(format!("/proc/{of}/task")).unwrap());
        let number = |thread: DirEntry| thread.file_name().to_str().unwrap().parse().unwrap();
        // A thread may have ended meanwhile.
        let slice = |thread: i32| sched::slice(Pid::from_raw(thread)).ok();
        threads.filter_map(|thread| slice(number(thread.unwrap()))).collect()
    }

    fn shown(&self) -> String {
        ["control", "datapath", "guests"]
            .map(|of| format!("{:?}", self.slices.leaves(of)))
            .join(" ")
    }
}

/// Returns the expected time slice. `None` if the kernel has none, which is printed.
fn short() -> Option<Duration> {
    let usual = sched::slice(None).unwrap();
    if usual.is_none() {
        eprintln!("nothing here shows that turns are short: this kernel has none (Linux 6.12 has)");
    }
    usual.map(|_| sched::MIN_SLICE)
}

#[test]
fn control_disks_and_machines_are_apart() {
    let Some(host) = Host::start() else { return };
    assert!(host.is_right(), "{}", host.shown());
    assert_eq!(host.slices.weights(), [1000, 200, 100].map(Some));
    for slice in ["control", "datapath", "guests"] {
        assert!(host.slices.members(slice).is_empty(), "everybody is in a leaf");
    }
    assert_eq!(host.time_slices(), [short()].into());
    host.xe(&["vm-reboot", "vm=m", "--force"]);
    assert!(host.is_right(), "after a reboot: {}", host.shown());
    host.xe(&["vm-shutdown", "vm=m", "--force"]);
    eventually("the machine's group is gone", || host.slices.leaves("guests").is_empty());
}

#[test]
fn members_are_put_right_after_the_daemon_was_killed() {
    let Some(mut host) = Host::start() else { return };
    assert!(host.is_right(), "{}", host.shown());
    for round in 0..testkit::rounds(2, 10) {
        host.daemon.process.kill().unwrap();
        for pid in host.processes("qemu-system").union(&host.processes("ringway-io")) {
            host.slices.take_out(*pid).unwrap();
            // Processes started by an earlier version have the kernel's default time slice.
            sched::set_slices(Pid::from_raw(*pid as i32), Duration::ZERO).unwrap();
        }
        let gone = format!("11111111-2222-4333-8444-{round:012x}");
        std::fs::create_dir(host.slices.path("guests").join(gone)).unwrap();
        host.daemon.start_again().unwrap();
        eventually("everybody is where they belong", || host.is_right());
        let short = short();
        eventually("all have short turns", || host.time_slices() == [short].into());
        assert_eq!(host.daemon.slices(), Some(host.slices.clone()));
    }
    // The daemon ends. The VM continues and keeps its group.
    host.daemon.stop().unwrap();
    assert_eq!(host.slices.members(&format!("guests/{}", host.vm)).len(), 1);
}

/// A VM starts even if its control group cannot be created.
#[test]
fn a_machine_without_a_group_runs() {
    let Some(mut host) = Host::halted() else { return };
    for slice in ["guests", "datapath"] {
        std::fs::remove_dir(host.slices.path(slice)).unwrap();
    }
    host.xe(&["vm-start", "vm=m"]);
    assert_eq!(host.xe(&["vm-list", "power-state=running", "name-label=m", "--minimal"]), host.vm);
    let logged = "outside of its control group";
    eventually(logged, || host.daemon.process.stderr().contains(logged));
    // The next start of the daemon repairs the groups.
    host.daemon.process.kill().unwrap();
    host.daemon.start_again().unwrap();
    eventually("everybody is where they belong", || host.is_right());
}
