//! Requests and their replies.
#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::client::*;
use disk::{Disk, FileDisk, FileOptions, NullDisk, OnFull};

fn file(direct: bool) -> (tempfile::TempDir, Arc<dyn Disk>) {
    // Avoids tmpfs, which does not support direct I/O everywhere.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("a.raw");
    std::fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
    let on_full = OnFull::Error;
    let options = FileOptions { path, read_only: false, direct, block_size: None, on_full };
    let disk = FileDisk::open(options).unwrap();
    disk.activate().unwrap();
    (folder, Arc::new(disk))
}

fn everything(fixture: &Fixture, structured: bool) {
    let mut client = fixture.client(structured);
    let data = pattern(structured.into(), 1 << 20);
    client.write(0, &data);
    assert_eq!(client.run(FUA, WRITE, 1 << 20, 4096, &data[..4096]), (0, vec![]));
    assert_eq!(client.run(0, FLUSH, 0, 0, b""), (0, vec![]));
    assert!(client.read(0, 1 << 20) == data);
    // Partial blocks and ranges across blocks.
    for (offset, len) in [(1, 1), (511, 2), (4095, 4098), (100_001, 7), (0, 1 << 20)] {
        let at = offset as usize;
        assert_eq!(client.read(offset, len), data[at..at + len as usize], "{len} at {offset}");
    }
    assert_eq!(client.run(0, ZEROES, 4096, 8192, b"").0, 0);
    assert_eq!(client.run(FUA | 2, ZEROES, 16384, 4096, b"").0, 0);
    assert_eq!(client.run(FUA, TRIM, 1 << 20, 4096, b"").0, 0);
    assert_eq!(client.run(0, CACHE, 0, 1 << 20, b"").0, 0);
    let after = client.read(0, 32768);
    assert_eq!(after[..4096], data[..4096]);
    assert!(after[4096..12288].iter().chain(&after[16384..20480]).all(|byte| *byte == 0));
    assert_eq!(after[20480..], data[20480..32768]);
    // The largest possible requests.
    let large = data.repeat(if structured { 32 } else { 2 });
    client.write(16 << 20, &large);
    assert!(client.read(16 << 20, large.len() as u32) == large);
    // Another connection sees all the data.
    assert_eq!(fixture.client(!structured).read(16 << 20, 4096), large[..4096]);
    // Rejected requests do not disturb the following ones.
    for (flags, code, offset, len, error) in [
        (0, WRITE, 1, 512, 22),
        (0, WRITE, SIZE, 512, 28),
        (0, READ, SIZE, 512, 22),
        (0, READ, 0, (32 << 20) + 1, 22),
        (0x8000, READ, 0, 512, 22),
        (0, 99, 0, 512, 22),
    ] {
        let payload = if code == WRITE { vec![1; len as usize] } else { vec![] };
        assert_eq!(client.run(flags, code, offset, len, &payload).0, error, "{code} {offset}");
        assert_eq!(client.read(0, 512), data[..512]);
    }
    client.send(0, DISC, 0, 0, b"");
    assert!(client.is_closed());
}

#[test]
fn every_command_on_memory() {
    let fixture = Fixture::memory();
    everything(&fixture, true);
    everything(&fixture, false);
    let counts = fixture.server.counts();
    assert_eq!((counts.clients, counts.errors), (4, 12));
    assert!(counts.writes == 6 && counts.written_bytes > 34 << 20 && counts.reads > 10);
}

#[test]
fn every_command_on_a_file() {
    for direct in [true, false] {
        let (_folder, disk) = file(direct);
        let fixture = Fixture::new(Arc::clone(&disk), false, 16);
        if disk.geometry().block_size == 512 {
            everything(&fixture, direct);
        }
        fixture.server.hang_up();
        assert!(fixture.server.wait_ended(SOON));
        disk.deactivate().unwrap();
    }
}

