//! One channel's side of a map: plans requests, and commits them.
//!
//! A channel joins an epoch, loads the word, and submits I/O, or asks the owner. A request that asks
//! holds no epoch. Words are never kept: a request that waited plans again.

use std::sync::Arc;

use crate::journal::{Record, RingWriter};
use crate::map::{Base, EpochSlot, Hold, Kind, Layout, PageId, Place, Word};
use crate::planted::{Bug, is_planted};
use crate::shared::{Grant, Question, QuestionKind, Shared};

/// One channel of a map.
#[derive(Debug)]
pub struct MapChannel {
    shared: Arc<Shared>,
    slot: EpochSlot,
    ring: RingWriter,
    number: u32,
}

/// Plan of a read of a granule.
#[derive(Debug)]
pub enum ReadPlan {
    /// Ask the owner, then plan again.
    Ask(QuestionKind),
    /// Blocks of the word's mask are in the file, the others in its base. The caller gives the hold
    /// back when all reads of the file have ended.
    Parts {
        /// Keeps the place from being reused.
        hold: Hold,
        /// The word: data or shared.
        word: Word,
    },
    /// No block is in the file.
    Base(Base),
    /// Ask [`QuestionKind::Describe`], then read the pieces of the answer. The caller gives the hold
    /// back when all reads of the file have ended, or plans again if the answer is to look.
    Describe {
        /// Keeps the pieces from being reused.
        hold: Hold,
    },
}

/// Plan of a write to a granule.
#[derive(Debug)]
pub enum WritePlan {
    /// Ask the owner, then plan again, or fill the grant that the owner answers with.
    Ask(QuestionKind),
    /// Write in place. No commit is needed, but the hold must be given back.
    InPlace {
        /// Keeps the place from being reused.
        hold: Hold,
        /// Place of the granule.
        place: Place,
    },
    /// Write, then commit the blocks.
    Add(AddedBlocks),
}

/// Blocks that a request adds to a cluster.
#[derive(Debug)]
pub struct AddedBlocks {
    /// `None` once a planted bug has left the epoch early.
    hold: Option<Hold>,
    granule: u64,
    page: PageId,
    /// The cluster, with the added blocks as its mask.
    blocks: Word,
    record: Option<u64>,
}

impl AddedBlocks {
    /// Returns the place of the granule.
    pub fn place(&self) -> Place {
        self.blocks.place()
    }
}

/// Returns whether blocks may be written at the place of a word.
fn is_written_here(word: Word) -> bool {
    word.is_data() && (word.file() == 0 || is_planted(Bug::LowerIsTop))
}

/// Reader of a map whose image does not change.
#[derive(Debug)]
pub struct MapReader {
    shared: Arc<Shared>,
    slot: EpochSlot,
}

impl MapReader {
    /// Opens a reader.
    pub fn open(shared: Arc<Shared>) -> Self {
        let slot = shared.map.epochs().open_slot();
        Self { shared, slot }
    }

    /// Returns the sizes of the map.
    pub fn layout(&self) -> &Layout {
        self.shared.map.layout()
    }

    /// Returns the word of a granule. What it says stays true.
    pub fn word(&mut self, granule: u64) -> Word {
        // The page may go meanwhile, but the image does not change.
        let hold = self.slot.enter();
        let word = self.shared.map.load(granule).word;
        self.slot.leave(hold);
        word
    }
}

impl MapChannel {
    /// Opens a channel of a map, which writes to ring `ring` of the journal. `None` if the journal
    /// has no such ring. Answers come to channel `ring`.
    pub fn open(shared: Arc<Shared>, ring: u32) -> Option<Self> {
        let writer = shared.journal.ring(usize::try_from(ring).ok()?)?;
        let slot = shared.map.epochs().open_slot();
        Some(Self { shared, slot, ring: writer, number: ring })
    }

    /// Makes answers come to channel `number`. A number that no earlier channel had gets no answers
    /// to earlier questions.
    #[must_use]
    pub fn numbered(self, number: u32) -> Self {
        Self { number, ..self }
    }

    /// Returns the shared state.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Asks the owner.
    pub fn ask(&self, tag: u32, kind: QuestionKind) {
        self.shared.ask(Question { channel: self.number, tag, kind });
    }

    /// Plans a read of a granule.
    pub fn plan_read(&mut self, granule: u64) -> ReadPlan {
        let hold = self.slot.enter();
        let word = self.shared.map.load(granule).word.readable();
        let plan = match word.kind() {
            Kind::OverBelow | Kind::OverZero | Kind::Shared => {
                return ReadPlan::Parts { hold, word };
            }
            Kind::Below => ReadPlan::Base(Base::Below),
            Kind::Zero => ReadPlan::Base(Base::Zero),
            Kind::Mixed => return ReadPlan::Describe { hold },
            Kind::Ask | Kind::Busy => ReadPlan::Ask(QuestionKind::Read(granule)),
        };
        self.slot.leave(hold);
        plan
    }

