//! VHDs of other programs, damaged and hostile ones.

use std::path::Path;
use std::sync::Arc;

use image::format::{Access, Format};
use image::map::{Base, Kind, Place, Word};
use image::vhd::{CreateOptions, DiskType, Image, OpenOptions, VhdFormat, create};
use image::{CheckReport, Extent, ExtentKind, ImageFile, PlainFile, run_now};
use proptest::prelude::*;

use crate::disk::file;
use crate::qemu::{Scratch, qemu_img};
use crate::xenserver::{BATMAP, BLOCK, HEADER, PARENT_ID, SECTOR, TABLE, footer, image, put, seal};

const SIZE: u64 = 3 * BLOCK as u64;
const ALL: &[(usize, usize)] = &[(0, BLOCK / SECTOR)];
/// A whole granule, a block of 4 KiB, and three sectors.
const SOME: &[(usize, usize)] = &[(0, 128), (128, 136), (300, 303)];

fn open(bytes: &[u8], scratch: &Scratch) -> Result<Image<Arc<PlainFile>>, image::ImageError> {
    let path = scratch.path("a.vhd");
    std::fs::write(&path, bytes).unwrap();
    run_now(Image::open(file(&path), Access::Read))
}

fn checked(bytes: &[u8], scratch: &Scratch) -> CheckReport {
    run_now(open(bytes, scratch).unwrap().check()).unwrap()
}

fn map(image: &mut Image<Arc<PlainFile>>) -> Vec<(u64, u64, Option<u64>)> {
    let place = |kind| match kind {
        ExtentKind::Data { host_offset } => Some(host_offset),
        _ => None,
    };
    let extents: Vec<Extent> = run_now(image.map(0, 100)).unwrap();
    extents.into_iter().map(|one| (one.start, one.bytes, place(one.kind))).collect()
}

#[test]
fn images_of_xenserver_are_read() {
    let scratch = Scratch::new();
    let bytes = image(SIZE - 512, true, &[Some((SOME, 7)), None, Some((ALL, 9))]);
    let mut image = open(&bytes, &scratch).unwrap();
    let info = run_now(image.info()).unwrap();
    assert_eq!((info.size, info.disk_type), (SIZE - 512, DiskType::Differencing));
    assert_eq!((info.creator.as_str(), info.block_bytes), ("tap", Some(BLOCK as u64)));
    assert!(info.has_batmap && info.has_same_footers);
    let parent = info.parent.unwrap();
    assert_eq!((parent.unique_id, parent.path.as_deref()), (PARENT_ID, Some("parent.vhd")));
    let data = 16384 + 4096;
    let block = BLOCK as u64;
    let expected = [
        (0, 136 * 512, Some(data)),
        (136 * 512, 164 * 512, None),
        (300 * 512, 3 * 512, Some(data + 300 * 512)),
        (303 * 512, 2 * block - 303 * 512, None),
        (2 * block, block - 512, Some(data + block + 4096)),
    ];
    assert_eq!(map(&mut image), expected);
    assert_eq!(run_now(image.check()).unwrap().faults, []);
}

#[test]
fn locators_are_optional() {
    let scratch = Scratch::new();
    let mut bytes = image(SIZE, true, &[None; 3]);
    for (kind, path) in [(0, "parent.vhd"), (2, "C:/images/parent.vhd"), (1, "parent.vhd")] {
        let mut image = open(&bytes, &scratch).unwrap();
        assert_eq!(
            run_now(async { Ok(image.parent_path().await) }).unwrap().as_deref(),
            Some(path)
        );
        // W2ru is read before W2ku, so both go after MacX.
        let gone: &[usize] = if kind == 0 { &[0, 2] } else { &[1] };
        for locator in gone {
            bytes[HEADER + 576 + locator * 24..][..4].fill(0);
        }
        seal(&mut bytes[HEADER..HEADER + 1024], 36);
    }
}

