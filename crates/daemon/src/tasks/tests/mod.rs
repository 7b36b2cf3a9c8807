//! Tests of tasks.

mod bounds;
mod carried;
mod kept;
mod theirs;

use tokio::sync::oneshot;
use xenapi::Value;
use xenapi::table::{Role, task};

use super::{Cancellable, Status, begin};
use crate::db::Ref;
use crate::dispatch::{CallResult, Ctx, text};
use crate::tests::app::TestApp;

fn field(test_app: &TestApp, it: &Ref, field: task::Field) -> Value {
    test_app.app.db.read(|view| view.get(it, field).unwrap().clone())
}

fn status(test_app: &TestApp, it: &Ref) -> Status {
    Status::parse(text(&field(test_app, it, task::Field::status))).unwrap()
}

/// Waits until a task has ended.
async fn ended(test_app: &TestApp, it: &Ref) -> Status {
    let mut changed = test_app.app.db.changed();
    while !status(test_app, it).ended() {
        changed.changed().await.unwrap();
    }
    status(test_app, it)
}

fn root(test_app: &TestApp) -> Ctx {
    test_app.ctx_of("root", Role::PoolAdmin, "VM.start")
}

/// Starts a task of this user that ends with the result sent to it.
async fn begun(test_app: &TestApp, user: &str) -> (Ref, oneshot::Sender<CallResult>) {
    let (end, ends) = oneshot::channel();
    let ctx = test_app.ctx_of(user, Role::ReadOnly, "VM.start");
    let it = begin(ctx, Cancellable::Taken, |_| Box::pin(async move { ends.await.unwrap() }))
        .await
        .unwrap();
    (Ref::from(text(&it)), end)
}

fn tasks(test_app: &TestApp) -> usize {
    test_app.app.db.read(|view| view.count(&task::CLASS))
}
