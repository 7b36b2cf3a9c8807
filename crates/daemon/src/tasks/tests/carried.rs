use tokio::sync::oneshot;
use xenapi::table::{Role, host, task};
use xenapi::{Value, codes};

use super::{begun, ended, field, root, status, tasks};
use crate::db::Ref;
use crate::dispatch::text;
use crate::tasks::{Cancellable, Status, begin, cancel, destroy, end as ends_as, result_text};
use crate::tests::app::TestApp;

#[tokio::test]
async fn a_call_is_carried_out_as_a_task() {
    let test_app = TestApp::new().await;
    let host =
        test_app.app.db.read(|view| view.all(&host::CLASS).next().unwrap().reference().clone());
    test_app.hands.set(100);
    let it = test_app.made("Async.host.disable", [host.value()]).await;
    assert_eq!(ended(&test_app, &it).await, Status::Success);
    for (name, expected) in [
        (task::Field::name_label, Value::text("Async.host.disable")),
        (task::Field::result, Value::text("")),
        (task::Field::progress, Value::Float(1.0)),
        (task::Field::allowed_operations, Value::Set(Vec::new())),
        (task::Field::finished, Value::Date(xenapi::Date(100))),
        (task::Field::resident_on, host.value()),
    ] {
        assert_eq!(field(&test_app, &it, name), expected, "{name:?}");
    }
    let enabled = test_app.call("host.get_enabled", [host.value()]).await;
    assert_eq!(enabled, Ok(Value::Bool(false)));
}

/// Clients parse the result as XML-RPC, whichever protocol they use.
#[tokio::test]
async fn a_result_is_the_text_of_a_value() {
    let test_app = TestApp::new().await;
    let (it, end) = begun(&test_app, "root").await;
    assert_eq!(status(&test_app, &it), Status::Pending);
    let cancellable = Value::Set(vec![Value::text("cancel")]);
    assert_eq!(field(&test_app, &it, task::Field::allowed_operations), cancellable);
    end.send(Ok(Value::text("OpaqueRef:1"))).unwrap();
    assert_eq!(ended(&test_app, &it).await, Status::Success);
    let result = field(&test_app, &it, task::Field::result);
    assert_eq!(result, Value::text("<value>OpaqueRef:1</value>"));
    assert_eq!(result_text(&Value::text("")), "");
}

#[tokio::test]
async fn a_failure_is_told_with_its_parameters() {
    let test_app = TestApp::new().await;
    let (it, end) = begun(&test_app, "root").await;
    end.send(Err(codes::vm_is_template("OpaqueRef:1"))).unwrap();
    assert_eq!(ended(&test_app, &it).await, Status::Failure);
    let why = ["VM_IS_TEMPLATE", "OpaqueRef:1"].map(Value::text).to_vec();
    assert_eq!(field(&test_app, &it, task::Field::error_info), Value::Set(why));
}

#[tokio::test]
async fn a_mistake_in_a_call_ends_its_task() {
    let test_app = TestApp::new().await;
    let ctx = root(&test_app);
    let it =
        begin(ctx, Cancellable::Taken, |_| Box::pin(async { panic!("in the middle of a test") }))
            .await
            .unwrap();
    let it = Ref::from(text(&it));
    assert_eq!(ended(&test_app, &it).await, Status::Failure);
    let Value::Set(why) = field(&test_app, &it, task::Field::error_info) else { panic!("no set") };
    assert_eq!(why.first(), Some(&Value::text("INTERNAL_ERROR")));
    assert_eq!(test_app.app.call_limiter.taken(), 0);
}

