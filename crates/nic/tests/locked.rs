//! A locked port, whose guest changes frames while they are looked at.
#![allow(clippy::unwrap_used)]

mod guest;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use guest::*;
use net::port::Policy;
use net::{Mac, Reason};
use virtq::driver::BUFFERS;

/// Places in a frame: the last bytes of its sender's addresses.
const MAC_AT: usize = 11;
const ADDRESS_AT: usize = 29;
/// Frames of each outcome that must have been seen.
const ENOUGH: u64 = 5000;

/// Writes what is the guest's own and what is not in turns, until it is told to stop.
fn race(guest: &Guest, stop: &Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    let memory = guest.tx.driver.mapping().fd().unwrap().try_clone_to_owned().unwrap();
    let stop = stop.clone();
    std::thread::spawn(move || {
        let write = |at: usize, byte: u8| {
            let at = BUFFERS + (NOTHING.len() + at) as u64;
            assert_eq!(rustix::io::pwrite(&memory, &[byte], at), Ok(1));
        };
        while !stop.load(Ordering::Relaxed) {
            for (mac, address) in [(9, 1), (1, 1), (1, 9), (1, 1)] {
                write(MAC_AT, mac);
                write(ADDRESS_AT, address);
            }
        }
    })
}

#[test]
fn what_was_checked_is_what_others_get() {
    let lan = Lan::new(1);
    let own = [Ipv4Addr::new(10, 0, 0, 1)];
    let policy = Policy::open(LAN).locked(Mac(station(1)), &own, &[]).unwrap();
    let mut a = Guest::with(&lan, 1, 0, all(), &policy);
    let mut b = Guest::new(&lan, 2, 0, all());
    b.rx.post(RING / 2, 2048);
    let frame = [&NOTHING[..], &udp(EVERYBODY, 1, [7, 7], &data(400))].concat();
    a.tx.driver.write(BUFFERS, &frame);
    let len = frame.len() as u32;
    let cut = (NOTHING.len() + 8) as u32;
    let stop = Arc::default();
    let racer = race(&a, &stop);
    let refused = |reason| lan.counts(1).refused(reason);
    let mut passed = 0;
    // In one piece, and cut through the addresses.
    let whole = [(BUFFERS, len, false)];
    let parts = [(BUFFERS, cut, false), (BUFFERS + u64::from(cut), len - cut, false)];
    for pieces in [&whole[..], &parts].into_iter().cycle() {
        a.tx.offer(pieces);
        a.tx.publish();
        a.tx.left(1);
        while let Some(got) = b.rx.got() {
            assert_eq!(got.frame[6..12], station(1));
            assert_eq!(got.frame[26..30], own[0].octets());
            b.rx.post(got.buffers, 2048);
            passed += 1;
        }
        let least = refused(Reason::LockedMac).min(refused(Reason::LockedAddress));
        if passed.min(least) >= ENOUGH {
            break;
        }
    }
    stop.store(true, Ordering::Relaxed);
    racer.join().unwrap();
}
