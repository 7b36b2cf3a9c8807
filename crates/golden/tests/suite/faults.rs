//! Sources that stall, end, lie and answer with errors.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use disk::conformance::{Client, Sent};
use disk::{Disk, IoError, RequestKind};
use golden::{GoldenDisk, GoldenError};
use model::spec::GoldenImage;
use rustix::io::Errno;
use serde_json::json;
use tempfile::TempDir;

use crate::servers::{BLOCK, Fault, Second, Server, image};
use crate::sources::{open, read, spec, wait_until};

/// Disk whose first block is in memory.
struct Fixture {
    server: Server,
    disk: Arc<GoldenDisk>,
    client: Client,
    bytes: Vec<u8>,
    _cache: TempDir,
}

impl Fixture {
    fn new(kind: &str) -> Self {
        let (cache, bytes) = (TempDir::new().unwrap(), image(8));
        let server = Server::of(kind, bytes.clone());
        let disk = Arc::new(open(&server.source, &cache));
        let client = Client::new(&(disk.clone() as Arc<dyn Disk>));
        read(&client, 0, BLOCK);
        Self { server, disk, client, bytes, _cache: cache }
    }

    fn send(&self, block: usize) -> Sent {
        let offset = (block * BLOCK) as u64;
        self.client.send(RequestKind::Read, offset, BLOCK as u64, Vec::new(), 0)
    }

    fn expect(&self, block: usize, sent: Sent) {
        let (outcome, data) = sent.wait();
        assert_eq!(outcome, Ok(()));
        assert!(data == self.bytes[block * BLOCK..(block + 1) * BLOCK]);
    }
}

#[test]
fn requests_wait_for_a_server_that_may_come_back() {
    let temporary = [
        ("http", Fault::Error(404), "status 404"),
        ("http", Fault::Error(408), "status 408"),
        ("http", Fault::Error(429), "status 429"),
        ("http", Fault::Error(502), "status 502"),
        ("http", Fault::Error(503), "status 503"),
        ("http", Fault::Error(504), "status 504"),
        ("http", Fault::All, "ignores ranges"),
        ("http", Fault::Noise, "is not HTTP"),
        ("http", Fault::Short, "check the server"),
        ("http", Fault::Gone, "check the server"),
        ("nbd", Fault::Error(108), "error 108"),
        ("nbd", Fault::Noise, "breaks the NBD protocol"),
        ("nbd", Fault::Short, "failed to fill"),
        ("nbd", Fault::Gone, ""),
    ];
    for (kind, fault, reason) in temporary {
        let it = Fixture::new(kind);
        it.server.served.set_fault(Some(fault));
        let sent = it.send(3);
        wait_until(|| it.disk.problem().is_some());
        let problem = it.disk.problem().unwrap();
        assert!(problem.contains(reason), "{kind} {fault:?}: {problem}");
        assert_eq!(it.client.waiting(), 1, "{kind} {fault:?}");
        // What the cache has goes on.
        assert!(read(&it.client, 0, BLOCK) == it.bytes[..BLOCK]);
        it.server.served.set_fault(None);
        it.expect(3, sent);
        assert_eq!(it.disk.problem(), None, "{kind} {fault:?}");
    }
}

#[test]
fn requests_fail_after_three_errors_and_the_next_one_tries_again() {
    for (kind, fault) in
        [("http", Fault::Error(500)), ("http", Fault::OtherRange), ("nbd", Fault::Error(5))]
    {
        let it = Fixture::new(kind);
        let before = it.server.served.requests.load(Ordering::Relaxed);
        it.server.served.set_fault(Some(fault));
        assert_eq!(it.send(3).wait().0, Err(IoError::Storage(Errno::IO)), "{kind} {fault:?}");
        let attempts = it.server.served.requests.load(Ordering::Relaxed) - before;
        assert_eq!((attempts, it.disk.problem()), (3, None), "{kind} {fault:?}");
        it.server.served.set_fault(None);
        it.expect(3, it.send(3));
    }
}

#[test]
fn a_server_that_stalls_is_given_up_after_its_deadline() {
    let all = ["http", "nbd"].map(Fixture::new);
    let sent = all.each_ref().map(|it| {
        it.server.served.set_fault(Some(Fault::Stall));
        it.send(3)
    });
    for (it, sent) in all.iter().zip(sent) {
        wait_until(|| it.disk.problem().is_some());
        let problem = it.disk.problem().unwrap();
        assert!(problem.contains("no answer within 10s"), "{problem}");
        assert!(it.server.served.stalled() > 0);
        it.server.served.set_fault(None);
        it.expect(3, sent);
    }
}

