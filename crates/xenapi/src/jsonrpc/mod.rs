//! JSON-RPC as the XenAPI uses it, in versions 1.0 and 2.0.
//!
//! A call states its version: `"jsonrpc":"2.0"`, or nothing. Parameters are positional, never
//! named. The id of a call returns unchanged, byte by byte. Version 1 has an error as
//! `["CODE","param"..]`. Version 2 has an error as an object, with the code as its message and the
//! parameters as its data. Batches and notifications are rejected.
//!
//! Whole numbers are numbers. Dates and references are text. A number that JSON cannot represent
//! (NaN, infinities) is text as well.
//!
//! Source: the JSON-RPC specifications 1.0 and 2.0; RFC 8259.

mod read;
mod v1;
mod v2;
mod write;

#[cfg(test)]
mod tests;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::body::{Body, Pieces};
use crate::error::{ApiError, BadBody};
use crate::limits::{Budget, Limits};
use crate::value::{RECORD_BYTES, Value};

/// Id of a call, as its JSON text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Id(Box<str>);

impl Id {
    /// Parses an id: a number or text, and in version 1 also null.
    fn of(raw: &RawValue, null: bool) -> Result<Self, BadBody> {
        match raw.get().as_bytes().first() {
            Some(b'"' | b'-' | b'0'..=b'9') => {}
            Some(b'n') if null => {}
            _ => return Err(unfit("the id is neither a number nor text")),
        }
        Ok(Self(raw.get().into()))
    }

    /// Returns the JSON text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<u64> for Id {
    fn from(number: u64) -> Self {
        Self(number.to_string().into())
    }
}

/// Version of JSON-RPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Version 1.0.
    V1,
    /// Version 2.0.
    V2,
}

/// Returns the text of a value.
pub fn write_value(value: &Value) -> String {
    let mut text = String::new();
    write::value(&mut text, value);
    text
}

/// Returns the text of a map with these members.
pub(crate) fn write_members<'a>(members: impl Iterator<Item = (&'a str, &'a Value)>) -> String {
    let mut text = String::with_capacity(RECORD_BYTES);
    write::members(&mut text, members);
    text
}

/// Parses a text. Dates stay text until [`coerce`](crate::coerce::coerce) converts them.
///
/// # Errors
/// [`BadBody::TooLarge`], [`BadBody::Malformed`].
pub fn read_value(text: &str, limits: &Limits) -> Result<Value, BadBody> {
    limits.check_length(text.as_bytes())?;
    read::value(text, &mut Budget::new(limits))
}

/// Parsed call.
pub(crate) struct Request {
    pub(crate) version: Version,
    pub(crate) method: String,
    pub(crate) params: Vec<Value>,
    pub(crate) id: Id,
}

/// Members of a call. Others are ignored.
#[derive(Deserialize)]
struct Members<'a> {
    jsonrpc: Option<String>,
    method: String,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
}

/// Distinguishes null from an absent member.
fn present<'a, D: serde::Deserializer<'a>>(json: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(json).map(Some)
}

/// Reads a call.
pub(crate) fn parse_call(text: &str, limits: &Limits) -> Result<Request, BadBody> {
    limits.check_length(text.as_bytes())?;
    if text.trim_ascii_start().starts_with('[') {
        return Err(unfit("several calls in one body: send them one by one"));
    }
    let members: Members<'_> = serde_json::from_str(text).map_err(malformed)?;
    let version = match members.jsonrpc.as_deref() {
        None | Some("1.0") => Version::V1,
        Some("2.0") => Version::V2,
        Some(_) => return Err(unfit("a version of JSON-RPC other than 1.0 and 2.0")),
    };
    let id = members.id.ok_or_else(|| unfit("no id: every call has an answer"))?;
    let id = Id::of(id, version == Version::V1)?;
    let mut budget = Budget::new(limits);
    let params = match members.params {
        None => Vec::new(),
        Some(raw) => read::list(raw.get(), &mut budget)?,
    };
    if members.method.is_empty() {
        return Err(unfit("the call names no method"));
    }
    Ok(Request { version, method: members.method, params, id })
}

/// Writes a call.
pub(crate) fn call(version: Version, id: &Id, method: &str, params: &[Value]) -> Body {
    let mut sink = Pieces::default();
    match version {
        Version::V1 => v1::call(&mut sink, id, method, params),
        Version::V2 => v2::call(&mut sink, id, method, params),
    }
    sink.body()
}

/// Writes a response.
pub(crate) fn answer(version: Version, id: &Id, outcome: &Result<Value, ApiError>) -> Body {
    let mut sink = Pieces::default();
    match version {
        Version::V1 => v1::answer(&mut sink, id, outcome),
        Version::V2 => v2::answer(&mut sink, id, outcome),
    }
    sink.body()
}

/// Reads the response to the call `id`.
pub(crate) fn parse_answer(
    version: Version,
    id: &Id,
    text: &str,
    limits: &Limits,
) -> Result<Result<Value, ApiError>, BadBody> {
    limits.check_length(text.as_bytes())?;
    let mut budget = Budget::new(limits);
    match version {
        Version::V1 => v1::parse_answer(id, text, &mut budget),
        Version::V2 => v2::parse_answer(id, text, &mut budget),
    }
}

/// Checks that a response has the id of the call.
fn check_id(found: &RawValue, id: &Id) -> Result<(), BadBody> {
    if found.get() == id.as_str() {
        return Ok(());
    }
    Err(unfit("the answer belongs to another call"))
}

fn malformed(error: serde_json::Error) -> BadBody {
    BadBody::malformed(error)
}

fn unfit(what: &str) -> BadBody {
    BadBody::Unfit(what.to_owned())
}
