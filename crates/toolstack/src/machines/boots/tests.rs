//! Tests of places and times of boots.

use std::sync::atomic::{AtomicU64, Ordering};

use model::id::Uuid;

use super::times::GuestStages;
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
    assert_eq!(boots.times(vm(1)).unwrap().place, Some(LOOK * 10));
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
    assert_eq!(boots.times(vm(1)), None);
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

/// The changes tell when to look, and the times tell each part of a boot as it goes on.
#[tokio::test(start_paused = true)]
async fn a_boot_is_followed_part_by_part() {
    let boots = Boots::new(1, Some(Arc::new(Cpus::default())));
    let s = Duration::from_secs;
    boots.take_place(vm(0)).await;
    assert_eq!(boots.changes().await, BTreeSet::from([vm(0)]));
    let waits = tokio::spawn({
        let boots = Arc::clone(&boots);
        async move { boots.take_place(vm(1)).await }
    });
    let follow = async |stage| {
        assert_eq!(boots.changes().await, BTreeSet::from([vm(1)]));
        assert_eq!(boots.times(vm(1)).unwrap().waits, Some((stage, s(0))));
        sleep(s(3)).await;
        assert_eq!(boots.times(vm(1)).unwrap().waits, Some((stage, s(3))));
    };
    follow(BootStage::Place).await;
    boots.leave(vm(0));
    follow(BootStage::Devices).await;
    waits.await.unwrap();
    boots.running(vm(1));
    follow(BootStage::Guest).await;
    boots.ready(vm(1));
    let times = boots.times(vm(1)).unwrap();
    assert_eq!([times.place, times.devices, times.guest], [Some(s(3)); 3]);
    assert_eq!(times.waits, None);
    boots.ended(vm(1));
    assert_eq!(boots.changes().await, BTreeSet::from([vm(1)]));
    assert_eq!(boots.times(vm(1)), None);
}

#[tokio::test]
async fn simulated_guests_never_wait() {
    let boots = Boots::new(1, None);
    for n in 0..9 {
        boots.take_place(vm(n)).await;
    }
    assert_eq!(boots.times(vm(8)).map(|times| times.devices), Some(None));
}
