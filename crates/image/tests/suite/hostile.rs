//! Mutated images: no panic, no endless work, bounded memory.

use std::path::Path;

use image::format::Format;
use image::map::{Base, Place, Word};
use image::qcow2::{Access, Image, Qcow2Format};
use image::{PlainFile, run_now};
use proptest::prelude::*;

use crate::qemu::{Scratch, qemu_img, qemu_io};

/// Returns small images with all structures.
fn samples() -> Vec<Vec<u8>> {
    let scratch = Scratch::new();
    ["cluster_size=512", "cluster_size=16k,extended_l2=on,compression_type=zstd"]
        .into_iter()
        .map(|options| {
            let path = scratch.image("a.qcow2", options, "1M");
            let name = path.to_str().unwrap();
            qemu_img(&["bitmap", "--add", name, "changes"]);
            let commands =
                ["write -q -P 1 0 40k", "write -q -c -P 2 64k 16k", "write -q -z 96k 16k"];
            qemu_io(&path, &commands.map(Into::into));
            qemu_img(&["snapshot", "-c", "s", name]);
            qemu_io(&path, &["write -q -P 3 8k 16k".into()]);
            std::fs::read(path).unwrap()
        })
        .collect()
}

/// Does everything with an image that needs no lock.
fn use_image(path: &Path) {
    let file = std::fs::File::open(path).unwrap();
    let Ok(mut image) = run_now(Image::open(PlainFile::new(file.into()), Access::Read)) else {
        return;
    };
    let _ = run_now(image.info());
    if let Ok(report) = run_now(image.check()) {
        assert!(report.faults.len() <= 100);
    }
    let extents = run_now(image.map(0, 1000)).unwrap_or_default();
    let size = image.header().size;
    assert!(extents.iter().all(|extent| extent.start + extent.bytes <= size));
    let mut cluster = vec![0; image.header().cluster_bytes() as usize];
    for extent in extents {
        let run = run_now(image.lookup(extent.start)).unwrap();
        if let image::qcow2::Mapping::Compressed(compressed) = run.mapping {
            let _ = run_now(image.read_compressed(compressed, &mut cluster));
        }
    }
}

/// Does everything with an image that its writer does. Errors end a step only.
fn write_image(path: &Path, seed: u64) {
    let Ok(mut format) =
        run_now(Qcow2Format::open(crate::disk::file(path), seed.is_multiple_of(2)))
    else {
        return;
    };
    let layout = format.layout();
    let granules = layout.granules.min(600);
    let mut words = vec![Word::ASK; granules as usize];
    let _ = run_now(format.load(0, &mut words));
    for (granule, _) in (0..granules).zip(&words).filter(|(_, word)| **word == Word::MIXED) {
        let _ = run_now(format.describe(granule));
    }
    let place = Place::new(seed >> 26).unwrap();
    let _ = run_now(format.take_over(&[(seed % granules, Word::data(place, 1, Base::Zero))]));
    for round in 0..3 {
        let mut references = Vec::new();
        for granule in (round..granules).step_by(7 + (seed % 50) as usize) {
            let place =
                run_now(format.reserve(granule)).and_then(|()| run_now(format.allocate(granule)));
            let data = |place| Word::data(place, layout.full_mask(), Base::Zero);
            references.push((granule, place.map_or(Word::ZERO, data)));
        }
        let written =
            run_now(format.prepare(&references)).and_then(|()| run_now(format.write(&references)));
        let freed = if written.is_ok() { format.take_replaced() } else { Vec::new() };
        let old = words.iter().filter(|word| word.is_data()).map(|word| word.place());
        for place in freed.into_iter().chain(old) {
            let _ = run_now(format.reclaim(u64::MAX, place));
        }
    }
    let _ = run_now(format.resize(layout.granules << layout.granule_bits << 1, 1 << 20));
}

#[test]
fn mutated_images_are_refused_or_reported() {
    let samples = samples();
    let scratch = Scratch::new();
    let path = scratch.path("mutated.qcow2");
    let word = (
        any::<prop::sample::Index>(),
        prop_oneof![any::<u64>(), 0u64..1 << 20, (0u32..64).prop_map(|bit| 1 << bit)],
    );
    let header = (any::<bool>(), 0usize..16, any::<u8>());
    let case =
        (0..samples.len(), prop::collection::vec(word, 0..6), prop::collection::vec(header, 0..3));
    let config =
        ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |((sample, words, bytes) in case, seed: u64)| {
        let mut image = samples[sample].clone();
        for (place, value) in words {
            let at = place.index(image.len() / 8) * 8;
            image[at..at + 8].copy_from_slice(&value.to_be_bytes());
        }
        for (high, at, value) in bytes {
            image[if high { 96 + at } else { 20 + at * 4 + 3 }] = value;
        }
        std::fs::write(&path, &image).unwrap();
        use_image(&path);
        write_image(&path, seed);
    });
}
