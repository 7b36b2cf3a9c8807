//! Runs the owner of the map step by step: each step goes to its next call of the file.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::World;
use super::format::SimFormat;
use super::storage::SimFile;
use crate::ImageError;
use crate::owner::{Owner, Round};
use crate::shared::Shared;

type Task<T> = Pin<Box<dyn Future<Output = T>>>;
/// A call of an owner, which may begin or continue a round.
type Call<F> = Task<(Owner<F>, Option<Round<SimFile>>)>;

/// Activity of the owner.
enum Activity<F> {
    Opening(Task<Result<Owner<F>, ImageError>>),
    Idle(Box<Owner<F>>),
    Busy(Call<F>),
    /// The owner is in use by the step that runs.
    Taken,
}

/// Round between two calls of the owner.
enum Rounding {
    None,
    /// A sync; true before the references are written.
    Syncing(Task<Round<SimFile>>, bool),
    Synced(Round<SimFile>, bool),
}

pub(super) struct OwnerTask<F> {
    activity: Activity<F>,
    rounding: Rounding,
    /// True while the owner writes the references of a round.
    writes: bool,
}

fn poll<T>(task: &mut Task<T>) -> Poll<T> {
    task.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

impl<F: SimFormat> OwnerTask<F> {
    pub(super) fn start(shared: &Arc<Shared>, file: &SimFile, options: F::Options) -> Self {
        let (shared, file) = (Arc::clone(shared), file.clone());
        let activity = Activity::Opening(Box::pin(async move {
            Owner::take_over(shared, F::open(file, options).await?).await
        }));
        Self { activity, rounding: Rounding::None, writes: false }
    }
}

impl<F: SimFormat> World<F> {
    /// Runs the owner to its next call, or a sync of a round.
    pub(super) fn step_owner(&mut self) {
        if !matches!(self.owner.rounding, Rounding::None) && self.random.one_in(3) {
            return self.step_round();
        }
        match std::mem::replace(&mut self.owner.activity, Activity::Taken) {
            Activity::Opening(mut task) => {
                match poll(&mut task) {
                    Poll::Pending => self.owner.activity = Activity::Opening(task),
                    Poll::Ready(Ok(owner)) => self.owner.activity = Activity::Idle(Box::new(owner)),
                    // The image cannot be opened now. The next process tries again.
                    Poll::Ready(Err(_)) => self.kill(),
                }
            }
            Activity::Busy(mut task) => match poll(&mut task) {
                Poll::Pending => self.owner.activity = Activity::Busy(task),
                Poll::Ready((owner, round)) => self.end_call(owner, round),
            },
            Activity::Idle(owner) => self.begin_call(*owner),
            Activity::Taken => {}
        }
    }

    fn end_call(&mut self, mut owner: Owner<F>, round: Option<Round<SimFile>>) {
        if let Some(mut round) = round {
            let is_first = !std::mem::take(&mut self.owner.writes);
            let sync = async move {
                round.sync().await;
                round
            };
            self.owner.rounding = Rounding::Syncing(Box::pin(sync), is_first);
        }
        let mut answers = Vec::new();
        owner.take_answers(&mut answers);
        self.owner.activity = Activity::Idle(Box::new(owner));
        for answer in answers {
            self.on_answer(answer.tag as usize, answer.kind);
        }
    }

    fn step_round(&mut self) {
        if let Rounding::Syncing(task, is_first) = &mut self.owner.rounding
            && let Poll::Ready(round) = poll(task)
        {
            self.owner.rounding = Rounding::Synced(round, *is_first);
        }
    }

    fn begin_call(&mut self, mut owner: Owner<F>) {
        let choice = self.random.below(4);
        if choice == 0
            && let Rounding::Synced(..) = self.owner.rounding
        {
            return self.continue_round(owner);
        }
        let task: Call<F> = if choice == 1 && owner.wants_round() {
            Box::pin(async move {
                let round = owner.begin_round().await;
                (owner, Some(round))
            })
        } else if choice == 2 && owner.limbo() > 0 {
            Box::pin(async move {
                let _ = owner.reclaim().await;
                (owner, None)
            })
        } else if let Some(question) = self.shared.next_question() {
            Box::pin(async move {
                owner.answer(question).await;
                (owner, None)
            })
        } else {
            owner.give_pages();
            owner.retry_later();
            if self.random.one_in(20) {
                owner.shrink();
            }
            if self.mix.full {
                owner.retry_room();
            }
            self.owner.activity = Activity::Idle(Box::new(owner));
            return;
        };
        self.owner.activity = Activity::Busy(task);
    }

    fn continue_round(&mut self, mut owner: Owner<F>) {
        let Rounding::Synced(mut round, is_first) =
            std::mem::replace(&mut self.owner.rounding, Rounding::None)
        else {
            return;
        };
        if is_first {
            self.owner.writes = true;
            self.owner.activity = Activity::Busy(Box::pin(async move {
                owner.write_round(&mut round).await;
                (owner, Some(round))
            }));
        } else {
            owner.end_round(round);
            self.end_call(owner, None);
        }
    }

    pub(super) fn step_eviction(&mut self) {
        let granule = self.image.first + self.random.below(self.image.granules);
        if let Activity::Idle(owner) = &mut self.owner.activity {
            owner.evict(granule as u64);
        }
        if self.mix.full && self.random.one_in(20) {
            self.image.file.fill_later(self.random.below(10) as u32);
        }
        if self.eio && self.random.one_in(300) {
            self.image.file.fail_later(self.random.below(20) as u32);
        }
    }

    /// Returns whether requests wait for space, and no space will come.
    pub(super) fn is_full(&self) -> bool {
        let Activity::Idle(owner) = &self.owner.activity else { return false };
        owner.is_full()
    }

    /// Adds the counters of an owner that is about to end.
    pub(super) fn collect_counts(&mut self) {
        let Activity::Idle(owner) = &self.owner.activity else { return };
        let counts = owner.counts();
        self.seen.reclaimed += counts.reclaimed;
        self.seen.evictions += counts.evictions;
        self.seen.folds += counts.folds;
        self.seen.rounds += counts.rounds;
        self.seen.allocations += counts.allocations;
    }
}