#[tokio::test]
async fn progress_goes_forward_in_steps() {
    let test_app = TestApp::new().await;
    let (handle, handle_rx) = oneshot::channel();
    let (end, ends) = oneshot::channel::<()>();
    let it = begin(root(&test_app), Cancellable::Taken, |ctx| {
        Box::pin(async move {
            handle.send(ctx.task.unwrap()).unwrap();
            ends.await.unwrap();
            Ok(Value::text(""))
        })
    });
    let it = Ref::from(text(&it.await.unwrap()));
    let handle = handle_rx.await.unwrap();
    assert_eq!(handle.reference(), &it);
    let progress = || field(&test_app, &it, task::Field::progress);
    for (part, shown) in [(0.5, 0.5), (0.505, 0.5), (0.25, 0.5), (7.0, 1.0)] {
        handle.progress(part);
        assert_eq!(progress(), Value::Float(shown));
    }
    handle.no_cancel();
    let refused = cancel(&root(&test_app), &it).unwrap_err();
    assert_eq!(refused.code, "OPERATION_NOT_ALLOWED");
    end.send(()).unwrap();
    assert_eq!(ended(&test_app, &it).await, Status::Success);
    handle.progress(0.1);
    assert_eq!(progress(), Value::Float(1.0));
}

/// Clients wait while a task is pending, which it is until it has ended.
#[tokio::test]
async fn a_cancel_is_a_wish() {
    let test_app = TestApp::new().await;
    let (end, ends) = oneshot::channel::<()>();
    let it = begin(root(&test_app), Cancellable::Taken, |ctx| {
        Box::pin(async move {
            ctx.task.unwrap().cancel().cancelled().await;
            ends.await.unwrap();
            Err(codes::task_cancelled(xenapi::NULL_REF))
        })
    });
    let it = Ref::from(text(&it.await.unwrap()));
    test_app.call("task.cancel", [it.value()]).await.unwrap();
    assert_eq!(status(&test_app, &it), Status::Pending);
    assert_eq!(field(&test_app, &it, task::Field::allowed_operations), Value::Set(Vec::new()));
    let current = Value::Map([(it.to_string(), Value::text("cancel"))].into());
    assert_eq!(field(&test_app, &it, task::Field::current_operations), current);
    assert_eq!(test_app.refused("task.cancel", [it.value()]).await[0], "OPERATION_NOT_ALLOWED");
    end.send(()).unwrap();
    assert_eq!(ended(&test_app, &it).await, Status::Cancelled);
    let why = ["TASK_CANCELLED", it.as_str()].map(Value::text).to_vec();
    assert_eq!(field(&test_app, &it, task::Field::error_info), Value::Set(why));
    test_app.call("task.cancel", [it.value()]).await.unwrap();
    assert_eq!(status(&test_app, &it), Status::Cancelled);
}

#[tokio::test]
async fn to_destroy_a_task_under_way_marks_it() {
    let test_app = TestApp::new().await;
    let (it, end) = begun(&test_app, "root").await;
    test_app.call("task.destroy", [it.value()]).await.unwrap();
    assert_eq!(status(&test_app, &it), Status::Pending);
    let mut changed = test_app.app.db.changed();
    end.send(Ok(Value::text(""))).unwrap();
    let there = |view: &crate::db::View<'_>| view.object(&task::CLASS, &it).is_ok();
    while test_app.app.db.read(there) {
        changed.changed().await.unwrap();
    }
    assert!(test_app.app.tasks.inner().owners.is_empty());
}

#[tokio::test]
async fn only_its_owner_and_operators_end_a_task() {
    let test_app = TestApp::new().await;
    let (it, end) = begun(&test_app, "one").await;
    let may = |user: &str, role| cancel(&test_app.ctx_of(user, role, "task.cancel"), &it);
    let refused = may("other", Role::VmPowerAdmin).unwrap_err();
    assert_eq!(refused.details()[..2], ["RBAC_PERMISSION_DENIED", "task.cancel/any"]);
    let other = test_app.ctx_of("other", Role::ReadOnly, "task.destroy");
    assert_eq!(destroy(&other, &it).unwrap_err().code, "RBAC_PERMISSION_DENIED");
    may("one", Role::ReadOnly).unwrap();
    end.send(Ok(Value::text(""))).unwrap();
    ended(&test_app, &it).await;
    may("other", Role::PoolOperator).unwrap();
}

