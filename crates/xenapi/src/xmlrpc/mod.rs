//! XML-RPC as the XenAPI speaks it.
//!
//! Written: no white space between elements, and text without an element of its own
//! (`<value>a</value>`), because clients take the one for a node and the empty `<string></string>`
//! for nothing. Whole numbers are such text as well. An answer is a map of `Status` and `Value` or
//! `ErrorDescription`; only the list of methods stands alone.
//!
//! Read: every form that a client may choose for a value, and nothing that XML-RPC does not have:
//! no document type, hence no entities of its own, no unknown element. Depth, number of values and
//! length are [limited](crate::limits::Limits).
//!
//! Source: the XML-RPC specification of 2003; XML 1.0, section 2.

mod calls;
mod read;
mod tokens;
mod write;

#[cfg(test)]
mod tests;

pub(crate) use calls::{answer, call, parse_answer, parse_call};
pub(crate) use write::escaped;

use crate::error::BadBody;
use crate::limits::Limits;
use crate::value::{RECORD_BYTES, Value};

/// The text of a value: one element `value`. Results of tasks are kept so.
pub fn write_value(value: &Value) -> String {
    let mut text = String::new();
    write::value(&mut text, value);
    text
}

/// The text of a map with these members, as that of a value.
pub(crate) fn write_members<'a>(members: impl Iterator<Item = (&'a str, &'a Value)>) -> String {
    let mut text = String::with_capacity(RECORD_BYTES);
    write::members(&mut text, members);
    text
}

/// The value of such a text. Whole numbers are text: [`coerce`](crate::coerce::coerce) knows better.
///
/// # Errors
/// [`BadBody::TooLarge`], [`BadBody::Malformed`].
pub fn read_value(text: &str, limits: &Limits) -> Result<Value, BadBody> {
    read::lone_value(text, limits)
}
