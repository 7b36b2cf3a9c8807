//! Effect of password changes on sessions.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use error_causes::error_chain;
use xenapi::{ApiError, codes};

use super::{Session, Sessions, forget};
use crate::app::AppState;
use crate::auth::passwords::CredentialStamp;
use crate::auth::watch::FileWatch;
use crate::auth::{Identity, PasswordRejected, ROOT, Users};
use crate::db::Db;
use crate::peer::Origin;
use crate::tasks;

/// Watches the password file and ends sessions when it changes.
pub(crate) fn watch(app: &Arc<AppState>) {
    let Users::File(path) = &*app.sessions.users else { return };
    let watch = FileWatch::of(path);
    let app = Arc::clone(app);
    tokio::spawn(async move {
        let watching = async {
            let mut watch = watch?;
            loop {
                watch.changed().await?;
                app.sessions.changes.fetch_add(1, Ordering::SeqCst);
                if app.sessions.end_unstamped(&app.db).await {
                    tasks::end_orphaned(&app);
                }
            }
        };
        let ended: std::io::Result<()> = watching.await;
        if let Err(error) = ended {
            tracing::warn!("cannot watch the password file; changes end no sessions: {error}");
        }
    });
}

impl Sessions {
    /// Ends the sessions whose password or role is no longer in the file. Returns whether there
    /// were any. A file that cannot be read ends none, because it may be under repair.
    pub(super) async fn end_unstamped(&self, db: &Db) -> bool {
        let _one_at_a_time = self.changing.lock().await;
        match self.users.stamps(&self.keys).await {
            Ok(Some(stamps)) => {
                let gone = |_: &Session, stamp: Option<CredentialStamp>| {
                    stamp.is_some_and(|stamp| !stamps.contains(&stamp))
                };
                let ended = self.live().remove_where(gone);
                let any = !ended.is_empty();
                if any {
                    tracing::info!("{} sessions have ended: the passwords changed", ended.len());
                }
                forget(db, ended);
                any
            }
            Ok(None) => false,
            Err(error) => {
                tracing::error!("logins fail: {}", error_chain(&error));
                false
            }
        }
    }

    /// Changes the password of root and ends all other sessions of root. A client on the network
    /// must give the old password.
    ///
    /// # Errors
    /// `SESSION_AUTHENTICATION_FAILED` after a delay, or `CHANGE_PASSWORD_REJECTED`.
    pub async fn change_password(
        &self,
        app: &AppState,
        session: &Session,
        old: &str,
        new: &str,
    ) -> Result<(), ApiError> {
        if session.from != Origin::Unix {
            self.admitted(ROOT, old, session.from).await?;
        }
        let one_at_a_time = self.changing.lock().await;
        self.users.change_root(new).await.map_err(|password_rejected| match password_rejected {
            PasswordRejected::Rejected(why) => codes::change_password_rejected(why),
            PasswordRejected::Failed(error) => {
                tracing::error!("cannot change root's password: {}", error_chain(&error));
                codes::change_password_rejected("cannot write the file: see the server's log")
            }
        })?;
        let identity = Identity { name: ROOT.to_owned(), role: session.role };
        let stamp = CredentialStamp::of(&self.keys, &identity, new);
        self.live().restamp(&session.reference, stamp);
        let others = |other: &Session, _| other.root && other.reference != session.reference;
        let ended = self.live().remove_where(others);
        drop(one_at_a_time);
        tracing::info!("root's password changed; {} of root's sessions have ended", ended.len());
        forget(&app.db, ended);
        Ok(())
    }
}
