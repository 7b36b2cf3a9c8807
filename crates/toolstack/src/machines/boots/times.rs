//! Where the time of a machine's boot goes.

use std::time::Duration;

use tokio::time::Instant;

/// Where the time of a machine's present or last boot goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootTimes {
    /// Wait for a place among the machines that boot. `None` while it waits.
    pub place: Option<Duration>,
    /// From then until the CPUs run: disks, interfaces, emulator. `None` if they do not run yet.
    pub devices: Option<Duration>,
    /// From then until the guest's agent answered: firmware, kernel and services. `None` if it has not
    /// answered yet.
    pub guest: Option<Duration>,
    /// Parts of `guest`. `None` if no driver is known to have started a disk.
    pub stages: Option<GuestStages>,
    /// Part that has not ended, and how long it has lasted. `None` if the boot has ended.
    pub waits: Option<(BootStage, Duration)>,
}

/// Part of a boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootStage {
    /// Wait for a place among the machines that boot.
    Place,
    /// Disks, interfaces, emulator.
    Devices,
    /// Wait for the guest's agent.
    Guest,
}

impl BootStage {
    /// Returns the name in records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Place => "place",
            Self::Devices => "devices",
            Self::Guest => "guest",
        }
    }
}

/// Parts of a guest's boot, told apart by the drivers that started its disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestStages {
    /// Until the firmware's driver. `None` if only one driver started a disk.
    pub firmware: Option<Duration>,
    /// From then until the kernel's driver.
    pub kernel: Duration,
    /// From then until the guest's agent answered.
    pub services: Duration,
}

/// Moments of a boot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Boot {
    pub(super) asked: Instant,
    pub(super) admitted: Option<Instant>,
    pub(super) running: Option<Instant>,
    /// When drivers first and last started a disk.
    pub(super) drivers: Option<[Instant; 2]>,
    pub(super) ready: Option<Instant>,
}

impl Boot {
    /// Begins a boot now, with or without a place.
    pub(super) fn new(admitted: Option<Instant>) -> Self {
        let asked = admitted.unwrap_or_else(Instant::now);
        Self { asked, admitted, running: None, drivers: None, ready: None }
    }

    pub(super) fn times(&self, now: Instant) -> BootTimes {
        let part = |from: Option<Instant>, to: Option<Instant>| Some(to? - from?);
        let (stage, since) = match (self.admitted, self.running) {
            (_, Some(running)) => (BootStage::Guest, running),
            (Some(admitted), None) => (BootStage::Devices, admitted),
            (None, None) => (BootStage::Place, self.asked),
        };
        BootTimes {
            place: part(Some(self.asked), self.admitted),
            devices: part(self.admitted, self.running),
            guest: part(self.running, self.ready),
            stages: self.stages(),
            waits: self.ready.is_none().then(|| (stage, now - since)),
        }
    }

    fn stages(&self) -> Option<GuestStages> {
        let (running, ready) = self.running.zip(self.ready)?;
        let [first, last] = self.drivers?.map(|time| time.clamp(running, ready.max(running)));
        let firmware = (first < last).then(|| first - running);
        let kernel = last - if firmware.is_some() { first } else { running };
        Some(GuestStages { firmware, kernel, services: ready - last })
    }
}
