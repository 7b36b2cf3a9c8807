//! Selects the machines, hosts or storage of a command.

use std::collections::VecDeque;

use xenapi::Value;
use xenapi::client::{PendingCall, Record};
use xenapi::table::class;

use crate::columns::{self, Column};
use crate::error::XeError;
use crate::filter::Filter;
use crate::params::Params;
use crate::together_progress::TogetherProgress;
use crate::xe::XeSession;

/// Maximum number of concurrent operations. A server remembers twice as many ended tasks, so it
/// forgets none before its result is read.
const BEGUN_MAX: usize = 100;

/// Type of objects that a selector selects.
#[derive(Debug)]
pub(crate) struct SelectorType {
    /// API class.
    pub(crate) class: &'static str,
    /// Parameter that takes a name or a UUID.
    pub(crate) param: &'static str,
    /// Plural for sentences.
    pub(crate) many: &'static str,
    /// Start of the message on several matches.
    several: &'static str,
    /// Columns and texts of objects that are never selected.
    never: &'static [(&'static str, &'static str)],
}

/// Machines, without templates and the control domain.
pub(crate) const VM: SelectorType = SelectorType {
    class: "VM",
    param: "vm",
    many: "VMs",
    several: "Multiple matches VMs found",
    never: &[("is-a-template", "true"), ("is-control-domain", "true")],
};

/// Machines and the control domain.
pub(crate) const ANY_VM: SelectorType = SelectorType { never: &[("is-a-template", "true")], ..VM };

/// Machines, the control domain and templates.
pub(crate) const VM_OR_TEMPLATE: SelectorType = SelectorType { never: &[], ..VM };

/// Hosts.
pub(crate) const HOST: SelectorType = SelectorType {
    class: "host",
    param: "host",
    many: "hosts",
    several: "Multiple matching hosts found",
    never: &[],
};

/// A selected object.
#[derive(Clone, Debug)]
pub(crate) struct Selected {
    pub(crate) reference: String,
    pub(crate) record: Record,
}

impl Selected {
    /// Returns the reference as a parameter of a call.
    pub(crate) fn value(&self) -> Value {
        Value::text(&self.reference)
    }
}

/// Returns all objects that the parameters select. `own` are parameters of the command itself.
pub(crate) fn select(
    xe: &mut XeSession,
    params: &Params,
    selector_type: &SelectorType,
    own: &[&str],
) -> Result<Vec<Selected>, XeError> {
    let Some(class) = class(selector_type.class) else { return Ok(Vec::new()) };
    let columns = columns::of(class);
    let named = params.get(selector_type.param);
    let others = params.others(own).into_iter().filter(|(name, _)| *name != selector_type.param);
    let others: Vec<_> = others.collect();
    known(&others, &columns, selector_type)?;
    let filter = Filter::read(&others, &columns)?;
    let never = selector_type.never.iter().map(|pair| Filter::read(&[*pair], &columns));
    let never: Vec<Filter> = never.collect::<Result<_, _>>()?;
    xe.read(&filter.needs())?;
    let by_name = named
        .filter(|name| !name.contains('"'))
        .map(|name| format!("(field \"uuid\"=\"{name}\") or (field \"name_label\"=\"{name}\")"));
    let expression = by_name.or_else(|| filter.expression()).unwrap_or_else(|| "true".to_owned());
    let records = xe.client().records_where(selector_type.class, &expression)?;
    let meant = |record: &Record| {
        let is_named = named
            .is_none_or(|name| record.text("uuid") == name || record.text("name_label") == name);
        is_named && filter.admits(record, xe.tables())
    };
    let is_never = |(_, record): &(String, Record)| {
        never.iter().any(|never| never.admits(record, xe.tables()))
    };
    let meant = records.into_iter().filter(|(_, record)| meant(record));
    let (never, found): (Vec<_>, Vec<_>) = meant.partition(is_never);
    let is_one = named.is_some() || params.get("uuid").is_some();
    match never.first().filter(|_| found.is_empty() && is_one) {
        Some((_, other)) => Err(no_machine(other.text("name_label"), other.flag("is_a_template"))),
        None => {
            let found = found.into_iter();
            Ok(found.map(|(reference, record)| Selected { reference, record }).collect())
        }
    }
}

