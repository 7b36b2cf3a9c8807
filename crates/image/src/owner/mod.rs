//! Owner of a map: answers questions, writes references, frees space.
//!
//! The owner is plain sequential code on a thread of its own. Its calls to the format block there.
//! Only the syncs of a round leave the owner free to answer ([`Round`]).

mod answer;
mod pages;
mod reclaim;
mod round;
mod streams;
mod take_over;

use std::sync::Arc;

use rustix::io::Errno;

use crate::ImageError;
use crate::format::Format;
use crate::journal::{JournalError, JournalOwner, Record};
use crate::map::Word;
use crate::shared::{Answer, AnswerKind, Question, Shared};

use pages::Pages;
use reclaim::Freed;
pub use round::Round;
use streams::Streams;

/// Owner of a map and its image.
#[derive(Debug)]
pub struct Owner<F> {
    shared: Arc<Shared>,
    format: F,
    journal: JournalOwner,
    /// Clusters that the map does not name any more, and that are not free yet.
    freed: Vec<Freed>,
    pages: Pages,
    /// Questions about granules that a channel fills.
    busy: Vec<Question>,
    /// Questions that wait for space on the storage.
    no_room: Vec<Question>,
    /// Questions that wait for an entry of the journal or for a page.
    later: Vec<Question>,
    /// Flushes for the next round.
    flushes: Vec<Question>,
    streams: Streams,
    is_in_round: bool,
    /// True if the last round found the storage full, until there may be room.
    is_stalled: bool,
    /// Answers that the channels have not fetched.
    answers: Vec<Answer>,
    counts: OwnerCounts,
}

/// Counters of an owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerCounts {
    /// Questions taken. One that waits is taken again.
    pub questions: u64,
    /// Answers given.
    pub answers: u64,
    /// Clusters allocated.
    pub allocations: u64,
    /// Flush rounds.
    pub rounds: u64,
    /// Clusters that are free again.
    pub reclaimed: u64,
    /// Pages unlinked.
    pub evictions: u64,
    /// Folds of the rings.
    pub folds: u64,
}

/// Why a question is not answered yet.
enum Obstacle {
    /// A channel fills the granule.
    Busy,
    /// There is no space on the storage.
    Full,
    /// There is no entry in the journal, or no page in the pool.
    Later,
    /// The question fails.
    Failed(ImageError),
}

impl From<ImageError> for Obstacle {
    fn from(error: ImageError) -> Self {
        if error.is_full() { Self::Full } else { Self::Failed(error) }
    }
}

impl From<JournalError> for Obstacle {
    fn from(_: JournalError) -> Self {
        Self::Later
    }
}

impl<F: Format> Owner<F> {
    /// Returns the counters.
    pub fn counts(&self) -> OwnerCounts {
        self.counts
    }

    /// Returns the format.
    pub fn format(&self) -> &F {
        &self.format
    }

    /// Gives up memory that can be filled again from the file.
    pub fn shrink(&mut self) {
        self.format.shrink();
    }

    /// Returns the number of clusters that wait until they are free.
    pub fn limbo(&self) -> usize {
        self.freed.len()
    }

    /// Returns the oldest epoch that a channel shows, `u64::MAX` if none shows one.
    pub fn oldest_epoch(&self) -> u64 {
        self.shared.map.epochs().oldest()
    }

    /// Returns the number of clusters in limbo that only requests in the kernel keep there.
    pub fn held(&self) -> usize {
        let oldest = self.oldest_epoch();
        self.freed.iter().filter(|freed| freed.is_held(oldest)).count()
    }

    /// Returns whether a round should begin: flushes wait for it, requests wait for room that a
    /// round can make, or a quarter of the journal's entries is left.
    pub fn wants_round(&self) -> bool {
        let quarter = self.journal.size() / 4;
        let is_nearly_full =
            !self.journal.has_room(quarter) && self.shared.undurable() >= quarter as u64;
        let makes_room =
            !self.no_room.is_empty() && self.freed.iter().any(|freed| !freed.is_durable);
        let makes_entries = !self.later.is_empty() && !self.journal.has_room(1);
        let may_begin = !self.is_in_round && !self.is_stalled;
        may_begin && (!self.flushes.is_empty() || makes_room || makes_entries || is_nearly_full)
    }

    /// Returns the number of questions that wait for space on the storage.
    pub fn waiting_for_room(&self) -> usize {
        self.no_room.len() + if self.is_stalled { self.flushes.len() } else { 0 }
    }

    /// Returns whether questions wait for space on the storage that no freed cluster will give.
    pub fn is_full(&self) -> bool {
        let is_stalled = self.is_stalled && self.waiting_for_room() > 0;
        is_stalled || !self.no_room.is_empty() && self.freed.is_empty()
    }

    /// Fails all questions that wait for space on the storage.
    pub fn fail_full(&mut self) {
        let mut failed = std::mem::take(&mut self.no_room);
        if std::mem::take(&mut self.is_stalled) {
            failed.append(&mut self.flushes);
        }
        for question in failed {
            self.answer_with(&question, AnswerKind::Done(Err(Errno::NOSPC)));
        }
    }

    /// Moves the answers so far into `out`.
    pub fn take_answers(&mut self, out: &mut Vec<Answer>) {
        out.append(&mut self.answers);
    }

    fn answer_with(&mut self, question: &Question, kind: AnswerKind) {
        self.counts.answers += 1;
        let Question { channel, tag, .. } = *question;
        self.answers.push(Answer { channel, tag, kind });
    }

    /// Returns the newest committed word of a granule whose reference on disk is `on_disk`: the
    /// entry's, with the blocks of records that name the same cluster.
    fn newest(&self, granule: u64, on_disk: Word) -> Word {
        self.newest_of(granule, on_disk, &self.journal.records(Some(granule)))
    }

    /// As [`Self::newest`], with records that are read already.
    fn newest_of(&self, granule: u64, on_disk: Word, records: &[Record]) -> Word {
        let word = match self.journal.entry(granule) {
            None if self.format.is_in_limbo(granule) && on_disk.is_data() => Word::ZERO,
            None => on_disk,
            Some((_, entry)) if !entry.is_granted() => entry.word,
            Some((_, entry)) if entry.zero_number > 0 => Word::ZERO,
            Some(_) => on_disk,
        };
        let is_ours = |one: &&Record| one.granule == granule && word.is_same_cluster(one.blocks);
        let blocks = records.iter().filter(is_ours).fold(0, |mask, one| mask | one.blocks.mask());
        if blocks == 0 { word } else { word.with_blocks(blocks) }
    }

    /// Returns the newest committed word of a granule.
    async fn newest_loaded(&mut self, granule: u64) -> Result<Word, ImageError> {
        let on_disk = self.format.load_word(granule).await?;
        Ok(self.newest(granule, on_disk))
    }

    /// Returns the newest committed words of a page.
    async fn newest_words(&mut self, page: u64) -> Result<Vec<Word>, ImageError> {
        let granules = self.shared.map.layout().granules_of(page);
        let mut words: Vec<_> = granules.clone().map(|_| Word::ASK).collect();
        self.format.load(granules.start, &mut words).await?;
        let records = self.journal.records(None);
        for (granule, word) in granules.zip(&mut words) {
            *word = self.newest_of(granule, *word, &records);
        }
        Ok(words)
    }
}
