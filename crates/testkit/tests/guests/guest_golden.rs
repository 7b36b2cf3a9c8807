//! Fifty machines on one golden image: its source serves each block once.
//!
//! Some are Linux guests whose root file system is on the golden disk. QEMU hands them a kernel and an
//! initramfs, which does no more than mount that root and switch to its `init`. The others replay the
//! reads of a recorded boot. With `make soak`, there are fifty guests, four at a time, beside the others.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::Error;
use testkit::guest::{Guest, Kind, Machine, VhostDisk, small_initramfs};
use testkit::process::{RingwayIo, Target, eventually, find_tool};
use testkit::raw::Setup;
use testkit::raw::request::{Request, status};
use testkit::rounds;

use crate::golden_servers::{BLOCK, Fault, Served, Server};

/// Far longer than any boot.
const DEADLINE: Duration = Duration::from_secs(300);
/// Reads of a boot of Debian 12: first sector and sectors.
const TRACE: &str = include_str!("../../../lab/src/golden_boot/debian12.trace");
/// Machines that replay the trace.
const REPLAYS: usize = 46;
/// Guests that run at once.
const GUESTS_AT_ONCE: usize = 4;
/// Size of the image of the trace, and of the root file system at its start.
const IMAGE_BYTES: usize = 1 << 30;
const ROOT_BYTES: u64 = 48 << 20;
const SECTOR: usize = 512;
/// Memory for blocks: less than a boot reads, so that the cache file is needed.
const RAM: u64 = 8 << 20;

/// First program of a guest, in the words of its kernel's command line.
const BEGIN: &str = "rdinit=/bin/sh -- -c \"mount -t devtmpfs dev /dev; mount -t proc proc /proc; \
                     mount -t sysfs sys /sys; modprobe -a virtio_pci virtio_blk; \
                     mount -t ext4 -o ro $(disk GOLDEN) /mnt; exec switch_root /mnt /init\"";

/// Guest script: prints the digest of a file on its root, which must be the golden disk.
const SCRIPT: &str = r#"
grep -q ' / ext4 ro' /proc/mounts || exit 3
sha256sum /data
dmesg | grep -i -E 'I/O error|EXT4-fs error|reset' && exit 2
exit 0
"#;

/// Returns the first sector and the sectors of each read.
fn trace() -> impl Iterator<Item = (usize, usize)> {
    TRACE.lines().map(|line| {
        let (sector, sectors) = line.split_once(' ').unwrap();
        (sector.parse().unwrap(), sectors.parse().unwrap())
    })
}

fn run(command: &mut Command) -> Vec<u8> {
    let output = command.stderr(Stdio::piped()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}");
    output.stdout
}

/// Returns the image and the digest of its file `/data`: a root file system, and behind it what the
/// trace reads.
fn image(dir: &Path) -> (Vec<u8>, String) {
    let (tree, root) = (dir.join("tree"), dir.join("root.raw"));
    std::fs::create_dir(&tree).unwrap();
    let packed = std::fs::File::open(small_initramfs().unwrap()).unwrap();
    let unpack = ["--extract", "--make-directories", "--quiet"];
    run(Command::new(find_tool("cpio", "cpio").unwrap())
        .args(unpack)
        .current_dir(&tree)
        .stdin(packed));
    let data: Vec<u8> =
        (0..3_u32 << 18).flat_map(|at| at.wrapping_mul(7919).to_le_bytes()).collect();
    std::fs::write(tree.join("data"), data).unwrap();
    let digest = String::from_utf8(run(Command::new("sha256sum").arg(tree.join("data")))).unwrap();
    std::fs::File::create(&root).unwrap().set_len(ROOT_BYTES).unwrap();
    let make = find_tool("mkfs.ext4", "e2fsprogs").unwrap();
    run(Command::new(make).args(["-q", "-F", "-d"]).args([&tree, &root]));
    let mut bytes = vec![0; IMAGE_BYTES];
    let root = std::fs::read(root).unwrap();
    bytes[..root.len()].copy_from_slice(&root);
    for sector in trace().flat_map(|(first, sectors)| first..first + sectors) {
        let at = sector * SECTOR;
        if at >= root.len() {
            bytes[at..at + 8].copy_from_slice(&(sector as u64).to_le_bytes());
        }
    }
    (bytes, digest.split(' ').next().unwrap().into())
}

/// A host of machines on the image, with a cache directory that stays.
struct Host<'a> {
    dir: &'a Path,
    server: &'a Server,
    digest: &'a str,
    guests: usize,
}

