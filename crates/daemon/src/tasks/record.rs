//! Record of a task.

use xenapi::table::{host, task};
use xenapi::{ApiError, NULL_REF, Value, codes, xmlrpc};

use super::Status;
use crate::app::AppState;
use crate::db::{Ref, Tx, View};
use crate::dispatch::text;

/// Longest result of a task, in bytes of text.
const RESULT_BYTES_MAX: usize = 64 << 10;
/// Longest parameter of an error, in bytes. Some errors repeat the parameters of their call.
const DETAIL_BYTES_MAX: usize = 4 << 10;

/// Formats a task's result: an XML-RPC value, or empty.
pub fn result_text(value: &Value) -> String {
    if *value == Value::text("") { String::new() } else { xmlrpc::write_value(value) }
}

pub(super) fn make(
    tx: &mut Tx<'_>,
    app: &AppState,
    label: &str,
    description: &str,
) -> Result<Ref, ApiError> {
    let host = tx.view().all(&host::CLASS).next().map(|host| host.reference().value());
    let fields = vec![
        (task::Field::name_label.into(), Value::text(label)),
        (task::Field::name_description.into(), Value::text(description)),
        (task::Field::created.into(), Value::Date(app.clock.date())),
        (task::Field::resident_on.into(), host.unwrap_or_else(|| Value::text(NULL_REF))),
        (task::Field::r#type.into(), Value::text("<none/>")),
    ];
    tx.create(&task::CLASS, fields)
}

/// Returns the status of a task.
pub(super) fn status(view: &View<'_>, it: &Ref) -> Result<Status, ApiError> {
    let status = text(view.get(it, task::Field::status)?);
    Status::parse(status).ok_or_else(|| codes::internal(format!("a task is {status}")))
}

/// Ends a task with this result, unless it has ended.
pub(super) fn end(
    tx: &mut Tx<'_>,
    app: &AppState,
    it: &Ref,
    answer: &Result<Value, ApiError>,
) -> Result<(), ApiError> {
    if status(&tx.view(), it)?.ended() {
        return Ok(());
    }
    let answer = answer.as_ref().map(result_text).map_err(ApiError::clone);
    let fits = answer.and_then(|text| match text.len() {
        0..=RESULT_BYTES_MAX => Ok(text),
        bytes => Err(codes::operation_not_allowed(format!(
            "the call succeeded, but its result of {bytes} bytes is too long for a task: call it \
             without `Async`"
        ))),
    });
    match fits {
        Ok(text) => {
            tx.set(it, task::Field::result, Value::Str(text))?;
            set_ended(tx, app, it, Status::Success)
        }
        Err(error) => {
            let cancelled = codes::task_cancelled("").code == error.code;
            let status = if cancelled { Status::Cancelled } else { Status::Failure };
            // The error of a cancelled call does not name its task.
            let own = cancelled.then(|| codes::task_cancelled(it.as_str()));
            fail(tx, it, own.as_ref().unwrap_or(&error))?;
            set_ended(tx, app, it, status)
        }
    }
}

fn fail(tx: &mut Tx<'_>, it: &Ref, error: &ApiError) -> Result<(), ApiError> {
    let details = error.details().into_iter().map(cut).map(Value::Str).collect();
    tx.set(it, task::Field::error_info, Value::Set(details))
}

fn cut(mut detail: String) -> String {
    detail.truncate(detail.floor_char_boundary(DETAIL_BYTES_MAX));
    detail
}

/// Sets the status and the other fields of an ended task, unless it has ended.
pub(super) fn set_ended(
    tx: &mut Tx<'_>,
    app: &AppState,
    it: &Ref,
    to: Status,
) -> Result<(), ApiError> {
    if !status(&tx.view(), it)?.may_become(to) {
        return Ok(());
    }
    tx.set(it, task::Field::allowed_operations, Value::Set(Vec::new()))?;
    tx.set(it, task::Field::current_operations, Value::Map(Default::default()))?;
    tx.set(it, task::Field::progress, Value::Float(1.0))?;
    tx.set(it, task::Field::finished, Value::Date(app.clock.date()))?;
    tx.set(it, task::Field::status, Value::text(to.name()))
}
