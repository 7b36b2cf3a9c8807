//! Calls that run as tasks.

use std::time::{Duration, Instant};

use super::{Client, ClientError, Record};
use crate::limits::Limits;
use crate::table::resolve::{Method, resolve};
use crate::table::{MessageKind, Type};
use crate::{ApiError, Value, codes, coerce, xmlrpc};

/// Longest wait for events. After it, the client notices that the server is gone.
const WAIT: Duration = Duration::from_secs(30);

/// Started call.
#[derive(Debug)]
pub struct PendingCall {
    method: String,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The call made no task. This is its result.
    Done(Value),
    /// A task carries out the call.
    Task(Method, String),
}

impl Client {
    /// Calls a method and waits for its end, through a task if the method can run as one.
    ///
    /// # Errors
    /// Those of [`begin`](Self::begin) and [`end`](Self::end).
    pub fn run(
        &mut self,
        method: &str,
        params: &[Value],
        deadline: Duration,
    ) -> Result<Value, ClientError> {
        let pending_call = self.begin(method, params)?;
        self.end(pending_call, deadline)
    }

    /// Starts a call. A long call continues as a task, concurrently with others.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn begin(&mut self, method: &str, params: &[Value]) -> Result<PendingCall, ClientError> {
        let state = match resolve(method) {
            Some((means, false)) if means.kind() == MessageKind::Long => {
                match self.call(&format!("Async.{method}"), params)? {
                    Value::Str(task) => State::Task(means, task),
                    _ => return Err(self.nonsense(method, "the task is not a reference")),
                }
            }
            _ => State::Done(self.call(method, params)?),
        };
        Ok(PendingCall { method: method.to_owned(), state })
    }

    /// Waits for the end of a call. After the deadline, the task continues and is not destroyed.
    ///
    /// # Errors
    /// [`ClientError`], or the error of the task as if the call had returned it.
    pub fn end(
        &mut self,
        pending_call: PendingCall,
        deadline: Duration,
    ) -> Result<Value, ClientError> {
        let PendingCall { method, state } = pending_call;
        let (means, task) = match state {
            State::Done(value) => return Ok(value),
            State::Task(means, task) => (means, task),
        };
        let Some(ended) = self.task_end(&task, Instant::now() + deadline)? else {
            return Err(ClientError::Late { what: format!("{method} ({task})"), after: deadline });
        };
        let outcome = self.outcome(&method, &means, &task, &ended);
        // The result is known, so a failure to destroy the task does not matter.
        let _stays = self.call("task.destroy", &[Value::Str(task)]);
        outcome
    }

    /// Waits for the end of a task that this client created and the server carries out. Returns its
    /// error, if it failed. `None` if it does not end in time.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn wait_task(
        &mut self,
        task: &str,
        deadline: Duration,
    ) -> Result<Option<Result<(), ApiError>>, ClientError> {
        let ended = self.task_end(task, Instant::now() + deadline)?;
        let outcome = ended.map(|ended| match ended.text("status") {
            "success" => Ok(Ok(())),
            _ => self.task_error("the task", task, &ended).map(Err),
        });
        outcome.transpose()
    }

    /// Returns the record of a task once it has ended. Returns `None` if it does not end in time.
    fn task_end(&mut self, task: &str, until: Instant) -> Result<Option<Record>, ClientError> {
        let subscription = format!("task/{task}");
        let mut token = String::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let batch = self.events(&[&subscription], &token, left.min(WAIT))?;
            let mut reported = false;
            for event in batch.events.into_iter().filter(|event| event.reference == task) {
                reported = true;
                match event.snapshot {
                    Some(record) if has_ended(&record) => return Ok(Some(record)),
                    Some(_) => {}
                    None => return Err(codes::handle_invalid("task", task).into()),
                }
            }
            if left.is_zero() {
                return Ok(None);
            }
            // The first response contains every existing task of the subscription.
            if token.is_empty() && !reported {
                return Err(codes::handle_invalid("task", task).into());
            }
            token = batch.token;
        }
    }

    fn outcome(
        &self,
        method: &str,
        means: &Method,
        task: &str,
        ended: &Record,
    ) -> Result<Value, ClientError> {
        match ended.text("status") {
            "success" => result(ended.text("result"), &means.result())
                .ok_or_else(|| self.nonsense(method, "the task's result is not a valid value")),
            _ => Err(self.task_error(method, task, ended)?.into()),
        }
    }

    /// Returns the error of a task that did not succeed.
    fn task_error(
        &self,
        method: &str,
        task: &str,
        ended: &Record,
    ) -> Result<ApiError, ClientError> {
        if ended.text("status") == "cancelled" {
            return Ok(codes::task_cancelled(task));
        }
        let mut details = ended.texts("error_info").into_iter().map(str::to_owned);
        let code = details.next();
        let code = code.ok_or_else(|| self.nonsense(method, "the failure has no code"))?;
        Ok(ApiError::new(code, details))
    }
}

fn has_ended(task: &Record) -> bool {
    !matches!(task.text("status"), "pending" | "cancelling")
}

/// Parses a task's result, which is always XML-RPC.
fn result(text: &str, ty: &Type) -> Option<Value> {
    if text.is_empty() {
        return (*ty == Type::Void).then(|| ty.zero());
    }
    let value = xmlrpc::read_value(text, &Limits::ANSWER).ok()?;
    coerce::coerce(value, ty, "").ok()
}
