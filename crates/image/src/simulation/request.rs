//! A guest's request on its way through a channel.

use crate::channel::{AddedBlocks, ReadPlan, WritePlan};
use crate::map::{Base, Hold, Word};
use crate::planted::{Bug, is_planted};
use crate::shared::{AnswerKind, Grant, QuestionKind};

use super::toy::{BLOCKS, cluster_at, cluster_sector};
use super::{World, below};

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
    pub(super) block: usize,
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

impl World {
    fn sector(word_place: crate::map::Place, block: usize) -> usize {
        cluster_sector(cluster_at(word_place)) + block
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
        let granule = target.granule as u64;
        match target.operation {
            Operation::Read => match self.channels[target.channel].plan_read(granule) {
                ReadPlan::Ask(question) => self.ask(at, question),
                ReadPlan::Describe { hold } => {
                    self.channels[target.channel].leave(hold);
                    self.ask(at, QuestionKind::Describe(granule));
                }
                ReadPlan::Base(base) => {
                    let value = base_value(base, &target);
                    self.set_phase(at, Phase::Ending(Ok(value)));
                }
                ReadPlan::Parts { hold, word } if word.mask() >> target.block & 1 == 1 => {
                    let effect = Effect::Read(Self::sector(word.place(), target.block));
                    self.submit(at, Io::Read(hold), effect);
                }
                ReadPlan::Parts { hold, word } => {
                    self.channels[target.channel].leave(hold);
                    let value = base_value(word.base(), &target);
                    self.set_phase(at, Phase::Ending(Ok(value)));
                }
            },
            Operation::Write { durable } => {
                let channel = &self.channels[target.channel];
                let durable = durable && !channel.needs_round();
                self.requests[at].as_mut().expect("a request").is_durable = durable;
                let channel = &mut self.channels[target.channel];
                let place = |place| {
                    let sectors = vec![(Self::sector(place, target.block), target.value)];
                    Effect::Write { sectors, durable }
                };
                match channel.plan_write(granule, 1 << target.block) {
                    WritePlan::Ask(question) => self.ask(at, question),
                    WritePlan::InPlace { hold, place: to } => {
                        self.submit(at, Io::InPlace(hold), place(to));
                    }
                    WritePlan::Add(added) => {
                        let effect = place(added.place());
                        self.submit(at, Io::Add(added), effect);
                    }
                }
            }
            Operation::Discard => self.ask(at, QuestionKind::Discard(granule)),
            Operation::Flush => {
                let shared = self.channels[target.channel].shared();
                if shared.is_durable() && !shared.is_lost() {
                    let number = self.file.last_write();
                    self.submit(at, Io::Sync, Effect::Sync(number));
                } else {
                    self.ask(at, QuestionKind::Flush);
                }
            }
        }
    }

    /// Fills a grant: the whole cluster in one write.
    fn fill(&mut self, at: usize, grant: Grant) {
        let target = self.target(at);
        let hold = self.channels[target.channel].enter_grant();
        let sectors = (0..BLOCKS).map(|block| {
            let value = if block == target.block {
                target.value
            } else {
                self.content(grant.prior, target.granule, block)
            };
            (Self::sector(grant.place, block), value)
        });
        let effect = Effect::Write { sectors: sectors.collect(), durable: false };
        self.submit(at, Io::Fill(grant, hold), effect);
    }

    /// Returns what a block reads as with this word, now.
    pub(super) fn content(&self, word: Word, granule: usize, block: usize) -> u64 {
        let is_stored = matches!(word.kind(), crate::map::Kind::Shared) || word.is_data();
        if is_stored && word.mask() >> block & 1 == 1 {
            self.file.value(Self::sector(word.place(), block))
        } else {
            match word.base() {
                Base::Below => below(granule, block),
                Base::Zero => 0,
            }
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
                channel.commit_grant(&grant, u16::MAX >> (16 - BLOCKS), hold);
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
            Phase::Granted(grant) => self.fill(at, grant),
            Phase::Written(io) => self.commit(at, io),
            Phase::Recorded(added) => {
                let channel = self.target(at).channel;
                self.channels[channel].publish(added);
                self.set_phase(at, Phase::Committed);
            }
            Phase::Committed => self.end_write(at),
            Phase::Ending(outcome) => self.acknowledge(at, outcome),
            waiting @ (Phase::Asked | Phase::InKernel(_)) => self.set_phase(at, waiting),
        }
    }

    /// Handles an answer of the owner.
    pub(super) fn on_answer(&mut self, at: usize, kind: AnswerKind) {
        let Some(request) = self.requests.get(at).and_then(Option::as_ref) else { return };
        if !matches!(request.phase, Phase::Asked) {
            return;
        }
        let value = request.target.value;
        let phase = match kind {
            AnswerKind::Look => Phase::Start,
            AnswerKind::Granted(grant) => Phase::Granted(grant),
            // The toy format has no mixed granules.
            AnswerKind::Pieces(_) => Phase::Start,
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
            Effect::Read(sector) => read = self.file.value(sector),
            Effect::Write { .. } if fails => {}
            Effect::Write { sectors, durable } => {
                for (sector, value) in sectors {
                    self.file.set_value(sector, value);
                    if durable {
                        self.file.sync_sector(sector);
                    }
                }
            }
            Effect::Sync(number) => self.file.sync_to(number),
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

fn base_value(base: Base, target: &Target) -> u64 {
    match base {
        Base::Below => below(target.granule, target.block),
        Base::Zero => 0,
    }
}
