//! Messages of class `event`.

use toolstack::boxed_future::BoxFuture;
use xenapi::codes;
use xenapi::table::Role;

use crate::dispatch::{Args, CallResult, Ctx, Handler, text};
use crate::events;

pub(super) const CALLS: super::Calls = &[
    ("event.from", Handler::Long(from)),
    ("event.inject", Handler::Short(inject)),
    ("event.get_current_id", Handler::Short(current_id)),
    ("event.register", Handler::Short(removed)),
    ("event.unregister", Handler::Short(removed)),
    ("event.next", Handler::Short(removed)),
];

fn from(ctx: Ctx, args: Args) -> BoxFuture<'static, CallResult> {
    Box::pin(async move {
        let classes: Vec<String> =
            args.set("classes").iter().map(|class| text(class).to_owned()).collect();
        // Operators wait without a bound of their own.
        let is_bounded = ctx.session.role < Role::PoolOperator;
        let key = ctx.session.limit_key();
        let _permit = is_bounded.then(|| ctx.app.wait_limiter.take(&key)).transpose()?;
        let (token, timeout_s) = (args.text("token"), args.float("timeout"));
        events::from(&ctx.app.db, &ctx.session.reference, &classes, token, timeout_s).await
    })
}

fn inject(ctx: &Ctx, args: &Args) -> CallResult {
    events::inject(&ctx.app.db, args.text("class"), &args.reference("ref"))
}

fn current_id(ctx: &Ctx, _: &Args) -> CallResult {
    Ok(events::current(&ctx.app.db))
}

/// Answers messages that `event.from` replaces.
fn removed(_: &Ctx, _: &Args) -> CallResult {
    Err(codes::message_removed())
}
