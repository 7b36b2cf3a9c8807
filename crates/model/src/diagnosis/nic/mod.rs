//! Diagnosis of a NIC that is slow or loses frames.
//!
//! Certain causes come first: no front-end, a broken ring, no driver. Then follow the cap, lost
//! frames by reason, and waits. All of it concerns the time between two samples.

use serde::{Deserialize, Serialize};

use super::polling;
use super::state::{RESET, broken_ring_sentence};
use super::units::{bytes, duration};
use crate::report::{DirectionStats, NicStats, PairStats, PollReason, PortStats, Stats};

/// Share of the time that the cap must throttle a queue to be the cause.
const HELD_SHARE: f64 = 0.05;
/// Share of lost frames from which a loss is reported.
const LOST_SHARE: f64 = 0.001;
/// Mean time from ring to ring in seconds from which frames wait: a turn of a busy reactor takes
/// less.
const SLOW_SECONDS: f64 = 0.001;
/// Ratio of the most loaded queue to the mean from which queues are uneven.
const UNEVEN: f64 = 1.25;
/// Remedy for a guest that posts too few buffers.
const MORE_BUFFERS: &str = "look at the load of the guest's CPUs, and give it more queues or longer \
                            rings (ethtool -L, ethtool -G)";
/// Share of a NIC's received frames that waited for buffers, from which this is reported.
const WAITED_SHARE: f64 = 0.1;
/// Loss reasons that the receiving guest causes.
const GUESTS: [&str; 2] = ["no-buffer", "small-buffer"];

/// Cause of a NIC's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NicCause {
    /// The NIC sends and receives nothing.
    Idle,
    /// The NIC is served, and nothing is unusual.
    Healthy,
    /// No front-end is connected.
    NoFrontEnd,
    /// A front-end is connected, but the driver has started no queue.
    NoDriver,
    /// The guest's driver has broken a ring.
    BrokenRing,
    /// The NIC's cap throttles it.
    Cap,
    /// The guest posts too few receive buffers.
    Buffers,
    /// The reactor is too busy.
    Reactor,
    /// Received frames are lost for another reason.
    Lost,
    /// The switch refuses sent frames.
    Refused,
    /// A new worker could not take the NIC over.
    NotServed,
}

/// Reason why a NIC is slow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicVerdict {
    /// Cause.
    pub cause: NicCause,
    /// Cause as one sentence.
    pub sentence: String,
    /// Suggested remedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Sentence on polling: whether the NIC is polled, and the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polling: Option<String>,
}

impl NicVerdict {
    fn new(cause: NicCause, sentence: String) -> Self {
        Self { cause, sentence, next: None, polling: None }
    }

    fn next(mut self, step: impl Into<String>) -> Self {
        self.next = Some(step.into());
        self
    }
}

/// Two samples of a process, and one of its NICs.
#[derive(Clone, Copy, Debug)]
pub struct NicFacts<'a> {
    before: Option<&'a PortStats>,
    nic: &'a PortStats,
    /// Seconds between the samples, or since the start of the process if the earlier one does not
    /// fit.
    seconds: f64,
}

impl<'a> NicFacts<'a> {
    /// Creates the facts from two samples of the whole process. `None` if `now` has no such NIC.
    pub fn new(earlier: &'a Stats, now: &'a Stats, id: &str) -> Option<Self> {
        let find = |stats: &'a Stats| stats.ports.iter().find(|one| one.id == id);
        let nic = find(now)?;
        let passed = now.uptime_seconds - earlier.uptime_seconds;
        let fits = earlier.pid == now.pid && passed.is_finite() && passed > 0.0;
        let before = find(earlier).filter(|_| fits);
        let all = if now.uptime_seconds.is_finite() { now.uptime_seconds.max(0.0) } else { 0.0 };
        Some(Self { before, nic, seconds: if before.is_some() { passed } else { all } })
    }

    /// Returns the growth of `count` between the samples.
    fn grown(&self, count: impl Fn(&PortStats) -> f64) -> f64 {
        (count(self.nic) - self.before.map_or(0.0, &count)).max(0.0)
    }

    /// Returns the growth of the sum over all queues.
    fn grown_in_queues(&self, count: impl Fn(&PairStats) -> f64) -> f64 {
        self.grown(|nic| nic.each_queue.iter().map(&count).sum())
    }

    /// Returns the frames, and the lost ones, between the samples.
    fn flow(&self, way: fn(&PortStats) -> &DirectionStats) -> (f64, f64) {
        let frames = self.grown(|nic| way(nic).frames as f64);
        (frames, self.grown(|nic| way(nic).lost() as f64))
    }

    /// Returns the reason for most of the lost frames, and their number.
    fn most_lost(&self, way: fn(&PortStats) -> &DirectionStats) -> Option<(&'a str, f64)> {
        let reasons = way(self.nic).drops.keys();
        let all = reasons
            .map(|reason| (reason.as_str(), self.grown(|nic| way(nic).lost_for(reason) as f64)));
        all.filter(|(_, lost)| *lost > 0.0).max_by(|a, b| a.1.total_cmp(&b.1))
    }
}

