//! Flush round: makes committed references durable.
//!
//! ```text
//! begin: what is committed now, S; refcounts and new tables are written
//!    sync: data and all that S needs
//! write: the references of S, and of S only
//!    sync: the references
//! end:   drop the journal's part of S; flushes end
//! ```
//! One round runs at a time. Flushes that arrive meanwhile share the next one.

use std::collections::{BTreeMap, BTreeSet};

use rustix::io::Errno;

use super::Owner;
use crate::ImageError;
use crate::ImageFile;
use crate::format::Format;
use crate::journal::EntryId;
use crate::map::Word;
use crate::planted::{Bug, is_planted};
use crate::shared::{AnswerKind, Question};

/// A round that runs.
#[derive(Debug)]
#[must_use = "the flushes of a round wait until it ends"]
pub struct Round<F> {
    file: F,
    /// References by granule.
    references: Vec<(u64, Word)>,
    /// Entries at the beginning: granule, location, number, word.
    entries: Vec<(u64, EntryId, u64, Word)>,
    /// Positions of the rings at the beginning.
    positions: Vec<u64>,
    commits: u64,
    is_written: bool,
    flushes: Vec<Question>,
    outcome: Result<(), Errno>,
    /// True if the storage was full: nothing is lost, and a later round can do it.
    is_full: bool,
}

impl<F: ImageFile> Round<F> {
    /// Syncs the file, without the owner. After [`Owner::begin_round`] and after
    /// [`Owner::write_round`].
    pub async fn sync(&mut self) {
        let is_skipped = is_planted(Bug::ReferencesBeforeData) && !self.is_written;
        if self.outcome.is_ok() && !is_skipped {
            // Whatever the reason, data is lost. A lack of space would sound as if waiting helped.
            self.outcome = self.file.sync().await.map_err(|_| Errno::IO);
        }
    }
}

impl<F> Round<F> {
    /// Returns whether [`Owner::write_round`] has run: the next step is [`Owner::end_round`].
    pub fn is_written(&self) -> bool {
        self.is_written
    }

    fn end_step(&mut self, outcome: Result<(), ImageError>) {
        self.is_full = outcome.as_ref().is_err_and(ImageError::is_full);
        self.outcome = outcome.map_err(|error| error.errno());
    }
}

impl<F: Format> Owner<F> {
    /// Begins a round with the flushes so far.
    pub async fn begin_round(&mut self) -> Round<F::File> {
        self.is_in_round = true;
        self.counts.rounds += 1;
        let is_lost = self.shared.is_lost();
        let mut round = Round {
            file: self.format.file(),
            references: Vec::new(),
            entries: Vec::new(),
            // Before the entries and records are read: what is committed meanwhile stays.
            positions: self.journal.positions(),
            commits: self.shared.commits(),
            is_written: false,
            flushes: std::mem::take(&mut self.flushes),
            outcome: if is_lost { Err(Errno::IO) } else { Ok(()) },
            is_full: false,
        };
        if !is_lost {
            let prepared = self.snapshot(&mut round).await;
            round.end_step(prepared);
        }
        round
    }

    /// Runs a whole round.
    pub async fn run_round(&mut self) {
        let mut round = self.begin_round().await;
        round.sync().await;
        self.write_round(&mut round).await;
        round.sync().await;
        self.end_round(round);
    }

    /// Makes everything durable and frees what can be freed. All channels are closed.
    ///
    /// # Errors
    /// Storage failed, now or before: what was written may be lost.
    pub async fn close(&mut self) -> Result<(), ImageError> {
        self.run_round().await;
        while self.reclaim().await? {}
        if self.shared.is_lost() {
            return Err(ImageError::io("flush", 0)(std::io::Error::other("a flush failed")));
        }
        if self.is_stalled {
            return Err(ImageError::Full);
        }
        Ok(())
    }

    async fn snapshot(&mut self, round: &mut Round<F::File>) -> Result<(), ImageError> {
        let entries = self.journal.entries();
        round.entries = entries.map(|(id, e)| (e.granule, id, e.number, e.word)).collect();
        let mut granules: BTreeSet<_> =
            round.entries.iter().map(|(granule, ..)| *granule).collect();
        let records = self.journal.records(None);
        granules.extend(records.iter().map(|record| record.granule));
        for granule in granules {
            let on_disk = self.format.load_word(granule).await?;
            round.references.push((granule, self.newest_of(granule, on_disk, &records)));
        }
        self.format.prepare(&round.references).await
    }

    /// Writes the references of a round.
    pub async fn write_round(&mut self, round: &mut Round<F::File>) {
        if is_planted(Bug::NewestWritten) {
            for at in 0..round.references.len() {
                let granule = round.references[at].0;
                if let Ok(newest) = self.newest_loaded(granule).await {
                    round.references[at].1 = newest;
                }
            }
        }
        round.is_written = true;
        if round.outcome.is_ok() {
            let written = self.format.write(&round.references).await;
            round.end_step(written);
        }
    }

    /// Ends a round: its flushes are answered. On full storage they wait.
    pub fn end_round(&mut self, mut round: Round<F::File>) {
        self.is_in_round = false;
        if round.is_full {
            self.is_stalled = true;
            return self.flushes.append(&mut round.flushes);
        }
        match round.outcome {
            Ok(()) => self.drop_durable(&round),
            Err(_) => self.shared.set_lost(),
        }
        for flush in &round.flushes {
            self.answer_with(flush, AnswerKind::Done(round.outcome));
        }
        self.retry_room();
        self.retry_later();
    }

    fn drop_durable(&mut self, round: &Round<F::File>) {
        let written: BTreeMap<_, _> = round.references.iter().copied().collect();
        for &(granule, id, number, word) in &round.entries {
            match self.journal.entry(granule) {
                Some((now, entry)) if now == id && entry.number == number => {
                    if entry.is_granted() {
                        self.journal.clear_zero_number(id);
                    } else if entry.word == word && written.contains_key(&granule) {
                        self.journal.remove(granule);
                    }
                }
                // The zeroes under a later grant are durable now.
                Some((now, entry)) if entry.zero_number > 0 && entry.zero_number <= number => {
                    self.journal.clear_zero_number(now);
                }
                _ => {}
            }
        }
        self.mark_durable(&round.entries.iter().map(|entry| (entry.0, entry.2)).collect());
        self.free_replaced();
        self.journal.drop_records(&round.positions);
        self.shared.set_durable(round.commits);
    }
}
