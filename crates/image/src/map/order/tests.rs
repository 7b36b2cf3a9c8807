//! All orders of the steps of owner and channel, under `loom`.

use std::sync::atomic::Ordering;

use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, fence};
use loom::thread;

use super::*;
use crate::map::{Base, Place};

/// A number under `loom`. With `FENCED` false the fences are missing.
#[derive(Debug)]
struct Number<const FENCED: bool>(AtomicU64);

impl<const FENCED: bool> Cell for Number<FENCED> {
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }

    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_add(value, order)
    }

    fn compare_exchange(&self, old: u64, new: u64) -> Result<u64, u64> {
        self.0.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
    }

    fn fence() {
        if FENCED {
            fence(Ordering::SeqCst);
        }
    }
}

fn number<const FENCED: bool>(value: u64) -> Arc<Number<FENCED>> {
    Arc::new(Number(AtomicU64::new(value)))
}

fn data(mask: u16) -> Word {
    Word::data(Place::new(8).unwrap(), mask, Base::Zero)
}

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// A channel reads a cluster that the owner discards and gives to another granule.
fn discard_and_read<const FENCED: bool>() {
    let (now, slot) = (number::<FENCED>(1), number::<FENCED>(0));
    let (word, content) = (number::<FENCED>(data(1).bits()), number::<FENCED>(7));
    let owner = {
        let (now, slot) = (Arc::clone(&now), Arc::clone(&slot));
        let (word, content) = (Arc::clone(&word), Arc::clone(&content));
        thread::spawn(move || {
            word.0.swap(Word::ZERO.bits(), Ordering::AcqRel);
            let ended = end_epoch(&*now);
            before_slots::<Number<FENCED>>();
            let shown = slot.load(Ordering::Acquire);
            if shown == 0 || shown > ended {
                content.store(9, Ordering::Relaxed);
            }
        })
    };
    publish_epoch(&*now, &*slot);
    if Word::from_bits(word.load(Ordering::Acquire)).is_data() {
        assert_eq!(content.load(Ordering::Relaxed), 7, "the cluster is another granule's");
    }
    slot.store(0, Ordering::Release);
    owner.join().unwrap();
}

#[test]
fn a_cluster_is_not_reused_while_a_request_has_its_word() {
    explore(discard_and_read::<true>);
}

#[test]
#[should_panic(expected = "another granule's")]
fn without_the_fences_it_would_be() {
    explore(discard_and_read::<false>);
}

#[test]
fn two_channels_add_their_blocks() {
    explore(|| {
        let word = number::<true>(data(1).bits());
        let commits = number::<true>(0);
        let (other, counter) = (Arc::clone(&word), Arc::clone(&commits));
        let thread = thread::spawn(move || assert!(add_blocks(&*counter, &*other, data(2))));
        assert!(add_blocks(&*commits, &*word, data(4)));
        thread.join().unwrap();
        assert_eq!(Word::from_bits(word.load(Ordering::Acquire)), data(7));
    });
}

/// A record whose block the discard did not see must be canceled.
#[test]
fn a_block_is_discarded_with_its_cluster_or_its_record_is_canceled() {
    explore(|| {
        let (word, live) = (number::<true>(data(1).bits()), number::<true>(0));
        let commits = number::<true>(0);
        let (there, record) = (Arc::clone(&word), Arc::clone(&live));
        let channel = thread::spawn(move || {
            record.store(1, Ordering::Release);
            if !add_blocks(&*commits, &*there, data(2)) {
                record.store(0, Ordering::Release);
            }
        });
        let old = Word::from_bits(word.0.swap(Word::ZERO.bits(), Ordering::AcqRel));
        channel.join().unwrap();
        assert_eq!(live.load(Ordering::Acquire) == 1, old == data(3));
        assert_eq!(word.load(Ordering::Acquire), Word::ZERO.bits());
    });
}

/// A durable write that finds a block in place looks afterwards whether all changes are durable.
#[test]
fn a_block_is_shown_after_its_change_is_counted() {
    explore(|| {
        let (word, commits) = (number::<true>(data(1).bits()), number::<true>(3));
        let (there, counter) = (Arc::clone(&word), Arc::clone(&commits));
        let writer = thread::spawn(move || {
            let found = Word::from_bits(there.load(Ordering::Acquire));
            (found, counter.load(Ordering::SeqCst))
        });
        assert!(add_blocks(&*commits, &*word, data(2)));
        let (found, counted) = writer.join().unwrap();
        assert!(found == data(1) || counted == 4, "the write needs a round");
    });
}

fn commit_and_wait<const FENCED: bool>() {
    let (word, waiters) = (number::<FENCED>(Word::busy(Word::BELOW).bits()), number::<FENCED>(0));
    let (there, waiting) = (Arc::clone(&word), Arc::clone(&waiters));
    let owner = thread::spawn(move || {
        announce_waiters(&*waiting, 1);
        // False if the owner sleeps until it is told of the commit.
        Word::from_bits(there.load(Ordering::Acquire)).is_data()
    });
    word.store(data(1).bits(), Ordering::Release);
    let tells = has_waiters(&*waiters);
    assert!(owner.join().unwrap() || tells, "the question waits for ever");
}

#[test]
fn a_question_that_waits_for_a_commit_is_not_forgotten() {
    explore(commit_and_wait::<true>);
}

#[test]
#[should_panic(expected = "waits for ever")]
fn without_the_fences_it_would_be_forgotten() {
    explore(commit_and_wait::<false>);
}