/// A refused call leaves no task that a client would have to destroy.
#[tokio::test]
async fn what_is_refused_at_once_is_no_task() {
    let test_app = TestApp::new().await;
    let template =
        test_app.call("VM.get_by_name_label", [Value::text("Other install media")]).await;
    let Ok(Value::Set(template)) = template else { panic!("no template") };
    let start = [template[0].clone(), Value::Bool(false), Value::Bool(false)];
    let refused = test_app.refused("Async.VM.start", start).await;
    assert_eq!(refused, ["VM_IS_TEMPLATE", text(&template[0])]);
    assert_eq!(tasks(&test_app), 0);
    assert_eq!(test_app.app.call_limiter.taken(), 0);
}

/// The call may free space.
#[tokio::test]
async fn a_task_that_cannot_be_stored_is_carried_out() {
    let test_app = TestApp::new().await;
    test_app.store.set_room(Some(0));
    let (it, end) = begun(&test_app, "root").await;
    assert_eq!(status(&test_app, &it), Status::Pending);
    assert_eq!(
        test_app.app.tasks.inner().live.len(),
        1,
        "the one that was taken back is forgotten"
    );
    end.send(Ok(Value::text(""))).unwrap();
    assert_eq!(ended(&test_app, &it).await, Status::Success);
}

#[tokio::test]
async fn a_call_goes_on_when_its_caller_goes_away() {
    let test_app = TestApp::new().await;
    let (done_tx, done_rx) = oneshot::channel();
    let begun = begin(root(&test_app), Cancellable::Taken, |_| {
        Box::pin(async move {
            done_tx.send(()).unwrap();
            Ok(Value::text(""))
        })
    });
    // The future is polled once and dropped while its record is being stored.
    let _gone = tokio::time::timeout(std::time::Duration::ZERO, begun).await;
    done_rx.await.unwrap();
}

/// A cancel between the end of the call and its record does not change the result.
#[tokio::test]
async fn a_cancel_that_comes_too_late_changes_nothing() {
    let test_app = TestApp::new().await;
    let (it, end) = begun(&test_app, "root").await;
    let running_task = test_app.app.tasks.inner().live.remove(&it).unwrap();
    test_app.call("task.cancel", [it.value()]).await.unwrap();
    assert_eq!(status(&test_app, &it), Status::Pending);
    test_app.app.tasks.inner().live.insert(it.clone(), running_task);
    end.send(Ok(Value::text(""))).unwrap();
    assert_eq!(ended(&test_app, &it).await, Status::Success);
    let again = Err(codes::task_cancelled(it.as_str()));
    ends_as(&test_app.app, &it, &again).unwrap();
    assert_eq!(status(&test_app, &it), Status::Success);
    assert_eq!(test_app.app.tasks.inner().ended.len(), 1, "it ends once");
    test_app.call("task.cancel", [it.value()]).await.unwrap();
    let current = field(&test_app, &it, task::Field::current_operations);
    assert_eq!(current, Value::Map(Default::default()));
}

#[tokio::test]
async fn a_result_or_an_error_that_is_too_long_ends_its_task_all_the_same() {
    let test_app = TestApp::new().await;
    let (it, end) = begun(&test_app, "root").await;
    end.send(Ok(Value::text("x".repeat(1 << 20)))).unwrap();
    assert_eq!(ended(&test_app, &it).await, Status::Failure);
    let Value::Set(why) = field(&test_app, &it, task::Field::error_info) else { panic!("no set") };
    assert!(text(&why[1]).contains("call it without"), "{why:?}");
    let (it, end) = begun(&test_app, "root").await;
    end.send(Err(codes::internal("\u{fc}".repeat(1 << 20)))).unwrap();
    assert_eq!(ended(&test_app, &it).await, Status::Failure);
    let Value::Set(why) = field(&test_app, &it, task::Field::error_info) else { panic!("no set") };
    assert_eq!(text(&why[1]).len(), 4 << 10);
}
