//! Calls and responses in each dialect, for servers and clients.
//!
//! A server [parses](parse) a body and [answers](answer) the call. A client [writes](call) a call
//! and [reads the response](outcome). A body without a call has no response: see [`BadBody`]. In
//! XML-RPC, only the result of [`LIST_METHODS`] is not wrapped in a status.

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
    /// Returns the encoding for a URL path. Most paths have none.
    pub fn of_path(path: &str) -> Option<Self> {
        match path {
            "/" | "/RPC2" | "/xmlrpc" => Some(Self::Xml),
            "/jsonrpc" => Some(Self::Json),
            _ => None,
        }
    }

    /// Returns the `Content-Type`, without parameters. Some clients do not accept
    /// `application/json; charset=utf-8` as JSON.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Xml => "text/xml",
            Self::Json => "application/json",
        }
    }
}

/// Protocol of a call and its response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// XML-RPC.
    Xml,
    /// JSON-RPC, with the id of the call.
    Json(Version, Id),
}

impl Dialect {
    /// Returns the encoding of its values.
    pub fn encoding(&self) -> Encoding {
        match self {
            Self::Xml => Encoding::Xml,
            Self::Json(..) => Encoding::Json,
        }
    }
}

/// Call with parameters as the encoding has them. [`coerce`](crate::coerce::coerce) converts them
/// to their types.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Method, for example `VM.start`.
    pub method: String,
    /// Parameters in order, including the session.
    pub params: Vec<Value>,
    /// Protocol of the response.
    pub dialect: Dialect,
}

/// Reads a call within [`Limits::CALL`].
///
/// # Errors
/// [`BadBody`]: send its page to the caller and close the connection.
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

/// Writes the response to a call. Its HTTP status is 200, also for an error.
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

/// Reads the response to a call within [`Limits::ANSWER`].
///
/// # Errors
/// [`BadBody`]: the server does not speak the API.
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
mod tests;
