//! A guest's request on its way through a channel.

use crate::channel::{AddedBlocks, ReadPlan, WritePlan};
use crate::format::{PieceSource, Pieces};
use crate::map::{Base, Hold, Kind, Place, Word};
use crate::planted::{Bug, is_planted};
use crate::shared::{AnswerKind, Grant, QuestionKind};

use super::World;
use super::format::SimFormat;
use super::storage::number;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Read,
    Write { durable: bool },
    Discard,
    Flush,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) channel: usize,
    pub(super) operation: Operation,
    pub(super) granule: usize,
    pub(super) cell: usize,
    pub(super) value: u64,
}

#[derive(Debug)]
pub(super) struct Request {
    pub(super) target: Target,
    pub(super) began: u64,
    pub(super) phase: Phase,
    /// True for a request that takes long between two phases.
    pub(super) is_slow: bool,
    /// True once a write was submitted as a durable one.
    pub(super) is_durable: bool,
}

/// Progress of a request.
#[derive(Debug)]
pub(super) enum Phase {
    Start,
    Asked,
    Granted(Grant),
    /// Waits for the parts of a granule: to read it, or to fill a grant.
    Describing(Hold, Option<Grant>),
    InKernel(Io),
    Written(Io),
    Recorded(AddedBlocks),
    /// The rest is to be made durable.
    Committed,
    Ending(Result<u64, ()>),
}

/// I/O of a request, and what it commits.
#[derive(Debug)]
pub(super) enum Io {
    Read(Hold),
    InPlace(Hold),
    Add(AddedBlocks),
    Fill(Grant, Hold),
    Sync,
}

/// I/O that the kernel has.
#[derive(Debug)]
pub(super) struct KernelIo {
    /// Life of the process and index of the request.
    pub(super) life: u32,
    pub(super) request: usize,
    pub(super) effect: Effect,
    /// True for I/O that takes long.
    pub(super) is_slow: bool,
}

#[derive(Debug)]
pub(super) enum Effect {
    Read(usize),
    Write {
        sectors: Vec<(usize, u64)>,
        durable: bool,
    },
    /// Covers the writes up to this number.
    Sync(u64),
}

impl<F: SimFormat> World<F> {
    /// Returns the sector of a cell in a cluster.
    fn sector(&self, place: Place, cell: usize) -> usize {
        self.image.sector(place.units() << self.image.layout.unit_bits, cell)
    }

    fn submit(&mut self, request: usize, io: Io, effect: Effect) {
        let is_slow = self.random.one_in(6);
        self.kernel.push(KernelIo { life: self.life, request, effect, is_slow });
        self.set_phase(request, Phase::InKernel(io));
    }

    fn ask(&mut self, request: usize, kind: QuestionKind) {
        let channel = self.target(request).channel;
        self.channels[channel].ask(request as u32, kind);
        self.set_phase(request, Phase::Asked);
    }

    /// Plans a request, and submits its I/O or asks the owner.
    pub(super) fn plan(&mut self, at: usize) {
        let target = self.target(at);
        let granule = (self.image.first + target.granule) as u64;
        match target.operation {
            Operation::Read => match self.channels[target.channel].plan_read(granule) {
                ReadPlan::Ask(question) => self.ask(at, question),
                ReadPlan::Describe { hold } => self.ask_pieces(at, hold, None),
                ReadPlan::Base(base) => {
                    let value = self.base_value(base, target.granule, target.cell);
                    self.set_phase(at, Phase::Ending(Ok(value)));
                }
                ReadPlan::Parts { hold, word } if self.is_stored(word, target.cell) => {
                    let effect = Effect::Read(self.sector(word.place(), target.cell));
                    self.submit(at, Io::Read(hold), effect);
                }
                ReadPlan::Parts { hold, word } => {
                    self.channels[target.channel].leave(hold);
                    let value = self.base_value(word.base(), target.granule, target.cell);
                    self.set_phase(at, Phase::Ending(Ok(value)));
                }
            },
            Operation::Write { durable } => {
                let channel = &self.channels[target.channel];
                let durable = durable && !channel.needs_round();
                self.requests[at].as_mut().expect("a request").is_durable = durable;
                let block = 1 << self.image.block(target.cell);
                match self.channels[target.channel].plan_write(granule, block) {
                    WritePlan::Ask(question) => self.ask(at, question),
                    WritePlan::InPlace { hold, place } => {
                        let sectors = vec![(self.sector(place, target.cell), target.value)];
                        self.submit(at, Io::InPlace(hold), Effect::Write { sectors, durable });
                    }
                    WritePlan::Add(added) => {
                        let sector = self.sector(added.place(), target.cell);
                        let sectors = vec![(sector, target.value)];
                        self.submit(at, Io::Add(added), Effect::Write { sectors, durable });
                    }
                }
            }
            Operation::Discard => self.ask(at, QuestionKind::Discard(granule)),
            Operation::Flush => {
                let shared = self.channels[target.channel].shared();
                if shared.is_durable() && !shared.is_lost() {
                    let number = self.image.file.last_write();
                    self.submit(at, Io::Sync, Effect::Sync(number));
                } else {
                    self.ask(at, QuestionKind::Flush);
                }
            }
        }
    }

    /// Asks for the parts of a mixed granule, to read it or to fill a grant.
    fn ask_pieces(&mut self, at: usize, hold: Hold, grant: Option<Grant>) {
        let target = self.target(at);
        let granule = (self.image.first + target.granule) as u64;
        self.channels[target.channel].ask(at as u32, QuestionKind::Describe(granule));
        self.set_phase(at, Phase::Describing(hold, grant));
    }

