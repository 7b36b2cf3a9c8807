//! Tasks in a house of their own.

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
use crate::trial::TestApp;

fn field(trial: &TestApp, it: &Ref, field: task::Field) -> Value {
    trial.house.db.read(|view| view.get(it, field).unwrap().clone())
}

fn status(trial: &TestApp, it: &Ref) -> Status {
    Status::parse(text(&field(trial, it, task::Field::status))).unwrap()
}

/// Waits until a task has ended.
async fn ended(trial: &TestApp, it: &Ref) -> Status {
    let mut changed = trial.house.db.changed();
    while !status(trial, it).ended() {
        changed.changed().await.unwrap();
    }
    status(trial, it)
}

fn root(trial: &TestApp) -> Ctx {
    trial.ctx_of("root", Role::PoolAdmin, "VM.start")
}

/// A task of this user that ends as it is told.
async fn begun(trial: &TestApp, user: &str) -> (Ref, oneshot::Sender<CallResult>) {
    let (end, ends) = oneshot::channel();
    let ctx = trial.ctx_of(user, Role::ReadOnly, "VM.start");
    let it = begin(ctx, Cancellable::Taken, |_| Box::pin(async move { ends.await.unwrap() }))
        .await
        .unwrap();
    (Ref::from(text(&it)), end)
}

fn tasks(trial: &TestApp) -> usize {
    trial.house.db.read(|view| view.count(&task::CLASS))
}
