use model::id::{SrId, Uuid, VmId};

use super::group::WEIGHT_MAX;
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

/// A root whose hierarchy has these files, with what is in them.
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

/// Files that the kernel makes with each group.
fn kernel_makes(tree: &Tree, files: &[&str]) {
    let slices = Slice::ALL.map(|slice| tree.folder(slice));
    let leaves = [Group::Daemon, Group::Clients, Group::Datapath(sr()), Group::Guest(vm())];
    for folder in slices.into_iter().chain(leaves.map(|leaf| tree.path(leaf))) {
        files.iter().for_each(|file| put(&folder.join(file), ""));
    }
}

fn text(tree: &Tree, file: &str) -> String {
    std::fs::read_to_string(tree.base.join(file)).unwrap()
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
    let find = |root: &tempfile::TempDir, name: &str| Tree::find(root.path(), name).unwrap_err();
    assert!(matches!(find(&root(&[]), NAME), CgroupError::NoController));
    let managed = v2();
    std::fs::create_dir_all(managed.path().join(SYSTEMD)).unwrap();
    assert!(matches!(find(&managed, NAME), CgroupError::Managed));
    let long = "a".repeat(NAME_BYTES_MAX + 1);
    for name in ["", "..", "a/b", "A", "a-b", "a b", "é", &long] {
        assert!(matches!(find(&v2(), name), CgroupError::Name { .. }), "{name}");
    }
    assert!(Tree::find(v2().path(), &long[1..]).is_ok());
}

#[test]
fn the_tree_is_this_in_version_2() {
    let root = v2();
    let tree = Tree::find(root.path(), NAME).unwrap();
    let at = |path: &str| root.path().join("sys/fs/cgroup").join(path);
    let write = |path: &str, text: &str| Step::Write(at(path), text.to_owned());
    assert_eq!(
        tree.slices(Weights::default()),
        [
            Step::HandDown(at("")),
            Step::Make(at("rw0a1b2c-control")),
            write("rw0a1b2c-control/cpu.weight", "1000"),
            Step::HandDown(at("rw0a1b2c-control")),
            Step::Make(at("rw0a1b2c-datapath")),
            write("rw0a1b2c-datapath/cpu.weight", "200"),
            Step::HandDown(at("rw0a1b2c-datapath")),
            Step::Make(at("rw0a1b2c-guests")),
            write("rw0a1b2c-guests/cpu.weight", "100"),
            Step::HandDown(at("rw0a1b2c-guests")),
        ]
    );
    let guest = "rw0a1b2c-guests/07070707-0707-4707-8707-070707070707";
    for (group, path) in [
        (Group::Daemon, "rw0a1b2c-control/daemon"),
        (Group::Clients, "rw0a1b2c-control/clients"),
        (Group::Datapath(sr()), "rw0a1b2c-datapath/09090909-0909-4909-8909-090909090909"),
        (Group::Guest(vm()), guest),
    ] {
        assert_eq!(tree.path(group), at(path));
    }
}

#[test]
fn the_tree_is_this_in_version_1() {
    let root = v1();
    let tree = Tree::find(root.path(), NAME).unwrap();
    let at = |path: &str| root.path().join("sys/fs/cgroup/cpu").join(path);
    let write = |path: &str, text: &str| Step::Write(at(path), text.to_owned());
    assert_eq!(
        tree.slices(Weights::default()),
        [
            Step::Make(at("rw0a1b2c-control")),
            write("rw0a1b2c-control/cpu.shares", "10240"),
            Step::Make(at("rw0a1b2c-datapath")),
            write("rw0a1b2c-datapath/cpu.shares", "2048"),
            Step::Make(at("rw0a1b2c-guests")),
            write("rw0a1b2c-guests/cpu.shares", "1024"),
        ]
    );
    let odd = Weights { control: WEIGHT_MAX, datapath: 1, guests: 33 };
    let shares = Slice::ALL.map(|slice| match tree.weight(slice, odd) {
        Step::Write(_, shares) => shares.parse::<u32>().unwrap(),
        other => panic!("{other:?}"),
    });
    // What the kernel takes is 2 to 262,144.
    assert_eq!(shares, [102_400, 10, 337]);
}

