//! A guest's driver for one queue, against a device on a real reactor.
#![allow(dead_code)] // Each test binary uses its own part.

mod gate;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use blk::{BlkDevice, DeviceOptions, QueueError, RunningQueue, TrialStart, feature};
use disk::Disk;
use reactor::{PollMode, PollPolicy, Reactor};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use virtq::driver::{BUFFERS, Driver};
use virtq::{Inflight, InflightRegion, QueueStart};

pub(crate) use gate::Gate;

pub(crate) const IN: u32 = 0;
pub(crate) const OUT: u32 = 1;
pub(crate) const FLUSH: u32 = 4;
pub(crate) const GET_ID: u32 = 8;
pub(crate) const DISCARD: u32 = 11;
pub(crate) const WRITE_ZEROES: u32 = 13;

/// Buffer bytes of each slot; its header and status lie before the data.
const SLOT: u64 = 0x2_0000;
const MEMORY: u64 = 64 << 20;
pub(crate) const SOON: Duration = Duration::from_secs(20);

pub(crate) fn reactor() -> Arc<Reactor> {
    Arc::new(Reactor::spawn("guest").unwrap())
}

pub(crate) fn device(disk: Arc<dyn Disk>, queues: u16, spin: bool) -> BlkDevice {
    polled(disk, queues, if spin { PollMode::Always } else { PollMode::Off })
}

pub(crate) fn polled(disk: Arc<dyn Disk>, queues: u16, mode: PollMode) -> BlkDevice {
    disk.activate().unwrap();
    let poll = PollPolicy { mode, ..PollPolicy::default() };
    let (id, serial) = ("test".into(), "SERIAL-1".into());
    BlkDevice::new(disk, &DeviceOptions { id, queues, serial, poll, record: true })
}

pub(crate) struct Guest {
    pub(crate) driver: Driver,
    pub(crate) queue: Option<RunningQueue>,
    pub(crate) faults: Arc<Mutex<Vec<String>>>,
    pub(crate) reactor: Arc<Reactor>,
    pub(crate) kicks: u64,
    /// Whether it asks for a call at every completion; otherwise a test sets the event index.
    pub(crate) arms: bool,
    kick: Arc<OwnedFd>,
    call: Arc<OwnedFd>,
    pub(crate) err: Arc<OwnedFd>,
    inflight: Option<Inflight>,
}

impl Guest {
    pub(crate) fn new(device: &BlkDevice, event_idx: bool) -> Self {
        Self::with(device, reactor(), event_idx, !0)
    }

    pub(crate) fn with(
        device: &BlkDevice,
        reactor: Arc<Reactor>,
        event_idx: bool,
        mask: u64,
    ) -> Self {
        Self::recorded(device, reactor, event_idx, mask, None)
    }

    /// Creates a guest with an in-flight region.
    pub(crate) fn recorded(
        device: &BlkDevice,
        reactor: Arc<Reactor>,
        event_idx: bool,
        mask: u64,
        inflight: Option<Inflight>,
    ) -> Self {
        let driver = Driver::new(128, MEMORY, event_idx);
        let fd = || Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
        let (kick, call, err) = (fd(), fd(), fd());
        let faults = Arc::new(Mutex::new(Vec::new()));
        let log = faults.clone();
        let mut features = device.features() & mask;
        if !event_idx {
            features &= !feature::EVENT_IDX;
        }
        let start = QueueStart {
            index: 0,
            ring: driver.config,
            table: driver.table.clone(),
            kick: Some(kick.clone()),
            call: Some(call.clone()),
            err: Some(err.clone()),
            features,
            inflight: inflight.clone(),
        };
        let fault: blk::FaultHandler = Arc::new(move |text| log.lock().unwrap().push(text.into()));
        let queue = device.start_queue(reactor.handle(), start, fault, None).unwrap();
        let queue = Some(queue);
        Self { driver, queue, faults, reactor, kicks: 0, arms: true, kick, call, err, inflight }
    }