#[test]
fn a_deep_queue_is_answered_whole() {
    let fixture = Fixture::memory();
    let mut client = fixture.client(true);
    let data = pattern(3, 4 << 20);
    for (at, piece) in data.chunks(1 << 16).enumerate() {
        client.send(0, WRITE, (at << 16) as u64, 1 << 16, piece);
    }
    for _ in 0..64 {
        assert_eq!(client.receive(0).error, 0);
    }
    // One send with more requests than the server accepts at a time. The rest waits.
    let mut stream = client.stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        for cookie in 0..2000u64 {
            let message = request(0, READ, cookie, (cookie % 1024) * 4096, 4096);
            std::io::Write::write_all(&mut stream, &message).unwrap();
        }
    });
    let mut seen = vec![false; 2000];
    for _ in 0..2000 {
        let reply = client.receive(4096);
        let at = (reply.cookie % 1024) as usize * 4096;
        assert_eq!((reply.error, &reply.data[..]), (0, &data[at..at + 4096]));
        assert!(!std::mem::replace(&mut seen[reply.cookie as usize], true));
    }
    sender.join().unwrap();
}

fn status(reply: &[u8]) -> Vec<(u32, u32)> {
    let word = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
    reply.chunks(8).map(|pair| (word(&pair[..4]), word(&pair[4..]))).collect()
}

#[test]
fn block_status_tells_holes_from_data() {
    let (folder, disk) = file(false);
    let image = std::fs::File::options().write(true).open(folder.path().join("a.raw")).unwrap();
    image.write_all_at(&[1; 65536], 1 << 20).unwrap();
    let fixture = Fixture::new(disk, true, 16);
    let mut client = fixture.client(true);
    let (error, reply) = client.run(0, STATUS, 0, 4 << 20, b"");
    assert_eq!(error, 0);
    assert_eq!(status(&reply), [(1 << 20, 3), (65536, 0), ((3 << 20) - 65536, 3)]);
    let (_, reply) = client.run(8, STATUS, 0, 4 << 20, b"");
    assert_eq!(status(&reply), [(1 << 20, 3)]);
    let mut plain = fixture.client(false);
    assert_eq!(plain.run(0, STATUS, 0, 512, b"").0, 22);
    // Read-only: the server offers no write commands and rejects writes.
    assert_eq!(client.flags & 2, 2);
    for code in [WRITE, TRIM, ZEROES] {
        let payload = if code == WRITE { vec![1; 512] } else { vec![] };
        assert_eq!(client.run(0, code, 0, 512, &payload).0, 1, "{code}");
    }
    let whole = Fixture::new(Arc::new(NullDisk::new(SIZE, 512, false)), false, 1);
    let (_, reply) = whole.client(true).run(0, STATUS, 512, 1 << 20, b"");
    assert_eq!(status(&reply), [(1 << 20, 3)]);
}

#[test]
fn what_stores_nothing_answers_with_holes_where_the_client_can_be_told() {
    let fixture = Fixture::new(Arc::new(NullDisk::new(SIZE, 512, false)), false, 2);
    let mut client = fixture.client(true);
    for (offset, len) in [(0u64, 512u32), (513, 1), (SIZE - 4096, 4096), (0, 32 << 20)] {
        client.send(0, READ, offset, len, b"");
        let hole = client.receive(0);
        assert_eq!(hole.data, [&offset.to_be_bytes()[..], &len.to_be_bytes()].concat());
    }
    assert_eq!(client.run(0, READ, SIZE, 512, b"").0, 22);
    assert_eq!(fixture.client(false).read(512, 4096).len(), 4096);
    let all = 512 + 1 + 4096 + (32 << 20) + 4096;
    assert_eq!(fixture.server.counts().read_bytes, all);
}

#[test]
fn an_idle_client_costs_nothing() {
    let fixture = Fixture::memory();
    let mut client = fixture.client(true);
    for _ in 0..500 {
        client.read(0, 512);
    }
    // Longer than any poll phase.
    let quiet = || std::thread::sleep(std::time::Duration::from_millis(50));
    quiet();
    let polls = fixture.server.counts().polls;
    quiet();
    assert_eq!(fixture.server.counts().polls, polls);
    client.read(0, 512);
}
