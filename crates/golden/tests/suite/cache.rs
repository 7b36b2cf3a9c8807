//! The cache: one flight for a block, warm after a restart, and nothing wrong after damage.

use std::io::{Seek as _, SeekFrom, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use disk::conformance::Client;
use disk::{Disk, RequestKind, WarmPhase};
use model::spec::GoldenImage;
use tempfile::TempDir;

use crate::servers::{BLOCK, Fault, Server, image};
use crate::sources::{client, open, read, spec, wait_until};

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
    let copy = copy(&cache);
    server.served.set_fault(Some(Fault::Gone));
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
    server.served.set_fault(Some(Fault::Gone));
    let waits = client.send(RequestKind::Read, BLOCK as u64, BLOCK as u64, Vec::new(), 0);
    wait_until(|| disk.problem().is_some());
    assert!(read(&client, 0, BLOCK) == bytes[..BLOCK]);
    server.served.set_fault(None);
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
        let copy = copy(&cache);
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
    wait_until(|| path.exists());
    std::fs::copy(&path, other.path().join(path.file_name().unwrap())).unwrap();
    server.served.blocks.lock().unwrap().clear();
    // No request asks for anything.
    let _disk = open(&server.source, &other);
    wait_until(|| server.served.totals().0 >= 64);
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

#[test]
fn the_disk_keeps_the_contract_of_a_read_only_disk() {
    let (cache, bytes) = (TempDir::new().unwrap(), image(100));
    let server = Server::nbd(bytes.clone());
    // Less memory than the image has, so that blocks come from the cache file, too.
    let spec = GoldenImage { ram: Some(4 << 20), ..spec(&server.source, &cache) };
    let disk: Arc<dyn Disk> = Arc::new(golden::open(&spec, 512).unwrap());
    disk::conformance::run_read_only(disk.clone(), &bytes);
    let state = disk.cache_state().unwrap();
    assert_eq!(server.served.totals(), (100, 1));
    assert!(state.evicted > 0 && state.loaded > 0 && state.stored == 100, "{state:?}");
}

#[test]
fn a_cache_size_is_never_passed() {
    let (cache, bytes) = (TempDir::new().unwrap(), image(200));
    let server = Server::nbd(bytes.clone());
    let of = |cache: &TempDir| {
        let size = Some(4 << 20);
        GoldenImage { cache_size: size, ram: size, ..spec(&server.source, cache) }
    };
    let disk: Arc<dyn Disk> = Arc::new(golden::open(&of(&cache), 512).unwrap());
    let first = Client::new(&disk);
    assert!(first.read(0, bytes.len() as u64) == bytes);
    let state = disk.cache_state().unwrap();
    assert_eq!((state.stored, state.file_problem), (64, None));
    server.served.blocks.lock().unwrap().clear();
    let copy = copy(&cache);
    let second = client(golden::open(&of(&copy), 512).unwrap());
    assert!(read(&second, 0, bytes.len()) == bytes);
    // The memory has less than the rest, so some of it may come twice.
    assert_eq!(server.served.totals().0, 136, "the rest");
}

/// Returns a copy of a cache directory: what another process finds after `kill -9`.
fn copy(cache: &TempDir) -> TempDir {
    let copy = TempDir::new().unwrap();
    for entry in std::fs::read_dir(cache.path()).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    copy
}

#[test]
fn a_cache_file_that_is_truncated_in_use_costs_fetches_only() {
    let (cache, bytes) = (TempDir::new().unwrap(), image(128));
    let server = Server::nbd(bytes.clone());
    let spec = GoldenImage { ram: Some(4 << 20), ..spec(&server.source, &cache) };
    let client = client(golden::open(&spec, 512).unwrap());
    assert!(read(&client, 0, bytes.len()) == bytes);
    std::fs::File::options().write(true).open(cache_file(&cache)).unwrap().set_len(0).unwrap();
    assert!(read(&client, 0, bytes.len()) == bytes);
    assert!(server.served.totals().1 <= 2, "{:?}", server.served.totals());
}

#[test]
fn a_warm_image_needs_its_source_no_more() {
    let (cache, bytes) = (TempDir::new().unwrap(), image(100));
    let server = Server::nbd(bytes.clone());
    let disk = Arc::new(open(&server.source, &cache));
    let phase = || disk.cache_state().unwrap().warm.map(|warm| warm.phase);
    assert_eq!(phase(), None);
    // The source goes and comes back meanwhile. No block is lost.
    server.served.set_fault(Some(Fault::Gone));
    golden::warm(disk.identity(), None).unwrap();
    wait_until(|| disk.problem().is_some());
    server.served.set_fault(None);
    wait_until(|| phase() == Some(WarmPhase::Done));
    assert_eq!((server.served.totals(), disk.problem()), ((100, 1), None));
    assert_eq!(disk.cache_state().unwrap().stored, 100);
    server.served.set_fault(Some(Fault::Gone));
    let client = Client::new(&(disk.clone() as Arc<dyn Disk>));
    assert!(read(&client, 0, bytes.len()) == bytes);
    assert!(golden::warm("feed", None).unwrap_err().to_string().contains("attach a disk"));
}

#[test]
fn warming_ends_when_it_cannot_go_on_or_is_not_wanted() {
    let (cache, bytes) = (TempDir::new().unwrap(), image(200));
    let server = Server::nbd(bytes.clone());
    let spec = GoldenImage { cache_size: Some(4 << 20), ..spec(&server.source, &cache) };
    let disk = golden::open(&spec, 512).unwrap();
    let warm = || disk.cache_state().unwrap().warm.unwrap();
    // A block an hour: the second one never comes.
    golden::warm(disk.identity(), Some(18)).unwrap();
    assert_eq!(warm().phase, WarmPhase::Running);
    golden::cancel_warm(disk.identity()).unwrap();
    assert_eq!(warm().phase, WarmPhase::Canceled);
    golden::warm(disk.identity(), None).unwrap();
    wait_until(|| warm().phase != WarmPhase::Running);
    assert_eq!(warm().phase, WarmPhase::Failed);
    assert!(warm().problem.unwrap().contains("cache_size"));
    assert_eq!(disk.cache_state().unwrap().stored, 64);
    server.served.set_fault(Some(Fault::Error(5)));
    let wide = open(&server.source, &TempDir::new().unwrap());
    golden::warm(wide.identity(), None).unwrap();
    wait_until(|| wide.cache_state().unwrap().warm.unwrap().phase == WarmPhase::Failed);
}

#[test]
fn a_boot_set_is_exported_and_imported() {
    let (cache, other, bytes) = (TempDir::new().unwrap(), TempDir::new().unwrap(), image(100));
    let server = Server::nbd(bytes);
    let disk = open(&server.source, &cache);
    let identity = disk.identity().to_owned();
    assert!(golden::export_boot_set(&identity).unwrap_err().to_string().contains("boot a machine"));
    let client = client(disk);
    [9, 3, 70].into_iter().for_each(|block| _ = read(&client, block * BLOCK, 512));
    let set = golden::export_boot_set(&identity).unwrap();
    assert_eq!(set.blocks, [9, 3, 70]);
    golden::import_boot_set(other.path(), &set).unwrap();
    server.served.blocks.lock().unwrap().clear();
    let ahead = open(&server.source, &other);
    wait_until(|| ahead.cache_state().unwrap().stored == 3);
    assert!([3, 9, 70].iter().eq(server.served.blocks.lock().unwrap().keys()));
}

/// Returns the SHA-256 of bytes, as `sha256sum` prints it.
fn sha256(bytes: &[u8]) -> String {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    let output = std::process::Command::new("sha256sum").arg(file.path()).output().unwrap();
    String::from_utf8(output.stdout).unwrap()[..64].into()
}

#[test]
fn a_warm_image_has_the_digest_of_its_identity_or_says_so() {
    let bytes = image(20);
    // The last block is a part of one.
    let bytes = bytes[..bytes.len() - 1024].to_vec();
    let (right, wrong) = (sha256(&bytes), "ab".repeat(32));
    for (digest, is_right) in [(&right, true), (&wrong, false)] {
        let cache = TempDir::new().unwrap();
        let server = Server::nbd(bytes.clone());
        let identity = Some(format!("sha256:{digest}"));
        let spec = GoldenImage { identity, ..spec(&server.source, &cache) };
        let disk = Arc::new(golden::open(&spec, 512).unwrap());
        let state = || disk.cache_state().unwrap();
        assert_eq!((state().is_verified, state().other_digest), (false, None));
        golden::warm(disk.identity(), None).unwrap();
        wait_until(|| matches!(state().warm.unwrap().phase, WarmPhase::Done | WarmPhase::Failed));
        let warm = state().warm.unwrap();
        assert_eq!(warm.phase == WarmPhase::Done, is_right, "{warm:?}");
        assert_eq!(state().is_verified, is_right);
        assert_eq!(state().other_digest, (!is_right).then(|| right.clone()));
        assert_eq!(warm.problem.is_some_and(|it| it.contains(&right)), !is_right);
        assert_eq!(disk.digest_problem().is_some(), !is_right);
        // Another process knows it, too.
        let copy = copy(&cache);
        let next = golden::open(&GoldenImage { cache: copy.path().into(), ..spec }, 512).unwrap();
        let next = next.cache_state().unwrap();
        assert_eq!((next.is_verified, next.other_digest), (is_right, state().other_digest));
    }
}

#[test]
fn a_block_that_is_damaged_when_the_digest_is_calculated_is_fetched_again() {
    let (cache, bytes) = (TempDir::new().unwrap(), image(20));
    let server = Server::nbd(bytes.clone());
    let identity = Some(format!("sha256:{}", sha256(&bytes)));
    let spec = GoldenImage { identity, ..spec(&server.source, &cache) };
    let disk = golden::open(&spec, 512).unwrap();
    golden::warm(disk.identity(), None).unwrap();
    wait_until(|| disk.cache_state().unwrap().is_verified);
    let mut file = std::fs::OpenOptions::new().write(true).open(cache_file(&cache)).unwrap();
    file.seek(SeekFrom::Start(5 * BLOCK as u64)).unwrap();
    file.write_all(b"damage").unwrap();
    // All blocks count as stored, so that only the digest reads them.
    golden::warm(disk.identity(), None).unwrap();
    wait_until(|| disk.cache_state().unwrap().warm.unwrap().phase == WarmPhase::Done);
    assert_eq!(server.served.totals(), (20, 2));
}

#[test]
fn a_clean_up_removes_the_longest_unused_files_and_none_in_use() {
    let cache = TempDir::new().unwrap();
    let servers: Vec<Server> = (0..4).map(|_| Server::nbd(image(4))).collect();
    let files: Vec<_> = servers
        .iter()
        .zip((1..5).rev())
        .map(|(server, days)| {
            let disk = Arc::new(open(&server.source, &cache));
            read(&Client::new(&(disk.clone() as Arc<dyn Disk>)), 0, 4 * BLOCK);
            let state = disk.cache_state().unwrap();
            let used = std::time::SystemTime::now() - Duration::from_secs(days * 86400);
            let file = std::fs::File::options().write(true).open(&state.file).unwrap();
            std::fs::write(state.file.with_extension("boot"), b"{}").unwrap();
            (state.file, file, used)
        })
        .collect();
    // The threads of an image end after its last disk.
    wait_until(|| {
        files.iter().all(|(_, file, _)| {
            use rustix::fs::{FlockOperation, flock};
            let is_free = flock(file, FlockOperation::NonBlockingLockExclusive).is_ok();
            flock(file, FlockOperation::Unlock).unwrap();
            is_free
        })
    });
    files.iter().for_each(|(_, file, used)| file.set_modified(*used).unwrap());
    // The oldest one is in use. A foreign file is none of ours.
    let user = open(&servers[0].source, &cache);
    files[0].1.set_modified(files[0].2).unwrap();
    std::fs::write(cache.path().join("other.golden"), vec![1; 5000]).unwrap();
    let there = || files.iter().map(|(path, ..)| path.exists()).collect::<Vec<_>>();
    let day = Duration::from_secs(86400);
    let clean = |keep, days| golden::clean_up(cache.path(), keep, day * days).unwrap();
    let found = clean(0, 10);
    assert_eq!((found.len(), found.iter().any(|file| file.is_removed)), (4, false));
    let bytes = found[1].bytes;
    clean(3 * bytes + bytes / 2, 0);
    assert_eq!(there(), [true, false, true, true], "one is enough, and the oldest one is in use");
    assert!(!files[1].0.with_extension("boot").exists());
    let found = clean(0, 2);
    assert_eq!(there(), [true, false, false, true]);
    assert!(found[0].problem.as_ref().is_some_and(|problem| problem.contains("uses it")));
    drop(user);
    assert!(cache.path().join("other.golden").exists());
}

#[test]
fn a_copy_reads_through_the_cache_and_leaves_no_boot_set() {
    let (cache, bytes) = (TempDir::new().unwrap(), image(100));
    let server = Server::nbd(bytes.clone());
    let (disk, stop) = (open(&server.source, &cache), AtomicBool::new(false));
    let from = BLOCK - 512;
    let mut found = vec![0; bytes.len() - from];
    disk.read(from as u64, &mut found, &stop).unwrap();
    assert!(found == bytes[from..]);
    assert_eq!(server.served.totals(), (100, 1));
    let error = disk.read(bytes.len() as u64 - 512, &mut [0; 1024], &stop).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    let identity = disk.identity().to_owned();
    assert!(golden::export_boot_set(&identity).is_err(), "no machine has read");

    // It waits for a source that is gone, until it is stopped.
    let cache = TempDir::new().unwrap();
    let disk = open(&server.source, &cache);
    server.served.set_fault(Some(Fault::Gone));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| disk.read(0, &mut [0; 512], &stop));
        wait_until(|| disk.problem().is_some());
        stop.store(true, Ordering::Relaxed);
        let error = waits.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::Interrupted);
    });
    stop.store(false, Ordering::Relaxed);
    server.served.set_fault(Some(Fault::Error(5)));
    assert!(disk.read(0, &mut [0; 512], &stop).is_err());
}
