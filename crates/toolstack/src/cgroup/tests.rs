use model::id::{SrId, Uuid, VmId};

use super::leaf::{Slice, WEIGHT_MAX};
use super::op::CgroupOp;
use super::tree::NAME_BYTES_MAX;
use super::*;

const NAME: &str = "rw0a1b2c";

fn id(byte: u8) -> Uuid {
    Uuid::from_random([byte; 16])
}

fn vm() -> VmId {
    VmId(id(7))
}

fn sr() -> SrId {
    SrId(id(9))
}

/// Creates a root directory whose hierarchy has these files with these contents.
fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (file, text) in files {
        put(&root.path().join("sys/fs/cgroup").join(file), text);
    }
    root
}

fn put(file: &Path, text: &str) {
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, text).unwrap();
}

fn v2() -> tempfile::TempDir {
    root(&[("cgroup.controllers", "cpuset cpu io\n"), ("cgroup.subtree_control", "memory\n")])
}

fn v1() -> tempfile::TempDir {
    root(&[("cpu/cpu.shares", "1024\n"), ("unified/cgroup.controllers", "\n")])
}

/// Creates the files that the kernel creates with each group.
fn kernel_makes(tree: &SliceTree, files: &[&str]) {
    let leaves =
        [Leaf::Daemon, Leaf::Clients, Leaf::Datapath(sr()), Leaf::Switch, Leaf::Guest(vm())];
    let leaves = leaves.map(|leaf| tree.path(leaf));
    let slices = leaves.clone().map(|leaf| leaf.parent().unwrap().to_owned());
    for folder in slices.into_iter().chain(leaves) {
        files.iter().for_each(|file| put(&folder.join(file), ""));
    }
}

fn base(root: &tempfile::TempDir) -> PathBuf {
    controller(root.path()).unwrap().1
}

fn text(root: &tempfile::TempDir, file: &str) -> String {
    std::fs::read_to_string(base(root).join(file)).unwrap()
}

#[test]
fn the_controller_is_found_where_it_is() {
    let found = |files: &[(&str, &str)]| {
        let root = root(files);
        controller(root.path()).map(|(version, base)| {
            let base = base.strip_prefix(root.path()).unwrap().to_str().unwrap().to_owned();
            (version, base)
        })
    };
    let at = |version, base: &str| Some((version, base.to_owned()));
    assert_eq!(found(&[]), None);
    assert_eq!(found(&[("cgroup.controllers", "io memory cpuset")]), None);
    assert_eq!(found(&[("cpuacct/cgroup.procs", "")]), None);
    let two = ("cgroup.controllers", "cpuset cpu io\n");
    assert_eq!(found(&[two]), at(Version::Two, "sys/fs/cgroup"));
    let one = ("cpu/cpu.shares", "1024\n");
    let unified = |has| ("unified/cgroup.controllers", has);
    assert_eq!(found(&[one, unified("")]), at(Version::One, "sys/fs/cgroup/cpu"));
    let both = ("cpu,cpuacct/cpu.shares", "1024\n");
    assert_eq!(found(&[both]), at(Version::One, "sys/fs/cgroup/cpu,cpuacct"));
    assert_eq!(found(&[unified("cpu\n")]), at(Version::Two, "sys/fs/cgroup/unified"));
}

#[test]
fn a_tree_is_refused_where_it_cannot_be() {
    let find =
        |root: &tempfile::TempDir, name: &str| SliceTree::find(root.path(), name).unwrap_err();
    assert!(matches!(find(&root(&[]), NAME), CgroupError::NoController));
    let managed = v2();
    std::fs::create_dir_all(managed.path().join(units::BOOTED)).unwrap();
    assert!(matches!(find(&managed, NAME), CgroupError::Managed { .. }));
    let long = "a".repeat(NAME_BYTES_MAX + 1);
    for name in ["", "..", "a/b", "A", "a-b", "a b", "é", &long] {
        assert!(matches!(find(&v2(), name), CgroupError::Name { .. }), "{name}");
    }
    assert!(SliceTree::find(v2().path(), &long[1..]).is_ok());
}

