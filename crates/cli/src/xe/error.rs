//! Why a command is not done, and how that is told.

use std::process::ExitCode;

use xenapi::ApiError;
use xenapi::client::ClientError;
use xenapi::error_text::explain;

use crate::help;
use crate::xe::XeSession;

/// What follows what is wrong with the words that were typed.
const SEE_HELP: &str = "For usage run: 'xe help'\n";

/// Why a command is not done.
#[derive(Debug)]
pub(crate) enum XeError {
    /// There is nothing to do: usage is told, and that is no failure.
    Usage,
    /// What was typed makes no command.
    Typed(String),
    /// Name or password is wrong.
    NotAdmitted,
    /// This program refuses.
    Refused(String),
    /// The server, or the way to it, does.
    Server(ClientError),
    /// The server does, in words.
    Told(String),
    /// Of several objects, these were not done: UUID and why.
    Several(Vec<(String, String)>),
}

impl From<ClientError> for XeError {
    fn from(error: ClientError) -> Self {
        Self::Server(error)
    }
}

impl XeError {
    /// This program refuses, for this reason.
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

    /// The code that the API answered, if it did.
    pub(crate) fn api_code(&self) -> Option<&str> {
        match self {
            Self::Server(error) => error.code(),
            _ => None,
        }
    }

    /// In words, if the API refused; the server is asked for the names of what it is about.
    pub(crate) fn explained(self, xe: &mut XeSession) -> Self {
        match self {
            Self::Server(ClientError::Api(error)) => Self::Told(told(&error, xe)),
            other => other,
        }
    }

    /// For standard error.
    pub(crate) fn errors(&self) -> String {
        match self {
            Self::Usage => help::USAGE.to_owned(),
            Self::Typed(what) => format!("{what}\n{SEE_HELP}"),
            Self::NotAdmitted => format!("Authentication failed\n{SEE_HELP}"),
            Self::Refused(why) => format!("Error: {why}\n"),
            Self::Server(error) => format!("Error: {}\n", chain(error)),
            Self::Told(text) => text.clone(),
            Self::Several(all) => all.iter().map(failed).collect(),
        }
    }

    /// How the program ends.
    pub(crate) fn code(&self) -> ExitCode {
        if matches!(self, Self::Usage) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

fn failed((uuid, why): &(String, String)) -> String {
    format!("operation failed on {uuid}: {}\n", why.trim_end())
}

/// With its causes.
fn chain(error: &ClientError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(because) = cause {
        text = format!("{text}: {because}");
        cause = because.source();
    }
    text
}

/// What happened, and a line for each thing that it is about.
fn told(error: &ApiError, xe: &mut XeSession) -> String {
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
        let error = ClientError::NotThere { at: "/s".into(), source };
        let text = XeError::Server(error).errors();
        assert_eq!(
            text,
            "Error: cannot reach the server at /s: is ringwayd running there?: no such file\n"
        );
        let several = XeError::Several(vec![("u1".into(), "because\nvm: x\n".into())]);
        assert_eq!(several.errors(), "operation failed on u1: because\nvm: x\n");
    }
}
