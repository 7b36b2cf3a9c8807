//! Sources of users and passwords.

use std::collections::BTreeSet;
use std::hash::RandomState;
use std::net::IpAddr;
use std::path::PathBuf;

use tokio::task::spawn_blocking;

use super::pam::{Pam, PamError};
use super::passwords::{self, CredentialStamp, PasswordsError};
use super::{Identity, ROOT};

/// Source of users and passwords.
#[derive(Clone, Debug)]
pub enum Users {
    /// Password file at this path.
    File(PathBuf),
    /// Users of the host, checked by PAM.
    Pam(Pam),
}

/// Result of an authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthOutcome {
    /// Name and password are right. The stamp identifies these credentials later; PAM has none.
    Admitted(Identity, Option<CredentialStamp>),
    /// Name or password is wrong.
    Wrong,
    /// Name and password are right, but the user has no role here.
    NoRole,
}

/// Reason why no login is possible now.
#[derive(Debug, thiserror::Error)]
pub enum UsersError {
    /// The password file cannot be used.
    #[error(transparent)]
    Passwords(#[from] PasswordsError),
    /// PAM cannot be used.
    #[error(transparent)]
    Pam(#[from] PamError),
    /// A blocking task failed, which is a bug.
    #[error("password lookup task failed")]
    Broken,
}

/// Reason why a password was not changed.
#[derive(Debug, thiserror::Error)]
pub enum PasswordRejected {
    /// The new password was rejected, for this reason.
    #[error("{0}")]
    Rejected(String),
    /// The change could not be attempted.
    #[error(transparent)]
    Failed(#[from] UsersError),
}

impl Users {
    /// Checks a name and password. `from` is the client's address.
    ///
    /// # Errors
    /// [`UsersError`] if no login is possible now.
    pub async fn check(
        &self,
        name: &str,
        password: &str,
        from: Option<IpAddr>,
        keys: &RandomState,
    ) -> Result<AuthOutcome, UsersError> {
        match self {
            Self::Pam(pam) => Ok(pam.check(name, password, from).await?),
            Self::File(path) => {
                let (path, keys) = (path.clone(), keys.clone());
                let (name, password) = (name.to_owned(), password.to_owned());
                beside(move || {
                    let found = passwords::check(&path, &name, &password)?;
                    Ok(found.map_or(AuthOutcome::Wrong, |identity| {
                        let stamp = CredentialStamp::of(&keys, &identity, &password);
                        AuthOutcome::Admitted(identity, Some(stamp))
                    }))
                })
                .await
            }
        }
    }

    /// Changes the password of root.
    ///
    /// # Errors
    /// [`PasswordRejected`] if the password was not changed.
    pub async fn change_root(&self, password: &str) -> Result<(), PasswordRejected> {
        passwords::fits(password).map_err(|why| PasswordRejected::Rejected(why.to_owned()))?;
        match self {
            Self::Pam(pam) => {
                let rejected = pam.change(ROOT, password).await.map_err(UsersError::from)?;
                rejected.map_or(Ok(()), |why| Err(PasswordRejected::Rejected(why)))
            }
            Self::File(path) => {
                let (path, password) = (path.clone(), password.to_owned());
                match beside(move || passwords::change(&path, ROOT, &password)).await? {
                    true => Ok(()),
                    false => {
                        Err(PasswordRejected::Rejected("the password file has no user root".into()))
                    }
                }
            }
        }
    }

    /// Returns the stamps of all valid credentials. `None` if the source cannot list them (PAM).
    ///
    /// # Errors
    /// [`UsersError`] if the password file cannot be used.
    pub async fn stamps(
        &self,
        keys: &RandomState,
    ) -> Result<Option<BTreeSet<CredentialStamp>>, UsersError> {
        match self {
            Self::Pam(_) => Ok(None),
            Self::File(path) => {
                let (path, keys) = (path.clone(), keys.clone());
                beside(move || passwords::stamps(&path, &keys)).await.map(Some)
            }
        }
    }
}

/// Runs file access on a thread outside the async runtime.
async fn beside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PasswordsError> + Send + 'static,
) -> Result<T, UsersError> {
    Ok(spawn_blocking(work).await.map_err(|_| UsersError::Broken)??)
}
