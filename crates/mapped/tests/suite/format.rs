//! Format of tests: a table of words, then clusters. Nothing says which clusters are in use, so an
//! opening reads the whole table.

use std::sync::Arc;

use image::format::Format;
use image::map::{Kind, Layout, Place, Word};
use image::{ImageError, ImageFile, PlainFile};

/// Bytes before the first cluster.
const TABLE: u64 = 1 << 20;
const GRANULE: u64 = 64 << 10;

/// Format of tests.
#[derive(Debug)]
pub(crate) struct TestFormat {
    file: Arc<PlainFile>,
    granules: u64,
    has_blocks: bool,
    free: Vec<Place>,
    next: u64,
}

impl TestFormat {
    pub(crate) fn new(file: PlainFile, size: u64, has_blocks: bool) -> Self {
        let (granules, free) = (size.div_ceil(GRANULE), Vec::new());
        Self { file: Arc::new(file), granules, has_blocks, free, next: TABLE }
    }
}

impl Format for TestFormat {
    type File = Arc<PlainFile>;

    fn file(&self) -> Self::File {
        Arc::clone(&self.file)
    }

    fn layout(&self) -> Layout {
        let granules = self.granules;
        Layout { granules, granule_bits: 16, block_bits: 12, unit_bits: 9, page_bits: 9 }
    }

    fn has_blocks(&self) -> bool {
        self.has_blocks
    }

    async fn load(&mut self, first: u64, words: &mut [Word]) -> Result<(), ImageError> {
        let mut bytes = vec![0; words.len() * 8];
        self.file.read_at(first * 8, &mut bytes).await.unwrap();
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            let read = Word::from_bits(u64::from_le_bytes(bytes.try_into().unwrap()));
            *word = if read.kind() == Kind::Ask { Word::BELOW } else { read };
        }
        Ok(())
    }

    async fn allocate(&mut self) -> Result<Place, ImageError> {
        if let Some(place) = self.free.pop() {
            return Ok(place);
        }
        self.next += GRANULE;
        Ok(Place::new((self.next - GRANULE) / 512).unwrap())
    }

    async fn prepare(&mut self, _: &[(u64, Word)]) -> Result<(), ImageError> {
        Ok(())
    }

    async fn write(&mut self, references: &[(u64, Word)]) -> Result<(), ImageError> {
        for (granule, word) in references {
            self.file.write_at(granule * 8, &word.bits().to_le_bytes()).await.unwrap();
        }
        Ok(())
    }

    async fn reclaim(&mut self, place: Place) -> Result<(), ImageError> {
        self.file.punch(place.units() * 512, GRANULE).await.unwrap();
        self.free.push(place);
        Ok(())
    }

    fn condemn(&mut self, _: Place) {}

    async fn take_over(&mut self, used: &[Place]) -> Result<(), ImageError> {
        let mut words = vec![Word::ASK; self.granules as usize];
        self.load(0, &mut words).await?;
        let on_disk = words.iter().filter(|word| word.is_data()).map(|word| word.place());
        for place in on_disk.chain(used.iter().copied()) {
            self.next = self.next.max(place.units() * 512 + GRANULE);
        }
        Ok(())
    }
}
