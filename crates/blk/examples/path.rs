//! The request path alone; `make counts` counts its instructions.
//!
//! `path DISK DEPTH RECORD REQUESTS`: a driver and a device alternate on one reactor's thread, so
//! that nothing depends on the speed of the host. DISK is one of [`disks::open`]; RECORD is `on` or
//! `off`. The driver reads 4 KiB at a time; it writes to an overlay, which is there for writes. It lays its ring out once; afterwards it only moves its
//! index and reads the device's. The process ends by itself.
#![allow(clippy::unwrap_used)] // A tool of the repository: a panic is its report.

#[path = "disks/mod.rs"]
mod disks;

use std::sync::Arc;
use std::time::Duration;

use blk::{BlkDevice, DeviceOptions};
use memory::Buffers;
use reactor::{Context, PollOutcome, PollPolicy, Poller, Reactor};
use virtq::QueueStart;
use virtq::driver::{BUFFERS, Driver};

const RING: u16 = 128;
const DISK: u64 = 8 << 20;
const BLOCK: u32 = 4096;
/// Bytes of a slot: the header, the status beside it as in Linux, and the data of one request.
const SLOT: u64 = 0x2000;

/// A driver that offers `depth` requests at a time, and the next ones when all have ended.
struct Guest {
    avail: Buffers,
    used: Buffers,
    depth: u16,
    offered: u16,
    left: u64,
    total: u64,
    /// Whether requests do not end at once.
    waits: bool,
    device: BlkDevice,
}

impl Poller for Guest {
    fn poll(&mut self, _: &mut Context<'_>) -> PollOutcome {
        let mut used = [0; 2];
        self.used.peek(&mut used);
        if u16::from_le_bytes(used) != self.offered {
            if self.waits || self.left + u64::from(self.depth) >= self.total {
                // The storage takes its time, and the thread of a map loads it for the first requests.
                // Polls would be counted.
                std::thread::sleep(Duration::from_millis(1));
            }
            return PollOutcome::Busy;
        }
        if self.left == 0 {
            let requests = self.device.stats().requests;
            let requests = requests.read + requests.write;
            assert!(requests >= self.total, "{requests} of {}", self.total);
            // Exit here: a reactor that sleeps under valgrind 3.19 blocks all threads.
            std::process::exit(0);
        }
        self.left = self.left.saturating_sub(self.depth.into());
        self.offered = self.offered.wrapping_add(self.depth);
        self.avail.write(&self.offered.to_le_bytes());
        PollOutcome::Busy
    }

    fn on_runnable(&mut self) {}

    fn arm(&mut self) -> bool {
        true
    }
}

/// Fills the whole ring with requests at the first `depth` slots, repeatedly.
fn lay_out(driver: &mut Driver, depth: u16, writes: bool) {
    assert!(depth > 0 && RING.is_multiple_of(depth) && 3 * depth <= RING, "depth {depth}");
    for slot in 0..depth {
        let header = BUFFERS + SLOT * u64::from(slot);
        driver.write(header + 8, &(8 * u64::from(slot)).to_le_bytes());
        // VIRTIO_BLK_T_OUT is 1, VIRTIO_BLK_T_IN is 0.
        driver.write(header, &u32::from(writes).to_le_bytes());
        let data = (header + 4096, BLOCK, !writes);
        let pieces = [(header, 16, false), data, (header + 16, 1, true)];
        driver.put_chain(3 * slot, &pieces);
    }
    (0..RING).for_each(|at| driver.offer(3 * (at % depth)));
}

fn main() {
    run(&std::env::args().skip(1).collect::<Vec<_>>())
}

/// Runs the load and ends the process.
pub(crate) fn run(args: &[String]) -> ! {
    let [name, depth, record, requests] = args else {
        panic!("usage: path DISK DEPTH RECORD REQUESTS")
    };
    let (depth, left) = (depth.parse().unwrap(), requests.parse().unwrap());
    let disk = disks::open(name, DISK);
    disk.activate().unwrap();
    let (id, serial) = (name.clone(), String::new());
    let record = record == "on";
    let waits = matches!(name.as_str(), "direct" | "shared");
    let device = BlkDevice::new(
        disk,
        &DeviceOptions { id, queues: 1, serial, poll: PollPolicy::default(), record },
    );
    let mut driver = Driver::new(RING, 4 << 20, true);
    lay_out(&mut driver, depth, name == "overlay");
    let start = QueueStart {
        index: 0,
        ring: driver.config,
        table: driver.table.clone(),
        kick: None,
        call: None,
        err: None,
        features: device.features(),
        inflight: None,
    };
    let (mapping, config) = (driver.mapping().clone(), driver.config);
    let first = move |context: &mut Context<'_>| {
        device.start_queue_here(context, start, Arc::new(|_| {})).unwrap();
        let index = |at: u64| Buffers::from_mapping(&mapping, at as usize + 2, 2).unwrap();
        let (avail, used) = (index(config.avail), index(config.used));
        let guest = Guest { avail, used, depth, offered: 0, left, total: left, waits, device };
        context.add_poller(None, |_| Ok::<_, ()>(guest)).unwrap();
    };
    let _reactor = Reactor::spawn_with("path", first).unwrap();
    loop {
        std::thread::park();
    }
}
