//! The cache: one flight for a block, warm after a restart, and nothing wrong after damage.

use std::io::{Seek as _, SeekFrom, Write as _};
use std::sync::Arc;

use disk::conformance::Client;
use disk::{Disk, RequestKind};
use tempfile::TempDir;

use crate::servers::{BLOCK, Server, image};
use crate::sources::{client, open, read};

/// Returns the path of the only cache file.
fn cache_file(cache: &TempDir) -> std::path::PathBuf {
    let entries = std::fs::read_dir(cache.path()).unwrap().map(|entry| entry.unwrap().path());
    let mut files = entries.filter(|path| path.extension().is_some_and(|it| it == "golden"));
    files.next().unwrap()
}

#[test]
fn twenty_five_readers_at_once_fetch_each_block_once() {
    let (cache, bytes) = (TempDir::new().unwrap(), image(16));
    let server = Server::nbd(bytes.clone());
    let clients: Vec<Client> = (0..25).map(|_| client(open(&server.source, &cache))).collect();
    let whole = bytes.len() as u64;
    let sent: Vec<_> = clients
        .iter()
        .map(|client| client.send(RequestKind::Read, 0, whole, Vec::new(), 0))
        .collect();
    for one in sent {
        let (outcome, data) = one.wait();
        outcome.unwrap();
        assert!(data == bytes);
    }
    assert_eq!(server.served.totals(), (16, 1));
}

#[test]
fn a_warm_cache_fetches_nothing_even_without_its_source() {
    let (cache, bytes) = (TempDir::new().unwrap(), image(8));
    let server = Server::nbd(bytes.clone());
    let first = client(open(&server.source, &cache));
    assert!(read(&first, 0, bytes.len()) == bytes);
    // A copy of the folder is what another process finds after `kill -9`.
    let copy = TempDir::new().unwrap();
    for entry in std::fs::read_dir(cache.path()).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    *server.served.is_gone.lock().unwrap() = true;
    let second = client(open(&server.source, &copy));
    assert!(read(&second, 0, bytes.len()) == bytes);
    assert_eq!(server.served.totals(), (8, 1));
}

#[test]
fn requests_wait_for_a_source_that_is_gone_and_blocks_of_the_cache_do_not() {
    let (cache, bytes) = (TempDir::new().unwrap(), image(8));
    let server = Server::nbd(bytes.clone());
    let disk = Arc::new(open(&server.source, &cache));
    let client = Client::new(&(disk.clone() as Arc<dyn Disk>));
    read(&client, 0, BLOCK);
    *server.served.is_gone.lock().unwrap() = true;
    let waits = client.send(RequestKind::Read, BLOCK as u64, BLOCK as u64, Vec::new(), 0);
    while disk.problem().is_none() {
        std::thread::yield_now();
    }
    assert!(read(&client, 0, BLOCK) == bytes[..BLOCK]);
    *server.served.is_gone.lock().unwrap() = false;
    let (outcome, data) = waits.wait();
    outcome.unwrap();
    assert!(data == bytes[BLOCK..2 * BLOCK]);
    assert_eq!(disk.problem(), None);
}

#[test]
fn damaged_blocks_come_from_the_source_again() {
    for damage in ["flip", "truncate"] {
        let (cache, bytes) = (TempDir::new().unwrap(), image(8));
        let server = Server::nbd(bytes.clone());
        let first = client(open(&server.source, &cache));
        read(&first, 0, bytes.len());
        // Another folder stands for another process.
        let copy = TempDir::new().unwrap();
        for entry in std::fs::read_dir(cache.path()).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
        let path = cache_file(&copy);
        let mut file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        let expected = match damage {
            "flip" => {
                // The first block lies behind header and index.
                file.seek(SeekFrom::Start(BLOCK as u64 + 3 * BLOCK as u64 + 100)).unwrap();
                file.write_all(b"damage").unwrap();
                1
            }
            _ => {
                file.set_len(BLOCK as u64 * 5).unwrap();
                4
            }
        };
        server.served.blocks.lock().unwrap().clear();
        let second = client(open(&server.source, &copy));
        assert!(read(&second, 0, bytes.len()) == bytes, "{damage}");
        assert_eq!(server.served.totals(), (expected, 1), "{damage}");
    }
}

#[test]
fn a_boot_set_is_fetched_ahead_on_another_host() {
    let (cache, other, bytes) = (TempDir::new().unwrap(), TempDir::new().unwrap(), image(100));
    let server = Server::nbd(bytes);
    let first = client(open(&server.source, &cache));
    for block in (20..84).rev() {
        read(&first, block * BLOCK, 512);
    }
    let path = cache_file(&cache).with_extension("boot");
    while !path.exists() {
        std::thread::yield_now();
    }
    std::fs::copy(&path, other.path().join(path.file_name().unwrap())).unwrap();
    server.served.blocks.lock().unwrap().clear();
    // No request asks for anything.
    let _disk = open(&server.source, &other);
    while server.served.totals().0 < 64 {
        std::thread::yield_now();
    }
    let blocks = server.served.blocks.lock().unwrap().clone();
    assert!((20..84).eq(blocks.keys().copied()), "{blocks:?}");
    assert!(blocks.values().all(|count| *count == 1));
}

#[test]
fn a_foreign_file_in_the_place_of_the_cache_is_left_alone() {
    let (cache, bytes) = (TempDir::new().unwrap(), image(2));
    let server = Server::nbd(bytes.clone());
    // Learn the name of the file.
    let other = TempDir::new().unwrap();
    drop(open(&server.source, &other));
    let path = cache.path().join(cache_file(&other).file_name().unwrap());
    std::fs::write(&path, b"something of somebody else").unwrap();
    let client = client(open(&server.source, &cache));
    assert!(read(&client, 0, bytes.len()) == bytes);
    assert_eq!(std::fs::read(&path).unwrap(), b"something of somebody else");
}
