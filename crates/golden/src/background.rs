//! Blocks that no request asks for: the boot set, then the whole image.
//!
//! Threads of the source take them when no request waits, at most [`FLIGHTS_MAX`] at once.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ::disk::{WarmPhase, WarmState};

use crate::BLOCK_BYTES;

/// Most blocks that are fetched ahead at once.
pub(crate) const FLIGHTS_MAX: usize = 4;

/// Why a block is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Request,
    BootSet,
    Warm,
}

/// Next block to fetch ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Block(u32, Purpose),
    /// All blocks are stored, and the digest is to be calculated.
    Check,
    /// The rate allows the next block at this time.
    At(Instant),
    Nothing,
}

/// Fetching of the whole image into the cache file.
#[derive(Debug)]
struct Warm {
    next: u32,
    /// Most bytes a second.
    rate: Option<u64>,
    /// Time of the next block, because of the rate.
    next_at: Instant,
    phase: WarmPhase,
    problem: Option<String>,
    /// Whether the digest is calculated at the end.
    checks: bool,
}

/// Blocks to fetch ahead, and the number of those that are being fetched.
#[derive(Debug, Default)]
pub(crate) struct Background {
    boot_set: VecDeque<u32>,
    warm: Option<Warm>,
    flights: usize,
}

impl Background {
    pub(crate) fn add_boot_set(&mut self, blocks: Vec<u32>) {
        self.boot_set = blocks.into();
    }

    /// Begins to fetch the whole image, or sets another rate. `checks`: its digest is calculated then.
    /// An image whose digest is being calculated stays so.
    pub(crate) fn warm(&mut self, rate: Option<u64>, checks: bool) {
        if self.is_checking() {
            return;
        }
        let (next, next_at, phase, problem) = (0, Instant::now(), WarmPhase::Running, None);
        self.warm = Some(Warm { next, rate, next_at, phase, problem, checks });
    }

    /// Ends the fetching of the whole image, if it goes on.
    pub(crate) fn end_warm(&mut self, phase: WarmPhase, problem: Option<String>) {
        let goes_on =
            |warm: &&mut Warm| matches!(warm.phase, WarmPhase::Running | WarmPhase::Checking);
        if let Some(warm) = self.warm.as_mut().filter(goes_on) {
            (warm.phase, warm.problem) = (phase, problem);
        }
    }

    /// Returns whether the digest is being calculated.
    pub(crate) fn is_checking(&self) -> bool {
        self.warm.as_ref().is_some_and(|warm| warm.phase == WarmPhase::Checking)
    }

    /// Forgets everything: no disk uses the image any more.
    pub(crate) fn clear(&mut self) {
        self.boot_set.clear();
        self.warm = None;
    }

    pub(crate) fn warm_state(&self) -> Option<WarmState> {
        let Warm { rate, phase, problem, .. } = self.warm.as_ref()?;
        Some(WarmState { rate: *rate, phase: *phase, problem: problem.clone() })
    }

    /// Returns the next block of `count`. The caller begins its flight.
    pub(crate) fn next(
        &mut self,
        count: u32,
        is_in_memory: impl Fn(u32) -> bool,
        is_flying: impl Fn(u32) -> bool,
        is_stored: impl Fn(u32) -> bool,
    ) -> Next {
        if self.flights >= FLIGHTS_MAX {
            return Next::Nothing;
        }
        while let Some(block) = self.boot_set.pop_front() {
            if !is_in_memory(block) && !is_flying(block) && !is_stored(block) {
                self.flights += 1;
                return Next::Block(block, Purpose::BootSet);
            }
        }
        let running = self.warm.as_mut().filter(|warm| warm.phase == WarmPhase::Running);
        let Some(warm) = running else { return Next::Nothing };
        let found = (warm.next..count).find(|block| !is_stored(*block) && !is_flying(*block));
        let Some(block) = found else {
            warm.next = count;
            // What is on its way may fail.
            match (0..count).find(|block| !is_stored(*block)) {
                None if warm.checks => {
                    warm.phase = WarmPhase::Checking;
                    return Next::Check;
                }
                None => warm.phase = WarmPhase::Done,
                Some(block) if !is_flying(block) => warm.next = 0,
                Some(_) => {}
            }
            return Next::Nothing;
        };
        let now = Instant::now();
        if warm.next_at > now {
            return Next::At(warm.next_at);
        }
        let pause = warm.rate.map_or(0.0, |rate| BLOCK_BYTES as f64 / rate as f64);
        warm.next_at = now + Duration::from_secs_f64(pause);
        warm.next = block + 1;
        self.flights += 1;
        Next::Block(block, Purpose::Warm)
    }

