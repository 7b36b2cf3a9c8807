//! Sessions of users.
//!
//! # Model
//! A session is a reference that precedes the parameters of every call. Its holder acts as the
//! session's user. It is also a record that only administrators can read. A restart ends all
//! sessions. Calls over the Unix socket without a session use the [`ConnectionSession`].
//!
//! # Bounds
//! A session ends after [`IDLE_MAX`] without use. A user has at most [`OF_USER_MAX`]; a further one
//! ends the least recently used. A session that began with credentials of the password file ends
//! when the file no longer contains them.
//!
//! # Errors
//! `SESSION_INVALID`, `SESSION_AUTHENTICATION_FAILED`, `SESSION_AUTHORIZATION_FAILED`,
//! `CHANGE_PASSWORD_REJECTED`.

mod connection;
mod passwords;
mod table;
#[cfg(test)]
mod tests;

use std::hash::RandomState;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use error_causes::error_chain;
use xenapi::table::{Role, host, session};
use xenapi::{ApiError, Value, codes};

use crate::app::AppState;
use crate::auth::passwords::CredentialStamp;
use crate::auth::throttle::LoginThrottle;
use crate::auth::{AuthOutcome, Identity, ROOT, Users};
use crate::clock::Clock;
use crate::db::{Db, Ref};
use crate::peer::{Origin, Peer};

pub use connection::ConnectionSession;
pub(crate) use passwords::watch;
use table::SessionTable;

/// Time without use after which a session ends.
pub const IDLE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Most sessions of one user.
pub const OF_USER_MAX: usize = 500;
/// Shortest interval between updates of a record's last use, because each update is a change.
const RECORD_INTERVAL: Duration = Duration::from_secs(60);
/// Longest program name that is stored, in characters.
const ORIGINATOR_CHARS_MAX: usize = 128;

/// Session of a logged-in user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Reference of the session.
    pub reference: Ref,
    /// Name of the user.
    pub user: String,
    /// Role of the user.
    pub role: Role,
    /// True if the user is root of this host.
    pub root: bool,
    /// Origin of the login.
    pub from: Origin,
}

impl Session {
    /// Returns the key under which permits are counted. A user below pool-operator has one for all
    /// sessions, because any number of sessions would be a way around a limit.
    pub fn limit_key(&self) -> Ref {
        match self.role >= Role::PoolOperator {
            true => self.reference.clone(),
            false => Ref::from(self.user.as_str()),
        }
    }
}

/// User who may begin a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthenticatedUser {
    /// Identity of the user.
    pub identity: Identity,
    /// Origin of the login.
    pub from: Origin,
    /// Stamp of the credentials, if they come from a password file.
    pub stamp: Option<CredentialStamp>,
}

impl AuthenticatedUser {
    /// Returns root, for a client of the Unix socket.
    fn of_socket() -> Self {
        let identity = Identity { name: ROOT.to_owned(), role: Role::PoolAdmin };
        Self { identity, from: Origin::Unix, stamp: None }
    }
}

/// All sessions.
#[derive(Debug)]
pub struct Sessions {
    clock: Clock,
    users: Arc<Users>,
    /// Keys of the credential stamps.
    keys: RandomState,
    /// Number of password changes so far.
    changes: AtomicU64,
    /// Lock for password changes and for checks of changed passwords.
    changing: tokio::sync::Mutex<()>,
    throttle: LoginThrottle,
    session_table: Mutex<SessionTable>,
}

impl Sessions {
    /// Creates an empty set of sessions.
    pub fn new(clock: Clock, users: Users) -> Self {
        Self {
            clock,
            users: Arc::new(users),
            keys: RandomState::new(),
            changes: AtomicU64::new(0),
            changing: Default::default(),
            throttle: LoginThrottle::default(),
            session_table: Mutex::default(),
        }
    }

    /// Returns a session and records its use.
    ///
    /// # Errors
    /// `SESSION_INVALID` if the session does not exist or was unused for too long.
    pub fn find(&self, db: &Db, reference: &str) -> Result<Session, ApiError> {
        let now = self.clock.now();
        self.end_idle(db);
        let used = self.live().used(reference, now, RECORD_INTERVAL);
        let (session, record_due) = used.ok_or_else(|| codes::session_invalid(reference))?;
        if record_due {
            let date = Value::Date(self.clock.date());
            // The record is missing if the session has just ended.
            let _ended =
                db.change(|tx| tx.set(&session.reference, session::Field::last_active, date));
        }
        Ok(session)
    }

    /// Logs a user in. On the Unix socket, root or an empty name needs no password.
    ///
    /// # Errors
    /// `SESSION_AUTHENTICATION_FAILED` after a delay, or `SESSION_AUTHORIZATION_FAILED` if the user
    /// has no role.
    pub async fn login(
        &self,
        app: &AppState,
        user: &str,
        password: &str,
        peer: &Peer,
        originator: &str,
    ) -> Result<Ref, ApiError> {
        let seen = self.changes.load(Ordering::SeqCst);
        let authenticated_user = self.admitted(user, password, peer.from).await?;
        let originator = match originator {
            "" => peer.user_agent.as_deref().unwrap_or_default(),
            given => given,
        };
        let begun = self.begin(&app.db, authenticated_user, originator)?;
        if self.changes.load(Ordering::SeqCst) != seen {
            // A concurrent password change has not checked this session.
            self.end_unstamped(&app.db).await;
        }
        Ok(begun)
    }

