//! `ringway image`, with a `ringway-io` of its own and with a running one.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::served::{RINGWAY, Served};

/// Runs `ringway image` with these words in a directory, without a running `ringway-io`.
fn image(dir: &Path, words: &str) -> Output {
    let mut command = Command::new(RINGWAY);
    command.arg("image").args(words.split(' ')).current_dir(dir).stdin(Stdio::null());
    command.env_remove("RINGWAY_CONTROL").env("XDG_RUNTIME_DIR", dir);
    command.output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn an_image_is_created_shown_checked_and_mapped_without_a_running_ringway_io() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("base.raw"), [7; 4096]).unwrap();
    let create = "create a.qcow2 10G --format qcow2 --backing base.raw --backing-format raw";
    let created = image(dir.path(), create);
    assert!(created.status.success(), "{created:?}");
    assert!(stdout(&created).contains("base.raw (raw)"), "{created:?}");
    let info = image(dir.path(), "info a.qcow2 --format qcow2");
    assert!(stdout(&info).contains("10 GiB (10737418240 bytes)"), "{info:?}");
    let check = image(dir.path(), "check a.qcow2 --format qcow2");
    assert_eq!(check.status.code(), Some(0), "{check:?}");
    assert!(stdout(&check).starts_with("0 errors, 0 leaked"), "{check:?}");
    let map = image(dir.path(), "map a.qcow2 --format qcow2 --json");
    let map: Value = serde_json::from_slice(&map.stdout).unwrap();
    assert_eq!(map["extents"][0]["kind"], "unallocated");
    assert_eq!(map["extents"][0]["bytes"], 10u64 << 30);
    let text = image(dir.path(), "map a.qcow2 --format qcow2");
    assert!(stdout(&text).contains("10737418240"), "{text:?}");
    let left: Vec<_> = dir.path().read_dir().unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "the private ringway-io leaves nothing: {left:?}");
}

/// JSON carries UTF-8 only, and calls are JSON.
#[test]
fn a_path_that_is_not_utf_8_is_an_error() {
    use std::os::unix::ffi::OsStrExt as _;
    let outside = tempfile::tempdir().unwrap();
    let dir = outside.path().join(std::ffi::OsStr::from_bytes(b"\xff"));
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("a"), [7; 4096]).unwrap();
    for words in [
        "info a --format raw",
        "check a --format qcow2",
        "map a --format qcow2",
        "create b 1M --format qcow2",
        "convert a b --format raw --to qcow2",
        "resize a 8K --format raw",
    ] {
        let output = image(&dir, words);
        assert_eq!(output.status.code(), Some(1), "{words}: {output:?}");
        assert!(stderr(&output).contains("UTF-8"), "{words}: {output:?}");
    }
    let mut command = Command::new(RINGWAY);
    command.args(["calibrate", "."]).current_dir(&dir).env("XDG_RUNTIME_DIR", outside.path());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("UTF-8"), "{output:?}");
}

#[test]
fn the_exit_code_says_what_a_check_found() {
    let dir = tempfile::tempdir().unwrap();
    let create = image(dir.path(), "create a.qcow2 1M --format qcow2");
    assert!(create.status.success(), "{create:?}");
    let set = |offset: u64, bytes: &[u8]| {
        let file = std::fs::OpenOptions::new().write(true).open(dir.path().join("a.qcow2"));
        std::os::unix::fs::FileExt::write_all_at(&file.unwrap(), bytes, offset).unwrap();
    };
    // Refcount of the L1 table, in the block behind header and refcount table.
    set(2 * 65536 + 3 * 2, &[0, 2]);
    let leak = image(dir.path(), "check a.qcow2 --format qcow2");
    assert_eq!(leak.status.code(), Some(3), "{leak:?}");
    assert!(stdout(&leak).contains("--repair-leaks"), "{leak:?}");
    let repaired = image(dir.path(), "check a.qcow2 --format qcow2 --repair-leaks");
    assert_eq!(repaired.status.code(), Some(0), "{repaired:?}");
    set(2 * 65536 + 3 * 2, &[0, 0]);
    let error = image(dir.path(), "check a.qcow2 --format qcow2");
    assert_eq!(error.status.code(), Some(4), "{error:?}");
    assert!(stdout(&error).contains("qemu-img"), "{error:?}");
    let refused = image(dir.path(), "check a.qcow2 --format qcow2 --repair-leaks");
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
}

#[test]
fn the_format_and_the_path_are_required_and_checked() {
    let dir = tempfile::tempdir().unwrap();
    let cases = [
        ("info a.qcow2", 2, "--format <qcow2|vhd|raw>"),
        ("info a.qcow2 --format vmdk", 2, "not raw, qcow2 or vhd"),
        ("create a.qcow2 lots --format qcow2", 2, "use K, M, G or T"),
        ("create a.qcow2 1G --format qcow2 --backing b", 2, "--backing-format"),
        ("check a.qcow2 --format qcow2 --timeout 25h", 2, "24h"),
        ("info a.qcow2 --format qcow2", 1, "No such file"),
        ("create a.qcow2 65T --format qcow2", 1, "64 TiB"),
    ];
    for (words, code, says) in cases {
        let output = image(dir.path(), words);
        assert_eq!(output.status.code(), Some(code), "{words}: {output:?}");
        assert!(stderr(&output).contains(says), "{words}: {}", stderr(&output));
    }
}