    /// Returns a guest whose reads of sectors 0, 1, ... a device has popped and not finished. The
    /// device is gone.
    pub(crate) fn left_behind(requests: u16) -> Self {
        let region = InflightRegion::create(1, 128).unwrap();
        let hanging = Gate::closed();
        let device = device(Arc::new(hanging.clone()), 1, false);
        let mut guest = Self::recorded(&device, reactor(), true, !0, region.queue(0));
        for slot in 0..requests {
            guest.put(slot, IN, u64::from(slot), (512, true));
        }
        guest.publish();
        hanging.wait_for(&guest.reactor, usize::from(requests));
        assert_eq!(guest.driver.used(), None);
        guest.lose_device();
        guest
    }

    /// Ends the reactor with all its pollers, as when a process is killed.
    pub(crate) fn lose_device(&mut self) {
        drop(self.queue.take());
        self.reactor = reactor();
    }

    pub(crate) fn data_at(slot: u16) -> u64 {
        BUFFERS + SLOT * u64::from(slot) + 4096
    }

    fn status_at(slot: u16) -> u64 {
        BUFFERS + SLOT * u64::from(slot) + 64
    }

    /// Writes a request at descriptor `3 * slot`; `publish` makes it visible to the device.
    pub(crate) fn put(&mut self, slot: u16, kind: u32, sector: u64, data: (u32, bool)) {
        let header_at = BUFFERS + SLOT * u64::from(slot);
        let mut header = [0; 16];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[8..].copy_from_slice(&sector.to_le_bytes());
        self.driver.write(header_at, &header);
        self.driver.write(Self::status_at(slot), &[0xff]);
        let mut pieces = vec![(header_at, 16, false)];
        if data.0 > 0 {
            pieces.push((Self::data_at(slot), data.0, data.1));
        }
        pieces.push((Self::status_at(slot), 1, true));
        self.driver.put_chain(3 * slot, &pieces);
        self.driver.offer(3 * slot);
    }

    /// Publishes and kicks if the device wants it.
    pub(crate) fn publish(&mut self) {
        if self.driver.publish() {
            self.kicks += 1;
            rustix::io::write(&self.kick, &1u64.to_ne_bytes()).unwrap();
        }
    }

    /// Waits for calls until `enough` returns true.
    pub(crate) fn wait(&mut self, mut enough: impl FnMut(&mut Driver) -> bool) {
        let until = std::time::Instant::now() + SOON;
        while !enough(&mut self.driver) {
            assert!(std::time::Instant::now() < until, "the device does not answer");
            if self.arms && self.driver.arm() {
                continue;
            }
            let mut fds = [PollFd::from_borrowed_fd(self.call.as_fd(), PollFlags::IN)];
            let limit = Timespec { tv_sec: SOON.as_secs() as i64, tv_nsec: 0 };
            rustix::event::poll(&mut fds, Some(&limit)).unwrap();
            rustix::io::read(&self.call, &mut [0; 8]).ok();
        }
    }

    /// Returns the next completion: head and written bytes.
    pub(crate) fn used(&mut self) -> (u32, u32) {
        let mut found = None;
        self.wait(|driver| {
            found = driver.used();
            found.is_some()
        });
        found.unwrap()
    }

    pub(crate) fn status(&self, slot: u16) -> u8 {
        self.driver.read(Self::status_at(slot), 1)[0]
    }

    /// Runs one request and returns its status and written bytes.
    pub(crate) fn run(&mut self, kind: u32, sector: u64, data: (u32, bool)) -> (u8, u32) {
        self.put(0, kind, sector, data);
        self.publish();
        let (head, written) = self.used();
        assert_eq!(head, 0);
        (self.status(0), written)
    }

    pub(crate) fn write(&mut self, sector: u64, data: &[u8]) -> u8 {
        self.driver.write(Self::data_at(0), data);
        self.run(OUT, sector, (data.len() as u32, false)).0
    }