#[test]
fn the_tree_is_this_in_version_2() {
    let root = v2();
    let tree = SliceTree::find(root.path(), NAME).unwrap();
    let at = |path: &str| root.path().join("sys/fs/cgroup").join(path);
    let write = |path: &str, text: &str| CgroupOp::Write(at(path), text.to_owned());
    assert_eq!(
        tree.slices(),
        [
            CgroupOp::HandDown(at("")),
            CgroupOp::Make(at("rw0a1b2c-control")),
            CgroupOp::HandDown(at("rw0a1b2c-control")),
            CgroupOp::Make(at("rw0a1b2c-datapath")),
            CgroupOp::HandDown(at("rw0a1b2c-datapath")),
            CgroupOp::Make(at("rw0a1b2c-guests")),
            CgroupOp::HandDown(at("rw0a1b2c-guests")),
        ]
    );
    assert_eq!(
        Slice::ALL.map(|slice| tree.weight(slice, Weights::default())),
        [
            write("rw0a1b2c-control/cpu.weight", "1000"),
            write("rw0a1b2c-datapath/cpu.weight", "200"),
            write("rw0a1b2c-guests/cpu.weight", "100"),
        ]
    );
    let guest = "rw0a1b2c-guests/07070707-0707-4707-8707-070707070707";
    for (group, path) in [
        (Leaf::Daemon, "rw0a1b2c-control/daemon"),
        (Leaf::Clients, "rw0a1b2c-control/clients"),
        (Leaf::Datapath(sr()), "rw0a1b2c-datapath/09090909-0909-4909-8909-090909090909"),
        (Leaf::Switch, "rw0a1b2c-datapath/switch"),
        (Leaf::Guest(vm()), guest),
    ] {
        assert_eq!(tree.path(group), at(path));
    }
}

#[test]
fn the_tree_is_this_in_version_1() {
    let root = v1();
    let tree = SliceTree::find(root.path(), NAME).unwrap();
    let at = |path: &str| root.path().join("sys/fs/cgroup/cpu").join(path);
    let write = |path: &str, text: &str| CgroupOp::Write(at(path), text.to_owned());
    let made = ["control", "datapath", "guests"].map(|name| at(&format!("rw0a1b2c-{name}")));
    assert_eq!(tree.slices(), made.map(CgroupOp::Make));
    assert_eq!(
        Slice::ALL.map(|slice| tree.weight(slice, Weights::default())),
        [
            write("rw0a1b2c-control/cpu.shares", "10240"),
            write("rw0a1b2c-datapath/cpu.shares", "2048"),
            write("rw0a1b2c-guests/cpu.shares", "1024"),
        ]
    );
    let odd = Weights { control: WEIGHT_MAX, datapath: 1, guests: 33 };
    let shares = Slice::ALL.map(|slice| match tree.weight(slice, odd) {
        CgroupOp::Write(_, shares) => shares.parse::<u32>().unwrap(),
        other => panic!("{other:?}"),
    });
    // The kernel accepts 2 to 262,144.
    assert_eq!(shares, [102_400, 10, 337]);
}

#[test]
fn a_tree_is_made_joined_and_changed_in_version_2() {
    let root = v2();
    let tree = SliceTree::find(root.path(), NAME).unwrap();
    assert!(matches!(tree.set(Weights::default()), Err(CgroupError::Os { doing: "write", .. })));
    kernel_makes(&tree, &["cpu.weight", "cgroup.subtree_control", PROCESSES]);
    assert_eq!(tree.weights(), None);
    for _ in 0..2 {
        tree.make().unwrap();
        tree.set(Weights::default()).unwrap();
    }
    assert_eq!(tree.weights(), Some(Weights::default()));
    assert_eq!(text(&root, "cgroup.subtree_control"), "+cpu");
    assert_eq!(text(&root, "rw0a1b2c-guests/cgroup.subtree_control"), "+cpu");
    assert_eq!(text(&root, "rw0a1b2c-control/cpu.weight"), "1000");
    tree.set(Weights { control: 500, datapath: 20, guests: 10 }).unwrap();
    assert_eq!(text(&root, "rw0a1b2c-control/cpu.weight"), "500");
    assert_eq!(text(&root, "rw0a1b2c-guests/cpu.weight"), "10");
    tree.add(Leaf::Guest(vm())).unwrap();
    tree.join(Leaf::Guest(vm()), 4242).unwrap();
    tree.join(Leaf::Daemon, 17).unwrap();
    assert_eq!(text(&root, "rw0a1b2c-control/daemon/cgroup.procs"), "17");
    let error = tree.remove(Leaf::Guest(vm())).unwrap_err();
    assert!(error.to_string().contains("by process 4242"), "{error}");
    let sr = Leaf::Datapath(sr());
    let all = [Leaf::Daemon, Leaf::Clients, sr, Leaf::Switch, Leaf::Guest(vm())];
    assert_eq!(tree.leaves().unwrap(), all);
}

