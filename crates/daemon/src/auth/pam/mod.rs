//! Checks the host's own users with PAM.
//!
//! # Model
//! A PAM module may hang, leak or crash. So each question goes to a process of its own, which is
//! this program in [helper mode](helper): one line in, one line out. The process ends after its
//! answer. After the deadline it is killed with all processes of its group.
//!
//! Root and members of the group [`ADMINS`] are pool-admin. Members of the group [`READERS`] are
//! read-only. Other users have no role.
//!
//! # Bounds
//! At most [`HELPERS_MAX`] helpers run at once. Each has [`ANSWER_DEADLINE`]. A helper that cannot
//! be killed keeps its permit.

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

/// Group whose members are pool-admin.
pub const ADMINS: &str = "ringway-admin";
/// Group whose members are read-only.
pub const READERS: &str = "ringway-ro";
/// PAM service, configured in `/etc/pam.d/ringway`.
pub const SERVICE: &str = "ringway";
/// Directories of PAM service files.
const DIRECTORIES: [&str; 2] = ["/etc/pam.d", "/usr/lib/pam.d"];

/// Most helper processes at once.
pub const HELPERS_MAX: usize = 8;
/// Time limit for an answer, and for the wait until a helper may start.
pub const ANSWER_DEADLINE: Duration = Duration::from_secs(10);
/// Longest name or password that is checked, in bytes. Longer ones count as wrong.
const WORD_BYTES_MAX: usize = 1024;
/// `PATH` of the helper process.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// Reason why PAM gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum PamError {
    /// The helper process could not be started, or its pipes failed.
    #[error("cannot ask PAM: its helper process failed")]
    Os(#[source] std::io::Error),
    /// No answer arrived in time.
    #[error("PAM does not answer within {} s: see what /etc/pam.d/{SERVICE} waits for", .0.as_secs())]
    Late(Duration),
    /// All helper processes are busy.
    #[error("{HELPERS_MAX} PAM helpers are busy, and none answered within {} s",
            .0.as_secs())]
    Busy(Duration),
    /// The output of the helper is not a valid answer.
    #[error(
        "the PAM helper process ended without an answer: check the service \
             /etc/pam.d/{SERVICE} and its modules"
    )]
    Silent,
    /// PAM itself failed.
    #[error("PAM failed: {0}: check the service /etc/pam.d/{SERVICE} and its modules")]
    Failed(String),
}

/// Client of PAM through helper processes.
#[derive(Clone, Debug)]
pub struct Pam {
    helper: HelperCommand,
    places: Arc<Semaphore>,
    deadline: Duration,
}

impl Pam {
    /// Creates a client if the host has a PAM service file for this program.
    pub fn of_host() -> Option<Self> {
        let there = |directory: &str| Path::new(directory).join(SERVICE).exists();
        let helper = HelperCommand::ourselves(helper::MODE);
        DIRECTORIES.into_iter().any(there).then(|| Self::by(helper, ANSWER_DEADLINE))
    }

    fn by(helper: HelperCommand, deadline: Duration) -> Self {
        Self { helper, places: Arc::new(Semaphore::new(HELPERS_MAX)), deadline }
    }

    /// Checks a name and password. `from` is the client's address.
    ///
    /// # Errors
    /// [`PamError`] if PAM gave no answer.
    pub async fn check(
        &self,
        name: &str,
        password: &str,
        from: Option<IpAddr>,
    ) -> Result<AuthOutcome, PamError> {
        // Some hosts accept empty passwords on their local consoles, so they are refused here.
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
            Answer::Stranger => Ok(AuthOutcome::NoRole),
            Answer::Wrong => Ok(AuthOutcome::Wrong),
            Answer::Failed(why) => Err(PamError::Failed(why)),
            Answer::Changed | Answer::Rejected(_) => Err(PamError::Silent),
        }
    }

    /// Changes the user's password. Returns the reason if PAM rejects the new password.
    ///
    /// # Errors
    /// [`PamError`] if PAM gave no answer.
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
        // The semaphore is never closed.
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

/// Returns whether PAM can take this text. PAM takes strings that end with a zero byte, and writes
/// names into logs.
fn can_be_asked(word: &str) -> bool {
    word.len() <= WORD_BYTES_MAX && !word.contains(char::is_control)
}

/// Sends the question and reads the answer.
async fn talk(child: &mut Child, line: &[u8]) -> std::io::Result<Vec<u8>> {
    if let Some(mut stdin) = child.stdin.take() {
        // A write to an ended helper fails. The missing answer reports that.
        let _gone = stdin.write_all(line).await;
    }
    let mut answer = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        // A process that a module started may hold the pipe open, so read one line only.
        BufReader::new(stdout.take(LINE_BYTES_MAX)).read_until(b'\n', &mut answer).await?;
    }
    Ok(answer)
}

/// Kills the helper and its process group. The permit is released when the helper is reaped.
fn end(mut child: Child, place: OwnedSemaphorePermit) {
    let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    if let Some(group) = group {
        // The helper leads its own process group, which may have ended already.
        let _gone = kill_process_group(group, Signal::KILL);
    }
    tokio::spawn(async move {
        if let Err(error) = child.wait().await {
            tracing::warn!("cannot wait for a PAM helper process: {error}");
        }
        drop(place);
    });
}
