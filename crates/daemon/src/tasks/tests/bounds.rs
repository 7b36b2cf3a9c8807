//! Limits of concurrent calls.

use std::future::poll_fn;
use std::task::Poll;

use xenapi::Value;
use xenapi::table::{Class, host, pool, task};

use super::ended;
use crate::db::Ref;
use crate::dispatch::limits::{CallPermit, MAX_PENDING_OF_SESSION};
use crate::tasks::Status;
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
