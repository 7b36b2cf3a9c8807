//! Models of storage devices: pure functions of time, without threads and clocks.
//!
//! A caller submits commands, asks for the time of the next event, and reaps at that time or later.
//! Simulated time makes the models exact. With real timers they stand for a device.
//!
//! | model | commands share | a command alone | queue |
//! |---|---|---|---|
//! | [`Pipe`]: array or network storage | one pipe | pipe, its connection, latency | bounded |
//! | [`Flash`] | the channels that their stripes lie on | slowest channel, latency | none |
//! | [`Spindle`] | one head, which takes the nearest command | seek, half a rotation, transfer | all |
//!
//! Any model becomes slower at the times that [`DeviceConfig::speeds`] lists.

mod calibrate;
mod flash;
mod pipe;
mod random;
mod spindle;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::profile::{OpKind, SECOND};

pub use calibrate::calibrate;
#[cfg(test)]
pub(crate) use calibrate::{sample, samples};
pub use flash::Flash;
pub use pipe::{Connections, Pipe};
pub(crate) use random::Random;
pub use spindle::Spindle;

/// Command of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// Number by which the caller knows it.
    pub id: u64,
    /// Kind of the operation. Flushes and discards move no data.
    pub kind: OpKind,
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// Model of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Model {
    /// Array or network storage.
    Pipe(Pipe),
    /// Flash.
    Flash(Flash),
    /// Disk that spins.
    Spindle(Spindle),
}

/// Model and what happens to it.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceConfig {
    /// The model.
    pub model: Model,
    /// Speeds in percent, each from a time in nanoseconds on. In order of time.
    pub speeds: Vec<(u64, u64)>,
}

impl From<Model> for DeviceConfig {
    fn from(model: Model) -> Self {
        Self { model, speeds: Vec::new() }
    }
}

/// Device that a model describes.
#[derive(Debug)]
pub struct Device {
    config: DeviceConfig,
    state: ModelState,
    /// Ends of the commands that run.
    ends: BinaryHeap<Reverse<(u64, u64)>>,
}

#[derive(Debug)]
enum ModelState {
    Pipe(pipe::State),
    Flash(flash::State),
    Spindle(spindle::State),
}

impl Device {
    /// Makes an idle device.
    pub fn new(config: DeviceConfig) -> Self {
        let state = match &config.model {
            Model::Pipe(model) => ModelState::Pipe(pipe::State::new(model)),
            Model::Flash(model) => ModelState::Flash(flash::State::new(model)),
            Model::Spindle(_) => ModelState::Spindle(spindle::State::default()),
        };
        Self { config, state, ends: BinaryHeap::new() }
    }

    /// Submits a command. Times do not decrease from call to call.
    pub fn submit(&mut self, now: u64, command: Command) {
        match &mut self.state {
            ModelState::Pipe(state) => state.waiting.push_back(command),
            ModelState::Spindle(state) => state.waiting.push(command),
            ModelState::Flash(_) => {}
        }
        self.start(now, Some(command));
    }

    /// Starts the commands that can start: a new one, or those that wait.
    fn start(&mut self, now: u64, new: Option<Command>) {
        let percent = self.percent(now);
        let scale = |ns: u64| ns * 100 / percent.max(1);
        match (&self.config.model, &mut self.state) {
            (Model::Pipe(model), ModelState::Pipe(state)) => {
                while let Some((end, id)) = state.start(model, now, scale) {
                    self.ends.push(Reverse((end, id)));
                }
            }
            (Model::Flash(model), ModelState::Flash(state)) => {
                let started = new.map(|command| (state.start(model, now, command, scale), command));
                self.ends.extend(started.map(|(end, command)| Reverse((end, command.id))));
            }
            (Model::Spindle(model), ModelState::Spindle(state)) => {
                let started = state.start(model, now, scale);
                self.ends.extend(started.map(Reverse));
            }
            _ => {}
        }
    }

    /// Returns the speed in percent.
    fn percent(&self, now: u64) -> u64 {
        let past = self.config.speeds.iter().take_while(|(from, _)| *from <= now);
        past.last().map_or(100, |(_, percent)| *percent)
    }

    /// Returns the time of the next completion. `None` if no command runs.
    pub fn next_event(&self) -> Option<u64> {
        self.ends.peek().map(|Reverse((end, _))| *end)
    }

    /// Returns the ends and numbers of the commands that run, in no order.
    pub fn running(&self) -> impl Iterator<Item = (u64, u64)> {
        self.ends.iter().map(|Reverse(end)| *end)
    }

    /// Moves the numbers of commands that have completed by `now` into `done`.
    pub fn reap(&mut self, now: u64, done: &mut Vec<u64>) {
        while let Some(Reverse((end, id))) = self.ends.peek().copied().filter(|e| e.0.0 <= now) {
            self.ends.pop();
            done.push(id);
            match &mut self.state {
                ModelState::Pipe(state) => state.running -= 1,
                ModelState::Spindle(state) => state.busy = false,
                ModelState::Flash(_) => {}
            }
            self.start(end, None);
        }
    }
}

/// Returns the time that bytes take, in nanoseconds.
fn transfer_ns(bytes: u64, bytes_per_second: u64) -> u64 {
    let ns = u128::from(bytes) * u128::from(SECOND) / u128::from(bytes_per_second.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
