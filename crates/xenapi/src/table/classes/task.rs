//! Calls under way.

use super::prelude::*;

fields! { "task", PoolOperator;
    /// Its UUID.
    uuid: ro(Str),
    /// The call, for people.
    name_label: ro(Str).opt(),
    /// What it is about, for people.
    name_description: ro(Str).opt(),
    /// What may be asked of it now.
    allowed_operations: ro(Set(&Enum(&enums::TASK_ALLOWED_OPERATIONS))).opt().volatile(),
    /// What it is doing: from an operation's task to its name.
    current_operations: ro(Map(&Str, &Enum(&enums::TASK_ALLOWED_OPERATIONS))).opt().volatile(),
    /// When it began.
    created: ro(Date),
    /// When it ended; 1970 before.
    finished: ro(Date),
    /// How far it is.
    status: ro(Enum(&enums::TASK_STATUS_TYPE)),
    /// The host that carries it out.
    resident_on: ro(Ref("host")),
    /// From 0 to 1; 1 when it has ended, however that was.
    progress: ro(Float).volatile(),
    /// The type of its result, for people.
    r#type: ro(Str),
    /// Its result, as an XML-RPC value; empty if it has none.
    result: ro(Str),
    /// Why it failed: a code and its parameters.
    error_info: ro(STRS),
    /// Whatever clients keep with it.
    other_config: rw(PAIRS).opt(),
    /// The task of which it is a part.
    subtask_of: ro(Ref("task")).opt(),
    /// Its parts.
    subtasks: ro(Set(&Ref("task"))).inverse("task", "subtask_of"),
    /// Where in the program it failed.
    backtrace: ro(Str).or(Text("()")),
}

messages! {
    /// Makes a task that its client carries out.
    ReadOnly Short create(label: Str, description: Str) -> Ref("task");
    /// Forgets a task: at once if it has ended, else as soon as it has.
    ReadOnly Short destroy(self: Ref("task"));
    /// Asks it to end early.
    ReadOnly Short cancel(task: Ref("task"));
    /// Says how far a client's own task is.
    ReadOnly Short set_progress(self: Ref("task"), value: Float);
    /// Says that a client's own task has ended, and how.
    ReadOnly Short set_status(self: Ref("task"), value: Enum(&enums::TASK_STATUS_TYPE));
    /// Says what came of a client's own task.
    ReadOnly Short set_result(self: Ref("task"), value: Str);
    /// Says why a client's own task failed.
    ReadOnly Short set_error_info(self: Ref("task"), value: STRS);
}

/// The class.
pub static CLASS: Class =
    Class::new(("task", "A call that takes a while"), Role::PoolOperator, FIELDS, MESSAGES);
