//! Places of machines that boot, and where the time of each boot went.
//!
//! [`BootPace`] decides who boots. This module lets starts wait for it. While machines wait, a task
//! looks for idle CPUs, which no event announces.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use model::boot_pace::BootPace;
use model::id::VmId;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

/// Time between two looks for idle CPUs while machines wait.
const LOOK: Duration = Duration::from_millis(250);
/// Idle part of the host's CPU time, in percent, from which another machine may boot.
const IDLE_PERCENT: u64 = 20;

/// CPU time of the host since its boot, in units of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// Time of all CPUs.
    pub total: u64,
    /// Part of it in which a CPU had nothing to do.
    pub idle: u64,
}

/// Source of the host's CPU time.
pub trait HostCpus: fmt::Debug + Send + Sync {
    /// Reads the present values.
    fn read(&self) -> CpuTime;
}

/// The kernel's values in `/proc/stat`.
#[derive(Clone, Copy, Debug)]
pub struct ProcStat;

impl HostCpus for ProcStat {
    fn read(&self) -> CpuTime {
        parse(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
    }
}

/// Parses the first line: user, nice, system, idle, iowait, irq, softirq, steal; guest times are parts
/// of user. Unreadable values show no idle CPU.
fn parse(stat: &str) -> CpuTime {
    let line = stat.lines().next().and_then(|line| line.strip_prefix("cpu ")).unwrap_or_default();
    let ticks: Vec<u64> =
        line.split_whitespace().take(8).map_while(|word| word.parse().ok()).collect();
    let idle = ticks.iter().skip(3).take(2).fold(0, |sum: u64, ticks| sum.saturating_add(*ticks));
    CpuTime { total: ticks.iter().fold(0, |sum: u64, ticks| sum.saturating_add(*ticks)), idle }
}

/// Where the time of a machine's last boot went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootTimes {
    /// Wait for a place among the machines that boot.
    pub place: Duration,
    /// From then until the CPUs run: disks, interfaces, emulator. `None` if they do not run yet.
    pub devices: Option<Duration>,
    /// From then until the guest's agent answered: firmware, kernel and services. `None` if it has not
    /// answered yet.
    pub guest: Option<Duration>,
    /// Parts of `guest`. `None` if no driver is known to have started a disk.
    pub stages: Option<GuestStages>,
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
struct Boot {
    asked: Instant,
    admitted: Instant,
    running: Option<Instant>,
    /// When drivers first and last started a disk.
    drivers: Option<[Instant; 2]>,
    ready: Option<Instant>,
}

impl Boot {
    fn stages(&self) -> Option<GuestStages> {
        let (running, ready) = self.running.zip(self.ready)?;
        let [first, last] = self.drivers?.map(|time| time.clamp(running, ready.max(running)));
        let firmware = (first < last).then(|| first - running);
        let kernel = last - if firmware.is_some() { first } else { running };
        Some(GuestStages { firmware, kernel, services: ready - last })
    }
}

/// Boots of a host's machines.
#[derive(Debug)]
pub(super) struct Boots {
    inner: Mutex<Inner>,
    /// `None` if guests take no time of the host: then none waits.
    cpus: Option<Arc<dyn HostCpus>>,
    epoch: Instant,
}

#[derive(Debug)]
struct Inner {
    pace: BootPace,
    admitted: HashMap<VmId, oneshot::Sender<()>>,
    boots: HashMap<VmId, Boot>,
    cpu_time: CpuTime,
    /// Whether a task looks for idle CPUs.
    is_watched: bool,
}

impl Boots {
    pub(super) fn new(places: u16, cpus: Option<Arc<dyn HostCpus>>) -> Arc<Self> {
        let inner = Inner {
            pace: BootPace::new(places),
            admitted: HashMap::new(),
            boots: HashMap::new(),
            cpu_time: CpuTime::default(),
            is_watched: false,
        };
        Arc::new(Self { inner: Mutex::new(inner), cpus, epoch: Instant::now() })
    }

    pub(super) fn set_places(&self, places: u16) {
        let mut inner = self.lock();
        inner.pace.set_places(places);
        inner.admit(self.epoch.elapsed(), false);
    }

