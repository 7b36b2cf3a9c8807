//! Helper process that calls PAM: one question on standard input, one answer on standard output.

use std::cell::RefCell;
use std::ffi::{CString, OsStr, OsString};
use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::rc::Rc;

use nix::unistd::{Group, User, getgrouplist};
use nonstick::items::{Items, ItemsMut};
use nonstick::{
    AuthnFlags, AuthtokFlags, ConversationAdapter, ErrorCode, PamShared, Transaction,
    TransactionBuilder,
};
use serde::{Deserialize, Serialize};
use xenapi::table::Role;

use super::{ADMINS, PamError, READERS};
use crate::auth::Identity;

/// First command-line argument of this mode. The name of the PAM service follows.
pub const MODE: &str = "--pam-helper";
/// Longest question or answer, in bytes.
pub(super) const LINE_BYTES_MAX: u64 = 16 << 10;
/// Longest text of module messages that is returned, in bytes.
const MESSAGES_BYTES_MAX: usize = 1 << 10;

/// Question to the helper.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Question {
    /// Authenticate the user and determine the role.
    Login { name: String, password: String, from: Option<String> },
    /// Change the user's password.
    Change { name: String, new: String },
}

/// Answer of the helper.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// Password is right and the user has a role.
    Admitted(HelperUser),
    /// Password is right, but the account is unusable or has no role here.
    Stranger,
    /// Name or password is wrong.
    Wrong,
    /// Password was changed.
    Changed,
    /// New password was rejected, for this reason.
    Rejected(String),
    /// PAM failed, for this reason.
    Failed(String),
}

/// User as sent in an answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct HelperUser {
    pub(super) name: String,
    pub(super) role: String,
}

impl HelperUser {
    pub(super) fn into_identity(self) -> Result<Identity, PamError> {
        let role = self.role.parse().map_err(|_| PamError::Silent)?;
        Ok(Identity { name: self.name, role })
    }
}

/// Reads one question, calls PAM, writes the answer and exits.
pub fn serve(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let (Some(service), None) = (words.next(), words.next()) else {
        let needs = "is for ringwayd itself; it takes the name of a service";
        logging::write_last_line(&format!("ringwayd: {MODE} {needs}"));
        return ExitCode::FAILURE;
    };
    match question().and_then(|question| write_answer(&answer(&service, question))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            logging::write_last_line(&format!("ringwayd: {MODE}: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn question() -> io::Result<Question> {
    let mut line = Vec::new();
    io::stdin().lock().take(LINE_BYTES_MAX).read_to_end(&mut line)?;
    Ok(serde_json::from_slice(&line)?)
}

fn write_answer(answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&line)?;
    out.flush()
}

fn answer(service: &OsStr, question: Question) -> Answer {
    match question {
        Question::Login { name, password, from } => {
            login(service, &name, password, from.as_deref()).unwrap_or_else(of_code)
        }
        Question::Change { name, new } => change(service, &name, new),
    }
}

/// PAM conversation that answers every hidden prompt with one password and collects error messages.
struct Conversation {
    password: String,
    messages: Rc<RefCell<String>>,
}

impl ConversationAdapter for Conversation {
    fn prompt(&self, _: impl AsRef<OsStr>) -> nonstick::Result<OsString> {
        Err(ErrorCode::ConversationError)
    }

    fn masked_prompt(&self, _: impl AsRef<OsStr>) -> nonstick::Result<OsString> {
        Ok(OsString::from(&self.password))
    }

    fn error_msg(&self, message: impl AsRef<OsStr>) {
        let mut messages = self.messages.borrow_mut();
        let text = message.as_ref().to_string_lossy();
        if messages.len() + text.len() < MESSAGES_BYTES_MAX {
            let between = if messages.is_empty() { "" } else { ": " };
            messages.push_str(between);
            messages.extend(text.trim().chars().filter(|c| !c.is_control()));
        }
    }

    fn info_msg(&self, _: impl AsRef<OsStr>) {}
}

fn login(
    service: &OsStr,
    name: &str,
    password: String,
    from: Option<&str>,
) -> nonstick::Result<Answer> {
    let conversation = Conversation { password, messages: Rc::default() };
    let builder = TransactionBuilder::new_with_service(service).username(name);
    let mut pam = builder.build(conversation.into_conversation())?;
    pam.items_mut().set_remote_host(from.map(OsStr::new))?;
    let flags = AuthnFlags::SILENT | AuthnFlags::DISALLOW_NULL_AUTHTOK;
    pam.authenticate(flags)?;
    pam.account_management(flags)?;
    // Modules may map the typed name to another user name.
    let name = pam.items().user()?;
    let Some(name) = name.as_ref().and_then(|name| name.to_str()) else {
        return Ok(Answer::Stranger);
    };
    Ok(match role(name) {
        Ok(Some(role)) => {
            Answer::Admitted(HelperUser { name: name.to_owned(), role: role.name().to_owned() })
        }
        Ok(None) => Answer::Stranger,
        Err(error) => Answer::Failed(format!("the groups of a user cannot be read: {error}")),
    })
}

/// Converts a PAM error code to an answer.
fn of_code(code: ErrorCode) -> Answer {
    use ErrorCode::{
        AccountExpired, AuthTokExpired, AuthenticationError, CredentialsExpired,
        CredentialsInsufficient, MaxTries, NewAuthTokRequired, PermissionDenied, UserUnknown,
    };
    match code {
        AuthenticationError
        | UserUnknown
        | MaxTries
        | PermissionDenied
        | CredentialsInsufficient => Answer::Wrong,
        AccountExpired | AuthTokExpired | CredentialsExpired | NewAuthTokRequired => {
            Answer::Stranger
        }
        code => Answer::Failed(code.to_string()),
    }
}

fn change(service: &OsStr, name: &str, new: String) -> Answer {
    let messages = Rc::new(RefCell::new(String::new()));
    let conversation = Conversation { password: new, messages: Rc::clone(&messages) };
    let builder = TransactionBuilder::new_with_service(service).username(name);
    let changed = builder
        .build(conversation.into_conversation())
        .and_then(|mut pam| pam.change_authtok(AuthtokFlags::empty()));
    match changed {
        Ok(()) => Answer::Changed,
        Err(code) => {
            let messages = messages.take();
            Answer::Rejected(if messages.is_empty() { code.to_string() } else { messages })
        }
    }
}

/// Returns the role of a host user. `None` if the user has none.
fn role(name: &str) -> nix::Result<Option<Role>> {
    let Some(user) = User::from_name(name)? else { return Ok(None) };
    if user.uid.is_root() {
        return Ok(Some(Role::PoolAdmin));
    }
    let Ok(text) = CString::new(name) else { return Ok(None) };
    let groups = getgrouplist(&text, user.gid)?;
    let member = |group: &str| -> nix::Result<bool> {
        Ok(Group::from_name(group)?.is_some_and(|group| groups.contains(&group.gid)))
    };
    Ok(match (member(ADMINS)?, member(READERS)?) {
        (true, _) => Some(Role::PoolAdmin),
        (false, true) => Some(Role::ReadOnly),
        (false, false) => None,
    })
}
