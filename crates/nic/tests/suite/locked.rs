//! Tests of a locked port whose guest changes frames while they are processed.
#![allow(clippy::unwrap_used)]

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::guest::*;
use net::header::HEADER_BYTES;
use net::port::PortPolicy;
use net::{Mac, Reason};
use virtq::driver::BUFFERS;

/// Frames that are sent at once.
const BATCH: u16 = 16;
/// Required number of frames of each outcome, and of batches with both outcomes: only those were
/// sent while the racer had a CPU.
const ENOUGH: u64 = 300;
/// Far longer than needed: that is seconds when all of these tests share one busy CPU.
const DEADLINE: Duration = Duration::from_secs(300);
/// Writes of the racer before it sleeps. Neither two nor three divides it, so that each of its
/// bytes is sometimes the last one before a sleep.
const TURN: usize = 7;
/// Sleep of the racer. The kernel prefers threads that used little CPU time, so on a single CPU the
/// racer interrupts batches. A thread that always runs would get the CPU only when a reactor
/// sleeps.
const MOMENT: Duration = Duration::from_micros(1);
/// Address of the guest.
const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

/// Frame, and the positions of its sender addresses.
struct Claim {
    header: [u8; HEADER_BYTES],
    frame: Vec<u8>,
    /// Positions of station addresses.
    macs: &'static [usize],
    /// Position of the IPv4 address.
    address: usize,
    /// Bytes that are written alternately: the position counted from the header on, the false value
    /// and the true one.
    bytes: Vec<(usize, [u8; 2])>,
    /// Reasons why the frame is dropped with a false value.
    reasons: Vec<Reason>,
}

impl Claim {
    fn udp() -> Self {
        let frame = udp(EVERYBODY, 1, [7, 7], &data(400));
        Self::of(frame, (&[6], 26), [Reason::LockedMac, Reason::LockedAddress])
    }

    /// Returns an ARP frame, which names its sender twice: the switch checks one, and the receiver
    /// believes the other.
    fn arp() -> Self {
        Self::of(arp(1, OWN), (&[6, 22], 28), [Reason::LockedMac, Reason::LockedArp])
    }

    /// Returns a claim whose sender is in the last bytes of addresses. The frame may be dropped for
    /// a station address or for an IPv4 address.
    fn of(
        frame: Vec<u8>,
        (macs, address): (&'static [usize], usize),
        reasons: [Reason; 2],
    ) -> Self {
        let places = macs.iter().map(|at| at + 5).chain([address + 3]);
        let bytes = places.map(|at| (HEADER_BYTES + at, [9, 1])).collect();
        Self { header: NOTHING, frame, macs, address, bytes, reasons: reasons.into() }
    }

    /// Returns a claim about the position of the checksum: its own field, or an address.
    fn checksum() -> Self {
        let (frame, header) = (tcp(EVERYBODY, 1, &data(400)), PARTIAL);
        let (macs, address): (&[usize], _) = (&[6], 26);
        let start = (6, [address as u8 + 4 - header[8], header[6]]);
        let reasons = vec![Reason::ChecksumRange];
        Self { header, frame, macs, address, bytes: vec![start], reasons }
    }

    /// Returns whether the frame has its true values.
    fn is_honest(&self, frame: &[u8]) -> bool {
        let says = |at: usize, own: &[u8]| frame[at..].starts_with(own);
        // Includes the bytes after the address, which must not change either.
        let address = &self.frame[self.address..][..8];
        self.macs.iter().all(|at| says(*at, &station(1))) && says(self.address, address)
    }

    /// Writes false and true values alternately until it is stopped.
    fn race(&self, guest: &Guest, stop: &Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
        let memory = guest.tx.driver.mapping().fd().unwrap().try_clone_to_owned().unwrap();
        let stop = stop.clone();
        let bytes = self.bytes.clone();
        std::thread::spawn(move || {
            let writes = bytes.iter().flat_map(|(at, both)| both.map(|byte| (*at, byte)));
            for (count, (at, byte)) in writes.cycle().enumerate() {
                let at = BUFFERS + at as u64;
                assert_eq!(rustix::io::pwrite(&memory, &[byte], at), Ok(1));
                if count % TURN == 0 {
                    std::thread::sleep(MOMENT);
                }
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        })
    }
}

/// Stops the racer, even if a test fails.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends the frame repeatedly to a guest on the last of `reactors` reactors.
fn cannot_be_fooled(reactors: usize, claim: &Claim) {
    let lan = Lan::new(reactors);
    let policy = PortPolicy::open(LAN).locked(Mac(station(1)), &[OWN], &[]).unwrap();
    let mut a = Guest::with(&lan, 1, 0, all(), &policy);
    // The switch completes the checksum for this guest.
    let mut b = Guest::new(&lan, 2, reactors - 1, BARE);
    b.rx.post(RING / 2, 2048);
    let frame = [&claim.header[..], &claim.frame].concat();
    a.tx.driver.write(BUFFERS, &frame);
    let len = frame.len() as u32;
    let cut = (HEADER_BYTES + 8) as u32;
    let stop = Arc::default();
    let racer = claim.race(&a, &stop);
    let (stops, until) = (Stops(&stop), Instant::now() + DEADLINE);
    let refused = || {
        let of = |reason: &Reason| lan.counts(1).refused(*reason);
        claim.reasons.iter().map(of).collect::<Vec<_>>()
    };
    let (mut passed, mut raced) = (0, 0);
    // In one piece, and cut through the addresses.
    let whole = [(BUFFERS, len, false)];
    let parts = [(BUFFERS, cut, false), (BUFFERS + u64::from(cut), len - cut, false)];
    for pieces in [&whole[..], &parts].into_iter().cycle() {
        let before: u64 = refused().iter().sum();
        (0..BATCH).for_each(|_| a.tx.offer(pieces));
        a.tx.publish();
        a.tx.left(BATCH);
        let lies = refused().iter().sum::<u64>() - before;
        raced += u64::from((1..BATCH.into()).contains(&lies));
        while let Some(got) = b.rx.got() {
            assert!(claim.is_honest(&got.frame), "{:?}", &got.frame[..42]);
            b.rx.post(got.buffers, 2048);
            passed += 1;
        }
        if refused().into_iter().chain([passed, raced]).all(|count| count >= ENOUGH) {
            break;
        }
        let seen = (refused(), passed, raced);
        assert!(
            Instant::now() < until,
            "in {DEADLINE:?} the racer has not been beside enough batches: (refused, passed, raced) \
             is {seen:?}, and {ENOUGH} of each are needed; it wants a CPU of its own at times"
        );
    }
    drop(stops);
    racer.join().unwrap();
}

#[test]
fn what_was_checked_is_what_others_get() {
    cannot_be_fooled(1, &Claim::udp());
}

#[test]
fn what_was_checked_is_what_others_get_on_another_reactor() {
    cannot_be_fooled(2, &Claim::udp());
}

#[test]
fn a_checksum_is_written_over_a_checksum() {
    cannot_be_fooled(1, &Claim::checksum());
}

#[test]
fn a_checksum_is_written_over_a_checksum_on_another_reactor() {
    cannot_be_fooled(2, &Claim::checksum());
}

#[test]
fn who_says_to_have_an_address_has_it() {
    cannot_be_fooled(1, &Claim::arp());
}

#[test]
fn who_says_so_on_another_reactor_has_it() {
    cannot_be_fooled(2, &Claim::arp());
}
