//! Messages of class `session`.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use toolstack::boxed_future::BoxFuture;
use xenapi::table::{Role, session};
use xenapi::{Value, codes};

use crate::app::AppState;
use crate::auth::ROOT;
use crate::db::Ref;
use crate::dispatch::generic::nothing;
use crate::dispatch::{Args, CallResult, Ctx, Handler, text};
use crate::peer::Peer;
use crate::tasks;

pub(super) const CALLS: super::Calls = &[
    ("session.change_password", Handler::Long(change_password)),
    ("session.logout", Handler::Short(logout)),
    ("session.local_logout", Handler::Short(logout)),
    ("session.get_all_subject_identifiers", Handler::Short(subject_identifiers)),
    ("session.logout_subject_identifier", Handler::Short(logout_subject)),
];

/// Handles a login. It is the only call without a session.
pub(crate) async fn login(app: &Arc<AppState>, args: &Args, peer: &Peer) -> CallResult {
    let (user, password) = (args.text("uname"), args.text("pwd"));
    let made = app.sessions.login(app, user, password, peer, args.text("originator")).await?;
    Ok(made.value())
}

fn logout(ctx: &Ctx, _: &Args) -> CallResult {
    end(ctx, &ctx.session.reference)
}

fn end(ctx: &Ctx, session: &Ref) -> CallResult {
    ctx.app.sessions.logout(&ctx.app, session)?;
    tasks::end_orphaned(&ctx.app);
    Ok(nothing())
}

fn change_password(ctx: Ctx, args: Args) -> BoxFuture<'static, CallResult> {
    Box::pin(async move {
        if !ctx.session.root {
            return Err(codes::not_local_superuser("this server stores only root's password"));
        }
        let (old, new) = (args.text("old_pwd"), args.text("new_pwd"));
        ctx.app.sessions.change_password(&ctx.app, &ctx.session, old, new).await?;
        tasks::end_orphaned(&ctx.app);
        Ok(nothing())
    })
}

/// Returns the subjects that have sessions, each once.
fn subject_identifiers(ctx: &Ctx, _: &Args) -> CallResult {
    let mut all: Vec<Value> = ctx.read(|view| {
        let sessions = view.all(&session::CLASS);
        let user = |session: &crate::db::Object| {
            session.get(session::Field::auth_user_sid.into()).cloned()
        };
        sessions.filter_map(user).filter(|user| !text(user).is_empty()).collect()
    });
    all.sort_by(|one, other| text(one).cmp(text(other)));
    all.dedup();
    Ok(Value::Set(all))
}

/// Ends all sessions of a subject except the caller's own. Root is not a subject and is named
/// instead.
fn logout_subject(ctx: &Ctx, args: &Args) -> CallResult {
    let user = args.text("subject_identifier");
    if user.is_empty() {
        return Err(codes::invalid_value("subject_identifier", ""));
    }
    if user == ROOT && ctx.session.role < Role::PoolAdmin {
        let why = format!("only {} ends sessions of {ROOT}", Role::PoolAdmin);
        return Err(codes::permission_denied("session.logout_subject_identifier/root", why));
    }
    let of_user =
        if user == ROOT { session::Field::auth_user_name } else { session::Field::auth_user_sid };
    let theirs: Vec<Ref> = ctx.read(|view| {
        let sessions = view.all(&session::CLASS).filter(|session| {
            session.get(of_user.into()).map(text) == Some(user)
                && *session.reference() != ctx.session.reference
        });
        sessions.map(|session| session.reference().clone()).collect()
    });
    for session in &theirs {
        // A session may have ended meanwhile; the others still must end.
        let _ = end(ctx, session);
    }
    Ok(nothing())
}