#[test]
fn a_missing_image_is_an_error_unless_the_host_has_had_it() {
    for (kind, fault, reason) in [
        ("http", Fault::Error(404), "status 404"),
        ("http", Fault::Error(503), "status 503"),
        ("http", Fault::All, "ignores ranges"),
        ("http", Fault::Size(0), "has 0 bytes"),
        ("http", Fault::Size(1000), "not a multiple"),
        ("nbd", Fault::Size(u64::MAX), "not in 1 to"),
    ] {
        let (cache, bytes) = (TempDir::new().unwrap(), image(4));
        let server = Server::of(kind, bytes.clone());
        server.served.set_fault(Some(fault));
        let opened = golden::open(&spec(&server.source, &cache), 512);
        let error = opened.unwrap_err().to_string();
        assert!(error.contains(reason), "{fault:?}: {error}");
        server.served.set_fault(None);
        let disk = open(&server.source, &cache);
        if matches!(fault, Fault::Error(_)) {
            server.served.set_fault(Some(fault));
            assert_eq!(open(&server.source, &cache).identity(), disk.identity());
        }
    }
}

/// `qemu-nbd` serves one client by default, and lets others wait without a word.
#[test]
fn a_server_for_one_connection_serves_everything_with_it() {
    let bytes = image(64);
    for second in [Second::Wait, Second::Refuse] {
        let (cache, server) = (TempDir::new().unwrap(), Server::nbd(bytes.clone()));
        let disk = Arc::new(open(&server.source, &cache));
        let client = Client::new(&(disk.clone() as Arc<dyn Disk>));
        wait_until(|| server.served.connections() == 0);
        server.served.set_second(second);
        let send = |at: u64| client.send(RequestKind::Read, at, BLOCK as u64, Vec::new(), 0);
        let sent: Vec<_> = (0..64).map(|block| send(block * BLOCK as u64)).collect();
        for (sent, expected) in sent.into_iter().zip(bytes.chunks(BLOCK)) {
            let (outcome, data) = sent.wait();
            outcome.unwrap();
            assert!(data == expected);
        }
        assert_eq!((server.served.totals(), disk.problem()), ((64, 1), None));
        let (turned_away, given_up) = server.served.turned_away();
        match second {
            Second::Wait => assert_eq!(given_up, 0, "requests waited for another connection"),
            // Each thread tries once.
            Second::Refuse => assert!(turned_away < 16, "{turned_away} connections"),
        }
    }
}

#[test]
fn another_size_at_the_next_connection_is_another_image() {
    for kind in ["http", "nbd"] {
        let it = Fixture::new(kind);
        it.server.served.set_fault(Some(Fault::Gone));
        let sent = it.send(3);
        wait_until(|| it.disk.problem().is_some());
        it.server.served.set_fault(Some(Fault::Size(9 * BLOCK as u64)));
        wait_until(|| it.disk.problem().is_some_and(|problem| problem.contains("has changed")));
        it.server.served.set_fault(None);
        it.expect(3, sent);
    }
}

#[test]
fn a_digest_keeps_two_versions_of_one_export_apart() {
    let cache = TempDir::new().unwrap();
    let (old, new) = (image(4), image(5)[BLOCK..].to_vec());
    let server = Server::nbd(old.clone());
    let of = |digit: &str| GoldenImage {
        identity: Some(format!("sha256:{}", digit.repeat(64))),
        ..spec(&server.source, &cache)
    };
    let client = |disk| Client::new(&(Arc::new(disk) as Arc<dyn Disk>));
    let first = client(golden::open(&of("a"), 512).unwrap());
    assert!(read(&first, 0, BLOCK) == old[..BLOCK]);
    *server.served.image.lock().unwrap() = new.clone();
    let second = client(golden::open(&of("b"), 512).unwrap());
    assert!(read(&second, 0, new.len()) == new);
    assert!(read(&first, 0, BLOCK) == old[..BLOCK]);
    // An open with a digest that the cache knows needs no source, another one does.
    server.served.set_fault(Some(Fault::Gone));
    golden::open(&of("a"), 512).unwrap();
    let error = golden::open(&of("c"), 512).unwrap_err();
    assert!(matches!(error, GoldenError::Source { .. }), "{error}");
}

#[test]
fn a_fifo_is_no_source_and_blocks_nobody() {
    let (folder, cache) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let path = folder.path().join("fifo");
    let mode = rustix::fs::Mode::RWXU;
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    for source in [path.as_path(), folder.path(), std::path::Path::new("/dev/null")] {
        let error = golden::open(&spec(&json!({ "file": source }), &cache), 512).unwrap_err();
        assert!(error.to_string().contains("neither a file nor a block device"), "{error}");
    }
}

#[test]
fn a_rate_is_never_passed() {
    let (cache, bytes) = (TempDir::new().unwrap(), image(16));
    let server = Server::nbd(bytes.clone());
    // 64 blocks a second.
    let spec = GoldenImage { rate: Some(64 * BLOCK as u64), ..spec(&server.source, &cache) };
    let client = Client::new(&(Arc::new(golden::open(&spec, 512).unwrap()) as Arc<dyn Disk>));
    let began = Instant::now();
    assert!(read(&client, 0, bytes.len()) == bytes);
    let least = Duration::from_secs_f64(15.0 / 64.0);
    assert!(began.elapsed() >= least, "{:?} for 16 blocks", began.elapsed());
}
