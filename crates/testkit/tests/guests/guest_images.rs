//! A guest keeps a file system on a qcow2 image over a base, while the process that serves it is
//! killed again and again.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use testkit::guest::{Guest, Kind, Machine, VhostDisk};
use testkit::process::{RestartingDisk, RestartingServer, ServerProgram, Target, find_tool};
use testkit::rounds;

const DEADLINE: Duration = Duration::from_secs(300);
const DISK_BYTES: u64 = 64 << 20;

/// Guest script that changes files of the base and makes others, pass after pass, until a line on
/// the console ends it. It prints what the files must contain.
const SCRIPT: &str = r#"
set -e
modprobe ext4
mkdir -p /mnt
mount $(disk RINGWAY) /mnt
(read stop </dev/console; touch /tmp/stop) &
n=0
while [ ! -e /tmp/stop ]; do
    n=$((n + 1))
    dd if=/dev/urandom of=/mnt/new$((n % 5)) bs=300k count=5 2>/dev/null
    dd if=/dev/urandom of=/mnt/base bs=4k count=7 seek=$((n * 37 % 1000)) conv=notrunc 2>/dev/null
    [ $((n % 3)) != 0 ] || rm /mnt/new$((n % 5))
    [ $((n % 4)) != 0 ] || sync
    sha256sum /mnt/base >/tmp/before
    echo 3 >/proc/sys/vm/drop_caches
    sha256sum -c -s /tmp/before
    echo "pass $n"
done
umount /mnt
mount $(disk RINGWAY) /mnt
cd /mnt
sha256sum base new* | sed 's/^/file: /'
cd /
umount /mnt
dmesg | grep -i -E 'I/O error|EXT4-fs error|critical .* error|Buffer I/O|reset' && exit 2
exit 0
"#;

fn run(program: &str, words: &[&str]) -> Vec<u8> {
    let output = Command::new(program).args(words).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {words:?}: {text}");
    output.stdout
}

fn path(dir: &Path, name: &str) -> String {
    dir.join(name).display().to_string()
}

#[test]
fn a_file_system_on_a_qcow2_image_survives_killed_workers() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let [base, top, raw, files] =
        ["base.raw", "top.qcow2", "exported.raw", "files"].map(|name| path(dir.path(), name));
    std::fs::create_dir(&files).unwrap();
    let content: Vec<_> = (0..4_u32 << 20).map(|at| (at / 4096 * 31 + at % 251) as u8).collect();
    std::fs::write(path(files.as_ref(), "base"), content).unwrap();
    std::fs::File::create(&base).unwrap().set_len(DISK_BYTES).unwrap();
    let make = find_tool("mkfs.ext4", "e2fsprogs").unwrap().display().to_string();
    run(&make, &["-q", "-F", "-d", &files, &base]);
    let before = std::fs::read(&base).unwrap();
    let options = "extended_l2=on,cluster_size=64k";
    run(
        "qemu-img",
        &["create", "-q", "-f", "qcow2", "-o", options, "-b", &base, "-F", "raw", &top],
    );

    let tree = serde_json::json!({"qcow2": {"file": top, "backing": {"file": base}}});
    let (program, target) = (ServerProgram::Io, Target::Tree(tree));
    let disk = RestartingDisk { program, target, queues: 2, cache: "writeback" };
    let mut server = RestartingServer::start(&disk).unwrap();
    let disks = vec![VhostDisk { socket: server.socket(), queues: 2 }];
    let machine = Machine { disks, cpus: 2, ..Machine::default() };
    let mut guest = Guest::start(Kind::Qemu, &machine, SCRIPT).unwrap();
    guest.wait_for("pass ", DEADLINE).unwrap();
    for _ in 0..rounds(5, 50) {
        guest.skip();
        server.serving().unwrap().kill().unwrap();
        guest.wait_for("pass ", DEADLINE).unwrap();
    }
    guest.type_in("stop\n").unwrap();
    let outcome = guest.finish(DEADLINE).unwrap();
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    let ended = server.process().terminate().unwrap();
    assert!(ended.success(), "{ended}: {}", server.process().stderr());

    run("qemu-img", &["convert", "-f", "qcow2", "-O", "raw", &top, &raw]);
    run(&find_tool("e2fsck", "e2fsprogs").unwrap().display().to_string(), &["-fn", &raw]);
    let told: Vec<_> =
        outcome.output.lines().filter_map(|line| line.trim().strip_prefix("file: ")).collect();
    assert!(told.len() > 2, "{}", outcome.output);
    let debugfs = find_tool("debugfs", "e2fsprogs").unwrap().display().to_string();
    for (sum, name) in told.iter().filter_map(|line| line.split_once("  ")) {
        let file = path(files.as_ref(), name);
        run(&debugfs, &["-R", &format!("dump {name} {file}"), &raw]);
        let found = String::from_utf8(run("sha256sum", &[&file])).unwrap();
        assert!(found.starts_with(sum), "{name}: {found}, not {sum}");
    }
    assert!(std::fs::read(&base).unwrap() == before, "the base has changed");
}
