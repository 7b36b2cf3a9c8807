//! Every kind of source gives the same bytes; a changed source is never mixed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use disk::conformance::Client;
use disk::{Disk, RequestKind};
use golden::{GoldenDisk, GoldenError};
use model::spec::GoldenImage;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::servers::{BLOCK, Server, image};

/// Far more time than anything here takes, even on a busy host.
const DEADLINE: Duration = Duration::from_secs(120);

pub(crate) fn spec(source: &Value, cache: &TempDir) -> GoldenImage {
    serde_json::from_value(json!({"source": source, "cache": cache.path()})).unwrap()
}

pub(crate) fn open(source: &Value, cache: &TempDir) -> GoldenDisk {
    golden::open(&spec(source, cache), 512).unwrap()
}

/// Waits for something that no event tells.
pub(crate) fn wait_until(is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < DEADLINE, "it does not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn client(disk: GoldenDisk) -> Client {
    Client::new(&(Arc::new(disk) as Arc<dyn Disk>))
}

pub(crate) fn read(client: &Client, offset: usize, len: usize) -> Vec<u8> {
    let sent = client.send(RequestKind::Read, offset as u64, len as u64, Vec::new(), 0);
    let (outcome, data) = sent.wait();
    outcome.unwrap();
    data
}

#[test]
fn every_source_gives_the_bytes_of_the_image() {
    let bytes = image(9);
    let bytes = bytes[..bytes.len() - 1024].to_vec();
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("gold.raw");
    std::fs::write(&file, &bytes).unwrap();
    let (nbd, http) = (Server::nbd(bytes.clone()), Server::http(bytes.clone()));
    for source in [json!({ "file": file }), nbd.source.clone(), http.source.clone()] {
        let cache = TempDir::new().unwrap();
        let client = client(open(&source, &cache));
        for (offset, len) in [
            (0, 512),
            (BLOCK - 512, 1024),
            (512, 4 * BLOCK),
            (bytes.len() - 2048, 2048),
            (0, bytes.len()),
        ] {
            assert!(read(&client, offset, len) == bytes[offset..offset + len], "{source}");
        }
    }
    assert_eq!((nbd.served.totals(), http.served.totals()), ((9, 1), (9, 1)));
}

#[test]
fn a_changed_file_is_refused_for_disks_that_know_the_former_one() {
    let (folder, cache) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let file = folder.path().join("gold.raw");
    let bytes = image(4);
    std::fs::write(&file, &bytes).unwrap();
    let source = json!({ "file": file });
    let disk = open(&source, &cache);
    let identity = disk.identity().to_owned();
    let old = client(disk);
    assert_eq!(read(&old, 0, BLOCK), bytes[..BLOCK]);
    let other: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
    std::fs::write(&file, &other).unwrap();
    // What the cache has is there; the rest waits and is never that of the other image.
    assert_eq!(read(&old, 0, BLOCK), bytes[..BLOCK]);
    let sent = old.send(RequestKind::Read, BLOCK as u64, 512, Vec::new(), 0);
    let new = client(open(&source, &cache));
    assert_eq!(read(&new, 0, 2 * BLOCK), other[..2 * BLOCK]);
    drop(sent);
    // The former identity still opens: the cache has some of it. An unknown one does not.
    let wanted =
        |identity: &str| GoldenImage { identity: Some(identity.into()), ..spec(&source, &cache) };
    assert_eq!(golden::open(&wanted(&identity), 512).unwrap().identity(), identity);
    let error = golden::open(&wanted("feed"), 512).unwrap_err();
    assert!(matches!(error, GoldenError::OtherImage { .. }), "{error}");
}

#[test]
fn a_web_server_with_another_version_is_noticed() {
    let cache = TempDir::new().unwrap();
    let server = Server::http(image(4));
    let disk = Arc::new(open(&server.source, &cache));
    let client = Client::new(&(disk.clone() as Arc<dyn Disk>));
    read(&client, 0, BLOCK);
    *server.served.version.lock().unwrap() = "\"2\"".into();
    let waits = client.send(RequestKind::Read, BLOCK as u64, 512, Vec::new(), 0);
    // The former version comes back, and the request goes on.
    wait_until(|| disk.problem().is_some());
    assert!(disk.problem().unwrap().contains("changed"), "{:?}", disk.problem());
    *server.served.version.lock().unwrap() = "\"1\"".into();
    let (outcome, data) = waits.wait();
    outcome.unwrap();
    assert_eq!(data, image(4)[BLOCK..BLOCK + 512]);
}

#[test]
fn a_source_without_an_image_says_why() {
    let cache = TempDir::new().unwrap();
    let server = Server::nbd(image(1));
    let other = server.source["nbd"].as_str().unwrap().replace("gold", "lead");
    for (source, reason) in [
        (json!({"file": "/nowhere/gold.raw"}), "cannot open it"),
        (json!({"nbd": other}), "no such export"),
        (json!({"nbd": "nbd://127.0.0.1:1/gold"}), "cannot connect"),
        (json!({"http": "http://127.0.0.1:1/gold"}), "check the server"),
    ] {
        let error = golden::open(&spec(&source, &cache), 512).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}
