//! A guest's request on its way through a channel.

use crate::channel::{AddedBlocks, ReadPlan, WritePlan};
use crate::map::{Base, Hold, Place};
use crate::planted::{Bug, is_planted};
use crate::shared::{AnswerKind, Claim, Grant, QuestionKind};

use super::World;
use super::format::SimFormat;

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
    /// Number of granules.
    pub(super) count: usize,
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
    /// Number of granules that are discarded.
    pub(super) zeroed: usize,
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
    pub(super) fn sector(&self, place: Place, cell: usize) -> usize {
        self.image.sector(place.units() << self.image.layout.unit_bits, cell)
    }

    pub(super) fn submit(&mut self, request: usize, io: Io, effect: Effect) {
        let is_slow = self.random.one_in(6);
        self.kernel.push(KernelIo { life: self.life, request, effect, is_slow });
        self.set_phase(request, Phase::InKernel(io));
    }

    fn ask(&mut self, request: usize, kind: QuestionKind) {
        let channel = self.target(request).channel;
        self.channels[channel].ask(request as u32, kind);
        self.set_phase(request, Phase::Asked);
    }

    /// Submits a request whose place is known. Returns false if it is not such a one.
    fn submit_direct(&mut self, at: usize, granule: u64) -> bool {
        let target = self.target(at);
        let writes = match target.operation {
            Operation::Read => false,
            Operation::Write { durable: false } => true,
            _ => return false,
        };
        let block = 1 << self.image.block(target.cell);
        let channel = &mut self.channels[target.channel];
        let Some((hold, word)) = channel.find(granule, block, writes) else { return false };
        if word.lower_file().is_some() {
            channel.leave(hold);
            let value = self.base_value(Base::Below, target.granule, target.cell);
            self.set_phase(at, Phase::Ending(Ok(value)));
            return true;
        }
        let sector = self.sector(word.place(), target.cell);
        if writes {
            let sectors = vec![(sector, target.value)];
            self.requests[at].as_mut().expect("a request").is_durable = false;
            self.submit(at, Io::InPlace(hold), Effect::Write { sectors, durable: false });
        } else {
            self.submit(at, Io::Read(hold), Effect::Read(sector));
        }
        true
    }

    /// Plans a request, and submits its I/O or asks the owner.
    pub(super) fn plan(&mut self, at: usize) {
        let target = self.target(at);
        let granule = (self.image.first + target.granule) as u64;
        if self.random.one_in(2) && self.submit_direct(at, granule) {
            return;
        }
        match target.operation {
            Operation::Read => match self.channels[target.channel].plan_read(granule) {
                ReadPlan::Ask(question) => self.ask(at, question),
                ReadPlan::Describe { hold } => self.ask_pieces(at, hold, None),
                ReadPlan::Base(base) => {
                    if base == Base::Below && self.random.one_in(2) {
                        self.note_lower(target.channel, granule);
                    }
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
                let block = 1 << self.image.block(target.cell);
                let plan = self.channels[target.channel].plan_write(granule, block);
                let is_in_place = matches!(plan, WritePlan::InPlace { .. });
                let durable =
                    durable && is_in_place && !self.channels[target.channel].needs_round();
                self.requests[at].as_mut().expect("a request").is_durable = durable;
                match plan {
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
            Operation::Discard => {
                let zeroed = self.requests[at].as_ref().expect("a request").zeroed;
                let (granule, count) = (granule + zeroed as u64, (target.count - zeroed) as u64);
                self.ask(at, QuestionKind::Discard { granule, count, claim: Claim::default() });
            }
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
        if wants_durable && !is_durable {
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

    /// Notes that some granules are discarded.
    fn add_zeroed(&mut self, at: usize, count: usize) -> Phase {
        let request = self.requests[at].as_mut().expect("a request");
        request.zeroed += count;
        let all = request.target.count;
        assert!(count > 0 && request.zeroed <= all, "{count} more of {all} granules");
        if request.zeroed == all { Phase::Ending(Ok(0)) } else { Phase::Start }
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
            AnswerKind::Zeroed(count) => self.add_zeroed(at, count as usize),
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
