//! Toy format: one sector a reference, one a refcount, then clusters of four sectors.

use super::format::{SimFormat, SimImage};
use super::storage::SimFile;
use crate::ImageError;
use crate::ImageFile;
use crate::format::{Format, Pieces};
use crate::map::{Base, Kind, Layout, Place, Word};
use crate::planted::{Bug, is_planted};

/// Bytes of a sector.
const SECTOR: usize = 16;
/// Granules of the disk.
pub(super) const GRANULES: usize = 6;
/// Clusters of the image: fewer than a busy guest wants.
const CLUSTERS: usize = 10;
/// Blocks of a granule.
const BLOCKS: usize = 4;
/// Granules whose cluster a snapshot uses, too. They have the first clusters.
const SHARED: usize = 2;
/// Sectors of the file.
const SECTORS: usize = GRANULES + CLUSTERS + CLUSTERS * BLOCKS;

const LAYOUT: Layout = Layout {
    granules: GRANULES as u64,
    granule_bits: 6,
    block_bits: 4,
    unit_bits: 4,
    page_bits: 1,
};

/// Settings of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct ToyOptions {
    /// Whether references note each block.
    pub(super) has_blocks: bool,
    /// Whether freed space is punched.
    pub(super) punches: bool,
}

#[derive(Debug)]
pub(super) struct Toy {
    file: SimFile,
    options: ToyOptions,
    free: Vec<usize>,
    condemned: Vec<usize>,
    /// Clusters that are free and not punched, with [`Bug::LatePunch`].
    unpunched: Vec<usize>,
    replaced: Vec<Place>,
}

/// Returns the first sector of a cluster.
fn cluster_sector(cluster: usize) -> usize {
    GRANULES + CLUSTERS + cluster * BLOCKS
}

/// Returns the cluster at a place.
fn cluster_at(place: Place) -> usize {
    (place.units() as usize - GRANULES - CLUSTERS) / BLOCKS
}

fn place_of(cluster: usize) -> Place {
    Place::new(cluster_sector(cluster) as u64).unwrap()
}

/// Returns the reference in a sector.
fn reference(file: &SimFile, granule: usize) -> Word {
    let word = Word::from_bits(file.value(granule));
    if word.kind() == Kind::Ask { Word::BELOW } else { word }
}

fn refcount(file: &SimFile, cluster: usize) -> u64 {
    file.value(GRANULES + cluster)
}

/// Content of a block of a cluster that a snapshot shares.
fn shared_content(granule: usize, block: usize) -> u64 {
    1 << 41 | (granule * BLOCKS + block) as u64
}

impl SimFormat for Toy {
    type Options = ToyOptions;

    /// The first granules share their clusters with a snapshot.
    fn create(_: ToyOptions) -> SimImage {
        let file = SimFile::new(SECTOR, &[0; SECTORS * SECTOR], 0);
        let mut fixed = Vec::new();
        for granule in 0..SHARED {
            file.set_value(granule, Word::shared(place_of(granule)).bits());
            file.set_value(GRANULES + granule, 2);
            for block in 0..BLOCKS {
                let sector = cluster_sector(granule) + block;
                file.set_value(sector, shared_content(granule, block));
                fixed.push((sector, file.sector(sector)));
            }
        }
        file.sync_to(u64::MAX);
        let mut image = SimImage {
            file,
            layout: LAYOUT,
            first: 0,
            granules: GRANULES,
            cells: BLOCKS,
            has_below: true,
            initial: Vec::new(),
            fixed,
        };
        image.initial = contents(&image);
        image
    }

    async fn open(file: SimFile, options: ToyOptions) -> Result<Self, ImageError> {
        let (free, condemned, unpunched, replaced) = Default::default();
        Ok(Self { file, options, free, condemned, unpunched, replaced })
    }

    fn check(image: &SimImage, _: ToyOptions, _: u64) -> Result<Vec<u64>, String> {
        let mut uses = [0; CLUSTERS];
        uses[..SHARED].fill(1);
        for granule in 0..GRANULES {
            let word = reference(&image.file, granule);
            if word.is_data() || word.kind() == Kind::Shared {
                let cluster = cluster_at(word.place());
                uses[cluster] += 1;
                let (uses, count) = (uses[cluster], refcount(&image.file, cluster));
                if count < uses {
                    return Err(format!(
                        "granule {granule}: cluster {cluster} has {uses} users, refcount {count}"
                    ));
                }
            }
        }
        image.check_fixed()?;
        Ok(contents(image))
    }
}

