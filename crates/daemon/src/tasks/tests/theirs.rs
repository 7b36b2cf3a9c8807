use xenapi::Value;
use xenapi::table::{Role, task};

use super::{begun, field, status, tasks};
use crate::dispatch::limits::MAX_PENDING_OF_SESSION;
use crate::tasks::{Status, create};
use crate::tests::app::TestApp;

#[tokio::test]
async fn a_client_says_what_becomes_of_its_own_task() {
    let test_app = TestApp::new().await;
    let create = async || test_app.made("task.create", ["l", "d"].map(Value::text)).await;
    let it = create().await;
    let set = async |what: &str, value: Value| {
        test_app.call(&format!("task.set_{what}"), [it.value(), value]).await
    };
    set("progress", Value::Float(0.25)).await.unwrap();
    assert_eq!(set("progress", Value::Float(2.0)).await.unwrap_err().code, "INVALID_VALUE");
    set("result", Value::text("r")).await.unwrap();
    set("status", Value::text("cancelling")).await.unwrap();
    assert_eq!(status(&test_app, &it), Status::Cancelling);
    set("status", Value::text("success")).await.unwrap();
    assert_eq!(status(&test_app, &it), Status::Success);
    assert_eq!(field(&test_app, &it, task::Field::progress), Value::Float(1.0));
    let late = set("status", Value::text("failure")).await.unwrap_err();
    assert_eq!(late.code, "OPERATION_NOT_ALLOWED");
    assert_eq!(status(&test_app, &it), Status::Success);
    let other = create().await;
    test_app.call("task.cancel", [other.value()]).await.unwrap();
    assert_eq!(status(&test_app, &other), Status::Cancelled);
    let third = create().await;
    test_app.call("task.destroy", [third.value()]).await.unwrap();
    assert!(test_app.app.db.read(|view| view.object(&task::CLASS, &third).is_err()));
    let (ours, end) = begun(&test_app, "root").await;
    let params = [ours.value(), Value::text("success")];
    assert_eq!(test_app.refused("task.set_status", params).await[0], "OPERATION_NOT_ALLOWED");
    end.send(Ok(Value::text(""))).unwrap();
}

#[tokio::test]
async fn tasks_of_a_client_that_is_gone_end() {
    let test_app = TestApp::new().await;
    let it = test_app.made("task.create", ["l", ""].map(Value::text)).await;
    test_app.call("session.logout", []).await.unwrap();
    assert_eq!(status(&test_app, &it), Status::Cancelled);
    assert!(test_app.app.tasks.inner().live.is_empty());
}

#[tokio::test]
async fn one_client_does_not_keep_others_from_tasks_of_their_own() {
    let test_app = TestApp::new().await;
    for _ in 0..MAX_PENDING_OF_SESSION {
        test_app.made("task.create", ["l", ""].map(Value::text)).await;
    }
    let refused = test_app.refused("task.create", ["l", ""].map(Value::text)).await;
    assert_eq!(refused, ["TOO_MANY_PENDING_TASKS"]);
    let other = test_app.ctx_of("root", Role::PoolAdmin, "task.create");
    create(&other, "l", "").await.unwrap();
}

#[tokio::test]
async fn a_task_that_cannot_be_stored_leaves_nothing_and_one_that_is_there_goes() {
    let test_app = TestApp::new().await;
    let create = async || test_app.call("task.create", ["l", ""].map(Value::text)).await;
    let known = || {
        let inner = test_app.app.tasks.inner();
        (inner.live.len(), inner.owners.len(), inner.ended.len())
    };
    let (one, other) = (create().await.unwrap(), create().await.unwrap());
    test_app.call("task.cancel", [other.clone()]).await.unwrap();
    test_app.store.set_room(Some(0));
    assert_eq!(create().await.unwrap_err().code, "OUT_OF_SPACE");
    assert_eq!(known(), (1, 2, 1));
    // They are destroyed even if that cannot be stored.
    for it in [one, other] {
        test_app.call("task.destroy", [it]).await.unwrap();
    }
    assert_eq!(known(), (0, 0, 0));
    assert_eq!(tasks(&test_app), 0);
    test_app.store.set_room(None);
    for _ in 0..MAX_PENDING_OF_SESSION {
        create().await.unwrap();
    }
}

/// Read-only users create these tasks.
#[tokio::test]
async fn what_a_client_keeps_in_a_task_is_bounded() {
    let test_app = TestApp::new().await;
    let long = || Value::text("x".repeat(60 << 10));
    let refused = test_app.refused("task.create", [long(), long()]).await;
    assert_eq!(refused[0], "VALUE_NOT_SUPPORTED");
    let it = test_app.made("task.create", [long(), Value::text("")]).await;
    for (set, value) in [("result", long()), ("error_info", Value::Set(vec![long()]))] {
        let refused = test_app.refused(&format!("task.set_{set}"), [it.value(), value]).await;
        assert_eq!(refused[..2], ["VALUE_NOT_SUPPORTED", set]);
    }
    // A task can always end, whatever its size.
    test_app.call("task.set_result", [it.value(), Value::text("y".repeat(3 << 10))]).await.unwrap();
    test_app.call("task.cancel", [it.value()]).await.unwrap();
    assert_eq!(status(&test_app, &it), Status::Cancelled);
}
