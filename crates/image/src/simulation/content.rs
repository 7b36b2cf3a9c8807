//! Content of granules: pieces of mixed ones, and fills of grants.

use super::World;
use super::format::SimFormat;
use super::request::{Effect, Io, Phase, Target};
use super::storage::number;
use crate::format::{PieceSource, Pieces};
use crate::map::{Base, Hold, Kind, Place, Word};
use crate::shared::{AnswerKind, Grant, QuestionKind};

impl<F: SimFormat> World<F> {
    /// Asks for the parts of a mixed granule, to read it or to fill a grant.
    pub(super) fn ask_pieces(&mut self, at: usize, hold: Hold, grant: Option<Grant>) {
        let target = self.target(at);
        let granule = (self.image.first + target.granule) as u64;
        self.channels[target.channel].ask(at as u32, QuestionKind::Describe(granule));
        self.set_phase(at, Phase::Describing(hold, grant));
    }

    /// Handles the answer to [`Self::ask_pieces`].
    pub(super) fn on_pieces(
        &mut self,
        at: usize,
        hold: Hold,
        grant: Option<Grant>,
        kind: AnswerKind,
    ) {
        let target = self.target(at);
        match (kind, grant) {
            (AnswerKind::Pieces(pieces), Some(grant)) => self.fill(at, grant, hold, Some(&pieces)),
            (AnswerKind::Pieces(pieces), None) => match self.piece(&pieces, &target, target.cell) {
                Ok(value) => {
                    self.channels[target.channel].leave(hold);
                    self.set_phase(at, Phase::Ending(Ok(value)));
                }
                Err(sector) => self.submit(at, Io::Read(hold), Effect::Read(sector)),
            },
            (AnswerKind::Done(_), Some(grant)) => {
                self.channels[target.channel].fail_grant(grant, hold);
                self.set_phase(at, Phase::Ending(Err(())));
            }
            (kind, grant) => {
                if grant.is_some() {
                    self.fail(format!("a granted granule is not mixed any more: {target:?}"));
                }
                self.channels[target.channel].leave(hold);
                let ends = matches!(kind, AnswerKind::Done(_));
                self.set_phase(at, if ends { Phase::Ending(Err(())) } else { Phase::Start });
            }
        }
    }

    /// Returns the value of a cell of a mixed granule, or the sector that has it.
    fn piece(&self, pieces: &Pieces, target: &Target, cell: usize) -> Result<u64, usize> {
        let mut within = self.image.cell_offset(cell);
        for piece in pieces.iter() {
            if within >= piece.len {
                within -= piece.len;
                continue;
            }
            return match &piece.source {
                PieceSource::Bytes(bytes) => Ok(number(&bytes[within..])),
                PieceSource::Zero => Ok(0),
                PieceSource::Below => Ok(self.image.below(target.granule, cell)),
                PieceSource::File(offset) => {
                    Err((*offset as usize + within) / self.image.file.sector_bytes())
                }
            };
        }
        panic!("the pieces of {target:?} are too short: {pieces:?}")
    }

    /// Begins to fill a grant.
    pub(super) fn begin_fill(&mut self, at: usize, grant: Grant) {
        let channel = self.target(at).channel;
        let hold = self.channels[channel].enter_grant();
        if grant.prior.kind() == Kind::Mixed {
            self.ask_pieces(at, hold, Some(grant));
        } else {
            self.fill(at, grant, hold, None);
        }
    }

    /// Fills a grant: the whole cluster in one write.
    pub(super) fn fill(&mut self, at: usize, grant: Grant, hold: Hold, pieces: Option<&Pieces>) {
        let target = self.target(at);
        let prior = |cell| match pieces.map(|pieces| self.piece(pieces, &target, cell)) {
            Some(Ok(value)) => value,
            Some(Err(sector)) => self.image.file.value(sector),
            None => self.content(grant.prior, target.granule, cell),
        };
        let sectors = (0..self.image.cells).map(|cell| {
            let value = if cell == target.cell { target.value } else { prior(cell) };
            (self.sector(grant.place, cell), value)
        });
        let effect = Effect::Write { sectors: sectors.collect(), durable: false };
        self.submit(at, Io::Fill(grant, hold), effect);
    }

    /// Returns whether the place of a word has a cell.
    pub(super) fn is_stored(&self, word: Word, cell: usize) -> bool {
        let has_place = word.in_top().is_data() || word.kind() == Kind::Shared;
        has_place && word.mask() >> self.image.block(cell) & 1 == 1
    }

    /// Returns what a cell reads as with this word, now.
    fn content(&self, word: Word, granule: usize, cell: usize) -> u64 {
        if self.is_stored(word, cell) {
            self.image.file.value(self.sector(word.place(), cell))
        } else {
            self.base_value(word.base(), granule, cell)
        }
    }

    /// Notes that a granule lies in a layer below, at some place.
    pub(super) fn note_lower(&mut self, channel: usize, granule: u64) {
        let layout = self.image.layout;
        let units = (self.random.below(8) as u64) << (layout.granule_bits - layout.unit_bits);
        let mask = layout.full_mask() & self.random.below(1 << 16) as u16;
        let place = Place::new(units).expect("a place in a small file");
        let word = Word::lower(self.random.below(3), place, mask, Base::Below);
        let word = word.expect("a tree of few files");
        self.seen.notes += u64::from(self.channels[channel].note_lower(granule, word));
    }

    pub(super) fn base_value(&self, base: Base, granule: usize, cell: usize) -> u64 {
        match base {
            Base::Below => self.image.below(granule, cell),
            Base::Zero => 0,
        }
    }
}