    /// Authenticates a user.
    ///
    /// # Errors
    /// Those of [`Sessions::login`].
    pub async fn admitted(
        &self,
        user: &str,
        password: &str,
        from: Origin,
    ) -> Result<AuthenticatedUser, ApiError> {
        if from == Origin::Unix && (user.is_empty() || user == ROOT) {
            return Ok(AuthenticatedUser::of_socket());
        }
        let Some(attempt) = self.throttle.begin(from) else {
            let why = "too many logins from this address are under way";
            return Err(codes::authentication_failed(user, why));
        };
        let (clock, users, keys) = (self.clock.clone(), self.users.clone(), self.keys.clone());
        let (name, password) = (user.to_owned(), password.to_owned());
        // The task keeps its throttle slot for the whole delay even if the client disconnects.
        let checked = tokio::spawn(async move {
            let address = match from {
                Origin::Tcp(address) => Some(address.ip().to_canonical()),
                Origin::Unix => None,
            };
            let turn = attempt.wait_allowed().await;
            let verdict = users.check(&name, &password, address, &keys).await;
            drop(turn);
            let refused = match verdict {
                Ok(AuthOutcome::Admitted(identity, stamp)) => {
                    attempt.succeeded();
                    return Ok(AuthenticatedUser { identity, from, stamp });
                }
                Ok(AuthOutcome::Wrong) => {
                    tracing::info!("a login from {from:?} was refused");
                    codes::authentication_failed(name, "name or password is wrong")
                }
                Ok(AuthOutcome::NoRole) => {
                    tracing::info!("a login from {from:?} was refused: the user has no role");
                    codes::authorization_failed(name, "the user has no role here, or has expired")
                }
                Err(error) => {
                    tracing::error!("logins fail: {}", error_chain(&error));
                    let why = "passwords cannot be read: the server's log says why";
                    codes::authentication_failed(name, why)
                }
            };
            tokio::time::sleep(attempt.failed(clock.now())).await;
            Err(refused)
        });
        let broken = |_| Err(codes::internal("the login panicked; see the server log"));
        checked.await.unwrap_or_else(broken)
    }

    /// Begins a session of an authenticated user.
    ///
    /// # Errors
    /// Those of the database.
    pub fn begin(
        &self,
        db: &Db,
        who: AuthenticatedUser,
        originator: &str,
    ) -> Result<Ref, ApiError> {
        self.end_idle(db);
        let AuthenticatedUser { identity, from, stamp } = who;
        let root = identity.name == ROOT;
        let date = Value::Date(self.clock.date());
        let originator: String = originator.chars().take(ORIGINATOR_CHARS_MAX).collect();
        let reference = db.change(|tx| {
            use session::Field;
            let host = tx.view().all(&host::CLASS).next().map(|host| host.reference().value());
            let mut fields = vec![
                (Field::last_active.into(), date.clone()),
                (Field::validation_time.into(), date),
                (Field::is_local_superuser.into(), Value::Bool(root)),
                (Field::auth_user_name.into(), Value::text(identity.name.as_str())),
                (Field::auth_user_sid.into(), Value::text(if root { "" } else { &identity.name })),
                (Field::originator.into(), Value::text(originator)),
            ];
            fields.extend(host.map(|host| (Field::this_host.into(), host)));
            tx.create(&session::CLASS, fields)
        })?;
        let (user, role) = (identity.name, identity.role);
        let session = Session { reference: reference.clone(), user, role, root, from };
        let surplus = self.live().add(session, stamp, self.clock.now(), OF_USER_MAX);
        forget(db, surplus);
        Ok(reference)
    }

    /// Ends a session.
    ///
    /// # Errors
    /// `SESSION_INVALID` if the session does not exist.
    pub fn logout(&self, app: &AppState, session: &Ref) -> Result<(), ApiError> {
        self.end(&app.db, session)
    }

    fn end(&self, db: &Db, session: &Ref) -> Result<(), ApiError> {
        let ended = self.live().remove(session);
        let ended = ended.ok_or_else(|| codes::session_invalid(session.as_str()))?;
        forget(db, [ended]);
        Ok(())
    }

    /// Returns the number of sessions.
    pub fn count(&self) -> usize {
        self.live().count()
    }

    fn end_idle(&self, db: &Db) {
        let ended = self.live().remove_idle(self.clock.now(), IDLE_MAX);
        forget(db, ended);
    }

    fn live(&self) -> MutexGuard<'_, SessionTable> {
        self.session_table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Destroys the records of ended sessions.
fn forget(db: &Db, ended: impl IntoIterator<Item = Ref>) {
    let ended: Vec<Ref> = ended.into_iter().collect();
    if ended.is_empty() {
        return;
    }
    let forgotten =
        db.change(|tx| ended.iter().try_for_each(|one| tx.destroy(&session::CLASS, one)));
    if let Err(error) = forgotten {
        tracing::warn!("cannot remove the records of ended sessions: {error}");
    }
}