#[test]
fn qemu_reads_the_same() {
    let scratch = Scratch::new();
    let bytes = image(SIZE, false, &[Some((ALL, 7)), None, Some((ALL, 9))]);
    let mut image = open(&bytes, &scratch).unwrap();
    let (path, raw) = (scratch.path("a.vhd"), scratch.path("a.raw"));
    let names = [&path, &raw].map(|path| path.to_str().unwrap());
    qemu_img(&["convert", "-f", "vpc", "-O", "raw", names[0], names[1]]);
    let raw = std::fs::read(raw).unwrap();
    assert_eq!(raw.len() as u64, SIZE);
    for (start, bytes, place) in map(&mut image) {
        let mut found = vec![0; bytes as usize];
        if let Some(place) = place {
            run_now(async { Ok(image.file().read_at(place, &mut found).await) }).unwrap().unwrap();
        }
        assert!(raw[start as usize..][..bytes as usize] == found[..], "{start}");
    }
}

/// Writes references in a round, and reclaims what they replace.
fn write_round(format: &mut VhdFormat<Arc<PlainFile>>, references: &[(u64, Word)]) {
    let mut old = Vec::new();
    for (granule, _) in references {
        let word = run_now(format.load_word(*granule)).unwrap();
        if word.is_data() {
            format.enter_limbo(*granule);
            old.push((*granule, word.place()));
        }
    }
    run_now(format.prepare(references)).unwrap();
    run_now(format.write(references)).unwrap();
    let blocks = format.take_replaced().into_iter().map(|place| (u64::MAX, place));
    for (granule, place) in old.into_iter().chain(blocks.collect::<Vec<_>>()) {
        run_now(format.reclaim(granule, place)).unwrap();
    }
}

#[test]
fn the_batmap_is_cleared_before_it_is_wrong_and_a_free_block_is_used_again() {
    let scratch = Scratch::new();
    let bytes = image(SIZE, false, &[Some((ALL, 7)), None, Some((ALL, 9))]);
    let path = scratch.path("a.vhd");
    std::fs::write(&path, &bytes).unwrap();
    let mut format = run_now(VhdFormat::open(file(&path), OpenOptions::new(SIZE))).unwrap();
    run_now(format.take_over(&[])).unwrap();
    assert!(std::fs::read(&path).unwrap() == bytes, "nothing was to be repaired");
    let zeroes: Vec<_> = (0..32).map(|granule| (granule, Word::ZERO)).collect();
    write_round(&mut format, &zeroes);
    let found = std::fs::read(&path).unwrap();
    assert_eq!(found[BATMAP + SECTOR..BATMAP + 2 * SECTOR], [0; SECTOR]);
    assert_eq!(found[BATMAP + 24..BATMAP + 28], [0xff; 4]);
    assert_eq!(found[TABLE..TABLE + 4], [0xff; 4]);
    assert!(found[16384 + 4096 - SECTOR..][..SECTOR + BLOCK].iter().all(|byte| *byte == 0));
    // Block 1 gets the place of block 0.
    let place = run_now(format.allocate(33)).unwrap();
    assert_eq!(place.units() * 512, 16384 + 4096 + 65536);
    write_round(&mut format, &[(33, Word::data(place, 3, Base::Zero))]);
    drop(format);
    let mut image = run_now(Image::open(file(&path), Access::Write)).unwrap();
    assert_eq!(run_now(image.check()).unwrap().faults, []);
    let stored = (BLOCK as u64 + 65536, 8192, Some(place.units() * 512));
    assert!(map(&mut image).contains(&stored));
}

#[test]
fn a_lost_footer_is_stored_again() {
    let scratch = Scratch::new();
    let good = image(SIZE, false, &[Some((ALL, 7)), None, None]);
    let end = good.len() - SECTOR;
    let path = scratch.path("a.vhd");
    // At the end: nothing, or data of a block. At byte 0: damage.
    for (at, value, report) in [(end, 0, (0, 1)), (end, 5, (1, 0)), (0, 5, (1, 0))] {
        let mut bytes = good.clone();
        bytes[at..at + SECTOR].fill(value);
        let found = checked(&bytes, &scratch);
        assert_eq!((found.errors, found.leaks), report, "{:?}", found.faults);
        let mut format = run_now(VhdFormat::open(file(&path), OpenOptions::new(SIZE))).unwrap();
        run_now(format.take_over(&[])).unwrap();
        let now = std::fs::read(&path).unwrap();
        assert_eq!(now[now.len() - SECTOR..], good[..SECTOR]);
        assert_eq!(now[..SECTOR], good[..SECTOR]);
        assert!(checked(&now, &scratch).is_clean());
        assert!(now[end..end + SECTOR].iter().all(|byte| *byte == value) || value != 5 || at == 0);
    }
}

