//! Dispatch of calls to handlers.
//!
//! # Order
//! Checks run in this order: session, method, number of parameters, their types, role, references.
//! The first failure is the answer. Then the handler's precheck runs. Only after it does a task
//! exist. So an `Async` call that is refused at once fails like its synchronous form.
//!
//! # Bounds
//! Reads run immediately and wait for nothing. A write waits until it is persisted. At most
//! [`MAX_WRITES`](limits::MAX_WRITES) writes wait at a time; further writes queue. Long calls hold
//! a [`CallPermit`](limits::CallPermit) until they end, and fail if none is free. Event waits hold
//! no permit. Neither do calls that wait until their change is in force, at most 30 s. These limits
//! do not depend on the host's load.
//!
//! # Invariants
//! An operation that has begun continues after its client disconnects. Each answer is sent after
//! the changes that it reports are persisted.

mod args;
mod context;
pub mod generic;
pub mod limits;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use toolstack::boxed_future::BoxFuture;
use xenapi::envelope::Call;
use xenapi::table::MessageKind;
use xenapi::table::resolve::{Method, methods, resolve};
use xenapi::{ApiError, Value, codes};

pub use args::Args;
pub(crate) use args::text;
pub use context::Ctx;

use crate::app::AppState;
use crate::calls;
use crate::db::{Ref, Tx};
use crate::peer::Peer;
use crate::sessions::Session;
use crate::tasks::{self, Cancellable};

/// Result of a call.
pub type CallResult = Result<Value, ApiError>;

