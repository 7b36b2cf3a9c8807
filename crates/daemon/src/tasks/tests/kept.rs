use std::time::Duration;

use xenapi::Value;
use xenapi::table::{pool, task};

use super::{begun, field, status, tasks};
use crate::db::Ref;
use crate::tasks::expiry::{collect, expire_loop};
use crate::tasks::{KEPT, KEPT_AT_LEAST, MAX_ENDED, MAX_ENDED_IN_ALL, Status, take_over};
use crate::tests::app::TestApp;

#[tokio::test]
async fn tasks_that_have_ended_are_forgotten_in_time() {
    let test_app = TestApp::new().await;
    let (under_way, end) = begun(&test_app, "root").await;
    let pool =
        test_app.app.db.read(|view| view.all(&pool::CLASS).next().unwrap().reference().clone());
    assert_eq!(collect(&test_app.app), None, "there is nothing to wait for");
    let it = test_app.made("task.create", ["l", ""].map(Value::text)).await;
    test_app.call("task.cancel", [it.value()]).await.unwrap();
    let kept = i64::try_from(KEPT.as_secs()).unwrap();
    test_app.hands.pass(kept - 1);
    assert_eq!(collect(&test_app.app), Some(test_app.app.clock.now() + Duration::from_secs(1)));
    // The wall clock is set. No task may expire because of that.
    test_app.hands.set(1 << 40);
    collect(&test_app.app);
    assert_eq!(tasks(&test_app), 2);
    test_app.hands.pass(1);
    assert_eq!(collect(&test_app.app), None);
    assert_eq!(tasks(&test_app), 1);
    test_app.hands.pass(100 * kept);
    collect(&test_app.app);
    assert_eq!(status(&test_app, &under_way), Status::Pending, "however long it runs");
    end.send(Ok(pool.value())).unwrap();
}

#[tokio::test]
async fn of_those_that_have_ended_the_last_ones_are_kept() {
    let test_app = TestApp::new().await;
    let mut made = Vec::new();
    for _ in 0..MAX_ENDED + 3 {
        let it = test_app.made("task.create", ["l", ""].map(Value::text)).await;
        test_app.call("task.cancel", [it.value()]).await.unwrap();
        made.push(it);
    }
    let now = test_app.app.clock.now();
    assert_eq!(collect(&test_app.app), Some(now + KEPT_AT_LEAST), "somebody may wait for each");
    assert_eq!(tasks(&test_app), MAX_ENDED + 3);
    test_app.hands.pass(i64::try_from(KEPT_AT_LEAST.as_secs()).unwrap());
    assert_eq!(collect(&test_app.app), Some(now + KEPT));
    assert_eq!(tasks(&test_app), MAX_ENDED);
    let there = |it: &Ref| test_app.app.db.read(|view| view.object(&task::CLASS, it).is_ok());
    assert_eq!(
        made.iter().filter(|it| !there(it)).collect::<Vec<_>>(),
        [&made[0], &made[1], &made[2]]
    );
}

#[tokio::test]
async fn of_very_many_that_end_at_once_the_first_go_at_once() {
    let test_app = TestApp::new().await;
    let (it, now) = (test_app.app.new_ref(), test_app.app.clock.now());
    for _ in 0..MAX_ENDED_IN_ALL + 1 {
        test_app.app.tasks.inner().ended.push_back((now, it.clone()));
    }
    assert_eq!(collect(&test_app.app), Some(now + KEPT_AT_LEAST));
    assert_eq!(test_app.app.tasks.inner().ended.len(), MAX_ENDED_IN_ALL);
}

/// No call is made: the expiry loop is notified by the end of a task.
#[tokio::test]
async fn somebody_sees_to_it() {
    let test_app = TestApp::new().await;
    let keeper = tokio::spawn(expire_loop(test_app.app.clone()));
    let it = test_app.made("task.create", ["l", ""].map(Value::text)).await;
    let mut changed = test_app.app.db.changed();
    test_app.call("task.cancel", [it.value()]).await.unwrap();
    test_app.hands.pass(i64::try_from(KEPT.as_secs()).unwrap());
    let other = test_app.made("task.create", ["l", ""].map(Value::text)).await;
    test_app.call("task.cancel", [other.value()]).await.unwrap();
    let there = || test_app.app.db.read(|view| view.object(&task::CLASS, &it).is_ok());
    while there() {
        changed.changed().await.unwrap();
    }
    assert_eq!(status(&test_app, &other), Status::Cancelled);
    keeper.abort();
}

#[tokio::test]
async fn a_restart_keeps_records_and_ends_what_was_under_way() {
    let before = TestApp::new().await;
    let pool =
        before.app.db.read(|view| view.all(&pool::CLASS).next().unwrap().reference().clone());
    let named = [pool.value(), Value::text("n")];
    before.call("pool.set_name_label", named).await.unwrap();
    let (it, _end) = begun(&before, "root").await;
    before.app.persistence.close().unwrap();
    let hands = crate::clock::tests::Hands::default();
    let after = TestApp::of(hands, before.store.clone(), before.sim.clone()).await;
    take_over(&after.app);
    let name = after.call("pool.get_name_label", [pool.value()]).await;
    assert_eq!(name, Ok(Value::text("n")));
    assert_eq!(status(&after, &it), Status::Failure);
    assert_eq!(field(&after, &it, task::Field::progress), Value::Float(1.0));
    let refused = after.raw("VM.get_all", vec![before.session.value()]).await.unwrap_err();
    assert_eq!(refused.details(), ["SESSION_INVALID", before.session.as_str()]);
    after.hands.pass(i64::try_from(KEPT.as_secs()).unwrap());
    collect(&after.app);
    assert_eq!(tasks(&after), 0);
}