    /// Waits for a machine's place. The wait ends when the future is dropped.
    pub(super) async fn take_place(self: &Arc<Self>, vm: VmId) {
        let asked = Instant::now();
        if self.cpus.is_some() {
            let (sender, receiver) = oneshot::channel();
            let waiter = Waiter { boots: self, vm };
            self.wait(vm, sender);
            // The sender goes only when the machine asks again: this wait is over then.
            let _ = receiver.await;
            std::mem::forget(waiter);
        }
        let admitted = Instant::now();
        let boot = Boot { asked, admitted, running: None, drivers: None, ready: None };
        self.lock().boots.insert(vm, boot);
    }

    fn wait(self: &Arc<Self>, vm: VmId, sender: oneshot::Sender<()>) {
        let mut inner = self.lock();
        inner.pace.wait(vm);
        inner.admitted.insert(vm, sender);
        inner.admit(self.epoch.elapsed(), false);
        if inner.pace.waiting() > 0 && !inner.is_watched {
            inner.is_watched = true;
            inner.cpu_time = self.cpu_time();
            tokio::spawn(watch(Arc::downgrade(self)));
        }
    }

    /// Notes that a machine's CPUs run.
    pub(super) fn running(&self, vm: VmId) {
        if let Some(boot) = self.lock().boots.get_mut(&vm) {
            boot.running.get_or_insert_with(Instant::now);
        }
    }

    /// Notes that a guest's agent answers: the machine gives its place back.
    pub(super) fn ready(&self, vm: VmId) {
        {
            let mut inner = self.lock();
            if let Some(boot) = inner.boots.get_mut(&vm).filter(|boot| boot.running.is_some()) {
                boot.ready.get_or_insert_with(Instant::now);
            }
            inner.pace.ready(vm, self.epoch.elapsed());
        }
        self.leave(vm);
    }

    /// Notes how long ago drivers first and last started a disk of a machine. Only the first note of a
    /// boot counts: an agent may start again, and drivers with it.
    pub(super) fn drivers(&self, vm: VmId, ago: [Duration; 2]) {
        let now = Instant::now();
        if let Some(boot) = self.lock().boots.get_mut(&vm) {
            let admitted = boot.admitted;
            let at = || ago.map(|ago| now.checked_sub(ago).unwrap_or(admitted));
            boot.drivers.get_or_insert_with(at);
        }
    }

    /// Takes back the place of a machine that boots no longer.
    pub(super) fn leave(&self, vm: VmId) {
        let mut inner = self.lock();
        inner.pace.leave(vm);
        inner.admitted.remove(&vm);
        inner.admit(self.epoch.elapsed(), false);
    }

    /// Forgets a machine without a domain.
    pub(super) fn ended(&self, vm: VmId) {
        self.lock().boots.remove(&vm);
        self.leave(vm);
    }

    /// Returns where the time of a machine's boot went. `None` if it has not begun since this daemon
    /// started.
    pub(super) fn times(&self, vm: VmId) -> Option<BootTimes> {
        let boot = self.lock().boots.get(&vm).copied()?;
        Some(BootTimes {
            place: boot.admitted - boot.asked,
            devices: boot.running.map(|running| running - boot.admitted),
            guest: boot.ready.zip(boot.running).map(|(ready, running)| ready - running),
            stages: boot.stages(),
        })
    }

    fn cpu_time(&self) -> CpuTime {
        self.cpus.as_ref().map(|cpus| cpus.read()).unwrap_or_default()
    }

    /// Admits machines if the host has idle CPUs. Returns whether others still wait.
    fn look(&self) -> bool {
        let now = self.cpu_time();
        let mut inner = self.lock();
        let before = std::mem::replace(&mut inner.cpu_time, now);
        let total = now.total.saturating_sub(before.total);
        let idle = now.idle.saturating_sub(before.idle);
        inner.admit(self.epoch.elapsed(), total > 0 && idle * 100 >= total * IDLE_PERCENT);
        inner.is_watched = inner.pace.waiting() > 0;
        inner.is_watched
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Each change is complete before it can panic.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn admit(&mut self, now: Duration, has_idle_cpus: bool) {
        let mut next = self.pace.admit(now, has_idle_cpus);
        while let Some(vm) = next {
            // A waiter that was dropped leaves.
            self.admitted.remove(&vm).map(|sender| sender.send(()));
            next = self.pace.admit(now, false);
        }
    }
}

/// Wait for a place.
struct Waiter<'a> {
    boots: &'a Boots,
    vm: VmId,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.boots.leave(self.vm);
    }
}

