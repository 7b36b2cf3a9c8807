//! A disk over a map and its owner, in one thread: the shortest code that follows their contract.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use image::channel::{MapChannel, ReadPlan, WritePlan};
use image::format::{Format, PieceSource};
use image::journal::{Cells, Journal, JournalSize};
use image::map::{Base, Layout, Map, PagePool, Word};
use image::owner::Owner;
use image::qcow2::Qcow2Format;
use image::shared::{AnswerKind, Claim, Grant, QuestionKind, Shared};
use image::{ImageFile, PlainFile, run_now};

/// Small, so that rounds and folds happen.
const JOURNAL: JournalSize = JournalSize { entries: 40, rings: 1, records: 16 };

pub(crate) type File = Arc<PlainFile>;

pub(crate) struct MappedDisk {
    owner: Owner<Qcow2Format<File>>,
    channel: MapChannel,
    shared: Arc<Shared>,
    file: File,
    layout: Layout,
    /// Bytes of the layer below, as long as the disk.
    below: Vec<u8>,
    size: u64,
}

pub(crate) fn new_journal() -> Cells {
    let cells = JOURNAL.cells().unwrap();
    Arc::new((0..cells).map(|_| AtomicU64::new(0)).collect::<Vec<_>>())
}

fn now<T>(future: impl Future<Output = T>) -> T {
    run_now(async { Ok(future.await) }).unwrap()
}

pub(crate) fn file(path: &Path) -> File {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    Arc::new(PlainFile::new(file.into()))
}

