//! Hung storage: its workers are abandoned, and other SRs are not affected.

use std::sync::Arc;
use std::time::Duration;

use model::id::SrId;
use testkit::storage::Hanging;
use tokio::task::JoinSet;
use toolstack::sr::dir::DirDriver;
use toolstack::sr::worker::{Host, MAX_LEFT_EACH, call_deadline};
use toolstack::sr::{SrDriver, SrError};

use super::dir::{Place, at, sr, vdi};
use super::{again, eventually};

/// Longer than any answer takes on a busy host.
const DEADLINE: Duration = Duration::from_secs(5);
/// Short deadline for tests without answers, in which many calls time out.
const SHORT: Duration = Duration::from_millis(200);

#[test]
fn a_call_has_half_of_a_step_and_no_less_than_half_a_minute() {
    for (step, call) in [(1, 30), (45, 30), (60, 30), (120, 60)] {
        assert_eq!(call_deadline(Duration::from_secs(step)), Duration::from_secs(call), "{step}");
    }
}

#[tokio::test]
async fn a_worker_is_left_behind_and_replaced_and_others_work() {
    let hanging = Hanging::new().unwrap();
    let place = Place::new();
    let host = Host::new(again("storage_worker", &[]), DEADLINE);
    let driver = DirDriver::new("dir", host.clone(), "/nonexistent".into());
    let other = SrId(vdi(77).0);
    let config = at(&hanging.place().join("sr"));
    for (sr, config) in [(sr(), &config), (other, &place.config())] {
        driver.create(sr, config).await.unwrap();
        driver.attach(sr, config).await.unwrap();
        driver.create_volume(sr, vdi(1), 1 << 20).await.unwrap();
    }
    hanging.hang().unwrap();
    let late = driver.create_volume(sr(), vdi(2), 1 << 20);
    let meanwhile = async {
        // Another SR is not affected. On this one, calls that only read are answered.
        driver.create_volume(other, vdi(2), 1 << 20).await.unwrap();
        assert_eq!(driver.scan(sr()).await.unwrap().volumes.len(), 1);
        host.left_behind()
    };
    let (late, left) = tokio::join!(late, meanwhile);
    assert_eq!(left, 0, "they waited for the one that hangs");
    let Err(SrError::Late { what, after }) = &late else { panic!("{late:?}") };
    assert!(what.contains("create") && *after == DEADLINE, "{what}");
    assert_eq!(host.left_behind(), 1);
    assert_eq!(driver.scan(sr()).await.unwrap().volumes.len(), 1);
    hanging.answer().unwrap();
    eventually("the one left behind has ended", async || host.left_behind() == 0).await;
    driver.create_volume(sr(), vdi(99), 1 << 20).await.unwrap();
    let volumes = driver.scan(sr()).await.unwrap().volumes;
    assert!(volumes.iter().all(|volume| volume.virtual_bytes == 1 << 20), "{volumes:?}");
}

#[tokio::test]
async fn no_more_than_a_few_workers_are_left_behind() {
    let hanging = Hanging::new().unwrap();
    let config = at(&hanging.place().join("sr"));
    let patient = Host::new(again("storage_worker", &[]), DEADLINE);
    DirDriver::new("dir", patient, "/nonexistent".into()).create(sr(), &config).await.unwrap();
    let host = Host::new(again("storage_worker", &[]), SHORT);
    let driver = DirDriver::new("dir", host.clone(), "/nonexistent".into());
    // On a busy host the first calls may pass the deadline by chance.
    eventually("attached", async || driver.attach(sr(), &config).await.is_ok()).await;
    eventually("all others have ended", async || host.left_behind() == 0).await;
    hanging.hang().unwrap();
    for n in 0..MAX_LEFT_EACH + 2 {
        let late = driver.create_volume(sr(), vdi(u8::try_from(n).unwrap()), 1 << 20).await;
        assert!(matches!(late, Err(SrError::Late { .. })), "{late:?}");
        assert_eq!(host.left_behind(), MAX_LEFT_EACH.min(n + 1));
    }
    hanging.answer().unwrap();
    eventually("those left behind have ended", async || host.left_behind() == 0).await;
    eventually("it works", async || driver.scan(sr()).await.is_ok()).await;
}

/// Repeated attaches on dead storage must not affect other places.
#[tokio::test]
async fn a_place_that_hangs_is_in_nobodys_way() {
    let hanging = Hanging::new().unwrap();
    let place = Place::new();
    let host = Host::new(again("storage_worker", &[]), DEADLINE);
    let driver = Arc::new(DirDriver::new("dir", host.clone(), "/nonexistent".into()));
    hanging.hang().unwrap();
    let dead = at(&hanging.place().join("sr"));
    let mut retries = JoinSet::new();
    for n in 0..40 {
        let (driver, dead) = (Arc::clone(&driver), dead.clone());
        retries.spawn(async move { driver.create(SrId(vdi(n).0), &dead).await });
    }
    tokio::task::yield_now().await;
    driver.create(sr(), &place.config()).await.unwrap();
    driver.attach(sr(), &place.config()).await.unwrap();
    assert_eq!(host.left_behind(), 0, "they waited for those that hang");
    let refused = retries.join_all().await;
    let late = refused.iter().filter(|one| matches!(one, Err(SrError::Late { .. }))).count();
    let busy = refused.iter().filter(|one| matches!(one, Err(SrError::Worker(_)))).count();
    assert!(late > 0 && busy > 0 && late + busy == 40, "{late} late, {busy} refused");
    // Another place is not affected, whatever was abandoned.
    driver.detach(sr()).await.unwrap();
    driver.attach(sr(), &place.config()).await.unwrap();
    hanging.answer().unwrap();
    eventually("those left behind have ended", async || host.left_behind() == 0).await;
    let answered = driver.create(SrId(vdi(77).0), &dead).await;
    assert!(matches!(answered, Ok(()) | Err(SrError::Config { .. })), "{answered:?}");
}

#[tokio::test]
async fn a_call_that_nobody_waits_for_has_its_deadline_too() {
    let hanging = Hanging::new().unwrap();
    let host = Host::new(again("storage_worker", &[]), DEADLINE);
    let driver = DirDriver::new("dir", host.clone(), hanging.place().join("sr"));
    driver.create(sr(), &Default::default()).await.unwrap();
    driver.attach(sr(), &Default::default()).await.unwrap();
    hanging.hang().unwrap();
    let late = driver.create_volume(sr(), vdi(1), 1 << 20);
    tokio::time::timeout(Duration::from_millis(50), late).await.unwrap_err();
    eventually("its worker is left behind", async || host.left_behind() == 1).await;
    hanging.answer().unwrap();
    eventually("it has ended", async || host.left_behind() == 0).await;
}