async fn watch(boots: Weak<Boots>) {
    loop {
        sleep(LOOK).await;
        if !boots.upgrade().is_some_and(|boots| boots.look()) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use model::id::Uuid;

    use super::*;

    /// Host whose CPUs are idle for this part of the time, in percent.
    #[derive(Debug, Default)]
    struct Cpus {
        idle_percent: AtomicU64,
        total: AtomicU64,
        idle: AtomicU64,
    }

    impl HostCpus for Cpus {
        fn read(&self) -> CpuTime {
            let idle_percent = self.idle_percent.load(Ordering::Relaxed);
            CpuTime {
                total: self.total.fetch_add(100, Ordering::Relaxed),
                idle: self.idle.fetch_add(idle_percent, Ordering::Relaxed),
            }
        }
    }

    fn vm(n: u8) -> VmId {
        VmId(Uuid::from_random([n; 16]))
    }

    #[test]
    fn the_kernels_account_is_read() {
        let stat = "cpu  10 1 5 100 20 2 3 4 9 9\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(parse(stat), CpuTime { total: 145, idle: 120 });
        for stat in ["", "cpu", "intr 1 2 3", "cpu  a b c d e"] {
            assert_eq!(parse(stat).idle, 0, "{stat}");
        }
        assert!(ProcStat.read().total >= ProcStat.read().idle);
    }

    #[tokio::test(start_paused = true)]
    async fn starts_wait_for_places_or_idle_cpus() {
        let cpus = Arc::new(Cpus::default());
        let boots = Boots::new(1, Some(Arc::clone(&cpus) as Arc<dyn HostCpus>));
        boots.take_place(vm(0)).await;
        let start = |n| {
            let boots = Arc::clone(&boots);
            tokio::spawn(async move { boots.take_place(vm(n)).await })
        };
        let second = start(1);
        sleep(LOOK * 10).await;
        assert!(!second.is_finished());
        boots.running(vm(0));
        boots.ready(vm(0));
        second.await.unwrap();
        assert_eq!(boots.times(vm(1)).unwrap().place, LOOK * 10);
        assert_eq!(boots.times(vm(0)).unwrap().guest, Some(Duration::ZERO));

        // The CPUs are idle: one more at each look.
        let [third, fourth] = [2, 3].map(start);
        sleep(LOOK * 10).await;
        assert!(!third.is_finished());
        cpus.idle_percent.store(IDLE_PERCENT, Ordering::Relaxed);
        third.await.unwrap();
        assert!(!fourth.is_finished());
        fourth.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_that_is_cancelled_leaves_its_wait() {
        let boots = Boots::new(1, Some(Arc::new(Cpus::default())));
        boots.take_place(vm(0)).await;
        let waits = tokio::spawn({
            let boots = Arc::clone(&boots);
            async move { boots.take_place(vm(1)).await }
        });
        sleep(LOOK).await;
        assert_eq!(boots.lock().pace.waiting(), 1);
        waits.abort();
        let _ = waits.await;
        assert_eq!(boots.lock().pace.waiting(), 0);
        boots.ended(vm(0));
        assert_eq!(boots.lock().pace.booting(), 0);
        assert_eq!(boots.times(vm(0)), None);
    }

    #[tokio::test(start_paused = true)]
    async fn drivers_tell_the_stages_of_a_boot() {
        let s = Duration::from_secs;
        let cases = [
            ([18, 5], (Some(s(2)), s(13), s(5))),
            ([5, 5], (None, s(15), s(5))),
            // What cannot be is cut: clocks of two processes differ a little.
            ([500, 5], (Some(s(0)), s(15), s(5))),
        ];
        for (ago, expected) in cases {
            let boots = Boots::new(1, None);
            boots.take_place(vm(0)).await;
            sleep(s(1)).await;
            boots.running(vm(0));
            sleep(s(20)).await;
            boots.ready(vm(0));
            assert_eq!(boots.times(vm(0)).unwrap().stages, None);
            boots.drivers(vm(0), ago.map(s));
            // The agent starts again, after another driver.
            boots.drivers(vm(0), [s(1), s(0)]);
            let GuestStages { firmware, kernel, services } =
                boots.times(vm(0)).unwrap().stages.unwrap();
            assert_eq!((firmware, kernel, services), expected);
        }
    }

    #[tokio::test]
    async fn simulated_guests_never_wait() {
        let boots = Boots::new(1, None);
        for n in 0..9 {
            boots.take_place(vm(n)).await;
        }
        assert_eq!(boots.times(vm(8)).map(|times| times.devices), Some(None));
    }
}
