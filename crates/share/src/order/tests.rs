//! All orders of the steps of two reactors, under `loom`.

use std::sync::atomic::Ordering;

use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, fence};
use loom::thread;

use super::*;

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

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// One reactor frees the only token and looks for held requests; the other one holds a request and
/// looks for a token.
fn free_and_hold<const FENCED: bool>() {
    let (tokens, key) = (number::<FENCED>(1), number::<FENCED>(0));
    let freeing = {
        let (tokens, key) = (Arc::clone(&tokens), Arc::clone(&key));
        thread::spawn(move || {
            publish(&*tokens, 0);
            key.load(Ordering::Acquire) != 0
        })
    };
    publish(&*key, 1);
    let sends = tokens.load(Ordering::Acquire) == 0;
    let kicks = freeing.join().unwrap();
    assert!(sends || kicks, "the request waits although a token is free");
}

#[test]
fn a_freed_token_and_a_held_request_meet() {
    explore(free_and_hold::<true>);
}

#[test]
#[should_panic(expected = "although a token is free")]
fn without_fences_they_miss_each_other() {
    explore(free_and_hold::<false>);
}

/// A reactor takes a kick and looks for a token, while another one frees a second token and kicks it
/// again.
fn kick_again<const FENCED: bool>() {
    let (tokens, kicked) = (number::<FENCED>(1), number::<FENCED>(7));
    let kicking = {
        let (tokens, kicked) = (Arc::clone(&tokens), Arc::clone(&kicked));
        thread::spawn(move || {
            publish(&*tokens, 0);
            kick(&*kicked, 9)
        })
    };
    take_kick(&*kicked);
    let sees = tokens.load(Ordering::Acquire) == 0;
    let wakes = kicking.join().unwrap();
    assert!(sees || wakes, "the reactor sleeps although a token is free");
}

#[test]
fn a_kick_that_is_on_its_way_is_enough() {
    explore(kick_again::<true>);
}

#[test]
#[should_panic(expected = "although a token is free")]
fn without_fences_a_kick_is_lost() {
    explore(kick_again::<false>);
}
