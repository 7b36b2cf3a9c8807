//! Slices on this host's CPU controller.
#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use model::id::{SrId, Uuid, VmId};
use testkit::HostRequirement;
use toolstack::cgroup::{CgroupError, Leaf, SliceTree, Version, Weights, controller};

/// Tree with a process in it, both removed on drop.
struct Host {
    tree: SliceTree,
    sleeper: Child,
}

impl Host {
    /// Creates a tree; `None` if this host denies the creation of groups, and the environment says
    /// that this is expected.
    fn new() -> Option<Self> {
        // The process id makes the name unique: the kernel counts to 4 million.
        let name = format!("rwtest{}", std::process::id());
        let made = SliceTree::find(Path::new("/"), &name).and_then(|tree| {
            tree.make().and_then(|()| tree.set(Weights::default())).map(|()| tree)
        });
        match made {
            Ok(tree) => {
                let sleeper = Command::new("sleep").arg("1000").spawn().unwrap();
                Some(Self { tree, sleeper })
            }
            Err(error) => {
                HostRequirement::Groups.leave_out(&error.to_string()).unwrap();
                None
            }
        }
    }

    fn end(&mut self) {
        let _ended = self.sleeper.kill();
        let _reaped = self.sleeper.wait();
    }

    /// Returns the weight of a slice.
    fn weight(&self, group: Leaf) -> u32 {
        let file = match controller(Path::new("/")).unwrap().0 {
            Version::One => "cpu.shares",
            Version::Two => "cpu.weight",
        };
        let slice = self.tree.path(group).parent().unwrap().join(file);
        std::fs::read_to_string(slice).unwrap().trim().parse().unwrap()
    }

    /// Retries work that fails for a moment after a process has exited.
    fn soon(mut work: impl FnMut() -> Result<(), CgroupError>) -> Result<(), CgroupError> {
        for _ in 0..1000 {
            match work() {
                Err(CgroupError::Busy { pids, .. }) if pids.is_empty() => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                outcome => return outcome,
            }
        }
        work()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.end();
        let cleared = Self::soon(|| self.tree.clear());
        assert!(cleared.is_ok() || std::thread::panicking(), "{cleared:?}");
    }
}

#[test]
fn a_tree_is_made_joined_changed_and_removed() {
    let Some(mut host) = Host::new() else { return };
    let guest = Leaf::Guest(VmId(Uuid::from_random([3; 16])));
    let disks = Leaf::Datapath(SrId(Uuid::from_random([4; 16])));
    let scale = |weight: u32| match controller(Path::new("/")).unwrap().0 {
        Version::One => weight * 1024 / 100,
        Version::Two => weight,
    };
    let weights = |host: &Host| [Leaf::Daemon, disks, guest].map(|group| host.weight(group));
    assert_eq!(weights(&host), [1000, 200, 100].map(scale));
    host.tree.add(guest).unwrap();
    host.tree.add(disks).unwrap();
    assert_eq!(host.tree.leaves().unwrap(), [Leaf::Daemon, Leaf::Clients, disks, guest]);

    let pid = host.sleeper.id();
    host.tree.join(guest, pid).unwrap();
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let path = host.tree.path(guest);
    let leaf: std::path::PathBuf =
        path.iter().rev().take(2).collect::<Vec<_>>().iter().rev().collect();
    assert!(groups.contains(&format!("/{}\n", leaf.display())), "{groups}");

    host.tree.set(Weights { control: 900, datapath: 300, guests: 50 }).unwrap();
    assert_eq!(weights(&host), [900, 300, 50].map(scale));

    let error = host.tree.remove(guest).unwrap_err();
    assert!(matches!(&error, CgroupError::Busy { pids, .. } if *pids == [pid]), "{error}");
    host.end();
    assert!(matches!(host.tree.join(disks, pid), Err(CgroupError::Gone { .. })));
    Host::soon(|| host.tree.remove(guest)).unwrap();
    assert!(!path.exists());
    let base = path.parent().unwrap().parent().unwrap().to_owned();
    let name = format!("rwtest{}", std::process::id());
    drop(host);
    for slice in ["control", "datapath", "guests"] {
        assert!(!base.join(format!("{name}-{slice}")).exists(), "{slice}");
    }
}
