//! Random chains of layers, compared with a model of their content and with QEMU.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use disk::conformance::Client;
use disk::{Disk, RequestKind, Window};
use image::qcow2::{Backing, CreateOptions, create_file};

use crate::layers::{Layer, dir};

/// Size of the top in bytes.
const SIZE: u64 = 1 << 20;
/// Sizes of layers are multiples of it: the largest block of an image here.
const BLOCK: u64 = 8192;

/// Reproducible random numbers (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }

    /// Returns a range in whole sectors, up to 100 KiB long.
    fn range(&mut self, size: u64) -> (u64, u64) {
        let sectors = size / 512;
        let first = self.below(sectors);
        let most = if self.below(2) == 0 { 9 } else { 200 };
        (first * 512, (1 + self.below(most.min(sectors - first))) * 512)
    }
}

/// Disk with the content that it should have.
struct Model {
    disk: Arc<dyn Disk>,
    content: Vec<u8>,
}

impl Model {
    /// Writes, clears and reads at random.
    fn exercise(&mut self, random: &mut Random, requests: u64) {
        let client = Client::new(&self.disk);
        let size = self.content.len() as u64;
        for number in 0..requests {
            let (offset, len) = random.range(size);
            let range = offset as usize..(offset + len) as usize;
            match random.below(8) {
                0 | 1 => {
                    let value = (number % 250) as u8 + 1;
                    client.write(offset, vec![value; len as usize]);
                    self.content[range].fill(value);
                }
                2 => {
                    let zeroes = RequestKind::WriteZeroes { unmap: true, durable: false };
                    let (outcome, _) = client.run(zeroes, offset, len, Vec::new());
                    assert_eq!(outcome, Ok(()));
                    self.content[range].fill(0);
                }
                _ => self.check(&client, offset, len),
            }
        }
        // All of it twice: the second time, the map knows the files of the layers below.
        for _ in 0..2 {
            (0..size / BLOCK).for_each(|block| self.check(&client, block * BLOCK, BLOCK));
            self.check(&client, 0, size);
        }
    }

    fn check(&self, client: &Client, offset: u64, len: u64) {
        let expected = &self.content[offset as usize..(offset + len) as usize];
        let found = client.read(offset, len);
        let wrong = found.iter().zip(expected).position(|(found, expected)| found != expected);
        let wrong = wrong.map(|at| (offset + at as u64, found[at], expected[at], offset, len));
        assert_eq!(wrong, None, "first wrong byte");
    }
}

/// Makes a raw file at the bottom, or a part of one.
fn base(dir: &Path, random: &mut Random) -> (Arc<dyn Disk>, Vec<u8>) {
    let size = BLOCK * (1 + random.below(SIZE / BLOCK));
    let content: Vec<u8> = (0..size).map(|at| (at / 512 % 251) as u8).collect();
    let path = dir.join("0");
    std::fs::write(&path, &content).unwrap();
    (Layer::of(path.clone()).file(&path, true), content)
}

/// Makes a new layer of `size` bytes with random properties. QEMU finds the layer below by `backing`.
fn create(path: &Path, size: u64, backing: Option<Backing>, random: &mut Random) -> Layer {
    let extended_l2 = random.below(2) == 0;
    let cluster_bits = if extended_l2 { 14 + random.below(4) } else { 9 + random.below(10) };
    let cluster_bits = cluster_bits as u32;
    create_file(path, &CreateOptions { size, cluster_bits, extended_l2, backing }).unwrap();
    Layer::of(path.to_owned())
}

/// Returns the content of an image as QEMU reads it.
fn content_by_qemu(path: &Path) -> Vec<u8> {
    let raw = path.with_extension("raw");
    let convert = ["convert", "-f", "qcow2", "-O", "raw"];
    let output = Command::new("qemu-img").args(convert).args([path, &raw]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::read(raw).unwrap()
}

/// Makes a chain of layers with random properties and content, and checks it.
fn check_chain(seed: u64) {
    let (dir, mut random) = (dir(), Random(seed * 77 + 1));
    let (mut below, mut content) = base(dir.path(), &mut random);
    let mut backing = Some(Backing { file: "0".into(), format: Some("raw".into()) });
    if random.below(4) == 0 {
        let size = (content.len() as u64 / 2).next_multiple_of(BLOCK);
        let offset = content.len() as u64 - size;
        below = Arc::new(Window::new(below, offset, size).unwrap());
        content.drain(..offset as usize);
        // An image cannot refer to a part of a file.
        backing = None;
    }
    let layers = 1 + random.below(5);
    for number in 1..=layers {
        let path = dir.path().join(number.to_string());
        let size = if number == layers { SIZE } else { BLOCK * (1 + random.below(SIZE / BLOCK)) };
        let layer = create(&path, size, backing.clone(), &mut random);
        content.resize(size as usize, 0);
        let disk = layer.open_over(Some(Arc::clone(&below)), false);
        disk.activate().unwrap();
        let mut model = Model { disk, content };
        model.exercise(&mut random, 150);
        model.disk.deactivate().unwrap();
        layer.check();
        content = model.content;
        if let Some(backing) = &mut backing {
            assert!(content_by_qemu(&path) == content, "QEMU reads something else");
            *backing = Backing { file: number.to_string().into(), format: Some("qcow2".into()) };
        }
        below = layer.open_over(Some(below), true);
    }
    below.activate().unwrap();
    let model = Model { disk: below, content };
    let client = Client::new(&model.disk);
    (0..2).for_each(|_| model.check(&client, 0, SIZE));
    drop(client);
    model.disk.deactivate().unwrap();
}

#[test]
fn chains_of_layers_have_the_content_of_a_model() {
    let chains = if std::env::var_os("RINGWAY_SOAK").is_some() { 1000 } else { 10 };
    for seed in 0..chains {
        println!("seed {seed}");
        check_chain(seed);
    }
}
