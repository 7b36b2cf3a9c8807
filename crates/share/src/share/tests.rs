//! Bad input, and tables that are full.

use super::*;
use crate::profile::{Cost, Piece, Turn};
use crate::state::CELLS;
use crate::{DispatchQueue, Op, OpKind};

type Memory = Arc<[AtomicU64]>;

const PROFILE: Profile = Profile {
    read: Cost { request_ns: 2_000, byte_ps: 500 },
    write: Cost { request_ns: 3_000, byte_ps: 600 },
    flush_ns: 10_000,
    knee_ns: 1_000_000,
    requests_min: 2,
    latency_ns: 1_000_000,
    piece: Some(Piece { bytes: 65_536, gain_percent: 40 }),
    turn: Some(Turn::DEFAULT),
};

fn memory(cells: usize) -> Memory {
    (0..cells).map(|_| AtomicU64::new(0)).collect()
}

fn share() -> Arc<Share<Memory>> {
    Share::open(memory(CELLS), 1).unwrap()
}

#[test]
fn memory_of_another_size_or_layout_is_refused() {
    let small = Share::open(memory(CELLS - 1), 1).unwrap_err();
    assert_eq!(small, ShareError::Small { cells: CELLS - 1, needed: CELLS });
    let other = memory(CELLS);
    other[0].store(7, Relaxed);
    assert!(matches!(Share::open(other, 1), Err(ShareError::Layout { found: 7, .. })));
    let used = memory(CELLS);
    assert!(Share::open(Arc::clone(&used), 1).is_ok());
    assert!(Share::open(used, 2).is_ok());
}

#[test]
fn a_storage_without_profile_has_no_queue() {
    let share = share();
    assert_eq!(share.profile(), Err(ShareError::NoProfile));
    let queue = DispatchQueue::<_, u32>::open(&share);
    assert_eq!(queue.map(|_| ()), Err(ShareError::NoProfile));
    share.update_profile(&PROFILE).unwrap();
    assert_eq!(share.profile(), Ok(PROFILE));
}

#[test]
fn absurd_profiles_are_refused_by_name() {
    let none = Cost { request_ns: 0, byte_ps: 0 };
    let cases = [
        (Profile { read: none, ..PROFILE }, "cost of a read"),
        (Profile { write: Cost { byte_ps: u64::MAX, ..none }, ..PROFILE }, "cost of a write"),
        (Profile { flush_ns: u64::MAX, ..PROFILE }, "cost of a flush"),
        (Profile { knee_ns: 0, ..PROFILE }, "knee"),
        (Profile { requests_min: 0, ..PROFILE }, "least number of requests"),
        (Profile { latency_ns: u64::MAX, ..PROFILE }, "latency"),
        (Profile { piece: Some(Piece { bytes: 0, gain_percent: 0 }), ..PROFILE }, "piece"),
        (
            Profile { piece: Some(Piece { bytes: 1000, gain_percent: 0 }), ..PROFILE },
            "rest of the piece over 512",
        ),
        (Profile { turn: Some(Turn { bytes: 0, idle_ns: 0 }), ..PROFILE }, "turn"),
        (Profile { turn: Some(Turn { bytes: 1, idle_ns: u64::MAX }), ..PROFILE }, "anticipation"),
    ];
    for (profile, name) in cases {
        let error = share().update_profile(&profile).unwrap_err();
        assert!(matches!(error, ShareError::Profile { field, .. } if field == name), "{error}");
    }
}

#[test]
fn absurd_weights_are_refused() {
    let share = share();
    for weight in [0, WEIGHT_MAX + 1, u64::MAX] {
        let config = DiskConfig { weight, ..DiskConfig::default() };
        assert_eq!(share.add_disk("d", config), Err(ShareError::Weight(weight)));
    }
    let disk = share.add_disk("d", DiskConfig::default()).unwrap();
    let none = DiskConfig { weight: 0, ..DiskConfig::default() };
    assert_eq!(share.update_disk(disk, none), Err(ShareError::Weight(0)));
}

#[test]
fn full_tables_say_so_and_removed_disks_make_room() {
    let share = share();
    share.update_profile(&PROFILE).unwrap();
    let disks: Vec<_> =
        (0..DISKS_MAX).map(|_| share.add_disk("d", DiskConfig::default()).unwrap()).collect();
    let full = ShareError::TableFull { what: "disks", limit: DISKS_MAX };
    assert_eq!(share.add_disk("d", DiskConfig::default()), Err(full));
    share.remove_disk(disks[7]);
    assert_eq!(share.add_disk("d", DiskConfig::default()), Ok(disks[7]));
    let open = || DispatchQueue::<_, u32>::open(&share);
    let queues: Vec<_> = (0..REACTORS_MAX).map(|_| open().unwrap()).collect();
    let full = ShareError::TableFull { what: "reactors", limit: REACTORS_MAX };
    assert_eq!(open().map(|_| ()), Err(full));
    drop(queues);
    assert!(open().is_ok());
}

#[test]
fn numbers_of_a_process_gone_mad_do_no_harm() {
    let memory = memory(CELLS);
    let share = Share::open(Arc::clone(&memory), 1).unwrap();
    share.update_profile(&PROFILE).unwrap();
    let disks = [(); 2].map(|()| share.add_disk("d", DiskConfig::default()).unwrap());
    let mut queue = DispatchQueue::open(&share).unwrap();
    for value in [u64::MAX, 1 << 63, 12_345, 0] {
        memory.iter().skip(1).for_each(|cell| cell.store(value, Relaxed));
        for now in 0..1_000 {
            let disk = disks[now as usize % 2];
            let kind = [OpKind::Read, OpKind::Write, OpKind::Discard, OpKind::Flush];
            let op = Op::new(kind[now as usize % 4], 200_000);
            if let crate::Submitted::Send(permit) = queue.submit(disk, op, now, now * 1_000_000) {
                queue.complete(permit, now * 1_000_000);
            }
            while let Some(dispatch) = queue.next(now * 1_000_000) {
                queue.complete(dispatch.permit, now * 1_000_000);
            }
            while queue.take_kick().is_some() {}
            let _ = (queue.deadline(), share.wait_reason(disk), share.stats());
        }
    }
}

#[test]
fn names_of_disks_are_seen_by_all_processes() {
    let memory = memory(CELLS);
    let [one, other] = [1, 2].map(|process| Share::open(Arc::clone(&memory), process).unwrap());
    let long = "\u{e9}".repeat(40);
    for (name, seen) in
        [("d1", "d1".into()), ("", "".into()), (&*long, "\u{e9}".repeat(30) + "\u{2026}")]
    {
        let disk = one.add_disk(name, DiskConfig::default()).unwrap();
        assert_eq!(other.disk_name(disk), *seen, "{name}");
        assert_eq!(other.other_processes().into_iter().collect::<Vec<_>>(), [1]);
        assert!(one.other_processes().is_empty());
        one.remove_disk(disk);
    }
    assert!(other.other_processes().is_empty());
}