#[test]
fn a_guest_cannot_make_its_fixed_disk_another_image() {
    let scratch = Scratch::new();
    let mut bytes = image(SIZE, false, &[Some((ALL, 7)), None, None]);
    let size = bytes.len() as u64;
    bytes.extend(footer(size, 2));
    let image = open(&bytes, &scratch).unwrap();
    assert_eq!((image.footer().disk_type, image.footer().size), (DiskType::Fixed, size));
}

#[test]
fn a_check_names_what_is_damaged() {
    let scratch = Scratch::new();
    let good = image(SIZE, false, &[Some((ALL, 7)), None, Some((ALL, 9))]);
    assert!(checked(&good, &scratch).is_clean());
    let start = (16384 + 4096 - SECTOR) / SECTOR;
    let table = |block: usize, sector: usize| (TABLE + block * 4, sector as u32);
    for ((at, word), text) in [
        (table(1, start + 8), "blocks 0 and 1 overlap"),
        (table(1, 1 << 30), "ends behind"),
        (table(1, 3), "over a header or the table"),
        (table(1, 4), "over tables or locators"),
        ((BATMAP + SECTOR, 0xe000_0000), "the batmap has block 1"),
        ((start * SECTOR, 0), "the batmap says that block 0 is full"),
    ] {
        let mut bytes = good.clone();
        put(&mut bytes, at, &word.to_be_bytes());
        let report = checked(&bytes, &scratch);
        let found = report.faults.iter().any(|fault| fault.problem.contains(text));
        assert!(report.errors > 0 && found, "{text}: {:?}", report.faults);
        if text.contains("overlap") {
            // A write would destroy another block.
            let path = scratch.path("a.vhd");
            let mut format = run_now(VhdFormat::open(file(&path), OpenOptions::new(SIZE))).unwrap();
            let refused = run_now(format.take_over(&[])).unwrap_err().to_string();
            assert!(refused.contains("overlap"), "{refused}");
            assert!(std::fs::read(&path).unwrap() == bytes, "a refused image was changed");
        }
    }
}

