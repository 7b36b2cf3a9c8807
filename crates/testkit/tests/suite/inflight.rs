//! In-flight regions that a front-end changes before it sends them again.
#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use testkit::Error;
use testkit::process::{Backend, eventually};
use testkit::raw::frontend::InflightArea;
use testkit::raw::wire::{Request, feature, protocol};
use testkit::raw::{Frontend, Guest, Message, Setup};
use testkit::reconnecting::{End, Random, ReconnectingGuest, Shape};

const SOON: Duration = Duration::from_secs(20);

fn image() -> tempfile::NamedTempFile {
    let image = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    image.as_file().set_len(16 << 20).unwrap();
    image
}

fn backend(image: &tempfile::NamedTempFile) -> Backend {
    let options = ["--blk-file", image.path().to_str().unwrap(), "--cache", "writeback"];
    Backend::ringway_blk(&options).unwrap()
}

/// Kills a backend under load and starts it again. Returns a guest with recorded requests.
fn left_behind(backend: &mut Backend) -> ReconnectingGuest {
    let shape = Shape { depth: 100, ..Shape::default() };
    let mut guest = ReconnectingGuest::connect(backend.socket(), shape).unwrap();
    loop {
        guest.run(Instant::now() + Duration::from_millis(5)).unwrap();
        backend.process.signal(rustix::process::Signal::KILL).unwrap();
        assert_eq!(guest.run(Instant::now() + SOON).unwrap(), End::Closed);
        backend.process.kill().unwrap();
        backend.start_again().unwrap();
        if recorded(guest.inflight()) > 2 {
            return guest;
        }
        guest.reconnect().unwrap();
    }
}

/// Counts the recorded heads. The documentation of `virtq` describes the layout.
fn recorded(area: &InflightArea) -> usize {
    let bytes = read(&area.fd, area.mmap_size as usize);
    bytes[128..].chunks(16).filter(|entry| entry[8] == 1).count()
}

fn read(fd: &OwnedFd, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    assert_eq!(rustix::io::pread(fd, &mut bytes, 0).unwrap(), len);
    bytes
}

fn write(fd: &OwnedFd, at: usize, bytes: &[u8]) {
    assert_eq!(rustix::io::pwrite(fd, bytes, at as u64).unwrap(), bytes.len());
}

type Scribble = fn(&mut [u8]);

/// Changes to the region, with the text in the log for each.
const SCRIBBLES: [(&str, Scribble); 9] = [
    ("not made by this program", |bytes| bytes[..8].copy_from_slice(b"GARBAGE!")),
    ("layout version 7", |bytes| bytes[8] = 7),
    ("for 2 queues of 128, not for 1 of 128", |bytes| bytes[12] = 2),
    ("for 1 queues of 64, not for 1 of 128", |bytes| bytes[14] = 64),
    ("neither 0 nor 1", |bytes| bytes[128 + 8] = 9),
    ("for a ring at used index", |bytes| bytes[64 + 1] ^= 0x80),
    ("same counter", |bytes| {
        for entry in bytes[128..].chunks_mut(16) {
            entry[..8].fill(1);
        }
    }),
    ("out of range", |bytes| {
        for (number, entry) in bytes[128..].chunks_mut(16).enumerate() {
            entry[..8].fill(0xff);
            entry[0] = number as u8;
        }
    }),
    ("requests, the ring has", |bytes| {
        for (number, entry) in bytes[128..].chunks_mut(16).enumerate() {
            entry[0] = number as u8;
            entry[8] = 1;
        }
    }),
];

#[test]
fn a_region_that_was_changed_is_refused_and_the_guest_waits() {
    let image = image();
    let mut backend = backend(&image);
    let mut guest = left_behind(&mut backend);
    let fd = guest.inflight().fd.try_clone().unwrap();
    let good = read(&fd, guest.inflight().mmap_size as usize);
    for (reason, scribble) in SCRIBBLES {
        let mut bad = good.clone();
        scribble(&mut bad);
        write(&fd, 0, &bad);
        let refused = guest.reconnect().unwrap_err();
        assert!(matches!(refused, Error::Refused { .. }), "{reason}: {refused}");
        eventually(reason, || backend.process.stderr().contains(reason));
        assert_eq!(read(&fd, good.len()), bad, "{reason}: nothing was changed");
        assert!(backend.process.is_running().unwrap());
    }
    write(&fd, 0, &good);
    guest.reconnect().unwrap();
    guest.finish().unwrap();
    assert_eq!(recorded(guest.inflight()), 0, "drained");
}

