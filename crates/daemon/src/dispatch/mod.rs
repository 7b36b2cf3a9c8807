//! From a call to its answer.
//!
//! # Order
//! Session, method, count of parameters, their types, role, references: the first that is wrong is
//! the answer. Then the handler decides, and only when it has begun there is a task. So a call that
//! is refused at once is refused in its `Async` form as well.
//!
//! # Bounds
//! Reads run on the spot and wait for nobody. A write waits until it is stored, at most
//! [`MAX_WRITES`](limits::MAX_WRITES) at a time; those behind them wait their turn. Calls that take a while hold a
//! [`Place`](limits::Place) until their end, and are refused when there is none. Who waits for
//! events holds nothing, nor who waits until a change is in force, which is 30 s at most. Nothing looks at the host's
//! load.
//!
//! # Invariants
//! What was begun goes on when its caller goes away. An answer that tells of a change goes out
//! after the change is stored.

mod args;
mod context;
pub mod generic;
pub mod limits;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
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
use crate::sessions::{ConnectionSession, Session};
use crate::tasks::{self, Cancellable};

/// Where a call comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The Unix socket: root of this host.
    Unix,
    /// The network.
    Tcp(SocketAddr),
}

/// Who calls.
#[derive(Clone, Debug)]
pub struct Peer {
    /// From where.
    pub from: Origin,
    /// The program, as it names itself in HTTP.
    pub user_agent: Option<String>,
    /// The session of the connection, if it comes through the Unix socket.
    pub connection_session: Option<Arc<ConnectionSession>>,
}

/// What a call answers.
pub type CallResult = Result<Value, ApiError>;

/// Carries out a message.
#[derive(Clone, Copy, Debug)]
pub enum Handler {
    /// Answers on the spot.
    Short(fn(&Ctx, &Args) -> CallResult),
    /// Takes a while; in its `Async` form as a task.
    Long(fn(Ctx, Args) -> BoxFuture<'static, CallResult>),
    /// As `Long`. The first function says whether it may begin, before there is a task.
    Gated(fn(&Ctx, &Args) -> Result<(), ApiError>, fn(Ctx, Args) -> BoxFuture<'static, CallResult>),
    /// As `Gated`, and its client may cancel it: it looks at its task's
    /// [`Cancel`](crate::tasks::TaskHandle::cancel), and says from when on that changes nothing.
    Cancellable(
        fn(&Ctx, &Args) -> Result<(), ApiError>,
        fn(Ctx, Args) -> BoxFuture<'static, CallResult>,
    ),
}

/// What belongs to writing a field, beside writing it.
#[derive(Clone, Copy, Debug)]
pub struct Hook {
    /// Class and field, as `VBD.mode`.
    pub field: &'static str,
    /// Whether it may be so: sees the record as it is written, within the change, which it undoes
    /// by failing.
    pub check: fn(&Ctx, &mut Tx<'_>, &Ref) -> Result<(), ApiError>,
    /// What is done after the change, for example to a machine that runs. It must not wait: what
    /// takes a while is done after the change (`Ctx::after_commit`).
    pub follow: Option<fn(&Ctx, &Ref)>,
}

/// Carries out a call.
///
/// # Errors
/// What the API answers instead of a result.
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

/// Names of all calls.
pub(crate) fn list_methods() -> Value {
    Value::Set(methods().into_iter().map(Value::Str).collect())
}

/// Takes the session off the parameters. One that is not there, or no text, is none.
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
    let why = format!("{} may not do this; it takes {least}", session.role);
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
        // Ends with its caller: it has begun nothing.
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
    // Others write meanwhile.
    ctx.wait_after_commit().await.and(answer)
}

/// A task of the runtime carries it out, so that it goes on when its caller goes away.
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
    codes::internal("a call broke off; the log says where")
}

/// It only looks.
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
        | Method::RemoveFrom(..)
        | Method::Add(..)
        | Method::Remove(..) => false,
    }
}