/// Returns what all blocks read as.
fn contents(image: &SimImage) -> Vec<u64> {
    let content = |at| {
        let (granule, block) = (at / BLOCKS, at % BLOCKS);
        let word = reference(&image.file, granule);
        let is_stored = word.is_data() || word.kind() == Kind::Shared;
        if is_stored && word.mask() >> block & 1 == 1 {
            image.file.value(cluster_sector(cluster_at(word.place())) + block)
        } else if word.base() == Base::Zero {
            0
        } else {
            image.below(granule, block)
        }
    };
    (0..GRANULES * BLOCKS).map(content).collect()
}

impl Toy {
    async fn set_refcount(&self, cluster: usize, count: u64) -> Result<(), ImageError> {
        let offset = (GRANULES + cluster) * SECTOR;
        let written = self.file.write_at(offset as u64, &count.to_le_bytes()).await;
        written.map_err(ImageError::io("write", offset as u64))
    }

    async fn punch(&self, cluster: usize) -> Result<(), ImageError> {
        let offset = cluster_sector(cluster) * SECTOR;
        let punched = self.file.punch(offset as u64, (BLOCKS * SECTOR) as u64).await;
        punched.map_err(ImageError::io("punch", offset as u64))
    }
}

impl Format for Toy {
    type File = SimFile;

    fn file(&self) -> SimFile {
        self.file.clone()
    }

    fn shrink(&mut self) {}

    fn layout(&self) -> Layout {
        LAYOUT
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn has_blocks(&self) -> bool {
        self.options.has_blocks
    }

    async fn load(&mut self, first: u64, words: &mut [Word]) -> Result<(), ImageError> {
        for (granule, word) in (first as usize..).zip(words) {
            let mut bytes = [0; 8];
            let read = self.file.read_at((granule * SECTOR) as u64, &mut bytes).await;
            read.map_err(ImageError::io("read", 0))?;
            *word = reference(&self.file, granule);
        }
        Ok(())
    }

    async fn describe(&mut self, granule: u64) -> Result<Pieces, ImageError> {
        let problem = "no granule is mixed".into();
        Err(ImageError::Corrupt { structure: "toy", offset: granule, problem })
    }

    async fn reserve(&mut self, _: u64) -> Result<(), ImageError> {
        Ok(())
    }

    async fn allocate(&mut self, _: u64) -> Result<Place, ImageError> {
        self.free.pop().map(place_of).ok_or(ImageError::Full)
    }

    async fn prepare(&mut self, references: &[(u64, Word)]) -> Result<(), ImageError> {
        for (_, word) in references.iter().filter(|(_, word)| word.is_data()) {
            let cluster = cluster_at(word.place());
            if refcount(&self.file, cluster) == 0 && !is_planted(Bug::NoRefcount) {
                self.set_refcount(cluster, 1).await?;
            }
        }
        Ok(())
    }

    async fn write(&mut self, references: &[(u64, Word)]) -> Result<(), ImageError> {
        for (granule, word) in references {
            let old = reference(&self.file, *granule as usize);
            if old.kind() == Kind::Shared && old != *word {
                self.replaced.push(old.place());
            }
            let offset = *granule * SECTOR as u64;
            let written = self.file.write_at(offset, &word.bits().to_le_bytes()).await;
            written.map_err(ImageError::io("write", offset))?;
        }
        Ok(())
    }

    fn take_replaced(&mut self) -> Vec<Place> {
        std::mem::take(&mut self.replaced)
    }

    async fn reclaim(&mut self, _: u64, place: Place) -> Result<(), ImageError> {
        while let Some(late) = self.unpunched.pop() {
            self.punch(late).await?;
        }
        let cluster = cluster_at(place);
        let count = refcount(&self.file, cluster);
        if count > 1 {
            return self.set_refcount(cluster, count - 1).await;
        }
        if is_planted(Bug::LatePunch) {
            self.unpunched.push(cluster);
        } else if self.options.punches {
            self.punch(cluster).await?;
        }
        self.set_refcount(cluster, 0).await?;
        self.free.push(cluster);
        Ok(())
    }

    fn condemn(&mut self, _: u64, place: Place) {
        self.condemned.push(cluster_at(place));
    }

    async fn take_over(&mut self, used: &[(u64, Word)]) -> Result<(), ImageError> {
        let mut is_used = [false; CLUSTERS];
        is_used[..SHARED].fill(true);
        let on_disk = (0..GRANULES).map(|granule| reference(&self.file, granule));
        for word in used.iter().map(|(_, word)| *word).chain(on_disk).filter(|one| one.is_data()) {
            is_used[cluster_at(word.place())] = true;
        }
        for cluster in (0..CLUSTERS).filter(|cluster| !is_used[*cluster]) {
            // What a dead process granted may have been written in part.
            if self.options.punches {
                self.punch(cluster).await?;
            }
            self.set_refcount(cluster, 0).await?;
            self.free.push(cluster);
        }
        Ok(())
    }
}
