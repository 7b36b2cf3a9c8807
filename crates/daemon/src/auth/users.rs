//! Where users and their passwords are.

use std::collections::BTreeSet;
use std::hash::RandomState;
use std::net::IpAddr;
use std::path::PathBuf;

use tokio::task::spawn_blocking;

use super::pam::{Pam, PamError};
use super::passwords::{self, CredentialStamp, PasswordsError};
use super::{Identity, ROOT};

/// Where users and their passwords are.
#[derive(Clone, Debug)]
pub enum Users {
    /// In a file.
    File(PathBuf),
    /// Those of the host.
    Pam(Pam),
}

/// What is said of a name and a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthOutcome {
    /// They are right; by what that can be told later on, if it can.
    Admitted(Identity, Option<CredentialStamp>),
    /// They are not.
    Wrong,
    /// They are, of somebody who has nothing to do here.
    Stranger,
}

/// Why nobody can log in now.
#[derive(Debug, thiserror::Error)]
pub enum UsersError {
    /// The file cannot be used.
    #[error(transparent)]
    Passwords(#[from] PasswordsError),
    /// PAM cannot be asked.
    #[error(transparent)]
    Pam(#[from] PamError),
    /// A mistake of ours.
    #[error("the look at the passwords broke off")]
    Broken,
}

/// Why a password stays as it was.
#[derive(Debug, thiserror::Error)]
pub enum PasswordRejected {
    /// It is not taken.
    #[error("{0}")]
    Rejected(String),
    /// It could not be tried.
    #[error(transparent)]
    Failed(#[from] UsersError),
}

impl Users {
    /// What is said of this name and this password, which came from there.
    ///
    /// # Errors
    /// [`UsersError`]: nobody can log in.
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

    /// Gives root another password.
    ///
    /// # Errors
    /// [`PasswordRejected`].
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
                        Err(PasswordRejected::Rejected("the file of passwords has no root".into()))
                    }
                }
            }
        }
    }

    /// Stamps of all who could log in; none where that cannot be told.
    ///
    /// # Errors
    /// [`UsersError`].
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

/// Does it beside the runtime: a file is read.
async fn beside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PasswordsError> + Send + 'static,
) -> Result<T, UsersError> {
    Ok(spawn_blocking(work).await.map_err(|_| UsersError::Broken)??)
}
