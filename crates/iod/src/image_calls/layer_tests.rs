//! Tests of merged layers against flat buffers.

use std::path::{Path, PathBuf};
use std::process::Command;

use image::format::Backing;
use model::image::ImageBacking;
use model::spec::Backend;
use rustix::fs::{Mode, OFlags, open};

use super::source::Source;
use super::*;
use image::{ImageWriter, PlainFile, Presence, run_now};

/// Size of a disk: seven clusters and a half.
const SIZE: usize = 480 << 10;
const UNIT: usize = 4096;

/// Random numbers, the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap()
    }
}

/// Statement of a layer about each unit of its disk. Behind the last one it is zero.
#[derive(Clone, Debug)]
struct Layer(Vec<(Presence, u8)>);

impl Layer {
    /// A layer of long and short runs.
    fn random(random: &mut Random, size: usize) -> Self {
        let mut units = Vec::new();
        while units.len() < size / UNIT {
            let kinds = [Presence::Below, Presence::Zero, Presence::Data];
            let (kind, value) = (kinds[random.below(3)], 1 + random.below(255) as u8);
            units.resize(units.len() + 1 + random.below(20), (kind, value));
        }
        units.truncate(size / UNIT);
        Self(units)
    }

    /// Puts the layer over the content of a disk.
    fn over(&self, below: &[u8], size: usize) -> Vec<u8> {
        let mut content = vec![0; size];
        for (unit, out) in content.chunks_mut(UNIT).enumerate() {
            match self.0.get(unit) {
                None | Some((Presence::Zero, _)) => {}
                Some((Presence::Data, value)) => out.fill(*value),
                Some((Presence::Below, _)) => {
                    let known = below.get(unit * UNIT..).unwrap_or_default();
                    let len = known.len().min(out.len());
                    out[..len].copy_from_slice(&known[..len]);
                }
            }
        }
        content
    }

    /// Writes an image of the layer over another one.
    fn write(&self, path: &Path, below: &Path) {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let file = Arc::new(PlainFile::new(open(path, flags, Mode::RUSR | Mode::WUSR).unwrap()));
        let size = (self.0.len() * UNIT) as u64;
        if path.extension().unwrap() == "vhd" {
            let format = below.extension().unwrap().to_str().map(Into::into);
            let backing = ImageBacking { file: below.into(), format };
            let parent = super::vhd::parent(path, &backing, &Arc::default()).unwrap();
            let options = image::vhd::CreateOptions::differencing(size, parent);
            return self.fill(run_now(ImageWriter::create_vhd(file, &options)).unwrap());
        }
        let backing = Some(Backing { file: below.into(), format: Some("raw".into()) });
        self.fill(run_now(ImageWriter::create_qcow2(file, size, backing)).unwrap());
    }

    fn fill<F: image::format::Format>(&self, mut writer: ImageWriter<F>) {
        let (mut data, mut presence) = (vec![0; self.0.len() * UNIT], Vec::new());
        for (out, (kind, value)) in data.chunks_mut(UNIT).zip(&self.0) {
            out.fill(if *kind == Presence::Data { *value } else { 0 });
            presence.push(*kind);
        }
        run_now(writer.write_units(0, &data, &presence)).unwrap();
        run_now(writer.finish()).unwrap();
    }
}

fn read(tree: &Backend) -> Vec<u8> {
    let mut source = Source::open(tree, &Arc::default(), false).unwrap();
    let mut content = vec![1; source.size() as usize];
    source.read(0, &mut content).unwrap();
    content
}

fn tree(images: &[PathBuf]) -> Backend {
    let mut tree = None;
    for path in images.iter().rev() {
        let format = path.extension().unwrap().to_str().unwrap().parse().unwrap();
        tree = Backend::image_over(format, path.clone().into(), tree);
    }
    tree.unwrap()
}

fn merge(images: &[PathBuf], layers: u32, into: &Path) -> Result<(), ImageCallError> {
    let format = into.extension().unwrap().to_str().unwrap().parse().unwrap();
    let call = model::image::ImageConvert {
        layers: Some(layers),
        background: layers.is_multiple_of(2),
        ..model::image::ImageConvert::whole(tree(images), into.into(), format)
    };
    convert::convert(&call, &Arc::default(), &Progress::default(), &DiskLoad::default)
}

#[test]
fn merged_layers_say_what_the_layers_said_together() {
    for seed in 1..24 {
        merged_layers_say_the_same(seed, "qcow2");
    }
}

#[test]
fn merged_vhds_say_what_they_said_together_under_the_identity_of_the_top() {
    for seed in 1..24 {
        merged_layers_say_the_same(seed, "vhd");
    }
}

