//! Model of a whole SR: random snapshots, clones, writes, destructions and merges on real images,
//! with crashes between any two changes, against flat buffers.

mod images;
mod ops;

use std::collections::{BTreeMap, BTreeSet};

use testkit::rounds;

use images::Images;
use ops::Random;

use super::super::merge_journal::MERGE;
use super::*;

/// Number of units of a disk.
const UNITS: usize = 64;
/// Most volumes of the SR.
const MAX_MODEL_VOLUMES: usize = 10;

/// Content of a disk: a value for each unit.
type Content = [u8; UNITS];

/// SR with what its volumes must contain.
struct Model {
    dir: TempDir,
    images: Images,
    volumes: BTreeMap<VdiId, Volume>,
    /// Volumes that a crash may have left, or not.
    maybe: BTreeMap<VdiId, Volume>,
    /// Volume that a crash may have reset, or not.
    resetting: Option<VdiId>,
    random: Random,
    next_id: u32,
}

#[derive(Clone, Debug)]
struct Volume {
    content: Content,
    is_written: bool,
    /// File name of the image that a datapath writes, if one does.
    served: Option<String>,
    /// Content to which the volume goes back, if it does.
    reset: Content,
}

impl Volume {
    fn new(content: Content, is_written: bool) -> Self {
        Self { content, is_written, served: None, reset: content }
    }
}

impl Model {
    async fn new(seed: u64) -> Self {
        let (dir, _) = made();
        let images = Images::new(dir.path()).await;
        let random = Random::new(seed);
        let (volumes, maybe) = (BTreeMap::new(), BTreeMap::new());
        Self { dir, images, volumes, maybe, resetting: None, random, next_id: 1 }
    }

    fn sr(&self) -> SrDirectory<'_> {
        open(&self.dir)
    }

    fn id(&mut self) -> VdiId {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&self.next_id.to_be_bytes());
        self.next_id += 1;
        VdiId(Uuid::from_random(bytes))
    }

    /// Attaches the SR as the next worker does, and finds out which volumes are there.
    async fn restart(&mut self) {
        let sr = self.sr();
        sr.clean().unwrap();
        sr.list_storage_blocks().unwrap();
        sr.remove_incomplete().unwrap();
        let there: Vec<_> = sr.volumes().unwrap().iter().map(|volume| volume.vdi).collect();
        for (vdi, volume) in std::mem::take(&mut self.maybe) {
            match there.contains(&vdi) {
                true => drop(self.volumes.insert(vdi, volume)),
                false => drop(self.volumes.remove(&vdi)),
            }
        }
        if let Some(vdi) = self.resetting.take() {
            let images = self.sr().images(vdi).unwrap();
            let volume = self.volumes.get_mut(&vdi).unwrap();
            if self.images.read(&images).await == volume.reset {
                volume.content = volume.reset;
            }
        }
        self.check_all().await;
    }

    /// Checks the list of volumes, the content of each, and that nothing is lost.
    async fn check_all(&mut self) {
        let there: Vec<_> = self.sr().volumes().unwrap().iter().map(|volume| volume.vdi).collect();
        assert_eq!(there, self.volumes.keys().copied().collect::<Vec<_>>());
        assert_eq!(self.sr().foreign_files().unwrap(), []);
        for vdi in there {
            self.check(vdi).await;
        }
    }

    async fn check(&mut self, vdi: VdiId) {
        let images = self.sr().images(vdi).unwrap();
        let content = self.images.read(&images).await;
        assert!(content == self.volumes[&vdi].content, "volume {vdi} of {images:?}");
    }

    /// Merges until there is nothing to merge.
    async fn merge_all(&mut self) {
        loop {
            self.merge_step().await.unwrap();
            let next = self.id().0;
            if self.sr().begin_merge(next, &BTreeSet::new()).unwrap().is_none() {
                return;
            }
        }
    }

    /// Destroys all volumes. Nothing is left.
    async fn end(&mut self) {
        for vdi in self.volumes.keys().copied().collect::<Vec<_>>() {
            self.destroy(vdi).unwrap();
        }
        self.sr().end_merge().unwrap();
        let mut left = names(self.dir.path());
        // Names of merges that were given up may stay.
        left.retain(|name| name != MERGE);
        assert_eq!(left, [MARKER, STORAGE_BLOCKS]);
    }
}

/// Runs random operations with crashes.
async fn run(seed: u64, ops: usize) {
    let mut model = Model::new(seed).await;
    for op in 0..ops {
        if model.random.one_in(6) {
            crash::after(model.random.below(12));
        }
        let outcome = model.random_op().await;
        let has_crashed = crash::restart();
        if let Err(error) = outcome
            && !has_crashed
        {
            assert!(error.to_string().contains("30 images"), "seed {seed}, op {op}: {error}");
        }
        if has_crashed {
            model.restart().await;
        } else {
            assert!(model.maybe.is_empty());
            if let Some(vdi) = model.any_volume() {
                model.check(vdi).await;
            }
        }
    }
    model.check_all().await;
    model.merge_all().await;
    model.check_all().await;
    model.end().await;
}

#[tokio::test]
async fn no_byte_is_wrong_and_no_image_is_lost() {
    for seed in 0..rounds(2, 40) as u64 {
        run(seed, rounds(120, 400)).await;
    }
}

/// A chain of the most snapshots with a clone at each, half of it destroyed, becomes short.
#[tokio::test]
async fn a_deep_tree_becomes_short() {
    let mut model = Model::new(7).await;
    let first = model.create().unwrap();
    let mut clones = Vec::new();
    for _ in 0..28 {
        model.write(first);
        let snapshot = model.snapshot(first).unwrap();
        let clone = model.clone_volume(snapshot).unwrap();
        model.write(clone);
        clones.extend([snapshot, clone]);
    }
    model.merge_all().await;
    assert_eq!(model.sr().images(first).unwrap().len(), 29, "each snapshot shows its image");
    // The first disk goes back to a snapshot, and half of the others go.
    let again = model.clone_volume(clones[50]).unwrap();
    model.destroy(first).unwrap();
    for pair in clones.chunks(4) {
        pair.iter().take(2).for_each(|vdi| model.destroy(*vdi).unwrap());
    }
    model.merge_all().await;
    model.check_all().await;
    let images = model.sr().images(again).unwrap().len();
    assert!(images <= 15, "{images} images");
    for vdi in
        clones.iter().filter(|vdi| model.volumes.contains_key(vdi)).copied().collect::<Vec<_>>()
    {
        model.destroy(vdi).unwrap();
    }
    model.merge_all().await;
    model.check_all().await;
    assert!(model.sr().images(again).unwrap().len() <= 3);
    model.end().await;
}
