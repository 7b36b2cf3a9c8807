//! Images of the model: written by the code for images, read and merged by a `ringway-io`.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use image::format::{Backing, Format};
use image::vhd::{CreateOptions, Parent};
use image::{ImageWriter, PlainFile, Presence, run_now};
use model::id::Uuid;
use model::image::{ImageConvert, ImageFormat};
use testkit::process::find_binary;

use super::{Content, UNITS};
use crate::ringway_io::PrivateIo;
use crate::sr::dir::backend;

/// Size of a unit in bytes.
const UNIT: usize = 4096;
/// Size of a disk in bytes.
pub(super) const BYTES: u64 = (UNITS * UNIT) as u64;

/// Content of a layer: nothing, or a value for each unit.
type Layer = [Option<u8>; UNITS];

/// Images of the SR, and the process that reads them.
pub(super) struct Images {
    folder: PathBuf,
    io: PrivateIo,
    scratch: tempfile::TempDir,
    /// Content of the layers that are written.
    layers: BTreeMap<String, Layer>,
    /// Images below them.
    below: BTreeMap<String, String>,
    /// Identities of VHDs.
    identities: BTreeMap<String, [u8; 16]>,
}

impl Images {
    pub(super) async fn new(folder: &Path) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let program = find_binary("ringway-io").unwrap();
        let io = PrivateIo::start(&program, scratch.path()).await.unwrap();
        let (layers, below, identities) = Default::default();
        Self { folder: folder.into(), io, scratch, layers, below, identities }
    }

    /// Creates an empty layer over another image, or over nothing.
    pub(super) fn create(&mut self, name: &str, below: Option<&str>) {
        self.layers.insert(name.into(), [None; UNITS]);
        let id: Uuid = name.split_once('.').unwrap().0.parse().unwrap();
        self.identities.insert(name.into(), id.bytes());
        self.below.extend(below.map(|below| (name.into(), below.into())));
        self.store(name);
    }

    /// Writes a value to units of an image, as a guest does. 0 is zeroes.
    pub(super) fn write(&mut self, name: &str, units: std::ops::Range<usize>, value: u8) {
        if let Some(layer) = self.layers.get_mut(name) {
            layer[units].fill(Some(value));
            self.store(name);
            return;
        }
        let file = OpenOptions::new().write(true).open(self.folder.join(name)).unwrap();
        let (at, len) = (units.start * UNIT, units.len() * UNIT);
        file.write_all_at(&vec![value; len], at as u64).unwrap();
    }

    /// Writes the image anew.
    fn store(&self, name: &str) {
        let path = self.folder.join(name);
        let _former = std::fs::remove_file(&path);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap();
        let file = Arc::new(PlainFile::new(file.into()));
        let below = self.below.get(name);
        if name.ends_with(".vhd") {
            let parent = |below: &String| Parent {
                file: below.into(),
                unique_id: self.identities[below],
                unix_seconds: 1_000_000_000,
            };
            let options = match below {
                Some(below) => CreateOptions::differencing(BYTES, parent(below)),
                None => CreateOptions::dynamic(BYTES),
            };
            let options = CreateOptions { unique_id: Some(self.identities[name]), ..options };
            return self.fill(name, run_now(ImageWriter::create_vhd(file, &options)).unwrap());
        }
        let backing = Backing { file: "below".into(), format: Some("raw".into()) };
        let backing = below.map(|_| backing);
        self.fill(name, run_now(ImageWriter::create_qcow2(file, BYTES, backing)).unwrap());
    }

    fn fill<F: Format>(&self, name: &str, mut writer: ImageWriter<F>) {
        let layer = &self.layers[name];
        let presence = layer.map(|unit| match unit {
            None => Presence::Below,
            Some(0) => Presence::Zero,
            Some(_) => Presence::Data,
        });
        let data: Vec<u8> = layer.iter().flat_map(|unit| [unit.unwrap_or(0); UNIT]).collect();
        run_now(writer.write_units(0, &data, &presence)).unwrap();
        run_now(writer.finish()).unwrap();
    }

    /// Reads a chain of images.
    pub(super) async fn read(&mut self, images: &[String]) -> Content {
        let path = self.scratch.path().join("content");
        let source = backend(&self.folder, images).unwrap();
        let whole = ImageConvert::whole(source, path.clone(), ImageFormat::Raw);
        self.io.connection().image_convert(&whole).await.unwrap();
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let unit = |unit: &[u8]| {
            assert!(unit.iter().all(|byte| *byte == unit[0]));
            unit[0]
        };
        let units: Vec<u8> = bytes.chunks(UNIT).map(unit).collect();
        units.try_into().unwrap()
    }

    /// Merges the first `count` images of a chain.
    pub(super) async fn merge(&mut self, chain: &[String], count: u32, into: &str) {
        // A merged VHD has the identity of the topmost one.
        if let Some(identity) = self.identities.get(&chain[0]).copied() {
            self.identities.insert(into.into(), identity);
        }
        let source = backend(&self.folder, chain).unwrap();
        let format: ImageFormat = into.split_once('.').unwrap().1.parse().unwrap();
        let whole = ImageConvert::whole(source, self.folder.join(into), format);
        let convert = ImageConvert { layers: Some(count), background: true, ..whole };
        self.io.connection().image_convert(&convert).await.unwrap();
    }
}