    pub(crate) fn read(&mut self, sector: u64, len: u32) -> (u8, Vec<u8>) {
        let (status, written) = self.run(IN, sector, (len, true));
        if status == 0 {
            assert_eq!(written, len + 1);
        }
        (status, self.driver.read(Self::data_at(0), len as usize))
    }

    /// Runs a discard or write-zeroes request.
    pub(crate) fn segment(&mut self, kind: u32, sector: u64, sectors: u32, flags: u32) -> u8 {
        let mut raw = sector.to_le_bytes().to_vec();
        raw.extend(sectors.to_le_bytes());
        raw.extend(flags.to_le_bytes());
        self.driver.write(Self::data_at(0), &raw);
        self.run(kind, 0, (16, false)).0
    }
}

impl Guest {
    /// Kicks even if the device does not want it.
    pub(crate) fn kick_anyway(&self) {
        rustix::io::write(&self.kick, &1u64.to_ne_bytes()).unwrap();
    }

    /// Publishes and kicks without reading the device's event index.
    pub(crate) fn publish_blind(&mut self) {
        let _ = self.driver.publish();
        self.kick_anyway();
    }

    /// Waits until the device has reported a broken ring, and reads the count.
    pub(crate) fn wait_for_error(&self, count: &mut [u8; 8]) {
        let mut fds = [PollFd::from_borrowed_fd(self.err.as_fd(), PollFlags::IN)];
        let limit = Timespec { tv_sec: SOON.as_secs() as i64, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut fds, Some(&limit)).unwrap(), 1, "no error was told");
        rustix::io::read(&self.err, count).unwrap();
    }

    /// Waits until the session has been notified that it cannot continue.
    pub(crate) fn wait_for_fault(&self) {
        let until = std::time::Instant::now() + SOON;
        while self.faults.lock().unwrap().is_empty() {
            assert!(std::time::Instant::now() < until, "no fault was told");
            // A round trip lets the reactor run another turn.
            self.reactor.handle().call(|_| ()).unwrap();
        }
    }

    /// Starts the same ring again at `next`.
    /// Records requests in this region from the next start on.
    pub(crate) fn record_in(&mut self, inflight: Option<Inflight>) {
        self.inflight = inflight;
    }

    pub(crate) fn resume(&mut self, device: &BlkDevice, reactor: &Arc<Reactor>, next: u16) {
        self.try_resume(device, reactor, next).unwrap();
    }

    pub(crate) fn try_resume(
        &mut self,
        device: &BlkDevice,
        reactor: &Arc<Reactor>,
        next: u16,
    ) -> Result<(), QueueError> {
        self.try_resume_on_trial(device, reactor, next, None)
    }

    pub(crate) fn try_resume_on_trial(
        &mut self,
        device: &BlkDevice,
        reactor: &Arc<Reactor>,
        next: u16,
        trial: Option<TrialStart>,
    ) -> Result<(), QueueError> {
        let mut ring = self.driver.config;
        ring.next_avail = next;
        let start = QueueStart {
            index: 0,
            ring,
            table: self.driver.table.clone(),
            kick: Some(self.kick.clone()),
            call: Some(self.call.clone()),
            err: None,
            features: device.features(),
            inflight: self.inflight.clone(),
        };
        let fault: blk::FaultHandler = Arc::new(|_| {});
        self.queue = Some(device.start_queue(reactor.handle(), start, fault, trial)?);
        Ok(())
    }
}

impl Guest {
    /// Fills the call eventfd and makes writes to it wait.
    pub(crate) fn fill_call(&self) {
        use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
        let full = u64::MAX - 1;
        rustix::io::write(&self.call, &full.to_ne_bytes()).unwrap();
        let flags = fcntl_getfl(&self.call).unwrap();
        fcntl_setfl(&self.call, flags - OFlags::NONBLOCK).unwrap();
    }

    /// Waits for the next completion by polling.
    pub(crate) fn wait_without_call(&mut self) {
        let until = std::time::Instant::now() + SOON;
        while self.driver.used().is_none() {
            assert!(std::time::Instant::now() < until, "the device does not answer");
            std::thread::yield_now();
        }
    }
}