#[test]
fn a_region_that_is_scribbled_on_harms_nobody_who_serves() {
    let image = image();
    let mut backend = backend(&image);
    let mut guest = ReconnectingGuest::connect(backend.socket(), Shape::default()).unwrap();
    let (fd, size) = (guest.inflight().fd.try_clone().unwrap(), guest.inflight().mmap_size);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random::new(7);
            while !over.load(Ordering::Relaxed) {
                write(&fd, random.below(size - 8) as usize, &random.number().to_ne_bytes());
            }
        });
        let end = guest.run(Instant::now() + Duration::from_millis(300));
        over.store(true, Ordering::Relaxed);
        assert_eq!(end.unwrap(), End::Time);
    });
    guest.finish().unwrap();
    // The next process finds invalid records, and refuses them.
    backend.process.kill().unwrap();
    assert_eq!(guest.run(Instant::now() + SOON).unwrap(), End::Closed);
    backend.start_again().unwrap();
    assert!(matches!(guest.reconnect(), Err(Error::Refused { .. })));
    assert!(backend.process.is_running().unwrap());
}

#[test]
fn a_reset_makes_void_what_a_dead_process_left() {
    let image = image();
    let mut backend = backend(&image);
    let guest = left_behind(&mut backend);
    let mut front = Frontend::connect(backend.socket()).unwrap();
    let known = protocol::ALL_KNOWN | protocol::INFLIGHT_SHMFD;
    front.negotiate(!feature::RING_PACKED, known).unwrap();
    front.set_inflight(guest.inflight()).unwrap();
    assert!(recorded(guest.inflight()) > 2);
    front.send(Message::new(Request::RESET_DEVICE)).unwrap();
    assert_eq!(recorded(guest.inflight()), 0);
}

#[test]
fn a_session_survives_a_region_that_it_refuses() {
    let image = image();
    let backend = backend(&image);
    let mut front = Frontend::connect(backend.socket()).unwrap();
    let known = protocol::ALL_KNOWN | protocol::INFLIGHT_SHMFD;
    front.negotiate(!feature::RING_PACKED, known).unwrap();
    let good = front.get_inflight(1, 128).unwrap();
    let area = |fd: &OwnedFd, mmap_size, mmap_offset, queues, queue_size| InflightArea {
        fd: fd.try_clone().unwrap(),
        mmap_size,
        mmap_offset,
        queues,
        queue_size,
    };
    let (fd, size) = (&good.fd, good.mmap_size);
    let short = memfd_create("short", MemfdFlags::CLOEXEC).unwrap();
    let directory = OwnedFd::from(std::fs::File::open("/").unwrap());
    let read_only = OwnedFd::from(std::fs::File::open(image.path()).unwrap());
    for (name, bad) in [
        ("an empty file", area(&short, size, 0, 1, 128)),
        ("a directory", area(&directory, size, 0, 1, 128)),
        ("a file to read", area(&read_only, size, 0, 1, 128)),
        ("too short", area(fd, size - 1, 0, 1, 128)),
        ("too long", area(fd, size + 1, 0, 1, 128)),
        ("an odd offset", area(fd, size, 8, 1, 128)),
        ("beyond the file", area(fd, size, 4096, 1, 128)),
        ("at the end of everything", area(fd, size, u64::MAX - 63, 1, 128)),
        ("of all bytes", area(fd, u64::MAX, 0, 1, 128)),
        ("of another ring size", area(fd, size, 0, 1, 64)),
        ("of no queues", area(fd, size, 0, 0, 128)),
        ("of no descriptors", area(fd, size, 0, 1, 0)),
        ("of too many queues", area(fd, size, 0, u16::MAX, u16::MAX)),
    ] {
        let refused = front.set_inflight(&bad).unwrap_err();
        assert!(matches!(refused, Error::Refused { .. }), "{name}: {refused}");
        front.barrier().unwrap();
    }
    front.set_inflight(&good).unwrap();
    // The next front-end is served, with or without a region.
    drop(front);
    let mut guest = Guest::start(backend.socket(), &Setup::default()).unwrap();
    let done = guest.run(0, &testkit::raw::request::Request::read(0, 4096)).unwrap();
    assert_eq!(done.status, 0);
}

#[test]
fn nobody_shortens_a_region_that_we_made() {
    let image = image();
    let backend = backend(&image);
    let guest = ReconnectingGuest::connect(backend.socket(), Shape::default()).unwrap();
    let file = std::fs::File::from(guest.inflight().fd.try_clone().unwrap());
    assert!(file.set_len(0).is_err() && file.set_len(1 << 30).is_err());
}

#[test]
fn a_region_for_fewer_queues_serves_those() {
    let image = image();
    let options = ["--blk-file", image.path().to_str().unwrap(), "--num-queues", "4"];
    let backend = Backend::ringway_blk(&options).unwrap();
    let shape = Shape { queues: 2, ..Shape::default() };
    let mut guest = ReconnectingGuest::connect(backend.socket(), shape).unwrap();
    guest.run(Instant::now() + Duration::from_millis(20)).unwrap();
    guest.finish().unwrap();
}
