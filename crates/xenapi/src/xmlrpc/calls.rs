//! Calls and responses.

use std::collections::BTreeMap;

use super::read::{Unreadable, Values};
use super::tokens::{Tag, Token};
use super::write::{member, push_escaped, value};
use crate::body::{Body, Pieces, Sink};
use crate::error::{ApiError, BadBody};
use crate::limits::Limits;
use crate::value::Value;

const HEAD: &str = "<?xml version=\"1.0\"?>";

/// Writes a call.
pub(crate) fn call(method: &str, params: &[Value]) -> Body {
    let mut sink = Pieces::default();
    sink.buffer().push_str(HEAD);
    sink.buffer().push_str("<methodCall><methodName>");
    push_escaped(sink.buffer(), method);
    sink.buffer().push_str("</methodName><params>");
    for param in params {
        sink.buffer().push_str("<param>");
        value(&mut sink, param);
        sink.buffer().push_str("</param>");
    }
    sink.buffer().push_str("</params></methodCall>");
    sink.body()
}

/// Writes a response. With `alone`, the result is not wrapped in a status.
pub(crate) fn answer(outcome: &Result<Value, ApiError>, alone: bool) -> Body {
    let mut sink = Pieces::default();
    sink.buffer().push_str(HEAD);
    sink.buffer().push_str("<methodResponse><params><param>");
    match outcome {
        Ok(result) if alone => value(&mut sink, result),
        Ok(result) => status(&mut sink, "Success", "Value", |sink| value(sink, result)),
        Err(error) => {
            let details = Value::Set(error.details().into_iter().map(Value::Str).collect());
            status(&mut sink, "Failure", "ErrorDescription", |sink| value(sink, &details));
        }
    }
    sink.buffer().push_str("</param></params></methodResponse>");
    sink.body()
}

fn status(sink: &mut Pieces, status: &str, name: &str, content: impl FnOnce(&mut Pieces)) {
    sink.buffer().push_str("<value><struct>");
    member(sink, "Status", |sink| value(sink, &Value::text(status)));
    member(sink, name, content);
    sink.buffer().push_str("</struct></value>");
}

/// Reads a call: its method and its parameters.
pub(crate) fn parse_call(text: &str, limits: &Limits) -> Result<(String, Vec<Value>), BadBody> {
    let mut values = Values::new(text, limits, Unreadable::Null)?;
    values.tokens.open(Tag::MethodCall)?;
    values.tokens.open(Tag::MethodName)?;
    let method = values.tokens.text_and_close()?.trim_ascii().to_owned();
    let params = match values.tokens.next_tag()? {
        Token::Close => Vec::new(),
        Token::Open(Tag::Params) => {
            let params = params(&mut values)?;
            values.tokens.close()?;
            params
        }
        other => return Err(values.tokens.unexpected(&other, Tag::Params)),
    };
    values.end()?;
    if method.is_empty() {
        return Err(BadBody::Unfit("the call names no method".to_owned()));
    }
    Ok((method, params))
}

/// Reads a response. `alone` has the same meaning as in [`answer`].
pub(crate) fn parse_answer(
    text: &str,
    limits: &Limits,
    alone: bool,
) -> Result<Result<Value, ApiError>, BadBody> {
    let mut values = Values::new(text, limits, Unreadable::Malformed)?;
    values.tokens.open(Tag::MethodResponse)?;
    values.tokens.open(Tag::Params)?;
    let mut params = params(&mut values)?;
    values.tokens.close()?;
    values.end()?;
    match (params.pop(), params.is_empty()) {
        (Some(Value::Map(members)), true) => outcome(members),
        (Some(value), true) if alone => Ok(Ok(value)),
        _ => Err(BadBody::Unfit("the answer has no status".to_owned())),
    }
}

fn params(values: &mut Values<'_>) -> Result<Vec<Value>, BadBody> {
    values.list(Tag::Param, |values| {
        values.tokens.open(Tag::Value)?;
        let value = values.value(1)?;
        values.tokens.close()?;
        Ok(value)
    })
}

fn outcome(mut answer: BTreeMap<String, Value>) -> Result<Result<Value, ApiError>, BadBody> {
    let unfit = |what: &str| BadBody::Unfit(what.to_owned());
    match answer.remove("Status") {
        Some(Value::Str(status)) if status == "Success" => {
            answer.remove("Value").map(Ok).ok_or_else(|| unfit("the answer has no value"))
        }
        Some(Value::Str(status)) if status == "Failure" => {
            let details = answer.remove("ErrorDescription");
            let error = details.and_then(ApiError::of_details);
            error.map(Err).ok_or_else(|| unfit("the answer's error has no code"))
        }
        _ => Err(unfit("the answer's status is neither Success nor Failure")),
    }
}
