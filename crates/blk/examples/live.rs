//! Cost of recording, and of a request, on the path between two threads.
//!
//! `live DISK DEPTH ROUNDS`: a driver on one CPU keeps DEPTH reads of 4 KiB in flight. A reactor
//! that never sleeps serves them on another CPU. Each round runs 5 ms on a device that records
//! times and 5 ms on one that does not. The program prints medians, and the median of the ratios
//! within a round, so that short disturbances on the host do not matter. DISK is `null` or
//! `memory`.
#![allow(clippy::print_stdout)] // Its only output is its measurements.
#![allow(clippy::unwrap_used)] // A tool of the repository: a panic is its report.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use blk::{BlkDevice, DeviceOptions};
use disk::{Disk, MemoryDisk, NullDisk};
use memory::Buffers;
use reactor::{Context, PollMode, PollPolicy, Reactor};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use virtq::QueueStart;
use virtq::driver::{BUFFERS, Driver};

const RING: u16 = 128;
const DISK: u64 = 8 << 20;
const BLOCK: u32 = 4096;
/// Bytes of a slot: the header, the status beside it as in Linux, and the data of one request.
const SLOT: u64 = 0x2000;
const WINDOW: Duration = Duration::from_millis(5);

fn disk(name: &str) -> Arc<dyn Disk> {
    match name {
        "null" => Arc::new(NullDisk::new(DISK, 512, false)),
        "memory" => Arc::new(MemoryDisk::new(DISK, 512, false).unwrap()),
        _ => panic!("no disk called {name}"),
    }
}

/// Addresses of one request.
struct Slot {
    header: Buffers,
    status: Buffers,
    descriptors: Buffers,
    chain: [u8; 48],
    sector: u64,
}

/// A driver that keeps requests in flight.
struct Guest {
    ends: Vec<Buffers>,
    slots: Vec<Slot>,
    offered: u16,
    seen: u16,
    driver: Driver,
}

impl Guest {
    fn new(driver: Driver, depth: u16) -> Self {
        let mapping = driver.mapping().clone();
        let at = |at: u64, len| Buffers::from_mapping(&mapping, at as usize, len).unwrap();
        let config = driver.config;
        let slot = |slot: u16| {
            let header = BUFFERS + SLOT * u64::from(slot);
            let pieces =
                [(header, 16, false), (header + 4096, BLOCK, true), (header + 16, 1, true)];
            driver.put_chain(3 * slot, &pieces);
            let descriptors = at(config.desc + 48 * u64::from(slot), 48);
            let mut chain = [0; 48];
            descriptors.peek(&mut chain);
            let (header, status) = (at(header, 16), at(header + 16, 1));
            Slot { header, status, descriptors, chain, sector: 8 * u64::from(slot) }
        };
        let slots = (0..depth).map(slot).collect();
        let end = |one: u16| at(config.used + 4 + 8 * u64::from(one), 8);
        let ends = (0..RING).map(end).collect();
        Self { ends, slots, offered: 0, seen: 0, driver }
    }

    fn word(&self, at: u64) -> &AtomicU16 {
        self.driver.word(at)
    }

    fn offer(&mut self, head: u16) {
        let slot = &mut self.slots[usize::from(head / 3)];
        slot.sector = (slot.sector + 8 * 37) % (DISK / 512);
        let mut header = [0; 16];
        header[8..].copy_from_slice(&slot.sector.to_le_bytes());
        slot.header.write(&header);
        slot.descriptors.write(&slot.chain);
        let entry = 4 + 2 * u64::from(self.offered % RING);
        self.word(self.driver.config.avail + entry).store(head.to_le(), Ordering::Relaxed);
        self.offered = self.offered.wrapping_add(1);
    }

    fn publish(&self) {
        self.word(self.driver.config.avail + 2).store(self.offered.to_le(), Ordering::Release);
    }