    /// Plans a write of whole blocks to a granule. A granule whose blocks are all stored may be
    /// written at any offset.
    pub fn plan_write(&mut self, granule: u64, blocks: u16) -> WritePlan {
        let hold = self.slot.enter();
        let found = self.shared.map.load(granule);
        let word = found.word;
        let plan = match found.page {
            Some(page) if is_written_here(word) => {
                let absent = blocks & !word.mask();
                if absent == 0 {
                    return WritePlan::InPlace { hold, place: word.place() };
                }
                if self.ring.reserve() {
                    let blocks = Word::data(word.place(), absent, word.base());
                    return WritePlan::Add(AddedBlocks {
                        hold: Some(hold),
                        granule,
                        page,
                        blocks,
                        record: None,
                    });
                }
                QuestionKind::Fold
            }
            _ => QuestionKind::Write(granule),
        };
        self.slot.leave(hold);
        WritePlan::Ask(plan)
    }

    /// Returns where blocks of a granule are, all of them in one file, if the map says so. A write
    /// needs them in the file of the image. The caller gives the hold back when its I/O has ended,
    /// or at once if the file is a lower one.
    #[inline]
    pub fn find(&mut self, granule: u64, blocks: u16, writes: bool) -> Option<(Hold, Word)> {
        let hold = self.slot.enter();
        let word = self.shared.map.load(granule).word;
        if word.has_blocks(blocks, writes) {
            return Some((hold, word));
        }
        self.slot.leave(hold);
        None
    }

    /// Notes where the layers below have a granule ([`Word::lower`]), if the map only says that
    /// they have it. Returns whether it was noted.
    pub fn note_lower(&mut self, granule: u64, lower: Word) -> bool {
        let hold = self.slot.enter();
        let map = &self.shared.map;
        let page = map.load(granule).page;
        let noted =
            page.is_some_and(|page| map.exchange(page, granule, Word::BELOW, lower).is_ok());
        self.slot.leave(hold);
        noted
    }

    /// Gives a hold back: the kernel has ended all I/O of the request at its place.
    #[inline]
    pub fn leave(&mut self, hold: Hold) {
        self.slot.leave(hold);
    }

    /// Records blocks whose data has been written. First half of [`Self::commit_blocks`].
    pub(crate) fn record(&mut self, added: &mut AddedBlocks) {
        if is_planted(Bug::NoRecord) {
            return self.ring.unreserve();
        }
        let record = Record { granule: added.granule, blocks: added.blocks };
        added.record = Some(self.ring.append(record));
    }

    /// Shows recorded blocks to all channels, or cancels the record if the granule has lost the
    /// cluster. Second half of [`Self::commit_blocks`].
    pub(crate) fn publish(&mut self, added: AddedBlocks) {
        let AddedBlocks { hold, granule, page, blocks, record } = added;
        let is_there = self.shared.add_blocks(page, granule, blocks);
        if let (false, Some(record)) = (is_there, record)
            && !is_planted(Bug::RecordNotCanceled)
        {
            self.ring.cancel(record);
        }
        // Only now: the record and its epoch end together.
        hold.into_iter().for_each(|hold| self.slot.leave(hold));
    }

    /// Commits blocks whose data has been written. Then the request may be acknowledged.
    pub fn commit_blocks(&mut self, mut added: AddedBlocks) {
        self.record(&mut added);
        self.publish(added);
    }

    /// Gives up blocks whose write failed. The cluster keeps its former blocks.
    pub fn fail_blocks(&mut self, added: AddedBlocks) {
        self.ring.unreserve();
        added.hold.into_iter().for_each(|hold| self.slot.leave(hold));
    }

    /// Leaves the epoch before the record is written, as [`Bug::RecordNotCanceled`] does.
    #[cfg(test)]
    pub(crate) fn leave_early(&mut self, added: &mut AddedBlocks) {
        added.hold.take().into_iter().for_each(|hold| self.slot.leave(hold));
    }

    /// Joins an epoch for a grant, before its I/O begins.
    pub fn enter_grant(&mut self) -> Hold {
        self.slot.enter()
    }

    /// Commits a grant whose place has been filled. Then the request may be acknowledged. The
    /// committed blocks are `blocks`.
    pub fn commit_grant(&mut self, grant: &Grant, blocks: u16, hold: Hold) {
        let Grant { granule, page, prior, place, base, entry } = *grant;
        let word = Word::data(place, blocks, base);
        self.shared.journal.commit(entry, word);
        self.shared.count_commit();
        // Nothing else changes a busy word.
        let _ = self.shared.map.exchange(page, granule, Word::busy(prior), word);
        self.slot.leave(hold);
        if self.shared.has_waiters() {
            self.ask(0, QuestionKind::Committed(granule));
        }
    }

    /// Gives up a grant whose write failed.
    pub fn fail_grant(&mut self, grant: Grant, hold: Hold) {
        self.slot.leave(hold);
        self.ask(0, QuestionKind::Failed(grant));
    }

    /// Returns whether a durable write needs a round before it ends. To be asked after the write was
    /// planned: a word that it uses is shown after its change was counted.
    pub fn needs_round(&self) -> bool {
        !is_planted(Bug::DurableWithoutRound) && !self.shared.is_durable()
    }
}