    /// Ends the flight of a block. One that was not fetched comes again.
    pub(crate) fn end(&mut self, block: u32, purpose: Purpose, is_fetched: bool) {
        match purpose {
            Purpose::Request => return,
            Purpose::BootSet if !is_fetched => self.boot_set.push_front(block),
            Purpose::Warm if !is_fetched => {
                if let Some(warm) = &mut self.warm {
                    warm.next = warm.next.min(block);
                }
            }
            _ => {}
        }
        self.flights -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_fetched_comes_again() {
        let mut background = Background::default();
        background.add_boot_set(vec![5, 2, 9, 4, 7]);
        let next = |background: &mut Background, stored: &[u32], flying: &[u32]| {
            background.next(8, |b| b == 9, |b| flying.contains(&b), |b| stored.contains(&b))
        };
        let boot = |block| Next::Block(block, Purpose::BootSet);
        assert_eq!(next(&mut background, &[4], &[]), boot(5));
        background.end(5, Purpose::BootSet, false);
        for block in [5, 2, 7] {
            assert_eq!(next(&mut background, &[4], &[]), boot(block));
            background.end(block, Purpose::BootSet, true);
        }
        assert_eq!(next(&mut background, &[4], &[]), Next::Nothing);
        background.warm(None, false);
        let warm = |block| Next::Block(block, Purpose::Warm);
        let taken: Vec<Next> = (0..5).map(|_| next(&mut background, &[4], &[])).collect();
        assert_eq!(taken, [warm(0), warm(1), warm(2), warm(3), Next::Nothing], "four at once");
        [0, 1, 3].into_iter().for_each(|block| background.end(block, Purpose::Warm, true));
        background.end(2, Purpose::Warm, false);
        let mut stored = vec![0, 1, 3, 4];
        // A request fetches block 6.
        let taken = [0; 3].map(|_| next(&mut background, &stored, &[6]));
        assert_eq!(taken, [warm(2), warm(5), warm(7)]);
        [2, 5, 7].into_iter().for_each(|block| background.end(block, Purpose::Warm, true));
        stored.extend([2, 5, 7]);
        assert_eq!(next(&mut background, &stored, &[6]), Next::Nothing);
        assert_eq!(background.warm_state().unwrap().phase, WarmPhase::Running);
        // That fetch fails.
        assert_eq!(next(&mut background, &stored, &[]), Next::Nothing);
        assert_eq!(next(&mut background, &stored, &[]), warm(6));
        background.end(6, Purpose::Warm, true);
        stored.push(6);
        assert_eq!(next(&mut background, &stored, &[]), Next::Nothing);
        assert_eq!(background.warm_state().unwrap().phase, WarmPhase::Done);
    }

    #[test]
    fn a_rate_sets_the_time_of_the_next_block() {
        let mut background = Background::default();
        background.warm(Some(BLOCK_BYTES / 100), false);
        assert_eq!(
            background.next(8, |_| false, |_| false, |_| false),
            Next::Block(0, Purpose::Warm)
        );
        assert!(matches!(background.next(8, |_| false, |_| false, |_| false), Next::At(_)));
        background.end_warm(WarmPhase::Canceled, None);
        assert_eq!(background.next(8, |_| false, |_| false, |_| false), Next::Nothing);
    }
}
