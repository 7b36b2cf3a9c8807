//! Calls and answers in each dialect, for servers and clients.
//!
//! A server [parses](parse) a body and [answers](answer) the call; a client [writes](call) a call
//! and [reads the answer](outcome). A body that is no call has no answer: see [`BadBody`]. In
//! XML-RPC the result of [`LIST_METHODS`] alone has no status around it.

use std::str;

pub use crate::body::{Body, Encoding, Piece};
pub use crate::error::BadBody;
pub use crate::jsonrpc::{Id, Version};

use crate::error::ApiError;
use crate::limits::Limits;
use crate::table::resolve::LIST_METHODS;
use crate::value::Value;
use crate::{jsonrpc, xmlrpc};

impl Encoding {
    /// What is spoken at a path; nothing at most paths.
    pub fn of_path(path: &str) -> Option<Self> {
        match path {
            "/" | "/RPC2" | "/xmlrpc" => Some(Self::Xml),
            "/jsonrpc" => Some(Self::Json),
            _ => None,
        }
    }

    /// Its `Content-Type`, without parameters: a client takes an answer with
    /// `application/json; charset=utf-8` for no JSON.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Xml => "text/xml",
            Self::Json => "application/json",
        }
    }
}

/// How a call is put and answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// XML-RPC.
    Xml,
    /// JSON-RPC, with what identifies the call.
    Json(Version, Id),
}

impl Dialect {
    /// How its values are written.
    pub fn encoding(&self) -> Encoding {
        match self {
            Self::Xml => Encoding::Xml,
            Self::Json(..) => Encoding::Json,
        }
    }
}

/// A call. Its parameters are as the encoding has them: [`coerce`](crate::coerce::coerce) makes
/// them what their types say.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// For example `VM.start`.
    pub method: String,
    /// In order, the session among them.
    pub params: Vec<Value>,
    /// How it wants to be answered.
    pub dialect: Dialect,
}

/// Reads a call within [`Limits::CALL`].
///
/// # Errors
/// [`BadBody`]: the caller gets its page, and the connection is closed.
pub fn parse(encoding: Encoding, body: &[u8]) -> Result<Call, BadBody> {
    let text = text(body, &Limits::CALL)?;
    match encoding {
        Encoding::Xml => {
            let (method, params) = xmlrpc::parse_call(text, &Limits::CALL)?;
            Ok(Call { method, params, dialect: Dialect::Xml })
        }
        Encoding::Json => {
            let jsonrpc::Request { version, method, params, id } =
                jsonrpc::parse_call(text, &Limits::CALL)?;
            Ok(Call { method, params, dialect: Dialect::Json(version, id) })
        }
    }
}

/// Writes the answer to a call; its status in HTTP is 200, also for an error.
pub fn answer(call: &Call, outcome: &Result<Value, ApiError>) -> Body {
    match &call.dialect {
        Dialect::Xml => xmlrpc::answer(outcome, call.method == LIST_METHODS),
        Dialect::Json(version, id) => jsonrpc::answer(*version, id, outcome),
    }
}

/// Writes a call.
pub fn call(call: &Call) -> Body {
    match &call.dialect {
        Dialect::Xml => xmlrpc::call(&call.method, &call.params),
        Dialect::Json(version, id) => jsonrpc::call(*version, id, &call.method, &call.params),
    }
}

/// Reads the answer to a call within [`Limits::ANSWER`].
///
/// # Errors
/// [`BadBody`]: what answered does not speak the API.
pub fn outcome(call: &Call, body: &[u8]) -> Result<Result<Value, ApiError>, BadBody> {
    let text = text(body, &Limits::ANSWER)?;
    match &call.dialect {
        Dialect::Xml => xmlrpc::parse_answer(text, &Limits::ANSWER, call.method == LIST_METHODS),
        Dialect::Json(version, id) => jsonrpc::parse_answer(*version, id, text, &Limits::ANSWER),
    }
}

fn text<'a>(body: &'a [u8], limits: &Limits) -> Result<&'a str, BadBody> {
    limits.check_length(body)?;
    let malformed = |error: str::Utf8Error| {
        BadBody::Malformed(format!("at byte {}: not UTF-8", error.valid_up_to()))
    };
    str::from_utf8(body).map_err(malformed)
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;
