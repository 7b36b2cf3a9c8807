//! Tests of colours and names.

use super::*;
use crate::results::tests::older;

#[test]
fn a_program_has_one_colour_and_each_setting_its_shade() {
    let results = older();
    let systems = Systems::of(&results);
    let colours = |names: &[&str]| names.iter().map(|n| systems.colour(n)).collect::<Vec<_>>();
    let [blue, light, dark, _] = RINGWAY;
    let modes = ["ringway-blk --poll auto", "ringway-blk --poll off", "ringway-blk --poll always"];
    assert_eq!(colours(&modes), [blue, light, dark]);
    let files = modes.map(|name| format!("{name} --cache none"));
    assert_eq!(colours(&files.each_ref().map(String::as_str)), [blue, light, dark]);
    assert_eq!(colours(&["ringway-io", "10 disks", "guest to host, 1 pair"]), [blue, blue, light]);
    let [orange, pale, ..] = STORAGE_DAEMON;
    assert_eq!(colours(&["qsd", "qsd direct", "qemu-storage-daemon"]), [orange; 3]);
    assert_eq!(colours(&["qsd poll-max-ns=0 buffered"]), [pale]);
    assert_eq!(colours(&["guest to host, kernel TAP", "kernel TAP, bridge, TAP"]), [KERNEL[0]; 2]);
    assert_eq!(colours(&["(memcpy)", "(bare eventfd pair, asleep)"]), [REFERENCE; 2]);
    assert_eq!(colours(&["testpmd in the place of ringway-net --poll auto"]), [TESTPMD[0]]);
}

#[test]
fn other_systems_have_colours_of_their_own() {
    let mut results = older();
    let mut backend = results.cells[0].systems[0].clone();
    for name in ["spdk", "mine", "spdk"] {
        backend.name = name.to_owned();
        results.cells[0].systems.push(backend.clone());
    }
    let systems = Systems::of(&results);
    assert_eq!(["spdk", "mine"].map(|name| systems.colour(name)), OTHERS[..2]);
    assert_eq!(systems.full_name("spdk"), "spdk");
    assert!(!has_fixed_colour("spdk") && has_fixed_colour("qsd"));
    let mut all: Vec<&str> = PROGRAMS.iter().flat_map(|p| p.2).chain(OTHERS).collect();
    all.push(REFERENCE);
    all.sort_unstable();
    all.dedup();
    // Ringway's four programs share their colours, as do the two names of qemu-storage-daemon.
    assert_eq!(all.len(), 7 * 4 + OTHERS.len() + 1, "no colour has two meanings");
}

#[test]
fn names_are_full_with_versions() {
    let mut results = older();
    results.run.versions.insert("testpmd".into(), "DPDK 22.11.11".into());
    let ovs = "ovs-vswitchd-dpdk (Open vSwitch) 3.1.0, DPDK 22.11.11";
    results.run.versions.insert("ovs-dpdk".into(), ovs.into());
    let systems = Systems::of(&results);
    for (name, full) in [
        ("qsd direct", "qemu-storage-daemon 7.2.22 direct"),
        ("qsd poll-max-ns=0", "qemu-storage-daemon 7.2.22 poll-max-ns=0"),
        ("qemu-storage-daemon", "qemu-storage-daemon 7.2.22"),
        ("ringway-blk --poll auto", "ringway-blk 0.1.0 --poll auto"),
        ("fio io_uring", "fio io_uring"),
        ("testpmd, TSO", "DPDK testpmd 22.11.11, TSO"),
        ("ovs-dpdk pmd-maxsleep", "Open vSwitch 3.1.0 with DPDK pmd-maxsleep"),
        ("guest to host, kernel TAP", "guest to host, Linux 6.1.0 TAP"),
        ("beside a hung disk", "ringway-blk 0.1.0, beside a hung disk"),
        ("(memcpy)", "(memcpy)"),
    ] {
        assert_eq!(systems.full_name(name), full);
    }
    assert_eq!([number("fio-3.33"), number("unknown (1 error)")], [Some("3.33"), None]);
}