/// Returns the error for a name that is not that of a machine.
fn no_machine(name: &str, is_template: bool) -> XeError {
    XeError::error(match is_template {
        true => format!(
            "No matching VMs found: {name} is a template. vm-install makes a VM of it, and \
             template-param-set is-a-template=false makes it a VM"
        ),
        false => format!("No matching VMs found: {name} is the control domain of the host"),
    })
}

/// Checks that all parameters are columns. An unknown parameter is an error, not a filter that
/// matches nothing.
fn known(
    params: &[(&str, &str)],
    columns: &[Column],
    selector_type: &SelectorType,
) -> Result<(), XeError> {
    for (name, _) in params {
        if crate::filter::member(name, columns).is_err() && !columns.iter().any(|c| c.is(name)) {
            return Err(XeError::error(format!(
                "'{name}' is neither a parameter of this command nor a field by which {} are \
                 selected",
                selector_type.many
            )));
        }
    }
    Ok(())
}

/// Returns the only selected object.
pub(crate) fn one(
    xe: &mut XeSession,
    params: &Params,
    selector_type: &SelectorType,
    own: &[&str],
) -> Result<Selected, XeError> {
    let mut found = select(xe, params, selector_type, own)?;
    match (found.pop(), found.is_empty()) {
        (Some(one), true) => Ok(one),
        (Some(_), false) => Err(XeError::error(format!(
            "{}. Operation can only be performed on one at a time",
            selector_type.several
        ))),
        (None, _) => Err(none(selector_type)),
    }
}

/// Returns the selected objects. Several require `--multiple`.
pub(crate) fn some(
    xe: &mut XeSession,
    params: &Params,
    selector_type: &SelectorType,
    own: &[&str],
) -> Result<Vec<Selected>, XeError> {
    let found = select(xe, params, selector_type, own)?;
    match found.len() {
        0 => Err(none(selector_type)),
        1 => Ok(found),
        _ if params.flag("multiple")? => Ok(found),
        _ => Err(XeError::error(format!(
            "{}. --multiple required to complete the operation",
            selector_type.several
        ))),
    }
}

fn none(selector_type: &SelectorType) -> XeError {
    XeError::error(format!("No matching {} found", selector_type.many))
}

/// Runs an operation on each object, concurrently if the server runs it as a task.
pub(crate) fn together(
    xe: &mut XeSession,
    all: Vec<Selected>,
    mut begin: impl FnMut(&mut XeSession, &Selected) -> Result<PendingCall, XeError>,
) -> Result<Vec<Value>, XeError> {
    let (mut pending_call, mut ended) = (VecDeque::new(), Vec::new());
    let mut progress = TogetherProgress::begin(all.len());
    let mut end = |xe: &mut XeSession, pending_call: Result<PendingCall, XeError>| {
        let ended = pending_call.and_then(|pending_call| xe.end(pending_call));
        progress.count();
        ended
    };
    for one in &all {
        if pending_call.len() == BEGUN_MAX {
            ended.extend(pending_call.pop_front().map(|first| end(xe, first)));
        }
        pending_call.push_back(begin(xe, one));
    }
    ended.extend(pending_call.into_iter().map(|rest| end(xe, rest)));
    drop(progress);
    gather(xe, &all, ended)
}

/// Runs an operation on each object, one after the other.
pub(crate) fn in_turn(
    xe: &mut XeSession,
    all: &[Selected],
    mut act: impl FnMut(&mut XeSession, &Selected) -> Result<(), XeError>,
) -> Result<(), XeError> {
    let done = all.iter().map(|one| act(xe, one)).collect();
    gather(xe, all, done).map(|_| ())
}

/// Collects the results. For several objects, the error names those that failed.
fn gather<T>(
    xe: &mut XeSession,
    all: &[Selected],
    done: Vec<Result<T, XeError>>,
) -> Result<Vec<T>, XeError> {
    let alone = all.len() == 1;
    let (mut results, mut failures) = (Vec::new(), Vec::new());
    for (one, done) in all.iter().zip(done) {
        match done {
            Ok(result) => results.push(result),
            Err(xe_error) if alone => return Err(xe_error),
            Err(xe_error) => {
                let why = xe_error.explained(xe).errors();
                failures.push((one.record.text("uuid").to_owned(), why));
            }
        }
    }
    if failures.is_empty() { Ok(results) } else { Err(XeError::Several(failures)) }
}