#[test]
fn a_tree_is_made_joined_and_changed_in_version_2() {
    let root = v2();
    let tree = Tree::find(root.path(), NAME).unwrap();
    assert!(matches!(tree.set(Weights::default()), Err(CgroupError::Os { doing: "write", .. })));
    kernel_makes(&tree, &["cpu.weight", "cgroup.subtree_control", PROCESSES]);
    tree.make(Weights::default()).unwrap();
    tree.make(Weights::default()).unwrap();
    assert_eq!(text(&tree, "cgroup.subtree_control"), "+cpu");
    assert_eq!(text(&tree, "rw0a1b2c-guests/cgroup.subtree_control"), "+cpu");
    assert_eq!(text(&tree, "rw0a1b2c-control/cpu.weight"), "1000");
    tree.set(Weights { control: 500, datapath: 20, guests: 10 }).unwrap();
    assert_eq!(text(&tree, "rw0a1b2c-control/cpu.weight"), "500");
    assert_eq!(text(&tree, "rw0a1b2c-guests/cpu.weight"), "10");
    tree.add(Group::Guest(vm())).unwrap();
    tree.join(Group::Guest(vm()), 4242).unwrap();
    tree.join(Group::Daemon, 17).unwrap();
    assert_eq!(text(&tree, "rw0a1b2c-control/daemon/cgroup.procs"), "17");
    let error = tree.remove(Group::Guest(vm())).unwrap_err();
    assert!(error.to_string().contains("by process 4242"), "{error}");
    let all = [Group::Daemon, Group::Clients, Group::Datapath(sr()), Group::Guest(vm())];
    assert_eq!(tree.leaves().unwrap(), all);
}

#[test]
fn what_is_handed_down_already_is_left_alone() {
    let root = v2();
    let tree = Tree::find(root.path(), NAME).unwrap();
    let file = tree.base.join("cgroup.subtree_control");
    put(&file, "cpu memory\n");
    v2::hand_down(&tree.base).unwrap();
    assert_eq!(std::fs::read_to_string(file).unwrap(), "cpu memory\n");
    let missing = v2::hand_down(&tree.base.join("missing")).unwrap_err();
    assert!(matches!(missing, CgroupError::Os { doing: "read", .. }), "{missing}");
}

#[test]
fn weights_have_bounds() {
    let root = v1();
    let tree = Tree::find(root.path(), NAME).unwrap();
    kernel_makes(&tree, &["cpu.shares"]);
    let usual = Weights::default();
    for bad in [
        Weights { control: 0, ..usual },
        Weights { datapath: WEIGHT_MAX + 1, ..usual },
        Weights { guests: u32::MAX, ..usual },
    ] {
        assert!(matches!(tree.set(bad), Err(CgroupError::Weight { .. })), "{bad:?}");
        assert!(matches!(tree.make(bad), Err(CgroupError::Weight { .. })), "{bad:?}");
    }
    assert_eq!(text(&tree, "rw0a1b2c-control/cpu.shares"), "", "nothing was written");
}

#[test]
fn leaves_of_others_are_not_ours() {
    let root = v1();
    let tree = Tree::find(root.path(), NAME).unwrap();
    assert_eq!(tree.leaves().unwrap(), []);
    for odd in ["rw0a1b2c-guests/other", "rw0a1b2c-control/x", "rw0a1b2d-control/daemon"] {
        std::fs::create_dir_all(tree.base.join(odd)).unwrap();
    }
    std::fs::create_dir(tree.path(Group::Guest(vm()))).unwrap();
    assert_eq!(tree.leaves().unwrap(), [Group::Guest(vm())]);
    tree.remove(Group::Guest(vm())).unwrap();
    tree.remove(Group::Guest(vm())).unwrap();
    let error = tree.clear().unwrap_err();
    assert!(matches!(&error, CgroupError::Busy { pids, .. } if pids.is_empty()), "{error}");
    assert!(error.to_string().contains("groups below it"), "{error}");
}