    /// Takes completions, and offers the requests again if `more`.
    fn turn(&mut self, more: bool) -> u16 {
        let used = u16::from_le(self.word(self.driver.config.used + 2).load(Ordering::Acquire));
        let ended = used.wrapping_sub(self.seen);
        for _ in 0..ended {
            let mut end = [0; 2];
            self.ends[usize::from(self.seen % RING)].peek(&mut end);
            self.seen = self.seen.wrapping_add(1);
            let head = u16::from_le_bytes(end);
            let mut status = [0xff];
            self.slots[usize::from(head / 3)].status.peek(&mut status);
            assert_eq!(status, [0], "the status of request {head}");
            if more {
                self.offer(head);
            }
        }
        if more && ended > 0 {
            self.publish();
        }
        ended
    }

    /// Returns nanoseconds per request.
    fn run(&mut self) -> f64 {
        let depth = self.slots.len() as u16;
        (0..depth).for_each(|slot| self.offer(3 * slot));
        self.publish();
        let warm = Instant::now() + WINDOW / 5;
        while Instant::now() < warm {
            (0..50).for_each(|_| _ = self.turn(true));
        }
        let (begin, mut count) = (Instant::now(), 0u64);
        while begin.elapsed() < WINDOW {
            (0..50).for_each(|_| count += u64::from(self.turn(true)));
        }
        let took = begin.elapsed();
        while self.seen != self.offered {
            self.turn(false);
        }
        took.as_nanos() as f64 / count as f64
    }
}

fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).unwrap();
}

/// Returns the first quartile, the median and the third quartile.
fn quarters(values: &mut [f64]) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|of| values[values.len() * of / 4])
}

/// Returns the device, the start parameters of its queue, and its driver.
fn start(name: &str, record: bool, depth: u16) -> (BlkDevice, QueueStart, Guest) {
    let disk = disk(name);
    disk.activate().unwrap();
    let (id, serial) = (name.to_owned(), String::new());
    let poll = PollPolicy { mode: PollMode::Always, ..PollPolicy::default() };
    let device = BlkDevice::new(disk, &DeviceOptions { id, queues: 1, serial, poll, record });
    let driver = Driver::new(RING, 4 << 20, true);
    let (ring, table, features) = (driver.config, driver.table.clone(), device.features());
    let (kick, call, err, inflight) = (None, None, None, None);
    let start = QueueStart { index: 0, ring, table, kick, call, err, features, inflight };
    (device, start, Guest::new(driver, depth))
}

fn main() {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [name, depth, rounds] = args.as_slice() else { panic!("usage: live DISK DEPTH ROUNDS") };
    let (depth, rounds): (u16, usize) = (depth.parse().unwrap(), rounds.parse().unwrap());
    let all = sched_getaffinity(None).unwrap();
    let cpus: Vec<_> = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).collect();
    let (mut guests, mut starts) = (Vec::new(), Vec::new());
    for record in [true, false] {
        let (device, queue, guest) = start(name, record, depth);
        starts.push((device, queue));
        guests.push(guest);
    }
    let cpu = *cpus.last().unwrap();
    let first = move |context: &mut Context<'_>| {
        pin(cpu);
        for (device, queue) in starts {
            device.start_queue_here(context, queue, Arc::new(|_| {})).unwrap();
            std::mem::forget(device);
        }
    };
    let reactor = Reactor::spawn_with("live", first).unwrap();
    pin(cpus[0]);
    let (mut on, mut off, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let turns = || reactor.handle().counters().turns();
    let began = (turns(), guests.iter().map(|g| u64::from(g.seen)).sum::<u64>());
    for round in 0..rounds {
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        let mut took = [0.0; 2];
        order.iter().for_each(|at| took[*at] = guests[*at].run());
        on.push(took[0]);
        off.push(took[1]);
        ratios.push(took[1] / took[0]);
    }
    let _ = began;
    let ([_, on, _], off, ratios) = (quarters(&mut on), quarters(&mut off), quarters(&mut ratios));
    println!(
        "{name}, depth {depth}: {on:.1} ns a request with times, without {:.1} ({:.1} to {:.1}), \
         ratio {:.4} ({:.4} to {:.4}); {} turns",
        off[1],
        off[0],
        off[2],
        ratios[1],
        ratios[0],
        ratios[2],
        turns() - began.0
    );
}
