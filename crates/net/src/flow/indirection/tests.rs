//! Tests that moves happen only when no frame is in flight, and that the order is preserved.

use std::collections::{HashMap, VecDeque};

use proptest::prelude::*;

use super::*;

/// Consumption by the guest is unknown.
fn never(_: u8, _: u64) -> Option<bool> {
    None
}

/// The guest has consumed everything of each queue up to these positions.
fn up_to(done: &[u64; 4]) -> impl FnOnce(u8, u64) -> Option<bool> + use<> {
    let done = *done;
    move |queue, position| Some(position <= done[usize::from(queue)])
}

#[test]
fn buckets_are_in_turn_over_queues() {
    for (asked, queues) in [(0, 1), (1, 1), (3, 3), (4, 4), (128, 128), (255, 128)] {
        let indirection_table = IndirectionTable::new(asked);
        for (at, bucket) in Bucket::all().enumerate() {
            assert_eq!(usize::from(indirection_table.queue(bucket)), at % queues);
        }
    }
}

#[test]
fn what_has_no_flow_goes_to_the_first_queue() {
    let mut indirection_table = IndirectionTable::new(4);
    assert_eq!(indirection_table.pick(None, 0, never), 0);
    indirection_table.sent(None, 1, 60, 0);
    let mut load = Load::default();
    indirection_table.read(&mut load);
    assert_eq!((load.unhashed, load.buckets), (60, [0; BUCKETS]));
}

#[test]
fn what_is_lost_is_work_and_is_not_on_its_way() {
    let mut indirection_table = IndirectionTable::new(4);
    indirection_table.lost(Some(6), 1500);
    indirection_table.lost(None, 60);
    indirection_table.want(Bucket::of(6), 3, 0);
    assert_eq!(indirection_table.pick(Some(6), 0, never), 3);
    let mut load = Load::default();
    indirection_table.read(&mut load);
    assert_eq!((load.buckets[6], load.unhashed), (1500, 60));
}

#[test]
fn a_bucket_waits_until_its_frames_were_taken() {
    let mut indirection_table = IndirectionTable::new(4);
    let (hash, bucket) = (Some(0x105), Bucket::of(0x105));
    let mut done = [0; 4];
    assert_eq!(indirection_table.pick(hash, 0, up_to(&done)), 1);
    indirection_table.sent(hash, 10, 1, 0);
    indirection_table.want(bucket, 3, 0);
    assert_eq!(indirection_table.pick(hash, 1, up_to(&done)), 1);
    indirection_table.sent(hash, 11, 1, 1);
    done[1] = 10;
    assert_eq!(indirection_table.pick(hash, 2, up_to(&done)), 1, "one is on its way");
    done[1] = 11;
    assert_eq!(indirection_table.pick(hash, 3, up_to(&done)), 3);
    assert_eq!(indirection_table.queue(bucket), 3);
    // Positions of the new queue count from now on.
    indirection_table.sent(hash, 1, 1, 3);
    indirection_table.want(bucket, 0, 3);
    assert_eq!(indirection_table.pick(hash, 4, up_to(&done)), 3);
}

#[test]
fn a_pause_is_enough_and_no_frame_at_all_too() {
    let mut indirection_table = IndirectionTable::new(4);
    let (hash, bucket) = (Some(5), Bucket::of(5));
    indirection_table.want(bucket, 2, 0);
    assert_eq!(indirection_table.pick(hash, 0, never), 2, "nothing was sent");
    indirection_table.sent(hash, 1, 1, 100);
    indirection_table.want(bucket, 3, 100);
    assert_eq!(indirection_table.pick(hash, 99 + QUIET_NS, never), 2);
    assert_eq!(indirection_table.pick(hash, 100 + QUIET_NS, never), 3);
    // While it is known that a frame waits, no later frame overtakes it, however long it waits.
    indirection_table.sent(hash, 2, 1, 200);
    indirection_table.want(bucket, 1, 200);
    assert_eq!(indirection_table.pick(hash, 200 + 1000 * QUIET_NS, |_, _| Some(false)), 3);
    assert_eq!(indirection_table.pick(hash, 200 + 1000 * QUIET_NS, |_, _| Some(true)), 1);
}

#[test]
fn what_cannot_move_is_overdue() {
    let mut indirection_table = IndirectionTable::new(4);
    let (hash, bucket) = (Some(5), Bucket::of(5));
    indirection_table.sent(hash, 1, 1, 0);
    indirection_table.want(bucket, 2, 0);
    // A repeated request for the same queue does not extend the wait.
    indirection_table.want(bucket, 2, PATIENCE_NS / 2);
    indirection_table.sent(hash, 2, 1, PATIENCE_NS - 1);
    assert_eq!(indirection_table.overdue(PATIENCE_NS - 1).count(), 0);
    assert_eq!(indirection_table.overdue(PATIENCE_NS).collect::<Vec<_>>(), [bucket]);
    assert_eq!(
        indirection_table.overdue(PATIENCE_NS + QUIET_NS).count(),
        1,
        "also while it pauses"
    );
    indirection_table.want(bucket, 1, PATIENCE_NS);
    assert_eq!(indirection_table.pick(hash, PATIENCE_NS, never), 1, "taken back");
    assert_eq!(indirection_table.overdue(PATIENCE_NS).count(), 0);
}

#[test]
fn other_numbers_of_queues() {
    let mut indirection_table = IndirectionTable::new(8);
    indirection_table.sent(Some(7), 3, 5, 0);
    indirection_table.set_queues(2);
    assert!(Bucket::all().all(|bucket| indirection_table.queue(bucket) < 2));
    indirection_table.want(Bucket::of(7), 2, 0);
    assert_eq!(indirection_table.pick(Some(7), 0, never), 1, "there is no such queue");
    let mut load = Load::default();
    indirection_table.read(&mut load);
    indirection_table.read(&mut load);
    assert_eq!(load.buckets[7], 5, "each unit is read once");
}

proptest! {
    /// A guest consumes its queues in any order. Within a flow, frames arrive as they were sent,
    /// however often buckets are moved.
    #[test]
    fn order_is_kept(
        steps in prop::collection::vec((0u8..8, 0u32..6, 0u8..4, 0..3 * QUIET_NS), 1..600),
    ) {
        let mut indirection_table = IndirectionTable::new(4);
        let mut queues: [VecDeque<(u32, u64)>; 4] = Default::default();
        let (mut sent, mut done) = ([0u64; 4], [0u64; 4]);
        let (mut next, mut seen) = (HashMap::new(), HashMap::new());
        let mut now = 0;
        for (step, flow, queue, pause) in steps {
            now += pause;
            match step {
                0 => indirection_table.want(Bucket::of(flow), queue, now),
                1..4 => {
                    let at = usize::from(queue);
                    if let Some((flow, number)) = queues[at].pop_front() {
                        done[at] += 1;
                        let last = seen.insert(flow, number);
                        prop_assert!(last.is_none_or(|last| last < number), "reordered");
                    }
                }
                _ => {
                    let at = usize::from(indirection_table.pick(Some(flow), now, up_to(&done)));
                    sent[at] += 1;
                    let number = next.entry(flow).or_insert(0);
                    *number += 1;
                    queues[at].push_back((flow, *number));
                    indirection_table.sent(Some(flow), sent[at], 1, now);
                }
            }
        }
    }
}