fn sent(nic: &PortStats) -> &DirectionStats {
    &nic.tx
}

fn got(nic: &PortStats) -> &DirectionStats {
    &nic.rx
}

/// Returns a verdict if the NIC is not served at all.
pub fn judge_refused(nic: &NicStats) -> Option<NicVerdict> {
    let why = nic.refused.as_ref()?;
    let sentence = format!("{} is not served, and its guest waits: {why}.", nic.id);
    let step = "fix that, then detach it (nic.detach) and attach it again";
    Some(NicVerdict::new(NicCause::NotServed, sentence).next(step))
}

/// Test for one cause. Returns the verdict if it holds.
type Rule = fn(&NicFacts<'_>) -> Option<NicVerdict>;

/// All rules in order: the first that holds is the verdict.
const RULES: [Rule; 8] =
    [no_front_end, broken_ring, no_driver, capped, loses, starves, refused, slow];

/// Returns the verdict on a NIC.
pub fn judge_nic(facts: &NicFacts<'_>) -> NicVerdict {
    let verdict = RULES.iter().find_map(|rule| rule(facts));
    let mut verdict = verdict.unwrap_or_else(|| served(facts));
    let is_there =
        !matches!(verdict.cause, NicCause::NoFrontEnd | NicCause::BrokenRing | NicCause::NoDriver);
    verdict.polling = is_there.then(|| polled(facts)).flatten();
    verdict
}

fn no_front_end(facts: &NicFacts<'_>) -> Option<NicVerdict> {
    let nic = facts.nic;
    // The host has no socket and is always connected.
    let socket = nic.socket.as_ref().filter(|_| !nic.connected)?;
    let sentence = format!("{} has no front-end: no machine is connected to its socket.", nic.id);
    let step = format!("start the machine with the socket {socket}");
    Some(NicVerdict::new(NicCause::NoFrontEnd, sentence).next(step))
}

fn broken_ring(facts: &NicFacts<'_>) -> Option<NicVerdict> {
    let (sentence, _) = broken_ring_sentence(&facts.nic.id, &facts.nic.broken_rings)?;
    Some(NicVerdict::new(NicCause::BrokenRing, sentence).next(RESET))
}

fn no_driver(facts: &NicFacts<'_>) -> Option<NicVerdict> {
    let nic = facts.nic;
    (nic.socket.is_some() && nic.pairs_started == 0).then(|| {
        let sentence =
            format!("{} has a front-end, and its guest's driver has started no queue yet.", nic.id);
        let step = "look at the guest's console: it boots, or has no driver for the NIC";
        NicVerdict::new(NicCause::NoDriver, sentence).next(step)
    })
}

fn capped(facts: &NicFacts<'_>) -> Option<NicVerdict> {
    let nic = facts.nic;
    let queues = nic.each_queue.iter().filter(|queue| queue.served).count().max(1) as f64;
    let held = facts.grown_in_queues(|queue| queue.throttled_seconds);
    let share = if facts.seconds > 0.0 { (held / facts.seconds / queues).min(1.0) } else { 0.0 };
    (share >= HELD_SHARE).then(|| {
        let sentence = format!(
            "{} is throttled by its cap: its guest's frames waited for it for {:.0}% of the time.",
            nic.id,
            share * 100.0
        );
        NicVerdict::new(NicCause::Cap, sentence).next("raise the cap, if it may send more")
    })
}

/// Returns a verdict if frames for the NIC are lost.
fn loses(facts: &NicFacts<'_>) -> Option<NicVerdict> {
    let id = &facts.nic.id;
    let (frames, lost) = facts.flow(got);
    let all = frames + lost;
    if lost < (all * LOST_SHARE).max(1.0) {
        return None;
    }
    let (reason, count) = facts.most_lost(got)?;
    let part = format!("{count:.0} of {all:.0} frames for it");
    let verdict = if GUESTS.contains(&reason) {
        let sentence = format!("{id} waits for its guest: {part} found no room in its buffers.");
        NicVerdict::new(NicCause::Buffers, sentence).next(MORE_BUFFERS)
    } else if reason == "reactor-busy" {
        let sentence =
            format!("{id} waits for its reactor: {part} came faster than the reactor took them.");
        NicVerdict::new(NicCause::Reactor, sentence)
            .next("give the process more reactors (--reactors), or its reactors more of a CPU")
    } else {
        NicVerdict::new(NicCause::Lost, format!("{id} loses frames: {part} ({reason})."))
    };
    Some(verdict)
}

/// Returns a verdict if frames for the NIC wait for its guest's buffers.
fn starves(facts: &NicFacts<'_>) -> Option<NicVerdict> {
    let waited = facts.grown_in_queues(|queue| queue.backlogged as f64);
    let frames = facts.grown(|nic| nic.rx.frames as f64);
    let waiting = |nic: &PortStats| nic.each_queue.iter().map(|queue| queue.backlog).sum::<u64>();
    let still = facts.before.is_some_and(|before| waiting(before) > 0);
    let waiting = waiting(facts.nic);
    ((still && waiting > 0) || waited >= (frames * WAITED_SHARE).max(1.0)).then(|| {
        let id = &facts.nic.id;
        let sentence = format!(
            "{id} waits for its guest: {waited:.0} of {frames:.0} frames for it found no buffers \
             when they came, {waiting} wait now."
        );
        NicVerdict::new(NicCause::Buffers, sentence).next(MORE_BUFFERS)
    })
}

/// Returns a verdict if the switch refuses frames that the NIC sends.
fn refused(facts: &NicFacts<'_>) -> Option<NicVerdict> {
    let (frames, lost) = facts.flow(sent);
    if lost < (frames * LOST_SHARE).max(1.0) {
        return None;
    }
    let (reason, count) = facts.most_lost(sent)?;
    let sentence = format!(
        "{} sends frames that go nowhere: {lost:.0} of {frames:.0}, of which {count:.0} for {reason}.",
        facts.nic.id
    );
    Some(NicVerdict::new(NicCause::Refused, sentence))
}

/// Returns the mean time from ring to ring, if frames came.
fn residence(facts: &NicFacts<'_>) -> Option<f64> {
    let count = facts.grown_in_queues(|queue| queue.residence.count as f64);
    let sum = facts.grown_in_queues(|queue| queue.residence_seconds);
    (count > 0.0).then(|| sum / count)
}

fn slow(facts: &NicFacts<'_>) -> Option<NicVerdict> {
    let mean = residence(facts).filter(|mean| *mean >= SLOW_SECONDS)?;
    let sentence = format!(
        "{} waits for reactors: frames for it take {} from their sender's ring to its own.",
        facts.nic.id,
        duration(mean)
    );
    let step = "see whether reactors have a CPU each, and what else they serve: ringway top";
    Some(NicVerdict::new(NicCause::Reactor, sentence).next(step))
}

fn served(facts: &NicFacts<'_>) -> NicVerdict {
    let id = &facts.nic.id;
    let rate = |way: fn(&PortStats) -> &DirectionStats| {
        let seconds = facts.seconds.max(1e-9);
        let frames = facts.grown(|nic| way(nic).frames as f64) / seconds;
        (frames, facts.grown(|nic| way(nic).bytes as f64) / seconds)
    };
    let ((out, out_bytes), (back, back_bytes)) = (rate(sent), rate(got));
    if out == 0.0 && back == 0.0 {
        let sentence = format!("{id} is idle: it sends and receives no frames.");
        return NicVerdict::new(NicCause::Idle, sentence);
    }
    let takes = residence(facts).map_or_else(String::new, |mean| {
        format!(", which take {} from their sender's ring to its own", duration(mean))
    });
    let sentence = format!(
        "{id} is served: it sends {out:.0} frames a second ({}), and gets {back:.0} ({}){takes}{}.",
        bytes(out_bytes as u64),
        bytes(back_bytes as u64),
        uneven(facts).unwrap_or_default(),
    );
    NicVerdict::new(NicCause::Healthy, sentence)
}

/// Returns a remark if one queue gets much more than others.
fn uneven(facts: &NicFacts<'_>) -> Option<String> {
    let former = |index: u16| {
        let queues = facts.before.map(|nic| &nic.each_queue);
        queues.into_iter().flatten().find(|one| one.index == index)
    };
    let served = facts.nic.each_queue.iter().filter(|queue| queue.served);
    let loads = served.map(|queue| {
        let before = former(queue.index).map_or(0, |one| one.rx.bytes);
        (queue.index, queue.rx.bytes.saturating_sub(before) as f64)
    });
    let loads: Vec<_> = loads.collect();
    let all: f64 = loads.iter().map(|(_, load)| load).sum();
    let (index, most) = loads.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let is_so = all > 0.0 && most * loads.len() as f64 > all * UNEVEN;
    is_so.then(|| format!("; queue {index} gets {:.0}% of it", most / all * 100.0))
}

fn polled(facts: &NicFacts<'_>) -> Option<String> {
    let now = facts.nic.polling.as_ref()?;
    if now.queues.reason != PollReason::Pays {
        return polling::state_sentence(now, "frames");
    }
    let of = |count: fn(&crate::report::QueuePolling) -> f64| {
        facts.grown(|nic| nic.polling.as_ref().map_or(0.0, |polling| count(&polling.queues)))
    };
    let (hits, misses) = (of(|one| one.hits as f64), of(|one| one.misses as f64));
    if hits == 0.0 || facts.seconds == 0.0 {
        return polling::state_sentence(now, "frames");
    }
    Some(format!(
        "It is polled, and that pays: {hits:.0} of {:.0} waits ended while it was polled, which \
         took {:.0}% of a CPU.",
        hits + misses,
        of(|one| one.poll_seconds) / facts.seconds * 100.0,
    ))
}

#[cfg(test)]
mod tests;
