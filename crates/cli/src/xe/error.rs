//! Errors of commands, and their texts.

use std::process::ExitCode;

use error_causes::error_chain;
use xenapi::ApiError;
use xenapi::client::ClientError;
use xenapi::error_text::explain;

use crate::help;
use crate::xe::XeSession;

/// Text after an error of usage.
const SEE_HELP: &str = "For usage run: 'xe help'\n";

/// Reason why a command failed.
#[derive(Debug)]
pub(crate) enum XeError {
    /// No command was given: usage is printed, and the exit code is 0.
    Usage,
    /// The command line is invalid.
    Typed(String),
    /// The name or the password is wrong.
    NotAdmitted,
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
        Self::Typed(format!("Unknown command: {command}"))
    }

    pub(crate) fn missing(param: &str) -> Self {
        Self::Typed(format!("Required parameter not found: {param}"))
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
            Self::NotAdmitted => format!("Authentication failed\n{SEE_HELP}"),
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
    let (sentence, params) = explain(error);
    let class = params.iter().find(|(name, _)| *name == "class").map(|(_, class)| *class);
    let mut text = format!("{sentence}\n");
    if xenapi::error_text::code(&error.code).is_none() {
        text = format!("{sentence}\ncode: {}\n", error.code);
    }
    for (name, value) in &params {
        let shown = xe.shown(value, &[class.unwrap_or_default(), name]);
        text.push_str(&format!("{name}: {shown}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_of_failures() {
        let cases = [
            (XeError::unknown("vm-strat"), "Unknown command: vm-strat\nFor usage run: 'xe help'\n"),
            (XeError::NotAdmitted, "Authentication failed\nFor usage run: 'xe help'\n"),
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
