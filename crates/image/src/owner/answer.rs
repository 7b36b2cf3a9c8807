//! Answers to questions.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustix::io::Errno;

use super::{Obstacle, Owner};
use crate::format::Format;
use crate::map::{Base, Kind, PageId, Place, Word};
use crate::planted::{Bug, is_planted};
use crate::shared::{AnswerKind, Claim, Grant, Question, QuestionKind};

/// Most granules that a question makes zero, so that other questions have their turn.
const DISCARD_MAX: u64 = 256;

impl<F: Format> Owner<F> {
    /// Answers a question now, or keeps it until it can.
    pub async fn answer(&mut self, question: Question) {
        self.counts.questions += 1;
        let outcome = match question.kind {
            QuestionKind::Read(granule) => self.load_page(granule).await.map(|()| AnswerKind::Look),
            QuestionKind::Describe(granule) => self.describe(granule).await,
            QuestionKind::Words(granule) => self.words(granule).await,
            QuestionKind::Write(granule) => self.make_writable(granule).await,
            QuestionKind::Discard { granule, count, ref claim } => {
                self.discard_some(granule, count, claim).await
            }
            QuestionKind::Fold => {
                let folded = self.fold().await;
                self.counts.folds += u64::from(folded.is_ok());
                folded.map(|()| AnswerKind::Look)
            }
            QuestionKind::Flush => return self.flushes.push(question),
            QuestionKind::Committed(_) => return self.retry_busy(),
            QuestionKind::Failed(grant) => return self.take_back(&grant),
        };
        match outcome {
            Ok(kind) => self.answer_with(&question, kind),
            Err(Obstacle::Busy) => self.keep_busy(question),
            // No round makes room any more.
            Err(Obstacle::Full) if self.shared.is_lost() => {
                self.answer_with(&question, AnswerKind::Done(Err(Errno::IO)));
            }
            Err(Obstacle::Full) => self.no_room.push(question),
            Err(Obstacle::Later) if self.shared.is_lost() && !self.journal.has_room(1) => {
                self.answer_with(&question, AnswerKind::Done(Err(Errno::IO)));
            }
            Err(Obstacle::Later) => self.later.push(question),
            Err(Obstacle::Failed(error)) => {
                self.answer_with(&question, AnswerKind::Done(Err(error.errno())));
            }
        }
    }

    /// Asks all questions about busy granules again: one of them was committed or failed.
    fn retry_busy(&mut self) {
        let waiting = std::mem::take(&mut self.busy);
        waiting.into_iter().for_each(|question| self.shared.ask(question));
        self.shared.set_waiters(0);
    }

    fn keep_busy(&mut self, question: Question) {
        let granule = match question.kind {
            QuestionKind::Write(granule) | QuestionKind::Discard { granule, .. } => granule,
            // Others never wait for a granule.
            _ => return,
        };
        self.busy.push(question);
        self.shared.set_waiters(self.busy.len() as u64);
        // The channel may have committed before it could see that a question waits.
        if self.shared.map.load(granule).word.kind() != Kind::Busy {
            self.retry_busy();
        }
    }

    /// Asks all questions again that wait for room. To be called when room may have come.
    pub fn retry_room(&mut self) {
        self.is_stalled = false;
        let waiting = std::mem::take(&mut self.no_room);
        waiting.into_iter().for_each(|question| self.shared.ask(question));
    }

    /// Describes a granule, if its newest word is still mixed.
    async fn describe(&mut self, granule: u64) -> Result<AnswerKind, Obstacle> {
        if self.newest_loaded(granule).await? != Word::MIXED {
            return Ok(AnswerKind::Look);
        }
        Ok(AnswerKind::Pieces(self.format.describe(granule).await?))
    }

