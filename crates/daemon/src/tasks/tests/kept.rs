use std::time::Duration;

use xenapi::Value;
use xenapi::table::{pool, task};

use super::{begun, field, status, tasks};
use crate::db::Ref;
use crate::tasks::expiry::{collect, expire_loop};
use crate::tasks::{KEPT, KEPT_AT_LEAST, MAX_ENDED, MAX_ENDED_IN_ALL, Status, take_over};
use crate::trial::TestApp;

#[tokio::test]
async fn tasks_that_have_ended_are_forgotten_in_time() {
    let trial = TestApp::new().await;
    let (under_way, end) = begun(&trial, "root").await;
    let pool =
        trial.house.db.read(|view| view.all(&pool::CLASS).next().unwrap().reference().clone());
    assert_eq!(collect(&trial.house), None, "there is nothing to wait for");
    let it = trial.made("task.create", ["l", ""].map(Value::text)).await;
    trial.call("task.cancel", [it.value()]).await.unwrap();
    let kept = i64::try_from(KEPT.as_secs()).unwrap();
    trial.hands.pass(kept - 1);
    assert_eq!(collect(&trial.house), Some(trial.house.clock.now() + Duration::from_secs(1)));
    // Somebody sets the clock on the wall: nothing is forgotten for that.
    trial.hands.set(1 << 40);
    collect(&trial.house);
    assert_eq!(tasks(&trial), 2);
    trial.hands.pass(1);
    assert_eq!(collect(&trial.house), None);
    assert_eq!(tasks(&trial), 1);
    trial.hands.pass(100 * kept);
    collect(&trial.house);
    assert_eq!(status(&trial, &under_way), Status::Pending, "however long it runs");
    end.send(Ok(pool.value())).unwrap();
}

#[tokio::test]
async fn of_those_that_have_ended_the_last_ones_are_kept() {
    let trial = TestApp::new().await;
    let mut made = Vec::new();
    for _ in 0..MAX_ENDED + 3 {
        let it = trial.made("task.create", ["l", ""].map(Value::text)).await;
        trial.call("task.cancel", [it.value()]).await.unwrap();
        made.push(it);
    }
    let now = trial.house.clock.now();
    assert_eq!(collect(&trial.house), Some(now + KEPT_AT_LEAST), "somebody may wait for each");
    assert_eq!(tasks(&trial), MAX_ENDED + 3);
    trial.hands.pass(i64::try_from(KEPT_AT_LEAST.as_secs()).unwrap());
    assert_eq!(collect(&trial.house), Some(now + KEPT));
    assert_eq!(tasks(&trial), MAX_ENDED);
    let there = |it: &Ref| trial.house.db.read(|view| view.object(&task::CLASS, it).is_ok());
    assert_eq!(
        made.iter().filter(|it| !there(it)).collect::<Vec<_>>(),
        [&made[0], &made[1], &made[2]]
    );
}

#[tokio::test]
async fn of_very_many_that_end_at_once_the_first_go_at_once() {
    let trial = TestApp::new().await;
    let (it, now) = (trial.house.new_ref(), trial.house.clock.now());
    for _ in 0..MAX_ENDED_IN_ALL + 1 {
        trial.house.tasks.inner().ended.push_back((now, it.clone()));
    }
    assert_eq!(collect(&trial.house), Some(now + KEPT_AT_LEAST));
    assert_eq!(trial.house.tasks.inner().ended.len(), MAX_ENDED_IN_ALL);
}

/// Nobody calls: whoever forgets is woken by the end of a task.
#[tokio::test]
async fn somebody_sees_to_it() {
    let trial = TestApp::new().await;
    let keeper = tokio::spawn(expire_loop(trial.house.clone()));
    let it = trial.made("task.create", ["l", ""].map(Value::text)).await;
    let mut changed = trial.house.db.changed();
    trial.call("task.cancel", [it.value()]).await.unwrap();
    trial.hands.pass(i64::try_from(KEPT.as_secs()).unwrap());
    let other = trial.made("task.create", ["l", ""].map(Value::text)).await;
    trial.call("task.cancel", [other.value()]).await.unwrap();
    let there = || trial.house.db.read(|view| view.object(&task::CLASS, &it).is_ok());
    while there() {
        changed.changed().await.unwrap();
    }
    assert_eq!(status(&trial, &other), Status::Cancelled);
    keeper.abort();
}

#[tokio::test]
async fn a_restart_keeps_records_and_ends_what_was_under_way() {
    let before = TestApp::new().await;
    let pool =
        before.house.db.read(|view| view.all(&pool::CLASS).next().unwrap().reference().clone());
    let named = [pool.value(), Value::text("n")];
    before.call("pool.set_name_label", named).await.unwrap();
    let (it, _end) = begun(&before, "root").await;
    before.house.durable.close().unwrap();
    let hands = crate::clock::tests::Hands::default();
    let after = TestApp::of(hands, before.store.clone(), before.sim.clone()).await;
    take_over(&after.house);
    let name = after.call("pool.get_name_label", [pool.value()]).await;
    assert_eq!(name, Ok(Value::text("n")));
    assert_eq!(status(&after, &it), Status::Failure);
    assert_eq!(field(&after, &it, task::Field::progress), Value::Float(1.0));
    let refused = after.raw("VM.get_all", vec![before.session.value()]).await.unwrap_err();
    assert_eq!(refused.details(), ["SESSION_INVALID", before.session.as_str()]);
    after.hands.pass(i64::try_from(KEPT.as_secs()).unwrap());
    collect(&after.house);
    assert_eq!(tasks(&after), 0);
}
