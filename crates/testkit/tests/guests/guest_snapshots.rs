//! A guest verifies what it writes to a file system, while snapshots of its disk are taken and the
//! process that serves it is killed. Then its disk is the same in every way to read it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::guest::{Guest, Kind, Machine, VhostDisk};
use testkit::process::{RingwayIo, Target, eventually, find_tool};
use testkit::rounds;

/// Far longer than any boot and pass of fio, also on a busy host.
const DEADLINE: Duration = Duration::from_secs(300);
const DISK_BYTES: u64 = 16 << 20;
/// Exit code of `qemu-img check` for leaked clusters and no errors.
const LEAKS: i32 = 3;

/// Guest script that writes a file with checksums and reads it back, pass after pass, until a line
/// on the console ends it. Then it prints the digest of its whole disk.
const SCRIPT: &str = r#"
set -e
modprobe ext4
D=$(disk RINGWAY)
mkdir -p /mnt
mount $D /mnt
(read stop </dev/console; touch /tmp/stop) &
n=0
while [ ! -e /tmp/stop ]; do
    n=$((n + 1))
    fio --name=pass --directory=/mnt --rw=randwrite --bsrange=4k-64k --size=4m --randseed=$n \
        --verify=crc32c --verify_fatal=1 --verify_state_save=0 --direct=1 --ioengine=libaio \
        --iodepth=16 --fdatasync=64 --thread --eta=never --output=/tmp/fio.log \
        || { cat /tmp/fio.log; exit 1; }
    echo "pass $n"
done
umount /mnt
echo 3 >/proc/sys/vm/drop_caches
echo "disk: $(sha256sum <$D)"
dmesg | grep -i -E 'I/O error|EXT4-fs error|critical .* error|Buffer I/O|reset|timed out' && exit 2
exit 0
"#;

fn output(program: &Path, words: &[&str]) -> std::process::Output {
    Command::new(program).args(words).output().unwrap()
}

fn run(program: &Path, words: &[&str]) -> String {
    let output = output(program, words);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program:?} {words:?}: {text}");
    String::from_utf8_lossy(&output.stdout).into()
}

/// Returns the digest of a file, as `sha256sum` prints it.
fn digest(file: &Path) -> String {
    let text = run("sha256sum".as_ref(), &[file.to_str().unwrap()]);
    text.split_whitespace().next().unwrap_or_default().to_owned()
}

/// Calls `ringway-io` with these parameters.
fn call(io: &RingwayIo, method: &str, params: &Value) -> Value {
    let reply = io.ringway(&["io", method, &params.to_string()]).unwrap();
    serde_json::from_str(&reply).unwrap()
}

/// Layers of the disk `d`, the base first.
struct Layers {
    folder: tempfile::TempDir,
    files: Vec<PathBuf>,
    /// Digests of the layers that must not change any more.
    frozen: Vec<String>,
}

impl Layers {
    /// Creates a file system in a raw base, and a qcow2 image over it.
    fn create(io: &RingwayIo) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (base, top) = (folder.path().join("base.raw"), folder.path().join("0.qcow2"));
        std::fs::File::create(&base).unwrap().set_len(DISK_BYTES).unwrap();
        let make = find_tool("mkfs.ext4", "e2fsprogs").unwrap();
        run(&make, &["-q", "-F", base.to_str().unwrap()]);
        let backing = json!({"file": base, "format": "raw"});
        let image = json!({"path": top, "format": "qcow2", "size": DISK_BYTES, "backing": backing});
        call(io, "image.create", &image);
        let frozen = vec![digest(&base)];
        Self { folder, files: vec![base, top], frozen }
    }

    fn tree(&self) -> Value {
        let mut files = self.files.iter();
        let base = json!({"file": files.next()});
        files.fold(base, |backing, file| json!({"qcow2": {"file": file, "backing": backing}}))
    }

    /// Takes a snapshot of the running disk.
    fn snapshot(&mut self, io: &RingwayIo) {
        let file = self.folder.path().join(format!("{}.qcow2", self.files.len()));
        call(io, "disk.snapshot", &json!({"disks": [{"id": "d", "file": file}]}));
        self.frozen.extend(self.files.last().map(|top| digest(top)));
        self.files.push(file);
    }

    /// Checks the images and their digests.
    fn check(&self) {
        for (file, digest) in self.files.iter().zip(&self.frozen) {
            assert_eq!(self::digest(file), *digest, "{} has changed", file.display());
        }
        for file in self.files.iter().skip(1) {
            let words = ["check", "-q", "-f", "qcow2", file.to_str().unwrap()];
            let code = output("qemu-img".as_ref(), &words).status.code();
            assert!(matches!(code, Some(0 | LEAKS)), "{}: {code:?}", file.display());
        }
    }
}

/// Kills the worker. Returns when its successor serves the disk.
fn kill(io: &mut RingwayIo) {
    io.kill_worker().unwrap();
    eventually("the disk is served", || {
        let disk = &call(io, "stats", &json!({}))["disks"][0];
        disk["state"] == "active" && disk["connected"] == true
    });
}

#[test]
fn a_guest_that_verifies_its_disk_sees_no_snapshot_and_no_kill() {
    let dir = tempfile::tempdir().unwrap();
    let mut io = RingwayIo::start(dir.path(), &[]).unwrap();
    let mut layers = Layers::create(&io);
    let options = ["queues=2", "cache=writeback", "serial=RINGWAY"];
    io.attach_target("d", &Target::Tree(layers.tree()), &options).unwrap();
    let disks = vec![VhostDisk { socket: io.socket("d"), queues: 2 }];
    let machine = Machine { disks, cpus: 2, ..Machine::default() };
    let mut guest = Guest::start(Kind::Qemu, &machine, SCRIPT).unwrap();
    guest.wait_for("pass ", DEADLINE).unwrap();
    for number in 0..rounds(3, 20) {
        layers.snapshot(&io);
        if number % 3 != 1 {
            kill(&mut io);
        }
        if number % 3 != 0 {
            guest.skip();
            guest.wait_for("pass ", DEADLINE).unwrap();
        }
    }
    guest.type_in("stop\n").unwrap();
    let outcome = guest.finish(DEADLINE).unwrap();
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    let line = outcome.output.lines().find_map(|line| line.trim().strip_prefix("disk: "));
    let told = line.and_then(|line| line.split_whitespace().next()).unwrap().to_owned();

    let [exported, converted] =
        ["exported", "converted"].map(|name| layers.folder.path().join(name));
    let export = json!({"id": "d", "socket": io.socket("nbd"), "read_only": true});
    call(&io, "disk.export", &export);
    let address = format!("nbd:unix:{}:exportname=d", io.socket("nbd").display());
    let raw = exported.to_str().unwrap();
    run("qemu-img".as_ref(), &["convert", "-f", "raw", "-O", "raw", &address, raw]);
    assert_eq!(digest(&exported), told, "the export");
    call(&io, "disk.detach", &json!({"id": "d"}));
    let convert = json!({"source": layers.tree(), "path": converted, "format": "raw"});
    call(&io, "image.convert", &convert);
    assert_eq!(digest(&converted), told, "the converted image");
    let e2fsck = find_tool("e2fsck", "e2fsprogs").unwrap();
    run(&e2fsck, &["-fn", converted.to_str().unwrap()]);
    layers.check();
    let ended = io.process.terminate().unwrap();
    assert!(ended.success(), "{ended}: {}", io.process.stderr());
}