impl Host<'_> {
    fn start(&self) -> RingwayIo {
        let io = RingwayIo::start(self.dir, &[]).unwrap();
        let golden =
            json!({"source": self.server.source, "cache": self.dir.join("cache"), "ram": RAM});
        let target = Target::Tree(json!({ "golden": golden }));
        let guests = (0..self.guests).map(|number| format!("guest{number}"));
        for id in guests.chain((0..REPLAYS).map(|number| format!("replay{number}"))) {
            io.attach_target(&id, &target, &["serial=GOLDEN", "read_only=true"]).unwrap();
        }
        io
    }

    /// Boots all machines, the guests in turns. Calls `meanwhile` while they boot.
    fn boot_all(&self, io: &mut RingwayIo, meanwhile: impl FnOnce(&mut RingwayIo)) {
        let begin = &Barrier::new(REPLAYS);
        let sockets = |kind: &str, count| -> Vec<_> {
            (0..count).map(|number| io.socket(&format!("{kind}{number}"))).collect()
        };
        let (guests, replays) = (sockets("guest", self.guests), sockets("replay", REPLAYS));
        std::thread::scope(|scope| {
            for turn in 0..GUESTS_AT_ONCE.min(guests.len()) {
                let mine = guests.iter().skip(turn).step_by(GUESTS_AT_ONCE);
                scope.spawn(move || mine.for_each(|socket| self.boot(socket)));
            }
            for socket in &replays {
                scope.spawn(move || replay(socket, &self.server.served, begin));
            }
            meanwhile(io);
        });
    }

    /// Boots a guest from its golden disk.
    fn boot(&self, socket: &Path) {
        let initramfs = small_initramfs().unwrap().display().to_string();
        let machine = Machine {
            disks: vec![VhostDisk { socket: socket.to_owned(), queues: 1 }],
            memory_mib: 96,
            append: BEGIN.into(),
            args: vec!["-initrd".into(), initramfs],
            ..Machine::default()
        };
        let guest = Guest::start(Kind::Qemu, &machine, SCRIPT).unwrap();
        let outcome = guest.finish(DEADLINE).unwrap();
        assert_eq!(outcome.code, 0, "{}", outcome.output);
        assert!(outcome.output.contains(self.digest), "{}", outcome.output);
    }
}

/// Reads the trace. Connects again when the server was killed, as QEMU does.
fn replay(socket: &Path, served: &Served, begin: &Barrier) {
    let until = Instant::now() + DEADLINE;
    let mut guest = testkit::raw::Guest::start(socket, &Setup::default()).unwrap();
    begin.wait();
    for (sector, sectors) in trace() {
        let request = Request::read(sector as u64, (sectors * SECTOR) as u32);
        let done = loop {
            match guest.run(0, &request) {
                Ok(done) => break done,
                Err(error) => assert!(is_passing(&error) && Instant::now() < until, "{error}"),
            }
            guest = loop {
                match testkit::raw::Guest::start(socket, &Setup::default()) {
                    Ok(guest) => break guest,
                    Err(error) => assert!(is_passing(&error) && Instant::now() < until, "{error}"),
                }
            };
        };
        assert_eq!(done.status, status::OK, "sector {sector}");
        let expected = served.image.lock().unwrap();
        let expected = &expected[sector * SECTOR..(sector + sectors) * SECTOR];
        assert!(done.data == expected, "sector {sector}");
    }
}

/// Returns whether a request may end so because its server was killed, or waits for the source.
fn is_passing(error: &Error) -> bool {
    error.is_hang_up() || matches!(error, Error::Timeout { .. })
}

fn golden(io: &RingwayIo) -> Value {
    let stats: Value = serde_json::from_str(&io.ringway(&["io", "stats"]).unwrap()).unwrap();
    stats["disks"][0]["golden"].clone()
}

/// Kills the worker amid the boots. All blocks that the source has served are stored by then: one on
/// its way to a worker that dies would be served again.
fn kill_amid(io: &mut RingwayIo, served: &Served, blocks: usize) {
    eventually("half of the blocks are served", || served.totals().0 > blocks / 2);
    served.set_fault(Some(Fault::Gone));
    eventually("the machines wait for the source", || {
        let golden = golden(io);
        !golden["problem"].is_null() && golden["stored"] == served.totals().0
    });
    io.kill_worker().unwrap();
    served.set_fault(None);
}

#[test]
fn fifty_machines_fetch_each_block_of_their_image_once() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (bytes, digest) = image(dir.path());
    let server = Server::nbd(bytes);
    let served = &server.served;
    let read = trace().flat_map(|(first, sectors)| {
        first * SECTOR / BLOCK..=(first + sectors - 1) * SECTOR / BLOCK
    });
    let blocks = read.collect::<BTreeSet<_>>().len();
    let first = Host {
        dir: dir.path(),
        server: &server,
        digest: &digest,
        guests: rounds(GUESTS_AT_ONCE, 50),
    };
    let mut io = first.start();
    first.boot_all(&mut io, |io| kill_amid(io, served, blocks));
    let (fetched, most) = served.totals();
    assert!(fetched > blocks, "{fetched} blocks: the guests' root is missing");
    assert_eq!(most, 1, "the most times that a block was served");
    io.process.terminate().unwrap();
    println!("{fetched} blocks, each served once");

    // After a restart of everything, all is in the cache file; and then the source ends. The replays
    // are many machines, so one guest is enough.
    let later = Host { guests: rounds(1, GUESTS_AT_ONCE), ..first };
    for source in [None, Some(Fault::Gone)] {
        served.blocks.lock().unwrap().clear();
        served.set_fault(source);
        let mut io = later.start();
        later.boot_all(&mut io, |_| ());
        assert_eq!((served.totals(), golden(&io)["fetched"].as_u64()), ((0, 0), Some(0)));
        io.process.terminate().unwrap();
    }
}
