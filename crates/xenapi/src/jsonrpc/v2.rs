//! Version 2.0, in which an error is an object.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::write::{call as rest_of_call, identity, string, strings, value};
use super::{Id, check_id, malformed, read, unfit};
use crate::body::Sink;
use crate::error::{ApiError, BadBody};
use crate::limits::Budget;
use crate::value::Value;

const HEAD: &str = "{\"jsonrpc\":\"2.0\",";

pub(super) fn call(sink: &mut impl Sink, id: &Id, method: &str, params: &[Value]) {
    sink.buffer().push_str(HEAD);
    rest_of_call(sink, id, method, params);
}

pub(super) fn answer(sink: &mut impl Sink, id: &Id, outcome: &Result<Value, ApiError>) {
    sink.buffer().push_str(HEAD);
    match outcome {
        Ok(result) => {
            sink.buffer().push_str("\"result\":");
            value(sink, result);
        }
        Err(error) => {
            // Clients ignore the number and read the message.
            sink.buffer().push_str("\"error\":{\"code\":1,\"message\":");
            string(sink.buffer(), &error.code);
            sink.buffer().push_str(",\"data\":");
            strings(sink, error.params.iter().map(String::as_str));
            sink.buffer().push('}');
        }
    }
    identity(sink, id);
}

/// Members of a response, which has one of the two.
#[derive(Deserialize)]
struct Members<'a> {
    jsonrpc: String,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<Failure<'a>>,
    #[serde(borrow)]
    id: &'a RawValue,
}

#[derive(Deserialize)]
struct Failure<'a> {
    message: String,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
}

pub(super) fn parse_answer(
    id: &Id,
    text: &str,
    budget: &mut Budget,
) -> Result<Result<Value, ApiError>, BadBody> {
    let members: Members<'_> = serde_json::from_str(text).map_err(malformed)?;
    if members.jsonrpc != "2.0" {
        return Err(unfit("the answer is of another version of JSON-RPC"));
    }
    check_id(members.id, id)?;
    match (members.result, members.error) {
        (Some(result), None) => Ok(Ok(read::value(result.get(), budget)?)),
        (None, Some(failure)) => {
            let params = failure.data.map_or(Ok(Vec::new()), |data| texts(data, budget))?;
            Ok(Err(ApiError::new(failure.message, params)))
        }
        _ => Err(unfit("the answer is neither a result nor an error")),
    }
}

fn texts(data: &RawValue, budget: &mut Budget) -> Result<Vec<String>, BadBody> {
    let texts = read::list(data.get(), budget)?.into_iter().map(|param| match param {
        Value::Str(text) => Ok(text),
        _ => Err(unfit("a parameter of the answer's error is no text")),
    });
    texts.collect()
}