#[test]
fn what_is_handed_down_already_is_left_alone() {
    let root = v2();
    let file = base(&root).join("cgroup.subtree_control");
    put(&file, "cpu memory\n");
    v2::hand_down(&base(&root)).unwrap();
    assert_eq!(std::fs::read_to_string(file).unwrap(), "cpu memory\n");
    let missing = v2::hand_down(&base(&root).join("missing")).unwrap_err();
    assert!(matches!(missing, CgroupError::Os { doing: "read", .. }), "{missing}");
}

#[test]
fn weights_have_bounds() {
    let root = v1();
    let tree = SliceTree::find(root.path(), NAME).unwrap();
    kernel_makes(&tree, &["cpu.shares"]);
    let usual = Weights::default();
    for bad in [
        Weights { control: 0, ..usual },
        Weights { datapath: WEIGHT_MAX + 1, ..usual },
        Weights { guests: u32::MAX, ..usual },
    ] {
        assert!(matches!(tree.set(bad), Err(CgroupError::Weight { .. })), "{bad:?}");
    }
    assert_eq!(text(&root, "rw0a1b2c-control/cpu.shares"), "", "nothing was written");
}

#[test]
fn leaves_of_others_are_not_ours() {
    let root = v1();
    let tree = SliceTree::find(root.path(), NAME).unwrap();
    assert_eq!(tree.leaves().unwrap(), []);
    for odd in ["rw0a1b2c-guests/other", "rw0a1b2c-control/x", "rw0a1b2d-control/daemon"] {
        std::fs::create_dir_all(base(&root).join(odd)).unwrap();
    }
    std::fs::create_dir(tree.path(Leaf::Guest(vm()))).unwrap();
    assert_eq!(tree.leaves().unwrap(), [Leaf::Guest(vm())]);
    tree.remove(Leaf::Guest(vm())).unwrap();
    tree.remove(Leaf::Guest(vm())).unwrap();
    let error = tree.clear().unwrap_err();
    assert!(matches!(&error, CgroupError::Busy { pids, .. } if pids.is_empty()), "{error}");
    assert!(error.to_string().contains("groups below it"), "{error}");
}

#[test]
fn whoever_is_elsewhere_is_put_into_a_leaf() {
    // No process has this id, so the tests change no process of the host.
    const NOBODY: u32 = i32::MAX as u32;
    let root = v1();
    let tree = SliceTree::find(root.path(), NAME).unwrap();
    kernel_makes(&tree, &[PROCESSES]);
    let (guest, file) = (Leaf::Guest(vm()), tree.path(Leaf::Guest(vm())).join(PROCESSES));
    assert!(tree.ensure_member(guest, NOBODY).unwrap());
    assert!(!tree.ensure_member(guest, NOBODY).unwrap());
    put(&file, "41\n43\n");
    assert!(tree.ensure_member(guest, NOBODY).unwrap());
    assert_eq!(std::fs::read_to_string(file).unwrap(), NOBODY.to_string());
    assert!(tree.join_file(guest).ends_with("tasks"));
    assert!(SliceTree::find(v2().path(), NAME).unwrap().join_file(guest).ends_with(PROCESSES));
}

#[test]
fn leaves_of_who_is_gone_are_swept() {
    let root = v1();
    let tree = SliceTree::find(root.path(), NAME).unwrap();
    tree.make().unwrap();
    let [there, gone] = [3, 4].map(|byte| Leaf::Guest(VmId(id(byte))));
    for group in [there, gone, Leaf::Datapath(sr()), Leaf::Switch] {
        tree.add(group).unwrap();
    }
    put(&tree.path(there).join(PROCESSES), "42\n");
    assert_eq!(tree.sweep().unwrap(), [Leaf::Datapath(sr()), Leaf::Switch, gone]);
    assert_eq!(tree.leaves().unwrap(), [Leaf::Daemon, Leaf::Clients, there]);
    let home = base(&root).join("home");
    assert!(!tree.tear_down(&home).unwrap(), "a machine is there");
    std::fs::remove_file(tree.path(there).join(PROCESSES)).unwrap();
    assert!(tree.tear_down(&home).unwrap());
    assert!(tree.leaves().unwrap().is_empty() && !base(&root).join("rw0a1b2c-control").exists());
}