    /// Handles the answer to [`Self::ask_pieces`].
    fn on_pieces(&mut self, at: usize, hold: Hold, grant: Option<Grant>, kind: AnswerKind) {
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
    fn begin_fill(&mut self, at: usize, grant: Grant) {
        let channel = self.target(at).channel;
        let hold = self.channels[channel].enter_grant();
        if grant.prior.kind() == Kind::Mixed {
            self.ask_pieces(at, hold, Some(grant));
        } else {
            self.fill(at, grant, hold, None);
        }
    }

    /// Fills a grant: the whole cluster in one write.
    fn fill(&mut self, at: usize, grant: Grant, hold: Hold, pieces: Option<&Pieces>) {
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
    fn is_stored(&self, word: Word, cell: usize) -> bool {
        let has_place = word.is_data() || word.kind() == Kind::Shared;
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

    fn base_value(&self, base: Base, granule: usize, cell: usize) -> u64 {
        match base {
            Base::Below => self.image.below(granule, cell),
            Base::Zero => 0,
        }
    }

    /// Handles the end of I/O in the kernel: what was written is committed.
    fn commit(&mut self, at: usize, io: Io) {
        let target = self.target(at);
        let is_early =
            is_planted(Bug::EarlyAcknowledgement) && matches!(io, Io::Add(_) | Io::Fill(..));
        if is_early && self.acknowledged_early.insert((at, target.value)) {
            self.end_event(&target, self.requests[at].as_ref().unwrap().began);
            return self.set_phase(at, Phase::Written(io));
        }
        let channel = &mut self.channels[target.channel];
        match io {
            Io::InPlace(hold) => {
                channel.leave(hold);
                self.set_phase(at, Phase::Committed);
            }
            Io::Add(mut added) => {
                channel.record(&mut added);
                self.set_phase(at, Phase::Recorded(added));
            }
            Io::Fill(grant, hold) => {
                channel.commit_grant(&grant, self.image.layout.full_mask(), hold);
                self.set_phase(at, Phase::Committed);
            }
            Io::Read(_) | Io::Sync => {}
        }
    }

    fn end_write(&mut self, at: usize) {
        let target = self.target(at);
        let wants_durable = matches!(target.operation, Operation::Write { durable: true });
        let is_durable = self.requests[at].as_ref().expect("a request").is_durable;
        if wants_durable && (!is_durable || self.channels[target.channel].needs_round()) {
            return self.ask(at, QuestionKind::Flush);
        }
        self.set_phase(at, Phase::Ending(Ok(target.value)));
    }

    /// Advances a request by one step.
    pub(super) fn advance(&mut self, at: usize) {
        match self.take_phase(at) {
            Phase::Start => self.plan(at),
            Phase::Granted(grant) => self.begin_fill(at, grant),
            Phase::Written(io) => self.commit(at, io),
            Phase::Recorded(added) => {
                let channel = self.target(at).channel;
                self.channels[channel].publish(added);
                self.set_phase(at, Phase::Committed);
            }
            Phase::Committed => self.end_write(at),
            Phase::Ending(outcome) => self.acknowledge(at, outcome),
            waiting @ (Phase::Asked | Phase::Describing(..) | Phase::InKernel(_)) => {
                self.set_phase(at, waiting)
            }
        }
    }

    /// Handles an answer of the owner.
    pub(super) fn on_answer(&mut self, at: usize, kind: AnswerKind) {
        let Some(request) = self.requests.get(at).and_then(Option::as_ref) else { return };
        let value = request.target.value;
        let phase = match self.take_phase(at) {
            Phase::Asked => kind,
            Phase::Describing(hold, grant) => return self.on_pieces(at, hold, grant, kind),
            other => return self.set_phase(at, other),
        };
        let phase = match phase {
            AnswerKind::Look => Phase::Start,
            AnswerKind::Granted(grant) => Phase::Granted(grant),
            // No request in this phase has asked for them.
            AnswerKind::Pieces(_) | AnswerKind::Words(_) => Phase::Start,
            AnswerKind::Done(outcome) => Phase::Ending(outcome.map(|()| value).map_err(drop)),
        };
        self.set_phase(at, phase);
    }

    /// Ends I/O in the kernel. A process that has died does not see it.
    pub(super) fn end_kernel(&mut self, index: usize) {
        let KernelIo { life, request: at, effect, .. } = self.kernel.swap_remove(index);
        let fails = self.eio && matches!(effect, Effect::Write { .. }) && self.random.one_in(300);
        let mut read = 0;
        match effect {
            Effect::Read(sector) => read = self.image.file.value(sector),
            Effect::Write { .. } if fails => {}
            Effect::Write { sectors, durable } => {
                for (sector, value) in sectors {
                    self.image.file.set_value(sector, value);
                    if durable {
                        self.image.file.sync_sector(sector);
                    }
                }
            }
            Effect::Sync(number) => self.image.file.sync_to(number),
        }
        if life != self.life {
            return;
        }
        let Phase::InKernel(io) = self.take_phase(at) else { return };
        let channel = self.target(at).channel;
        let channel = &mut self.channels[channel];
        let phase = match io {
            Io::Read(hold) => {
                channel.leave(hold);
                Phase::Ending(Ok(read))
            }
            Io::Sync => Phase::Ending(Ok(0)),
            Io::InPlace(hold) if fails => {
                channel.leave(hold);
                Phase::Ending(Err(()))
            }
            Io::Add(added) if fails => {
                channel.fail_blocks(added);
                Phase::Ending(Err(()))
            }
            Io::Fill(grant, hold) if fails => {
                channel.fail_grant(grant, hold);
                Phase::Ending(Err(()))
            }
            Io::Add(mut added) if is_planted(Bug::RecordNotCanceled) => {
                channel.leave_early(&mut added);
                Phase::Written(Io::Add(added))
            }
            io => Phase::Written(io),
        };
        self.set_phase(at, phase);
    }
}
