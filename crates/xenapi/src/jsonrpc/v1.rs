//! Version 1.0, in which an error is a list.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::write::{call as rest_of_call, identity, strings, value};
use super::{Id, check_id, malformed, read, unfit};
use crate::body::Sink;
use crate::error::{ApiError, BadBody};
use crate::limits::Budget;
use crate::value::Value;

pub(super) fn call(sink: &mut impl Sink, id: &Id, method: &str, params: &[Value]) {
    sink.buffer().push('{');
    rest_of_call(sink, id, method, params);
}

pub(super) fn answer(sink: &mut impl Sink, id: &Id, outcome: &Result<Value, ApiError>) {
    match outcome {
        Ok(result) => {
            sink.buffer().push_str("{\"result\":");
            value(sink, result);
            sink.buffer().push_str(",\"error\":null");
        }
        Err(error) => {
            sink.buffer().push_str("{\"result\":null,\"error\":");
            strings(sink, error.details().iter().map(String::as_str));
        }
    }
    identity(sink, id);
}

/// Members of a response. One of the first two is null.
#[derive(Deserialize)]
struct Members<'a> {
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    id: &'a RawValue,
}

pub(super) fn parse_answer(
    id: &Id,
    text: &str,
    budget: &mut Budget,
) -> Result<Result<Value, ApiError>, BadBody> {
    let members: Members<'_> = serde_json::from_str(text).map_err(malformed)?;
    check_id(members.id, id)?;
    match (members.result, members.error) {
        (Some(result), None) => Ok(Ok(read::value(result.get(), budget)?)),
        (None, Some(error)) => {
            let details = ApiError::of_details(read::value(error.get(), budget)?);
            details.map(Err).ok_or_else(|| unfit("the answer's error has no code"))
        }
        _ => Err(unfit("the answer is neither a result nor an error")),
    }
}
