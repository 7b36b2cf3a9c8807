//! Each stage of the request path by itself, over the null disk: pop, parse, submit, complete.
//!
//! `stages BATCHES`: a driver and a device alternate on one reactor's thread, 32 requests of 4 KiB
//! at a time. Every stage processes all 32 before the next one begins. The program prints medians
//! of nanoseconds per request. `make counts` counts the instructions of each stage: the functions
//! below that end in `_batch`. The process ends by itself.
#![allow(clippy::print_stdout)] // Its only output is its measurements.
#![allow(clippy::unwrap_used)] // A tool of the repository: a panic is its report.

use std::time::Instant;

use blk::stages::{Parser, complete};
use disk::{Channel, Disk, NullDisk, Request, SubmitOutcome};
use memory::{Buffers, Byte};
use reactor::{Context, Reactor};
use virtq::driver::{BUFFERS, Driver};
use virtq::{Chain, Queue};

const RING: u16 = 128;
const BATCH: u16 = 32;
const DISK: u64 = 8 << 20;
/// Bytes of a slot: the header, the status beside it as in Linux, and the data of one request.
const SLOT: u64 = 0x2000;

#[inline(never)]
fn pop_batch(queue: &mut Queue, out: &mut Vec<Chain>) {
    while let Some(chain) = queue.pop().unwrap() {
        out.push(chain);
    }
}

#[inline(never)]
fn parse_batch(parser: &Parser, chains: &mut [Chain], out: &mut Vec<(Request, Byte)>) {
    out.extend(chains.iter_mut().map(|chain| parser.parse(chain).unwrap()));
}

#[inline(never)]
fn submit_batch(
    channel: &mut dyn Channel,
    context: &mut Context<'_>,
    requests: &mut Vec<(Request, Byte)>,
    out: &mut Vec<(Buffers, Byte)>,
) {
    for (request, status) in requests.drain(..) {
        let SubmitOutcome::Done(done) = channel.submit(context, request) else {
            panic!("not done")
        };
        out.push((done.buffers, status));
    }
}

#[inline(never)]
fn complete_batch(queue: &mut Queue, chains: &mut Vec<Chain>, ended: &mut Vec<(Buffers, Byte)>) {
    for (chain, (buffers, status)) in chains.drain(..).zip(ended.drain(..)) {
        complete(queue, chain, buffers, status);
    }
    let _ = queue.publish();
}

/// Fills the whole ring with requests at the first slots, repeatedly.
fn lay_out(driver: &mut Driver) {
    for slot in 0..BATCH {
        let header = BUFFERS + SLOT * u64::from(slot);
        driver.write(header + 8, &(8 * u64::from(slot)).to_le_bytes());
        let pieces = [(header, 16, false), (header + 4096, 4096, true), (header + 16, 1, true)];
        driver.put_chain(3 * slot, &pieces);
    }
    (0..RING).for_each(|at| driver.offer(3 * (at % BATCH)));
    driver.jump(0);
}

/// Returns nanoseconds per request, for each batch and stage.
fn run(context: &mut Context<'_>, batches: usize) -> [Vec<f64>; 4] {
    let disk = NullDisk::new(DISK, 512, false);
    disk.activate().unwrap();
    let mut driver = Driver::new(RING, 4 << 20, true);
    lay_out(&mut driver);
    let mut queue = Queue::new(driver.config, driver.table.clone(), None).unwrap();
    let parser = Parser::new(disk.geometry());
    let mut channel = disk.open_channel(context);
    let room = usize::from(BATCH);
    let (mut chains, mut requests) = (Vec::with_capacity(room), Vec::with_capacity(room));
    let mut ended = Vec::with_capacity(room);
    let mut took: [Vec<f64>; 4] = std::array::from_fn(|_| Vec::with_capacity(batches));
    for batch in 1..=batches {
        driver.jump((batch * room) as u16);
        let mut times = [Instant::now(); 5];
        pop_batch(&mut queue, &mut chains);
        times[1] = Instant::now();
        parse_batch(&parser, &mut chains, &mut requests);
        times[2] = Instant::now();
        submit_batch(&mut *channel, context, &mut requests, &mut ended);
        times[3] = Instant::now();
        complete_batch(&mut queue, &mut chains, &mut ended);
        times[4] = Instant::now();
        assert_eq!(driver.used_idx(), (batch * room) as u16, "batch {batch}");
        for (took, pair) in took.iter_mut().zip(times.windows(2)) {
            took.push((pair[1] - pair[0]).as_nanos() as f64 / f64::from(BATCH));
        }
    }
    took
}

fn main() {
    let batches = std::env::args().nth(1).and_then(|word| word.parse().ok());
    let Some(batches) = batches.filter(|batches| *batches > 0) else {
        panic!("usage: stages BATCHES")
    };
    let first = move |context: &mut Context<'_>| {
        for (name, mut took) in
            ["pop", "parse", "submit", "complete"].iter().zip(run(context, batches))
        {
            took.sort_by(f64::total_cmp);
            println!("{name}: {:.1} ns a request", took[took.len() / 2]);
        }
        // Exit here: a reactor that sleeps under valgrind 3.19 blocks all threads.
        std::process::exit(0);
    };
    let _reactor = Reactor::spawn_with("stages", first).unwrap();
    loop {
        std::thread::park();
    }
}
