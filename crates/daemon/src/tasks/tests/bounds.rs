//! Limits of concurrent calls.

use std::future::poll_fn;
use std::task::Poll;

use xenapi::Value;
use xenapi::table::{Class, Role, host, pool, task};

use super::ended;
use crate::db::Ref;
use crate::dispatch::limits::{CallPermit, MAX_PENDING_OF_SESSION, MAX_WAITS_OF_USER};
use crate::tasks::{CLIENT_TEXT_BYTES_MAX, MAX_ENDED_OF_USER, Status, create, destroy, set_status};
use crate::tests::app::TestApp;

fn the(test_app: &TestApp, class: &'static Class) -> Ref {
    test_app.app.db.read(|view| view.all(class).next().unwrap().reference().clone())
}

/// Takes all permits of the session.
fn all_places(test_app: &TestApp) -> Vec<CallPermit> {
    let mut held = Vec::new();
    while let Ok(call_permit) = test_app.app.call_limiter.take(&test_app.session) {
        held.push(call_permit);
    }
    held
}

/// Returns the parameters of `event.from` for the pool after this token.
fn from(token: &Value, timeout_s: f64) -> [Value; 3] {
    [Value::Set(vec![Value::text("pool")]), token.clone(), Value::Float(timeout_s)]
}

/// Returns the number of events and the next token.
fn events_and_token(answer: Value) -> (usize, Value) {
    let Value::Map(mut answer) = answer else { panic!("no map") };
    let Some(Value::Set(events)) = answer.remove("events") else { panic!("no events") };
    (events.len(), answer.remove("token").unwrap())
}

#[tokio::test]
async fn calls_that_take_a_while_have_a_bound_and_reads_have_none() {
    let test_app = TestApp::new().await;
    let mut held = all_places(&test_app);
    let host = the(&test_app, &host::CLASS);
    let refused = test_app.refused("Async.host.disable", [host.value()]).await;
    assert_eq!(refused, ["TOO_MANY_PENDING_TASKS"]);
    assert_eq!(test_app.app.db.read(|view| view.count(&task::CLASS)), 0);
    test_app.call("host.get_enabled", [host.value()]).await.unwrap();
    held.pop();
    let it = test_app.made("Async.host.disable", [host.value()]).await;
    assert_eq!(ended(&test_app, &it).await, Status::Success);
}

#[tokio::test]
async fn events_are_told_with_all_places_taken() {
    let test_app = TestApp::new().await;
    let held = all_places(&test_app);
    assert_eq!(held.len(), MAX_PENDING_OF_SESSION);
    let first = test_app.call("event.from", from(&Value::text(""), 0.0)).await;
    let (known, token) = events_and_token(first.unwrap());
    assert_eq!(known, 1);
    let name = [the(&test_app, &pool::CLASS).value(), Value::text("n")];
    let change = async { test_app.call("pool.set_name_label", name).await.unwrap() };
    let waits = test_app.call("event.from", from(&token, 60.0));
    let (answer, _) = tokio::join!(waits, change);
    assert_eq!(events_and_token(answer.unwrap()).0, 1);
}

/// More clients than permits wait for events for any time.
#[tokio::test]
async fn who_waits_for_events_takes_no_place() {
    let test_app = TestApp::new().await;
    let first = test_app.call("event.from", from(&Value::text(""), 0.0)).await;
    let (_, token) = events_and_token(first.unwrap());
    let wait = |_| Box::pin(test_app.call("event.from", from(&token, 3600.0)));
    let mut waiting: Vec<_> = (0..=MAX_PENDING_OF_SESSION).map(wait).collect();
    poll_fn(|cx| {
        for one in &mut waiting {
            assert!(one.as_mut().poll(cx).is_pending());
        }
        Poll::Ready(())
    })
    .await;
    assert_eq!(test_app.app.call_limiter.taken(), 0);
    let host = the(&test_app, &host::CLASS);
    let it = test_app.made("Async.host.disable", [host.value()]).await;
    assert_eq!(ended(&test_app, &it).await, Status::Success);
    let name = [the(&test_app, &pool::CLASS).value(), Value::text("n")];
    test_app.call("pool.set_name_label", name).await.unwrap();
    for one in waiting {
        assert_eq!(events_and_token(one.await.unwrap()).0, 1);
    }
}

/// A user without rights may create tasks. More sessions give no more of them.
#[tokio::test]
async fn tasks_of_a_user_without_rights_are_bounded() {
    let test_app = TestApp::new().await;
    let ctx = || {
        let mut ctx = test_app.ctx_of("reader", Role::ReadOnly, "task.create");
        // The session exists, so its tasks are not orphaned.
        ctx.session.reference = test_app.session.clone();
        ctx
    };
    let count = || test_app.app.db.read(|view| view.count(&task::CLASS));
    let long = "x".repeat(CLIENT_TEXT_BYTES_MAX + 1);
    for (label, description) in [(long.as_str(), ""), ("", long.as_str())] {
        let error = create(&ctx(), label, description).await.unwrap_err();
        assert_eq!(error.code, "VALUE_NOT_SUPPORTED");
    }
    let mut made = Vec::new();
    for _ in 0..MAX_PENDING_OF_SESSION {
        let ctx = ctx();
        made.push((create(&ctx, "t", "").await.unwrap(), ctx));
    }
    let error = create(&ctx(), "t", "").await.unwrap_err();
    assert_eq!(error.code, "TOO_MANY_PENDING_TASKS", "another session has no more");
    let operator = test_app.ctx_of("operator", Role::PoolOperator, "task.create");
    create(&operator, "t", "").await.unwrap();
    for (it, ctx) in &made {
        set_status(ctx, it, Status::Success).unwrap();
    }
    assert_eq!(count(), MAX_ENDED_OF_USER + 1, "the oldest are gone");
    let (last, ctx) = made.last().unwrap();
    destroy(ctx, last).unwrap();
    assert_eq!(count(), MAX_ENDED_OF_USER);
}

#[tokio::test]
async fn waits_of_a_user_without_rights_are_bounded() {
    let test_app = TestApp::new().await;
    let reader = test_app.ctx_of("reader", Role::ReadOnly, "event.from").session;
    let mut held = Vec::new();
    for _ in 0..MAX_WAITS_OF_USER {
        held.push(test_app.app.wait_limiter.take(&reader.limit_key()).unwrap());
    }
    let again = test_app.ctx_of("reader", Role::ReadOnly, "event.from").session;
    assert!(test_app.app.wait_limiter.take(&again.limit_key()).is_err(), "in any session");
    let other = test_app.ctx_of("other", Role::ReadOnly, "event.from").session;
    test_app.app.wait_limiter.take(&other.limit_key()).unwrap();
    drop(held);
    test_app.app.wait_limiter.take(&again.limit_key()).unwrap();
}
