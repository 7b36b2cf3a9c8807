//! Errors of commands, and their texts.

use std::process::ExitCode;

use error_causes::error_chain;
use xenapi::ApiError;
use xenapi::client::ClientError;
use xenapi::error_text::explain;

use crate::xe::XeSession;
use crate::{help, unknown};

/// Text after an error of usage.
const SEE_HELP: &str = "For usage run: 'xe help'\n";

/// Reason why a command failed.
#[derive(Debug)]
pub(crate) enum XeError {
    /// No command was given: usage is printed, and the exit code is 0.
    Usage,
    /// The command line is invalid.
    Typed(String),
    /// The login failed: usually the name or the password is wrong. The text explains it.
    NotAdmitted(String),
    /// `xe` refuses the command.
    Refused(String),
    /// The server refuses the command, or the connection failed.
    Server(ClientError),
    /// The server refuses the command, with the text to print.
    Explained(String),
    /// The command failed on some of several objects: UUID and reason of each.
    Several(Vec<(String, String)>),
}

impl From<ClientError> for XeError {
    fn from(error: ClientError) -> Self {
        Self::Server(error)
    }
}

impl XeError {
    /// Creates a refusal with this reason.
    pub(crate) fn error(why: impl Into<String>) -> Self {
        Self::Refused(why.into())
    }

    pub(crate) fn unknown(command: &str) -> Self {
        Self::Typed(unknown::text(command))
    }

    pub(crate) fn missing(param: &str) -> Self {
        Self::Typed(format!("Required parameter not found: {param}"))
    }

    /// Adds the parameter that was given, perhaps instead of the one that is missing.
    pub(crate) fn beside(self, given: Option<&str>) -> Self {
        match (self, given) {
            (Self::Typed(what), Some(given)) => {
                Self::Typed(format!("{what}, and '{given}' is none of this command"))
            }
            (other, _) => other,
        }
    }

    pub(crate) fn syntax(why: &str) -> Self {
        Self::Typed(format!("Syntax error: {why}"))
    }

    /// Returns the error code of the API, if there is one.
    pub(crate) fn api_code(&self) -> Option<&str> {
        match self {
            Self::Server(error) => error.code(),
            _ => None,
        }
    }

    /// Converts a refusal of the API to text. Asks the server for the names of the objects.
    pub(crate) fn explained(self, xe: &mut XeSession) -> Self {
        match self {
            Self::Server(ClientError::Api(error)) => Self::Explained(explanation(&error, xe)),
            other => other,
        }
    }

    /// Returns the text for standard error.
    pub(crate) fn errors(&self) -> String {
        match self {
            Self::Usage => help::USAGE.to_owned(),
            Self::Typed(what) => format!("{what}\n{SEE_HELP}"),
            Self::NotAdmitted(text) => format!("Authentication failed\n{text}{SEE_HELP}"),
            Self::Refused(why) => format!("Error: {why}\n"),
            Self::Server(error) => format!("Error: {}\n", error_chain(error)),
            Self::Explained(text) => text.clone(),
            Self::Several(all) => all.iter().map(failed).collect(),
        }
    }

    /// Returns the exit code.
    pub(crate) fn code(&self) -> ExitCode {
        if matches!(self, Self::Usage) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

fn failed((uuid, why): &(String, String)) -> String {
    format!("operation failed on {uuid}: {}\n", why.trim_end())
}

/// Returns a sentence on the error, and a line for each of its parameters.
fn explanation(error: &ApiError, xe: &mut XeSession) -> String {
    let (_, params) = explain(error);
    let class = params.iter().find(|(name, _)| *name == "class").map(|(_, class)| *class);
    let class = class.unwrap_or_default().to_owned();
    text_of(error, |name, value| each_reference(value, |one| xe.shown(one, &[&class, name])))
}

/// Returns the text of an error of a server to which there is no session.
pub(crate) fn unexplained(error: &ApiError) -> String {
    text_of(error, |_, value| value.to_owned())
}

fn text_of(error: &ApiError, mut shown: impl FnMut(&str, &str) -> String) -> String {
    let (sentence, params) = explain(error);
    let mut text = format!("{sentence}\n");
    if xenapi::error_text::code(&error.code).is_none() {
        text = format!("{sentence}\ncode: {}\n", error.code);
    }
    for (name, value) in &params {
        text.push_str(&format!("{name}: {}\n", shown(name, value)));
    }
    text
}

/// Most references of a text that the server is asked about.
const REFERENCES_MAX: usize = 32;

/// Replaces the references in a text. Some errors have several in one parameter.
fn each_reference(text: &str, mut shown: impl FnMut(&str) -> String) -> String {
    const OPAQUE: &str = "OpaqueRef:";
    let (mut replaced, mut rest, mut count) = (String::new(), text, 0);
    while let Some(at) = rest.find(OPAQUE).filter(|_| count < REFERENCES_MAX) {
        let (before, from) = rest.split_at(at);
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let tail = from.get(OPAQUE.len()..).unwrap_or_default();
        let end = OPAQUE.len() + tail.find(|c| !is_part(c)).unwrap_or(tail.len());
        let (reference, after) = from.split_at(end);
        replaced.push_str(before);
        replaced.push_str(&shown(reference));
        (rest, count) = (after, count + 1);
    }
    replaced + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_references_are_shown() {
        let shown = |text: &str| each_reference(text, |one| format!("<{one}>"));
        for (text, expected) in [
            ("", ""),
            ("plain", "plain"),
            ("OpaqueRef:a-1", "<OpaqueRef:a-1>"),
            ("OpaqueRef:a,OpaqueRef:b", "<OpaqueRef:a>,<OpaqueRef:b>"),
            ("X,OpaqueRef:a|X,OpaqueRef:b", "X,<OpaqueRef:a>|X,<OpaqueRef:b>"),
            ("OpaqueRef:é", "<OpaqueRef:>é"),
        ] {
            assert_eq!(shown(text), expected);
        }
        let many = shown(&"OpaqueRef:a ".repeat(100));
        assert_eq!(many.matches('<').count(), REFERENCES_MAX);
    }

    #[test]
    fn what_is_told_of_failures() {
        let cases = [
            (
                XeError::unknown("vm-strat"),
                "Unknown command: vm-strat; did you mean vm-start?\nFor usage run: 'xe help'\n",
            ),
            (
                XeError::NotAdmitted("Check the name.\nuser: x\n".into()),
                "Authentication failed\nCheck the name.\nuser: x\nFor usage run: 'xe help'\n",
            ),
            (XeError::error("No matching VMs found"), "Error: No matching VMs found\n"),
            (
                XeError::Server(ClientError::Http { at: "h:443".into(), status: 404 }),
                "Error: h:443 answers with the HTTP status 404: is that ringwayd?\n",
            ),
        ];
        for (xe_error, text) in cases {
            assert_eq!(xe_error.errors(), text);
            assert_eq!(format!("{:?}", xe_error.code()), format!("{:?}", ExitCode::FAILURE));
        }
        assert_eq!(format!("{:?}", XeError::Usage.code()), format!("{:?}", ExitCode::SUCCESS));
        let source = std::io::Error::other("no such file");
        let error = ClientError::Unreachable { at: "/s".into(), source };
        let text = XeError::Server(error).errors();
        assert_eq!(
            text,
            "Error: cannot reach the server at /s: is ringwayd running there?: no such file\n"
        );
        let several = XeError::Several(vec![("u1".into(), "because\nvm: x\n".into())]);
        assert_eq!(several.errors(), "operation failed on u1: because\nvm: x\n");
    }
}