#[test]
fn where_a_process_is_follows_from_its_file() {
    let one = "9:name=systemd:/x\n4:memory:/m\n3:cpuset:/s\n1:cpuacct,cpu:/a/b:c\n0::/u\n";
    assert_eq!(v1::path(one), Some("/a/b:c"));
    assert_eq!(v2::path(one), Some("/u"));
    assert_eq!((v1::path("0::/u\n"), v2::path("1:cpu:/\n")), (None, None));
}

/// Creates a host with systemd whose units are started.
fn with_units(two: bool) -> tempfile::TempDir {
    let root = if two { v2() } else { v1() };
    std::fs::create_dir_all(root.path().join(units::BOOTED)).unwrap();
    for slice in Slice::ALL {
        let folder = units::folder(&base(&root), slice);
        put(&folder.join("cgroup.subtree_control"), "");
        let file = if two { "cpu.weight" } else { "cpu.shares" };
        put(&folder.parent().unwrap().join(file), "100\n");
    }
    root
}

#[test]
fn the_tree_is_in_units_where_systemd_manages_it() {
    let root = with_units(true);
    let refused = SliceTree::find(root.path(), NAME).unwrap_err();
    assert!(refused.to_string().contains("packaging/systemd"), "{refused}");
    let tree = SliceTree::find(root.path(), INSTANCE).unwrap();
    let at = |path: &str| root.path().join("sys/fs/cgroup").join(path);
    let group = |slice| at(&format!("ringway{slice}.slice/ringway-group@{slice}.service"));
    let steps = |slice| [CgroupOp::MoveDown(group(slice)), CgroupOp::HandDown(group(slice))];
    assert_eq!(tree.slices(), ["control", "datapath", "guests"].map(steps).concat());
    assert_eq!(
        tree.weight(Slice::Datapath, Weights::default()),
        CgroupOp::Property {
            systemctl: root.path().join("usr/bin/systemctl"),
            unit: "ringwaydatapath.slice".into(),
            weight: 200,
            file: at("ringwaydatapath.slice/cpu.weight"),
            text: "200".into(),
        }
    );
    put(&group("guests").join(PROCESSES), "77\n");
    put(&group("guests").join("holder").join(PROCESSES), "");
    tree.make().unwrap();
    assert_eq!(
        text(&root, "ringwayguests.slice/ringway-group@guests.service/holder/cgroup.procs"),
        "77"
    );
    assert!(
        text(&root, "ringwayguests.slice/ringway-group@guests.service/cgroup.subtree_control")
            == "+cpu"
    );
    assert_eq!(tree.leaves().unwrap(), [Leaf::Daemon, Leaf::Clients]);
    assert!(group("control").join("clients").is_dir());
    tree.clear().unwrap();
    assert!(group("control").is_dir(), "it is systemd's");
}

#[test]
fn systemd_is_asked_for_weights_that_a_slice_does_not_have() {
    let root = with_units(false);
    let tree = SliceTree::find(root.path(), INSTANCE).unwrap();
    let weights = Weights { control: 1000, datapath: 200, guests: 100 };
    let none = tree.set(weights).unwrap_err();
    assert!(none.to_string().contains("ringwaycontrol.slice"), "{none}");
    let (systemctl, output) = (root.path().join("usr/bin/systemctl"), root.path().join("said"));
    std::fs::create_dir_all(systemctl.parent().unwrap()).unwrap();
    let script = format!("echo \"$@\" >>{}", output.display());
    testkit::process::write_script(&systemctl, &script).unwrap();
    put(&base(&root).join("ringwaydatapath.slice/cpu.shares"), "2048\n");
    tree.set(weights).unwrap();
    let ask = "set-property --runtime --no-ask-password";
    let two = ["control.slice CPUWeight=1000", "guests.slice CPUWeight=100"];
    let two = two.map(|what| format!("{ask} ringway{what}\n")).concat();
    assert_eq!(std::fs::read_to_string(output).unwrap(), two);
    testkit::process::write_script(&systemctl, "echo no bus >&2; exit 1").unwrap();
    let refused = tree.set(weights).unwrap_err();
    assert!(refused.to_string().ends_with("weight: no bus"), "{refused}");
}