    /// Returns the words of a page. Links none, so that a scan of a disk does not use up the pages.
    async fn words(&mut self, granule: u64) -> Result<AnswerKind, Obstacle> {
        let shared = Arc::clone(&self.shared);
        let map = &shared.map;
        let page = map.layout().page_of(granule);
        let words = match map.load(granule).word.kind() {
            Kind::Ask => self.newest_words(page).await?,
            _ => {
                let word = |one| map.load(one).word.readable().in_top();
                map.layout().granules_of(page).map(word).collect()
            }
        };
        Ok(AnswerKind::Words(words.into()))
    }

    /// Gives a granule a cluster in the top file.
    async fn make_writable(&mut self, granule: u64) -> Result<AnswerKind, Obstacle> {
        self.load_page(granule).await?;
        let found = self.shared.map.load(granule);
        // `load_page` has linked it, and only this thread unlinks it.
        let Some(page) = found.page else { return Ok(AnswerKind::Look) };
        let word = if is_planted(Bug::LowerIsTop) { found.word } else { found.word.in_top() };
        match word.kind() {
            Kind::Busy if !is_planted(Bug::BusyGranted) => return Err(Obstacle::Busy),
            Kind::OverBelow | Kind::OverZero => return Ok(AnswerKind::Look),
            _ => {}
        }
        let prior = match word.readable() {
            granted if granted.is_data() => Word::BELOW,
            other => other,
        };
        if self.show_place(granule, page, prior).await? {
            return Ok(AnswerKind::Look);
        }
        let place = self.allocate(granule).await?;
        let base = if prior == Word::ZERO { Base::Zero } else { Base::Below };
        let empty = Word::data(place, 0, base);
        if self.gets_empty_place(prior) {
            self.place_empty(granule, page, empty)?;
            self.run_ahead(granule).await;
            return Ok(AnswerKind::Look);
        }
        let zero_number = match self.journal.entry(granule) {
            Some((_, entry)) if entry.word.kind() == Kind::Zero => entry.number,
            Some((_, entry)) if entry.is_granted() => entry.zero_number,
            _ => 0,
        };
        let (entry, _) = self.journal.put(granule, Word::busy(empty), zero_number)?;
        self.shared.map.swap(page, granule, Word::busy(prior));
        Ok(AnswerKind::Granted(Grant { granule, page, prior, place, base, entry }))
    }

    /// Shows the place that an absent granule has on disk, if the format fixes places. Returns whether
    /// it has one.
    async fn show_place(
        &mut self,
        granule: u64,
        page: PageId,
        prior: Word,
    ) -> Result<bool, Obstacle> {
        if !self.format.has_fixed_places() || !self.gets_empty_place(prior) {
            return Ok(false);
        }
        let newest = self.newest_loaded(granule).await?;
        if newest.is_data() {
            self.shared.map.swap(page, granule, newest);
        }
        Ok(newest.is_data())
    }

    /// Allocates a cluster for a granule.
    async fn allocate(&mut self, granule: u64) -> Result<Place, Obstacle> {
        if !self.journal.has_room(1) {
            return Err(Obstacle::Later);
        }
        self.format.reserve(granule).await?;
        let place = self.format.allocate(granule).await?;
        self.counts.allocations += 1;
        Ok(place)
    }

    /// Returns whether a granule with this word needs no grant: any channel may store blocks at an
    /// empty place.
    fn gets_empty_place(&self, prior: Word) -> bool {
        self.format.has_blocks() && matches!(prior.kind(), Kind::Below | Kind::Zero)
    }

    fn place_empty(&mut self, granule: u64, page: PageId, empty: Word) -> Result<(), Obstacle> {
        self.journal.put(granule, empty, 0)?;
        self.shared.map.swap(page, granule, empty);
        self.shared.count_commit();
        Ok(())
    }

