//! Searches of a backlog, beside a look at all disks.

use super::*;
use crate::device::Random;

const DISKS: usize = 100;

/// Searches beside a look at all disks.
struct Search {
    backlog: Backlog,
    disks: Vec<Look>,
    /// Number of times that a key was lowered.
    lowerings: u64,
}

impl Search {
    fn set(&mut self, disk: usize, look: Look) {
        let found = std::mem::replace(&mut self.disks[disk], look);
        match (matches!(found, Look::Empty), matches!(look, Look::Empty)) {
            (true, false) => self.backlog.add(DiskId(disk as u16)),
            (false, true) => self.backlog.count_empty(),
            _ => {}
        }
    }

    fn lowest(&mut self) -> Option<(u64, DiskId)> {
        self.backlog.lowest((self.lowerings, 0), |disk| self.disks[disk.slot()])
    }

    fn expected(&self) -> Option<(u64, DiskId)> {
        let keys = self.disks.iter().enumerate().filter_map(|(disk, look)| match look {
            Look::Key(key) | Look::TimedKey(key) => Some((*key, DiskId(disk as u16))),
            Look::Empty | Look::Waits => None,
        });
        keys.min()
    }
}

fn search() -> Search {
    Search { backlog: Backlog::default(), disks: vec![Look::Empty; DISKS], lowerings: 0 }
}

#[test]
fn a_search_finds_what_a_look_at_all_disks_finds() {
    let (mut search, mut random, mut keys) = (search(), Random::new(7), [0; DISKS]);
    for step in 0..100_000 {
        let disk = random.below(DISKS as u64) as usize;
        keys[disk] += random.below(50);
        match random.below(20) {
            0 => search.set(disk, Look::Empty),
            1 => search.set(disk, Look::Waits),
            2 => {
                keys[disk] /= 2;
                search.lowerings += 1;
                search.set(disk, Look::Key(keys[disk]));
            }
            3 => {
                search.lowerings += u64::from(!matches!(search.disks[disk], Look::TimedKey(_)));
                search.set(disk, Look::TimedKey(random.below(keys[disk] + 1)));
            }
            _ => search.set(disk, Look::Key(keys[disk])),
        }
        assert_eq!(search.lowest(), search.expected(), "step {step}");
        let held = search.disks.iter().filter(|look| !matches!(look, Look::Empty)).count();
        assert_eq!(search.backlog.len(), held);
    }
}

#[test]
fn a_search_looks_at_disks_whose_keys_have_changed() {
    let mut search = search();
    (0..DISKS).for_each(|disk| search.set(disk, Look::Key(disk as u64 + 1)));
    let looks = |search: &mut Search| {
        let before = search.backlog.looks;
        assert_eq!(search.lowest(), search.expected());
        search.backlog.looks - before
    };
    assert_eq!(looks(&mut search), DISKS as u64, "none was looked at before");
    assert_eq!(looks(&mut search), 1, "nothing has changed");
    search.set(0, Look::Key(1000));
    assert_eq!(looks(&mut search), 2, "the first has been served");
    search.set(1, Look::Empty);
    assert_eq!(looks(&mut search), 2, "the first has run empty");
    search.set(2, Look::Waits);
    assert_eq!(looks(&mut search), 2, "the first may not go");
    (50..60).for_each(|disk| search.set(disk, Look::Key(2000)));
    assert_eq!(looks(&mut search), 2, "others are behind");
    search.lowerings += 1;
    assert_eq!(looks(&mut search), DISKS as u64 - 1, "any may be the first");
}
