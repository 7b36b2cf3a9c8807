//! Loading of records from a store.

use std::collections::BTreeSet;

use toolstack::store::{Contents, Key};
use xenapi::table::{Class, RecordStorage, class, task};
use xenapi::{ApiError, Date, Value, codes};

use super::{OpenError, row};
use crate::db::{Loaded, Ref, Tx};

/// Prefix of class names in table names.
const OBJECTS: &str = "obj/";

/// Returns the key of a row of this class.
pub(super) fn key(class: &str, uuid: &str) -> Key {
    Key::new(format!("{OBJECTS}{class}"), uuid)
}

/// Returns the key of the generation in which all objects were last marked as changed.
pub(super) fn repeated_key() -> Key {
    Key::new("meta", "repeated")
}

/// State read from a store.
pub(super) struct StoredState {
    pub(super) objects: Vec<Loaded>,
    /// Generation of the last change.
    pub(super) generation: u64,
    /// Last generation that a client may know.
    pub(super) ceiling: u64,
    /// Generation in which all objects count as changed, because the stop before it was not clean.
    pub(super) repeated: Option<u64>,
}

/// Reads the contents of a store.
pub(super) fn read(contents: Contents) -> Result<StoredState, OpenError> {
    let Contents { generation, ceiling, clean, rows, .. } = contents;
    let (mut objects, mut repeated) = (Vec::new(), None);
    for (key, value) in rows {
        let bad = |why: String| OpenError::Row { row: key.to_string(), why };
        if key == repeated_key() {
            let text = std::str::from_utf8(&value).ok().and_then(|text| text.parse().ok());
            repeated = Some(text.ok_or_else(|| bad("it is no number".to_owned()))?);
        } else if let Some(class) = class_of(&key) {
            objects.push(row::read(class, &key.name, &value).map_err(bad)?);
        }
    }
    let generation = if clean { generation } else { ceiling.saturating_add(1) };
    if !clean {
        repeated = Some(generation);
    }
    if let Some(repeated) = repeated {
        for object in &mut objects {
            object.changed = object.changed.max(repeated);
        }
    }
    check(&objects, generation)?;
    complete_progress(&mut objects);
    Ok(StoredState { objects, generation, ceiling: ceiling.max(generation), repeated })
}

/// Returns the class of a table. `None` if this version has no such class; its rows are preserved.
fn class_of(key: &Key) -> Option<&'static Class> {
    let name = key.table.strip_prefix(OBJECTS)?;
    class(name).filter(|class| class.record_storage == RecordStorage::State)
}

/// Checks that references and ages are unique and that no generation lies in the future.
fn check(objects: &[Loaded], generation: u64) -> Result<(), OpenError> {
    let (mut references, mut ages) = (BTreeSet::new(), BTreeSet::new());
    for object in objects {
        let why = match () {
            () if !references.insert(&object.reference) => "its reference occurs twice",
            () if !ages.insert(object.age) => "its age occurs twice",
            () if object.changed > generation => "it was changed after the last change",
            () => continue,
        };
        let row = format!("{} {}", object.class.name, object.reference);
        return Err(OpenError::Row { row, why: why.to_owned() });
    }
    Ok(())
}

/// Marks the progress of all tasks as complete.
fn complete_progress(objects: &mut [Loaded]) {
    let place = xenapi::table::FieldIx::from(task::Field::progress);
    for object in objects.iter_mut().filter(|object| object.class.name == place.class()) {
        if let Some(progress) = object.fields.get_mut(place.at()) {
            *progress = Value::Float(1.0);
        }
    }
}

/// Ends tasks that were under way as failed.
pub(super) fn end_tasks(tx: &mut Tx<'_>, now: Date) -> Result<(), ApiError> {
    let Some(class) = class("task") else { return Ok(()) };
    let status = task::Field::status.into();
    let under_way = |value: Option<&Value>| {
        value.is_some_and(|value| {
            matches!(value, Value::Str(text) if
            matches!(text.as_str(), "pending" | "cancelling"))
        })
    };
    let view = tx.view();
    let tasks = view.all(class).filter(|task| under_way(task.get(status)));
    let tasks: Vec<Ref> = tasks.map(|task| task.reference().clone()).collect();
    let why = codes::internal("the daemon ended during this operation; check its object");
    let why = Value::Set(why.details().into_iter().map(Value::Str).collect());
    for task in tasks {
        tx.set(&task, task::Field::status, Value::text("failure"))?;
        tx.set(&task, task::Field::error_info, why.clone())?;
        tx.set(&task, task::Field::finished, Value::Date(now))?;
    }
    Ok(())
}
