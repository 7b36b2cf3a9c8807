//! The process that asks PAM: one question on standard input, one answer on standard output.

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

/// The first word of this mode; the service follows.
pub const MODE: &str = "--pam-helper";
/// Longest question or answer, in bytes.
pub(super) const LINE_BYTES_MAX: u64 = 16 << 10;
/// Longest text of what modules say, in bytes.
const SAID_BYTES_MAX: usize = 1 << 10;

/// What is asked.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Question {
    /// Whether this is the user's password, and what the user may do.
    Login { name: String, password: String, from: Option<String> },
    /// To give the user another password.
    Change { name: String, new: String },
}

/// What is answered.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// It is.
    Admitted(HelperUser),
    /// It is, and the user has nothing to do here.
    Stranger,
    /// It is not.
    Wrong,
    /// The user has the other password.
    Changed,
    /// The other password is not taken.
    Rejected(String),
    /// Nothing can be said.
    Failed(String),
}

/// A user as a line has it.
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

/// Asks, answers and ends.
pub fn serve(mut words: impl Iterator<Item = OsString>) -> ExitCode {
    let (Some(service), None) = (words.next(), words.next()) else {
        eprintln!("ringwayd: {MODE} is for ringwayd itself; it takes the name of a service");
        return ExitCode::FAILURE;
    };
    match question().and_then(|question| tell(&answer(&service, question))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ringwayd: {MODE}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn question() -> io::Result<Question> {
    let mut line = Vec::new();
    io::stdin().lock().take(LINE_BYTES_MAX).read_to_end(&mut line)?;
    Ok(serde_json::from_slice(&line)?)
}

fn tell(answer: &Answer) -> io::Result<()> {
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

/// What modules ask is answered with one password, what they say is kept.
struct Conversation {
    password: String,
    said: Rc<RefCell<String>>,
}

impl ConversationAdapter for Conversation {
    fn prompt(&self, _: impl AsRef<OsStr>) -> nonstick::Result<OsString> {
        Err(ErrorCode::ConversationError)
    }

    fn masked_prompt(&self, _: impl AsRef<OsStr>) -> nonstick::Result<OsString> {
        Ok(OsString::from(&self.password))
    }

    fn error_msg(&self, message: impl AsRef<OsStr>) {
        let mut said = self.said.borrow_mut();
        let text = message.as_ref().to_string_lossy();
        if said.len() + text.len() < SAID_BYTES_MAX {
            let between = if said.is_empty() { "" } else { ": " };
            said.push_str(between);
            said.extend(text.trim().chars().filter(|c| !c.is_control()));
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
    let conversation = Conversation { password, said: Rc::default() };
    let builder = TransactionBuilder::new_with_service(service).username(name);
    let mut pam = builder.build(conversation.into_conversation())?;
    pam.items_mut().set_remote_host(from.map(OsStr::new))?;
    let flags = AuthnFlags::SILENT | AuthnFlags::DISALLOW_NULL_AUTHTOK;
    pam.authenticate(flags)?;
    pam.account_management(flags)?;
    // Modules may know the user by another name than was typed.
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

/// What a code means to whoever has logged in, or not.
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
    let said = Rc::new(RefCell::new(String::new()));
    let conversation = Conversation { password: new, said: Rc::clone(&said) };
    let builder = TransactionBuilder::new_with_service(service).username(name);
    let changed = builder
        .build(conversation.into_conversation())
        .and_then(|mut pam| pam.change_authtok(AuthtokFlags::empty()));
    match changed {
        Ok(()) => Answer::Changed,
        Err(code) => {
            let said = said.take();
            Answer::Rejected(if said.is_empty() { code.to_string() } else { said })
        }
    }
}

/// What a user of the host may do here.
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
