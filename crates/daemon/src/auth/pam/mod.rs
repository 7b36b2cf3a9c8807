//! The host's own users, by PAM.
//!
//! # Model
//! A module of PAM may hang, leak or crash: so each question is put to a process of its own, which is
//! this program in [another mode](helper), one line in and one line out. It ends with its answer, or
//! is killed with whatever it has started.
//!
//! Root, and whoever is in the group [`ADMINS`], is pool-admin; the group [`READERS`] is read-only.
//! Nobody else has anything to do here.
//!
//! # Bounds
//! [`HELPERS_MAX`] at once, [`ANSWER_DEADLINE`] each. One that cannot be killed keeps its place.

pub mod helper;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use toolstack::helper_command::HelperCommand;

use super::AuthOutcome;
use helper::{Answer, LINE_BYTES_MAX, Question};

/// Whoever is in this group is pool-admin.
pub const ADMINS: &str = "ringway-admin";
/// Whoever is in this one is read-only.
pub const READERS: &str = "ringway-ro";
/// The service that is asked: `/etc/pam.d/ringway`.
pub const SERVICE: &str = "ringway";
/// Where services are.
const DIRECTORIES: [&str; 2] = ["/etc/pam.d", "/usr/lib/pam.d"];

/// Most questions at once.
pub const HELPERS_MAX: usize = 8;
/// How long an answer may take, and how long a question waits for its turn.
pub const ANSWER_DEADLINE: Duration = Duration::from_secs(10);
/// Longest name or password that is asked for, in bytes.
const WORD_BYTES_MAX: usize = 1024;
/// What the process finds programs by.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// Why PAM says nothing.
#[derive(Debug, thiserror::Error)]
pub enum PamError {
    /// The process could not be started or spoken to.
    #[error("PAM cannot be asked: the process that asks it failed")]
    Os(#[source] std::io::Error),
    /// No answer in time.
    #[error("PAM does not answer within {} s: see what /etc/pam.d/{SERVICE} waits for", .0.as_secs())]
    Late(Duration),
    /// All processes are taken.
    #[error("PAM is asked {HELPERS_MAX} times already, and none has answered within {} s",
            .0.as_secs())]
    Busy(Duration),
    /// What came is no answer.
    #[error(
        "the process that asks PAM ended without an answer: see to the service \
             /etc/pam.d/{SERVICE} and its modules"
    )]
    Silent,
    /// PAM itself failed.
    #[error("PAM failed: {0}: see to the service /etc/pam.d/{SERVICE} and its modules")]
    Failed(String),
}

/// Who asks PAM.
#[derive(Clone, Debug)]
pub struct Pam {
    helper: HelperCommand,
    places: Arc<Semaphore>,
    deadline: Duration,
}

impl Pam {
    /// By the service of this program, if the host has it.
    pub fn of_host() -> Option<Self> {
        let there = |directory: &str| Path::new(directory).join(SERVICE).exists();
        let helper = HelperCommand::ourselves(helper::MODE);
        DIRECTORIES.into_iter().any(there).then(|| Self::by(helper, ANSWER_DEADLINE))
    }

    fn by(helper: HelperCommand, deadline: Duration) -> Self {
        Self { helper, places: Arc::new(Semaphore::new(HELPERS_MAX)), deadline }
    }

    /// What is said of this name and this password, which came from there.
    ///
    /// # Errors
    /// [`PamError`].
    pub async fn check(
        &self,
        name: &str,
        password: &str,
        from: Option<IpAddr>,
    ) -> Result<AuthOutcome, PamError> {
        // An empty password is one that some hosts let in at their own screens.
        if name.is_empty() || password.is_empty() || !can_be_asked(name) || !can_be_asked(password)
        {
            return Ok(AuthOutcome::Wrong);
        }
        let question = Question::Login {
            name: name.to_owned(),
            password: password.to_owned(),
            from: from.map(|from| from.to_string()),
        };
        match self.ask(question).await? {
            Answer::Admitted(identity) => {
                Ok(AuthOutcome::Admitted(identity.into_identity()?, None))
            }
            Answer::Stranger => Ok(AuthOutcome::Stranger),
            Answer::Wrong => Ok(AuthOutcome::Wrong),
            Answer::Failed(why) => Err(PamError::Failed(why)),
            Answer::Changed | Answer::Rejected(_) => Err(PamError::Silent),
        }
    }

    /// Gives this user another password; why not, if it is not taken.
    ///
    /// # Errors
    /// [`PamError`].
    pub async fn change(&self, name: &str, new: &str) -> Result<Option<String>, PamError> {
        let question = Question::Change { name: name.to_owned(), new: new.to_owned() };
        match self.ask(question).await? {
            Answer::Changed => Ok(None),
            Answer::Rejected(why) => Ok(Some(why)),
            Answer::Failed(why) => Err(PamError::Failed(why)),
            Answer::Admitted(_) | Answer::Stranger | Answer::Wrong => Err(PamError::Silent),
        }
    }

    async fn ask(&self, question: Question) -> Result<Answer, PamError> {
        let place = timeout(self.deadline, Arc::clone(&self.places).acquire_owned()).await;
        // The places are never closed.
        let place = place.ok().and_then(Result::ok).ok_or(PamError::Busy(self.deadline))?;
        let mut line = serde_json::to_vec(&question).map_err(|error| PamError::Os(error.into()))?;
        line.push(b'\n');
        let mut child = self.command().spawn().map_err(PamError::Os)?;
        let asked = timeout(self.deadline, talk(&mut child, &line)).await;
        end(child, place);
        let answer = asked.map_err(|_late| PamError::Late(self.deadline))?.map_err(PamError::Os)?;
        serde_json::from_slice(&answer).map_err(|_| PamError::Silent)
    }

    fn command(&self) -> Command {
        let mut command = self.helper.command();
        command
            .arg(SERVICE)
            .env_clear()
            .env("PATH", PATH)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0);
        command
    }
}

/// PAM takes texts that end with a zero, and writes names into logs.
fn can_be_asked(word: &str) -> bool {
    word.len() <= WORD_BYTES_MAX && !word.contains(char::is_control)
}

/// The question in, the answer out.
async fn talk(child: &mut Child, line: &[u8]) -> std::io::Result<Vec<u8>> {
    if let Some(mut stdin) = child.stdin.take() {
        // Whoever has ended before is known by the answer that does not come.
        let _gone = stdin.write_all(line).await;
    }
    let mut answer = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        // What a module has started may hold it open.
        BufReader::new(stdout.take(LINE_BYTES_MAX)).read_until(b'\n', &mut answer).await?;
    }
    Ok(answer)
}

/// Ends the process and all that it has started. Its place is free when it is gone.
fn end(mut child: Child, place: OwnedSemaphorePermit) {
    let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    if let Some(group) = group {
        // It leads a group of its own, which may have ended.
        let _gone = kill_process_group(group, Signal::KILL);
    }
    tokio::spawn(async move {
        if let Err(error) = child.wait().await {
            tracing::warn!("a process that asked PAM was lost: {error}");
        }
        drop(place);
    });
}
