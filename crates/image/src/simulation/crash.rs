//! Ends of a process and of the host.

use super::format::SimFormat;
use super::owner::OwnerTask;
use super::request::Phase;
use super::{World, new_channels, new_journal, new_shared};

impl<F: SimFormat> World<F> {
    /// Kills the process. Its I/O ends, then a successor begins.
    pub(super) fn kill(&mut self) {
        self.seen.kills += 1;
        self.life += 1;
        while !self.kernel.is_empty() {
            let index = self.random.below(self.kernel.len());
            self.end_kernel(index);
        }
        for request in self.requests.iter_mut().flatten() {
            (request.phase, request.zeroed) = (Phase::Start, 0);
        }
        self.restart();
    }

    fn restart(&mut self) {
        self.collect_counts();
        self.acknowledged_early.clear();
        self.shared = new_shared(&self.image, &self.journal);
        self.channels = new_channels(&self.shared);
        self.owner = OwnerTask::start(&self.shared, &self.image.file, self.mix.format);
    }

    /// Cuts the power: memory and caches are lost, and the guest with them.
    pub(super) fn cut(&mut self) {
        self.seen.cuts += 1;
        self.life += 1;
        self.kernel.clear();
        self.requests.clear();
        self.image.file.cut(&mut self.random);
        self.journal = new_journal(&self.image);
        self.check_medium();
        self.last_flush = self.now;
        self.restart();
    }

    /// Checks the image and its content after a power cut.
    fn check_medium(&mut self) {
        let values = match F::check(&self.image, self.mix.format, self.seen.cuts) {
            Ok(values) => values,
            Err(problem) => return self.fail(format!("after a cut: {problem}")),
        };
        let now = self.now;
        for (at, value) in values.into_iter().enumerate() {
            let history = &self.histories[at];
            let lost = history.lost_durable(value);
            if !history.allows(value, self.last_flush, now) || lost.is_some() {
                let events = format!("{:?}", history.events);
                let (flush, cells) = (self.last_flush, self.image.cells);
                let (granule, cell) = (at / cells, at % cells);
                self.fail(format!(
                    "after a cut {granule}.{cell} reads {value:#x}, last flush {flush}, durable \
                     {lost:?}: {events}"
                ));
            }
            self.histories[at].reset(value, now);
        }
    }
}