fn merged_layers_say_the_same(seed: u64, format: &str) {
    {
        let (folder, mut random) = (tempfile::tempdir().unwrap(), Random(seed * 0x9e37_79b9));
        let path = |name: &str| folder.path().join(name);
        let below = [3, 4].map(|value| vec![value; SIZE]);
        let bases = [path("one.raw"), path("other.raw")];
        for (base, content) in bases.iter().zip(&below) {
            std::fs::write(base, content).unwrap();
        }
        let count = 2 + random.below(3);
        let mut images: Vec<PathBuf> = Vec::new();
        let mut layers = Vec::new();
        // The lowest layer comes first, and the images top first.
        for number in (0..count).rev() {
            // A lower layer may be shorter, after the disk has grown.
            let size = if number == 0 { SIZE } else { SIZE - random.below(3) * 32 * UNIT / 2 };
            let (layer, image) =
                (Layer::random(&mut random, size), path(&format!("{number}.{format}")));
            layer.write(&image, images.first().unwrap_or(&bases[0]));
            layers.insert(0, layer);
            images.insert(0, image);
        }
        let into = path(&format!("merged.{format}"));
        let chain: Vec<_> = images.iter().chain(bases.first()).cloned().collect();
        merge(&chain, count as u32, &into).unwrap();
        // What the layers leave open comes from whatever lies below.
        for (base, content) in bases.iter().zip(&below) {
            let expected = layers
                .iter()
                .rev()
                .fold(content.clone(), |below, layer| layer.over(&below, layer.0.len() * UNIT));
            assert!(read(&tree(&[into.clone(), base.clone()])) == expected, "seed {seed}");
        }
        let report = check(
            &ImageCheck {
                path: into,
                format: format.parse().unwrap(),
                repair_leaks: false,
                deadline_s: 1,
            },
            &Arc::default(),
        );
        let report = report.unwrap();
        assert_eq!((report.errors, report.leaks), (0, 0), "seed {seed}");
        // An image over the merged ones lies over the new one, too.
        if format == "vhd" {
            let (above, top) = (path("above.vhd"), images[0].clone());
            Layer::random(&mut random, SIZE).write(&above, &top);
            let chain = |middle: &[PathBuf]| [std::slice::from_ref(&above), middle].concat();
            let expected = read(&tree(&chain(&[&images[..], &bases[..1]].concat())));
            assert!(read(&tree(&chain(&[path("merged.vhd"), bases[0].clone()]))) == expected);
            let whole = path("whole.vhd");
            merge(&[&images[..], &bases[..1]].concat(), count as u32 + 1, &whole).unwrap();
            assert!(read(&tree(&chain(&[whole]))) == expected);
        }
    }
}

#[test]
fn the_lowest_layers_become_a_whole_image() {
    let folder = tempfile::tempdir().unwrap();
    let (base, image) = (folder.path().join("base.raw"), folder.path().join("top.qcow2"));
    let file = std::fs::File::create(&base).unwrap();
    file.set_len(SIZE as u64).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[7; UNIT], 64 << 10).unwrap();
    let layer = Layer::random(&mut Random(5), SIZE);
    layer.write(&image, &base);
    let chain = [image, base];
    let expected = layer.over(&read(&tree(&chain[1..])), SIZE);
    for name in ["whole.raw", "whole.qcow2"] {
        let into = folder.path().join(name);
        merge(&chain, 2, &into).unwrap();
        assert!(read(&tree(std::slice::from_ref(&into))) == expected, "{name}");
    }
    // A raw image lies over nothing, and a source has no images that it has not.
    for (layers, name, why) in [(1, "part.raw", "qcow2 or VHD only"), (3, "x.raw", "has 2 images")]
    {
        let error = merge(&chain, layers, &folder.path().join(name)).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
        assert!(!folder.path().join(name).exists());
    }
}

/// Clusters of another program may be smaller than what the new image can tell apart.
#[test]
fn a_unit_that_is_there_in_part_is_stored_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("base.raw"), [3; 64 << 10]).unwrap();
    let run = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).current_dir(folder.path()).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
    };
    let create = ["create", "-q", "-f", "qcow2", "-o", "cluster_size=512", "-b", "base.raw", "-F"];
    run("qemu-img", &[&create[..], &["raw", "a.qcow2"]].concat());
    run("qemu-io", &["-f", "qcow2", "-c", "write -P 9 1024 512", "a.qcow2"]);
    run("qemu-io", &["-f", "qcow2", "-c", "write -z 8192 512", "a.qcow2"]);
    let chain = [path("a.qcow2"), path("base.raw")];
    let into = path("m.qcow2");
    merge(&chain, 1, &into).unwrap();
    assert_eq!(read(&tree(&[into, path("base.raw")])), read(&tree(&chain)));
}
