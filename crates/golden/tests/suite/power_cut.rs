//! Power cuts: of each sector of the cache file, the medium has any of its contents, and of the file any
//! of its lengths. What a disk reads afterwards is right.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use disk::Disk;
use disk::conformance::Client;
use tempfile::TempDir;

use crate::servers::{BLOCK, Fault, Server, image};
use crate::sources::{client, open, read};

const BLOCKS: usize = 24;
const SECTOR: usize = 512;

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % end
    }
}

/// Returns the path of the only file with an extension.
fn find(cache: &TempDir, extension: &str) -> PathBuf {
    let entries = std::fs::read_dir(cache.path()).unwrap().map(|entry| entry.unwrap().path());
    let mut files = entries.filter(|path| path.extension().is_some_and(|it| it == extension));
    files.next().unwrap()
}

/// Returns what a power cut leaves of a file that had these contents one after the other. Now and then
/// the medium has what another file has left there.
fn cut(random: &mut Random, contents: &[Vec<u8>], foreign: &[u8]) -> Vec<u8> {
    let len = contents[random.below(contents.len())].len();
    let mut left = vec![0; len];
    for (unit, out) in left.chunks_mut(BLOCK).enumerate() {
        // Whole blocks, too: no block would survive otherwise.
        let (kind, whole) = (random.below(8), random.below(contents.len()));
        for (at, out) in out.chunks_mut(SECTOR).enumerate() {
            let which = match kind {
                0..4 => contents.len() - 1,
                4 => whole,
                _ => random.below(contents.len()),
            };
            let is_foreign = unit > 0 && kind == 5 && random.below(4) == 0;
            let from = if is_foreign { foreign } else { &contents[which] };
            let first = unit * BLOCK + at * SECTOR;
            let part = from.get(first.min(from.len())..).unwrap_or_default();
            let part = &part[..part.len().min(out.len())];
            out[..part.len()].copy_from_slice(part);
        }
    }
    left
}

/// Returns the cache file of another image of the same size, full of its blocks.
fn foreign_file() -> Vec<u8> {
    let cache = TempDir::new().unwrap();
    let bytes: Vec<u8> = image(BLOCKS).iter().map(|byte| !byte).collect();
    let server = Server::nbd(bytes.clone());
    assert!(read(&client(open(&server.source, &cache)), 0, bytes.len()) == bytes);
    std::fs::read(find(&cache, "golden")).unwrap()
}

#[test]
fn after_a_power_cut_each_block_is_right_or_fetched_anew() {
    let lives = if std::env::var_os("RINGWAY_SOAK").is_some() { 3000 } else { 30 };
    let (bytes, foreign) = (image(BLOCKS), foreign_file());
    let server = Server::nbd(bytes.clone());
    let mut random = Random(36);
    let mut cache = TempDir::new().unwrap();
    let (mut loaded, mut fetched) = (0, 0);
    for life in 0..lives {
        let disk = Arc::new(open(&server.source, &cache));
        let client = Client::new(&(disk.clone() as Arc<dyn Disk>));
        let path = find(&cache, "golden");
        let mut contents = vec![std::fs::read(&path).unwrap()];
        for _ in 0..random.below(BLOCKS) {
            let at = random.below(BLOCKS) * BLOCK;
            assert!(read(&client, at, BLOCK) == bytes[at..at + BLOCK], "life {life}, at {at}");
            contents.push(std::fs::read(&path).unwrap());
        }
        let next = TempDir::new().unwrap();
        let left = cut(&mut random, &contents, &foreign);
        std::fs::write(next.path().join(path.file_name().unwrap()), left).unwrap();
        cut_note(&mut random, &find(&cache, "source"), next.path());
        // All of it, after the contents that the next life may find.
        assert!(read(&client, 0, bytes.len()) == bytes, "life {life}");
        let state = disk.cache_state().unwrap();
        (loaded, fetched) = (loaded + state.loaded, fetched + state.fetched);
        assert_eq!(state.loaded + state.fetched, BLOCKS as u64, "life {life}: {state:?}");
        // Without the source, the note alone says what was there.
        server.served.set_fault(Some(Fault::Gone));
        if let Ok(known) = golden::open(&crate::sources::spec(&server.source, &next), 512) {
            assert_eq!(known.identity(), disk.identity(), "life {life}");
        }
        server.served.set_fault(None);
        cache = next;
    }
    println!("{lives} power cuts: {loaded} blocks were right, {fetched} were fetched anew");
    assert!(loaded > lives && fetched > lives);
}

/// Leaves a part of the note about the source.
fn cut_note(random: &mut Random, note: &Path, to: &Path) {
    let mut text = std::fs::read(note).unwrap();
    if random.below(2) == 0 {
        text.truncate(random.below(text.len() + 1));
        let zeroes = random.below(2) * 40;
        text.resize(text.len() + zeroes, 0);
    }
    std::fs::write(to.join(note.file_name().unwrap()), text).unwrap();
}
