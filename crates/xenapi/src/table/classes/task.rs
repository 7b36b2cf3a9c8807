//! Tasks: calls in progress.

use super::prelude::*;

fields! { "task", PoolOperator;
    /// UUID.
    uuid: ro(Str),
    /// Name of the call.
    name_label: ro(Str).opt(),
    /// Description of the call's object.
    name_description: ro(Str).opt(),
    /// Operations that are currently allowed.
    allowed_operations: ro(Set(&Enum(&enums::TASK_ALLOWED_OPERATIONS))).opt().volatile(),
    /// Operations in progress: from an operation's task to its name.
    current_operations: ro(Map(&Str, &Enum(&enums::TASK_ALLOWED_OPERATIONS))).opt().volatile(),
    /// Start time.
    created: ro(Date),
    /// End time, or 1970 until the task ends.
    finished: ro(Date),
    /// Status.
    status: ro(Enum(&enums::TASK_STATUS_TYPE)),
    /// Host that runs the task.
    resident_on: ro(Ref("host")),
    /// Progress from 0 to 1. Value 1 for any ended task.
    progress: ro(Float).volatile(),
    /// Type of the result.
    r#type: ro(Str),
    /// Result as an XML-RPC value. Empty without a result.
    result: ro(Str),
    /// Error code and parameters, if the task failed.
    error_info: ro(STRS),
    /// Additional settings of clients.
    other_config: rw(PAIRS).opt(),
    /// Parent task.
    subtask_of: ro(Ref("task")).opt(),
    /// Subtasks.
    subtasks: ro(Set(&Ref("task"))).inverse("task", "subtask_of"),
    /// Backtrace of the failure.
    backtrace: ro(Str).or(Text("()")),
}

messages! {
    /// Creates a task that the client itself carries out.
    ReadOnly Short create(label: Str, description: Str) -> Ref("task");
    /// Destroys a task: at once if it has ended, otherwise at its end.
    ReadOnly Short destroy(self: Ref("task"));
    /// Requests the cancellation of a task.
    ReadOnly Short cancel(task: Ref("task"));
    /// Sets the progress of a client's own task.
    ReadOnly Short set_progress(self: Ref("task"), value: Float);
    /// Sets the final status of a client's own task.
    ReadOnly Short set_status(self: Ref("task"), value: Enum(&enums::TASK_STATUS_TYPE));
    /// Sets the result of a client's own task.
    ReadOnly Short set_result(self: Ref("task"), value: Str);
    /// Sets the error of a client's own task.
    ReadOnly Short set_error_info(self: Ref("task"), value: STRS);
}

/// Definition of the class.
pub static CLASS: Class =
    Class::new(("task", "A call that takes a while"), Role::PoolOperator, FIELDS, MESSAGES);