    /// Gives the next granules of a sequential writer places, too. An obstacle ends it: the writer
    /// asks when it comes there.
    async fn run_ahead(&mut self, granule: u64) {
        let end = granule.saturating_add(self.streams.count(granule));
        for next in granule + 1..end.min(self.shared.map.layout().granules) {
            if self.load_page(next).await.is_err() {
                return;
            }
            let found = self.shared.map.load(next);
            let word = found.word.in_top();
            let Some(page) = found.page.filter(|_| self.gets_empty_place(word)) else { return };
            match self.show_place(next, page, word).await {
                Ok(true) => continue,
                Ok(false) => {}
                Err(_) => return,
            }
            let Ok(place) = self.allocate(next).await else { return };
            let base = if word == Word::ZERO { Base::Zero } else { Base::Below };
            if self.place_empty(next, page, Word::data(place, 0, base)).is_err() {
                return;
            }
        }
    }

    /// Takes a grant back whose write failed. A late write may still land in its cluster.
    fn take_back(&mut self, grant: &Grant) {
        let Grant { granule, page, prior, place, .. } = *grant;
        match self.journal.entry(granule) {
            // The zeroes that the grant replaced may not be durable.
            Some((id, entry)) if entry.zero_number > 0 => self.journal.set_word(id, Word::ZERO),
            _ => self.journal.remove(granule),
        }
        self.format.condemn(granule, place);
        self.shared.map.swap(page, granule, prior);
        self.retry_busy();
    }

    /// Makes some granules zero, the first of them in any case.
    async fn discard_some(
        &mut self,
        granule: u64,
        count: u64,
        claim: &Claim,
    ) -> Result<AnswerKind, Obstacle> {
        if !self.discard(granule, Some(claim)).await? {
            return Ok(AnswerKind::Look);
        }
        let mut zeroed = 1;
        // The channel meets an obstacle again when it asks for the others.
        while zeroed < count.min(DISCARD_MAX) && self.discard(granule + zeroed, None).await.is_ok()
        {
            zeroed += 1;
        }
        Ok(AnswerKind::Zeroed(zeroed))
    }

    /// Makes a granule zero. Its cluster is freed later. Returns false if the channel has withdrawn
    /// the question.
    async fn discard(&mut self, granule: u64, claim: Option<&Claim>) -> Result<bool, Obstacle> {
        self.load_page(granule).await?;
        let found = self.shared.map.load(granule);
        let Some(page) = found.page else { return Ok(true) };
        match found.word.kind() {
            Kind::Busy if !is_planted(Bug::BusyGranted) => return Err(Obstacle::Busy),
            // Its place may keep a larger unit from being freed.
            Kind::Zero if !self.show_place(granule, page, found.word).await? => return Ok(true),
            _ => {}
        }
        if !self.journal.has_room(1) {
            return Err(Obstacle::Later);
        }
        self.format.reserve(granule).await?;
        // Nothing below waits: from here on the channel waits for the answer.
        if claim.is_some_and(|claim| !claim.take()) {
            return Ok(false);
        }
        let (_, number) = self.journal.put(granule, Word::ZERO, 0)?;
        self.shared.count_commit();
        let old = self.shared.map.swap(page, granule, Word::ZERO);
        self.free_later(granule, old, number);
        Ok(true)
    }

    /// Moves the records of all rings into entries. Without room for the entries, no record goes.
    pub(super) async fn fold(&mut self) -> Result<(), Obstacle> {
        // Before the records are read: records that come meanwhile stay.
        let positions = self.journal.positions();
        let granules: BTreeSet<_> =
            self.journal.records(None).into_iter().map(|record| record.granule).collect();
        for granule in granules {
            self.fold_granule(granule).await?;
        }
        self.journal.drop_records(&positions);
        Ok(())
    }

    /// Moves the blocks of a granule's records into its entry.
    async fn fold_granule(&mut self, granule: u64) -> Result<(), Obstacle> {
        let on_disk = self.format.load_word(granule).await?;
        let newest = self.newest(granule, on_disk);
        match self.journal.entry(granule) {
            Some((_, entry)) if entry.is_granted() || entry.word == newest => {}
            Some((id, _)) => self.journal.set_word(id, newest),
            None if newest == on_disk => {}
            None if !self.journal.has_room(1) => return Err(Obstacle::Later),
            None => drop(self.journal.put(granule, newest, 0)?),
        }
        Ok(())
    }
}