#[test]
fn images_that_are_refused_keep_every_byte() {
    let scratch = Scratch::new();
    let path = scratch.path("a.vhd");
    let good = image(SIZE, true, &[None; 3]);
    let end = good.len() - SECTOR;
    type Change = fn(&mut Vec<u8>, usize);
    let changes: [(Change, &str); 8] = [
        (|bytes, _| put(bytes, HEADER + 32, &(3_u32 << 19).to_be_bytes()), "blocks of 1572864"),
        (|bytes, _| put(bytes, HEADER + 32, &(1_u32 << 18).to_be_bytes()), "blocks of 262144"),
        (|bytes, _| put(bytes, HEADER + 28, &2_u32.to_be_bytes()), "less than the disk's"),
        (|bytes, _| put(bytes, HEADER + 28, &u32::MAX.to_be_bytes()), "more than any disk needs"),
        (|bytes, _| put(bytes, HEADER + 16, &(1_u64 << 40).to_be_bytes()), "in its own place"),
        (|bytes, _| put(bytes, HEADER + 16, &512_u64.to_be_bytes()), "in its own place"),
        (|bytes, _| put(bytes, HEADER, b"noheader"), "no dynamic header"),
        (|bytes, end| bytes[end..].fill(0), "not a vhd image"),
    ];
    for (change, text) in changes {
        let mut bytes = good.clone();
        if text.starts_with("not") {
            bytes[..SECTOR].fill(0);
        }
        change(&mut bytes, end);
        seal(&mut bytes[HEADER..HEADER + 1024], 36);
        std::fs::write(&path, &bytes).unwrap();
        for access in [Access::Read, Access::Write] {
            let error = run_now(Image::open(file(&path), access)).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
        assert!(std::fs::read(&path).unwrap() == bytes, "{text}: the image was changed");
    }
    let mut bytes = good;
    for at in [0, end] {
        bytes[at + 84] = 1;
        seal(&mut bytes[at..at + SECTOR], 64);
    }
    assert!(open(&bytes, &scratch).is_ok());
    let error = run_now(Image::open(file(&path), Access::Write)).unwrap_err().to_string();
    assert!(error.contains("saved state"), "{error}");
}

/// Returns small images with all structures.
fn samples(scratch: &Scratch) -> Vec<Vec<u8>> {
    let path = scratch.path("new.vhd");
    let own = PlainFile::new(std::fs::File::create_new(&path).unwrap().into());
    run_now(create(&own, &CreateOptions::dynamic(SIZE))).unwrap();
    let blocks = [Some((SOME, 7)), None, Some((SOME, 9))];
    let mut samples = vec![image(SIZE, true, &blocks), image(SIZE - 512, false, &blocks)];
    samples.push(std::fs::read(path).unwrap());
    samples
}

/// Does everything with an image. Errors end a step only.
fn use_image(path: &Path, has_below: bool, seed: u64) {
    let Ok(mut image) = run_now(Image::open(file(path), Access::Read)) else { return };
    let _ = run_now(image.info());
    let _ = image.check_parent(true, Some(PARENT_ID));
    if let Ok(report) = run_now(image.check()) {
        assert!(report.faults.len() <= 100);
    }
    let extents = run_now(image.map(0, 1000)).unwrap_or_default();
    let size = image.footer().size;
    assert!(extents.iter().all(|extent| extent.start + extent.bytes <= size));
    let options = OpenOptions { has_below, ..OpenOptions::new(size) };
    let Ok(mut format) = run_now(VhdFormat::open(file(path), options)) else { return };
    format_image(&mut format, seed);
}

fn format_image(format: &mut VhdFormat<Arc<PlainFile>>, seed: u64) {
    let layout = format.layout();
    let granules = layout.granules.min(100);
    let mut words = vec![Word::ASK; granules as usize];
    let _ = run_now(format.load(0, &mut words));
    for (granule, _) in (0..granules).zip(&words).filter(|(_, word)| **word == Word::MIXED) {
        let _ = run_now(format.describe(granule));
    }
    let place = Place::new(seed >> 26).unwrap();
    let used = [(seed % granules, Word::data(place, 1, Base::Zero))];
    let _ = run_now(format.take_over(if seed.is_multiple_of(3) { &used } else { &[] }));
    for round in 0..2 {
        let mut references = Vec::new();
        for granule in (round..granules).step_by(3 + (seed % 5) as usize) {
            let prior = words[granule as usize];
            let place = run_now(format.allocate(granule));
            let data = |place| Word::data(place, layout.full_mask(), prior.base());
            references.push((granule, place.map_or(Word::ZERO, data)));
            if prior.kind() == Kind::OverZero {
                format.enter_limbo(granule);
            }
        }
        let written =
            run_now(format.prepare(&references)).and_then(|()| run_now(format.write(&references)));
        let freed = if written.is_ok() { format.take_replaced() } else { Vec::new() };
        let freed = freed.into_iter().map(|place| (u64::MAX, place));
        let old =
            references.iter().map(|(granule, _)| (*granule, words[*granule as usize].place()));
        for (granule, place) in old.chain(freed.collect::<Vec<_>>()) {
            let _ = run_now(format.reclaim(granule, place));
        }
    }
    let _ = run_now(format.resize(layout.granules << layout.granule_bits << 1, 0));
}

#[test]
fn mutated_images_are_refused_or_reported() {
    let scratch = Scratch::new();
    let samples = samples(&scratch);
    let path = scratch.path("mutated.vhd");
    // In the first sectors, and in the bitmap of the first block.
    let place = prop_oneof![0_usize..4096, 16384_usize + 3584..16384 + 4096];
    let value = prop_oneof![any::<u64>(), 0u64..1 << 20, (0u32..64).prop_map(|bit| 1 << bit)];
    let words = prop::collection::vec((place, value), 0..5);
    let cases = if std::env::var_os("RINGWAY_SOAK").is_some() { 5000 } else { 40 };
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |((sample, words) in (0..samples.len(), words), is_sealed: bool, seed: u64)| {
        let mut image = samples[sample].clone();
        for (at, value) in words {
            let at = at / 8 * 8;
            put(&mut image, at, &value.to_be_bytes());
        }
        if is_sealed {
            seal(&mut image[..SECTOR], 64);
            seal(&mut image[HEADER..HEADER + 1024], 36);
        }
        std::fs::write(&path, &image).unwrap();
        use_image(&path, sample == 0, seed);
    });
}