impl MappedDisk {
    /// Opens an image with the journal of its last process.
    pub(crate) fn open(path: &Path, below: Option<&[u8]>, cells: &Cells) -> Self {
        let file = file(path);
        let format = run_now(Qcow2Format::open(Arc::clone(&file), below.is_some()));
        let mut format = format.unwrap();
        let size = format.image().header().size;
        let layout = format.layout();
        let map = Map::new(layout, &Arc::new(PagePool::new(64)));
        let journal = Journal::open(Arc::clone(cells), JOURNAL).unwrap();
        let shared = Arc::new(Shared::new(map, journal));
        let owner = run_now(Owner::take_over(Arc::clone(&shared), format)).unwrap();
        let channel = MapChannel::open(Arc::clone(&shared), 0).unwrap();
        let mut below = below.unwrap_or_default().to_vec();
        below.resize((size as usize).next_multiple_of(1 << layout.granule_bits), 0);
        Self { owner, channel, shared, file, layout, below, size }
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn granule_bytes(&self) -> u64 {
        1 << self.layout.granule_bits
    }

    fn ask(&mut self, kind: QuestionKind) -> AnswerKind {
        self.channel.ask(0, kind);
        for _ in 0..10 {
            self.serve();
            let mut answers = Vec::new();
            self.owner.take_answers(&mut answers);
            if let Some(answer) = answers.pop() {
                return answer.kind;
            }
        }
        panic!("the owner does not answer");
    }

    /// Runs the owner until it has nothing to do.
    fn serve(&mut self) {
        while let Some(question) = self.shared.next_question() {
            now(self.owner.answer(question));
        }
        if self.owner.wants_round() {
            let mut round = now(self.owner.begin_round());
            now(round.sync());
            now(self.owner.write_round(&mut round));
            now(round.sync());
            self.owner.end_round(round);
        }
        while run_now(self.owner.reclaim()).unwrap() {}
    }

    /// Fills `out` with the bytes of word `word`.
    fn read_word(&self, granule: u64, word: Word, out: &mut [u8]) {
        let block = 1 << self.layout.block_bits;
        let start = word.place().units() << self.layout.unit_bits;
        for (index, part) in out.chunks_mut(block).enumerate() {
            if word.mask() >> index & 1 == 1 {
                now(self.file.read_at(start + (index * block) as u64, part)).unwrap();
            } else if word.base() == Base::Zero {
                part.fill(0);
            } else {
                let at = (granule << self.layout.granule_bits) as usize + index * block;
                part.copy_from_slice(&self.below[at..at + part.len()]);
            }
        }
    }

    fn read_mixed(&mut self, granule: u64, out: &mut [u8]) -> bool {
        let AnswerKind::Pieces(pieces) = self.ask(QuestionKind::Describe(granule)) else {
            return false;
        };
        let mut at = 0;
        for piece in pieces.iter() {
            let part = &mut out[at..at + piece.len];
            let guest = (granule << self.layout.granule_bits) as usize + at;
            match &piece.source {
                PieceSource::Bytes(bytes) => part.copy_from_slice(bytes),
                PieceSource::Zero => part.fill(0),
                PieceSource::Below => part.copy_from_slice(&self.below[guest..guest + piece.len]),
                PieceSource::File(offset) => now(self.file.read_at(*offset, part)).unwrap(),
            }
            at += piece.len;
        }
        assert_eq!(at, out.len(), "pieces of granule {granule}");
        true
    }

    fn read_granule(&mut self, granule: u64) -> Vec<u8> {
        let mut out = vec![0; self.granule_bytes() as usize];
        loop {
            match self.channel.plan_read(granule) {
                ReadPlan::Ask(kind) => drop(self.ask(kind)),
                ReadPlan::Base(Base::Zero) => return out,
                ReadPlan::Base(Base::Below) => {
                    self.read_word(granule, Word::BELOW, &mut out);
                    return out;
                }
                ReadPlan::Parts { hold, word } => {
                    self.read_word(granule, word, &mut out);
                    self.channel.leave(hold);
                    return out;
                }
                ReadPlan::Describe { hold } => {
                    let is_read = self.read_mixed(granule, &mut out);
                    self.channel.leave(hold);
                    if is_read {
                        return out;
                    }
                }
            }
        }
    }

    pub(crate) fn read(&mut self) -> Vec<u8> {
        let mut disk: Vec<_> =
            (0..self.layout.granules).flat_map(|granule| self.read_granule(granule)).collect();
        disk.truncate(self.size as usize);
        disk
    }

    pub(crate) fn write(&mut self, mut offset: u64, mut data: &[u8]) {
        let bytes = self.granule_bytes();
        while !data.is_empty() {
            let within = offset % bytes;
            let (part, rest) = data.split_at(data.len().min((bytes - within) as usize));
            self.write_granule(offset / bytes, within as usize, part);
            offset += part.len() as u64;
            data = rest;
        }
    }

    fn write_granule(&mut self, granule: u64, within: usize, data: &[u8]) {
        let block = 1usize << self.layout.block_bits;
        let (first, last) = (within / block, (within + data.len() - 1) / block);
        let blocks = (first..=last).fold(0, |mask, one| mask | 1 << one);
        loop {
            match self.channel.plan_write(granule, blocks) {
                WritePlan::InPlace { hold, place } => {
                    let start = place.units() << self.layout.unit_bits;
                    now(self.file.write_at(start + within as u64, data)).unwrap();
                    return self.channel.leave(hold);
                }
                WritePlan::Add(added) => {
                    let mut whole = self.read_granule(granule);
                    whole[within..within + data.len()].copy_from_slice(data);
                    let start = added.place().units() << self.layout.unit_bits;
                    let range = first * block..(last + 1) * block;
                    let write = self.file.write_at(start + range.start as u64, &whole[range]);
                    now(write).unwrap();
                    return self.channel.commit_blocks(added);
                }
                WritePlan::Ask(kind) => {
                    if let AnswerKind::Granted(grant) = self.ask(kind) {
                        return self.fill(&grant, within, data);
                    }
                }
            }
        }
    }

    fn fill(&mut self, grant: &Grant, within: usize, data: &[u8]) {
        let mut whole = self.read_granule(grant.granule);
        whole[within..within + data.len()].copy_from_slice(data);
        let hold = self.channel.enter_grant();
        let start = grant.place.units() << self.layout.unit_bits;
        now(self.file.write_at(start, &whole)).unwrap();
        self.channel.commit_grant(grant, self.layout.full_mask(), hold);
    }

    pub(crate) fn discard(&mut self, granule: u64) {
        assert_eq!(
            self.ask(QuestionKind::Discard { granule, count: 1, claim: Claim::default() }),
            AnswerKind::Zeroed(1)
        );
    }

    /// Asks for a discard, and withdraws it before the owner has seen it.
    pub(crate) fn withdraw_discard(&mut self, granule: u64) {
        let claim = Claim::default();
        assert!(claim.take());
        self.ask(QuestionKind::Discard { granule, count: 1, claim });
    }

    pub(crate) fn flush(&mut self) {
        assert_eq!(self.ask(QuestionKind::Flush), AnswerKind::Done(Ok(())));
        self.serve();
    }
}