#[test]
fn a_running_ringway_io_does_the_work_if_it_is_named() {
    let served = Served::start(&[]);
    let path = served.socket("a.qcow2");
    let path = path.to_str().unwrap();
    served.stdout(&["image", "create", path, "1G", "--format", "qcow2"]);
    let json = served.stdout(&["image", "info", path, "--format", "qcow2", "--json"]);
    let info: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(info["size_bytes"], 1u64 << 30);
    let missing = served.socket("missing");
    let words = ["image", "--control", missing.to_str().unwrap()];
    let mut command = Command::new(RINGWAY);
    command.args(words).args(["info", path, "--format", "qcow2"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("no ringway-io answers"), "{}", stderr(&output));
}

#[test]
fn disks_are_copied_and_snapshots_made_without_a_running_ringway_io() {
    let dir = tempfile::tempdir().unwrap();
    let content: Vec<u8> = (0..1 << 20).map(|at| (at / 4096 % 3) as u8).collect();
    std::fs::write(dir.path().join("a.raw"), &content).unwrap();
    let converted = image(dir.path(), "convert a.raw b.qcow2 --format raw --to qcow2");
    assert!(converted.status.success(), "{converted:?}");
    assert!(stdout(&converted).contains("1 MiB (1048576 bytes)"), "{converted:?}");
    let snapshot = image(dir.path(), "snapshot b.qcow2 c.qcow2 --format qcow2");
    assert!(snapshot.status.success(), "{snapshot:?}");
    assert!(stdout(&snapshot).contains("b.qcow2 (qcow2)"), "{snapshot:?}");
    let words = "convert c.qcow2 d.raw --format qcow2 --to raw";
    let refused = image(dir.path(), words);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(stderr(&refused).contains("--backing"), "{refused:?}");
    let back = image(dir.path(), &format!("{words} --backing b.qcow2 --backing-format qcow2"));
    assert!(back.status.success(), "{back:?}");
    assert!(std::fs::read(dir.path().join("d.raw")).unwrap() == content);
    let snapshot = image(dir.path(), "snapshot c.qcow2 e.qcow2 --format qcow2");
    assert!(snapshot.status.success(), "{snapshot:?}");
    let chain = image(
        dir.path(),
        "convert e.qcow2 f.raw --format qcow2 --to raw --backing c.qcow2 --backing-format qcow2 \
         --backing b.qcow2 --backing-format qcow2",
    );
    assert!(chain.status.success(), "{chain:?}");
    assert!(std::fs::read(dir.path().join("f.raw")).unwrap() == content);
}

#[test]
fn vhds_are_created_converted_checked_and_put_over_others() {
    let dir = tempfile::tempdir().unwrap();
    let content: Vec<u8> = (0..3 << 20).map(|at: u32| (at >> 9) as u8).collect();
    std::fs::write(dir.path().join("a.raw"), &content).unwrap();
    let done = |words: &str| {
        let output = image(dir.path(), words);
        assert!(output.status.success(), "{words}: {output:?}");
        stdout(&output)
    };
    let text = done("convert a.raw a.vhd --format raw --to vhd");
    assert!(text.contains("type         dynamic"), "{text}");
    let text = done("snapshot a.vhd b.vhd --format vhd --to vhd");
    assert!(text.contains("parent       a.vhd ("), "{text}");
    let text = done("create c.vhd 3M --format vhd --fixed");
    assert!(text.contains("type         fixed"), "{text}");
    assert!(done("check a.vhd --format vhd").starts_with("0 errors, 0 leaked"));
    assert!(done("map b.vhd --format vhd").contains("unallocated"));
    let below = "--backing a.vhd --backing-format vhd";
    done(&format!("convert b.vhd b.raw --format vhd --to raw {below}"));
    assert!(std::fs::read(dir.path().join("b.raw")).unwrap() == content);
    let below = below.replace("a.vhd", "c.vhd");
    let refused = image(dir.path(), &format!("convert b.vhd d --format vhd --to raw {below}"));
    assert!(stderr(&refused).contains("give the image with that identity"), "{refused:?}");
    let refused = image(dir.path(), "create d.raw 3M --format raw --fixed");
    assert!(stderr(&refused).contains("a fixed image is a VHD"), "{refused:?}");
}

#[test]
fn disks_grow_with_zeroes_and_never_shrink() {
    let dir = tempfile::tempdir().unwrap();
    let done = |words: &str| {
        let output = image(dir.path(), words);
        assert!(output.status.success(), "{words}: {output:?}");
        stdout(&output)
    };
    let fails = |words: &str, says: &str| {
        let output = image(dir.path(), words);
        assert_eq!(output.status.code(), Some(1), "{words}: {output:?}");
        assert!(stderr(&output).contains(says), "{words}: {output:?}");
    };
    let mut content = vec![7; 3 << 20];
    std::fs::write(dir.path().join("base.raw"), &content).unwrap();
    let below = "--backing base.raw --backing-format raw";
    for (name, create) in [("a.qcow2", format!("2M {below}")), ("b.vhd", "2M".to_owned())] {
        let format = name.split_once('.').unwrap().1;
        let has_below = format == "qcow2";
        let below = if has_below { below } else { "" };
        done(&format!("create {name} {create} --format {format}"));
        let text = done(format!("resize {name} 4M --format {format} {below}").trim_end());
        assert!(text.contains("4 MiB"), "{text}");
        done(format!("convert {name} {name}.raw --format {format} --to raw {below}").trim_end());
        content.fill(0);
        content.resize(4 << 20, 0);
        content[..2 << 20].fill(if has_below { 7 } else { 0 });
        assert!(std::fs::read(dir.path().join(format!("{name}.raw"))).unwrap() == content);
        fails(format!("resize {name} 3M --format {format} {below}").trim_end(), "cannot shrink");
    }
    assert!(done("resize base.raw 4M --format raw").contains("4 MiB"));
    fails("resize base.raw 3M --format raw", "becomes larger");
    fails("resize none.raw 3M --format raw", "No such file");
    fails("resize base.raw 5M --format qcow2", "not a qcow2 image");
}