/// Function that carries out a message.
#[derive(Clone, Copy, Debug)]
pub enum Handler {
    /// Answers immediately.
    Short(fn(&Ctx, &Args) -> CallResult),
    /// Takes a while. Its `Async` form runs as a task.
    Long(fn(Ctx, Args) -> BoxFuture<'static, CallResult>),
    /// Like `Long`. The first function is a precheck that runs before a task exists.
    Gated(fn(&Ctx, &Args) -> Result<(), ApiError>, fn(Ctx, Args) -> BoxFuture<'static, CallResult>),
    /// Like `Gated`, and the client may cancel its task. The handler checks its task's
    /// [`Cancel`](crate::tasks::TaskHandle::cancel) and reports when it is too late to cancel.
    Cancellable(
        fn(&Ctx, &Args) -> Result<(), ApiError>,
        fn(Ctx, Args) -> BoxFuture<'static, CallResult>,
    ),
}

/// Check and follow-up of writes to a field.
#[derive(Clone, Copy, Debug)]
pub struct Hook {
    /// Class and field, such as `VBD.mode`.
    pub field: &'static str,
    /// Checks the written record within the change. An error undoes the change.
    pub check: fn(&Ctx, &mut Tx<'_>, &Ref) -> Result<(), ApiError>,
    /// Runs after the change, for example to apply it to a running VM. It must not block; slow work
    /// belongs in `Ctx::after_commit`.
    pub follow: Option<fn(&Ctx, &Ref)>,
}

/// Carries out a call.
///
/// # Errors
/// The API error to answer with.
pub async fn dispatch(app: &Arc<AppState>, call: Call, peer: &Peer) -> CallResult {
    let Call { method: name, mut params, .. } = call;
    let resolved = resolve(&name);
    if let Some((method, _)) = resolved
        && !method.needs_session()
    {
        let args = Args::read(&method, &name, params)?;
        return match method {
            Method::ListMethods => Ok(list_methods()),
            _ => calls::session::login(app, &args, peer).await,
        };
    }
    let session = session(app, &mut params, peer)?;
    let Some((method, asynchronous)) = resolved else { return Err(codes::method_unknown(name)) };
    let args = Args::read(&method, &name, params)?;
    permitted(&session, &method)?;
    app.db.read(|view| args.check(view))?;
    let ctx = Ctx::new(app, session, method);
    match calls::find(&ctx.name()) {
        Some(handler) => run_handler(ctx, args, handler, asynchronous).await,
        None => run_handler(ctx, args, Handler::Short(generic::answer), asynchronous).await,
    }
}

/// Returns the names of all calls.
pub(crate) fn list_methods() -> Value {
    Value::Set(methods().into_iter().map(Value::Str).collect())
}

/// Removes the session from the parameters and checks it. A missing or non-text session is invalid.
fn session(app: &AppState, params: &mut Vec<Value>, peer: &Peer) -> Result<Session, ApiError> {
    match (!params.is_empty()).then(|| params.remove(0)) {
        Some(Value::Str(named)) => app.sessions.named(&app.db, &named, peer),
        _ => app.sessions.find(&app.db, ""),
    }
}

fn permitted(session: &Session, method: &Method) -> Result<(), ApiError> {
    let least = method.least();
    if session.role >= least {
        return Ok(());
    }
    let why = format!("role {} may not do this; it needs role {least}", session.role);
    Err(codes::permission_denied(method.name().to_ascii_lowercase(), why))
}

async fn run_handler(ctx: Ctx, args: Args, handler: Handler, asynchronous: bool) -> CallResult {
    if let Handler::Gated(gate, _) | Handler::Cancellable(gate, _) = handler {
        gate(&ctx, &args)?;
    }
    let (run, cancellable) = match handler {
        Handler::Short(run) if asynchronous => {
            let run = move |ctx: Ctx, args: Args| -> BoxFuture<'static, CallResult> {
                Box::pin(async move {
                    let answer = run(&ctx, &args)?;
                    ctx.wait_after_commit().await.map(|()| answer)
                })
            };
            return tasks::begin(ctx, Cancellable::Refused, move |ctx| run(ctx, args)).await;
        }
        Handler::Short(run) => return short(&ctx, &args, run).await,
        Handler::Long(run) | Handler::Gated(_, run) => (run, Cancellable::Refused),
        Handler::Cancellable(_, run) => (run, Cancellable::Taken),
    };
    match ctx.method.kind() {
        _ if asynchronous => tasks::begin(ctx, cancellable, move |ctx| run(ctx, args)).await,
        // The wait ends when its client disconnects, because it has begun no operation.
        MessageKind::Waits => run(ctx, args).await,
        _ => long(ctx, args, run).await,
    }
}

async fn short(ctx: &Ctx, args: &Args, run: fn(&Ctx, &Args) -> CallResult) -> CallResult {
    if reads(&ctx.method) {
        return run(ctx, args);
    }
    let turn = ctx.app.writes.turn().await;
    let answer = run(ctx, args);
    ctx.stored().await?;
    drop(turn);
    // The write permit is released before this wait, so other writes proceed.
    ctx.wait_after_commit().await.and(answer)
}

/// Runs the handler in a task of the runtime, so that it continues if the client disconnects.
async fn long(
    ctx: Ctx,
    args: Args,
    run: fn(Ctx, Args) -> BoxFuture<'static, CallResult>,
) -> CallResult {
    let call_permit = ctx.app.call_limiter.take(&ctx.session.reference)?;
    let carried = tokio::spawn(async move {
        let answer = run(ctx.clone(), args).await;
        let stored = ctx.stored().await;
        drop(call_permit);
        stored.and(answer)
    });
    carried.await.unwrap_or_else(|_| Err(broke_off()))
}

fn broke_off() -> ApiError {
    codes::internal("the call panicked; see the server log")
}

/// Returns whether the method only reads.
fn reads(method: &Method) -> bool {
    match method {
        Method::Explicit(_, message) => message.name.starts_with("get_"),
        Method::ListMethods
        | Method::GetAll(_)
        | Method::GetAllRecords(_)
        | Method::GetAllRecordsWhere(_)
        | Method::GetRecord(_)
        | Method::GetByUuid(_)
        | Method::GetByNameLabel(_)
        | Method::Get(..) => true,
        Method::Create(_)
        | Method::Destroy(_)
        | Method::Set(..)
        | Method::AddTo(..)
        | Method::SetIn(..)
        | Method::RemoveFrom(..)
        | Method::Add(..)
        | Method::Remove(..) => false,
    }
}
