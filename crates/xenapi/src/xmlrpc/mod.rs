//! XML-RPC as the XenAPI uses it.
//!
//! Output: no white space between elements, and no `string` element around text
//! (`<value>a</value>`). Clients read white space as a node, and the empty `<string></string>` as a
//! missing value. Whole numbers are also such text. A response is a map of `Status` and `Value` or
//! `ErrorDescription`. Only the list of methods is not wrapped.
//!
//! Input: every form that a client may choose for a value, and nothing outside XML-RPC: no document
//! type, so no custom entities, and no unknown element. Depth, number of values and length are
//! [limited](crate::limits::Limits).
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

/// Returns the text of a value: one `value` element. Task results are stored in this form.
pub fn write_value(value: &Value) -> String {
    let mut text = String::new();
    write::value(&mut text, value);
    text
}

/// Returns the text of a map with these members, as [`write_value`] would.
pub(crate) fn write_members<'a>(members: impl Iterator<Item = (&'a str, &'a Value)>) -> String {
    let mut text = String::with_capacity(RECORD_BYTES);
    write::members(&mut text, members);
    text
}

/// Parses the text of a value. Whole numbers stay text until [`coerce`](crate::coerce::coerce)
/// converts them.
///
/// # Errors
/// [`BadBody::TooLarge`], [`BadBody::Malformed`].
pub fn read_value(text: &str, limits: &Limits) -> Result<Value, BadBody> {
    read::lone_value(text, limits)
}
