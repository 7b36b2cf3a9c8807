//! Waits until an object has given field values.

use std::time::Duration;

use xenapi::client::{Event, Record};
use xenapi::table::class;

use super::Command;
use crate::columns;
use crate::error::XeError;
use crate::filter::Filter;
use crate::object_types;
use crate::params::Params;
use crate::printer::Printed;
use crate::xe::XeSession;

/// Duration of one wait for events; afterwards a dead server is noticed.
const WAIT: Duration = Duration::from_secs(30);
/// Prefix of a value that a field must not have.
const NOT: &str = "/=";

pub(super) const COMMANDS: &[Command] = &[Command::own(
    "event-wait",
    "Waits until there is an object of a class (vm, vdi, host ...) whose fields have these values; \
     <field>=/=<value> is any other value.",
    wait,
)
.required(&["class"])
.optional(&[super::FIELD])];

/// Conditions that a record must and must not meet.
struct Wanted {
    like: Filter,
    unlike: Vec<Filter>,
}

impl Wanted {
    fn is_met(&self, xe: &XeSession, record: &Record) -> bool {
        let tables = xe.tables();
        self.like.admits(record, tables)
            && !self.unlike.iter().any(|unlike| unlike.admits(record, tables))
    }
}

fn wait(xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
    let name = params.required("class")?;
    let class =
        object_types::find(name).and_then(|kind| class(kind.class)).filter(|class| class.events);
    let class = class.ok_or_else(|| {
        XeError::error(format!("there are no events of the class '{name}': try vm, vdi or host"))
    })?;
    let columns = columns::of(class);
    let all = params.others(&["class"]);
    let is_unlike = |(_, value): &(&str, &str)| value.starts_with(NOT);
    let (unlike, like): (Vec<_>, Vec<_>) = all.into_iter().partition(is_unlike);
    let unlike = unlike.into_iter().map(|(field, value)| {
        Filter::read(&[(field, value.get(NOT.len()..).unwrap_or_default())], &columns)
    });
    let unlike = unlike.collect::<Result<_, _>>()?;
    let wanted = Wanted { like: Filter::read(&like, &columns)?, unlike };
    let needs: Vec<_> =
        wanted.unlike.iter().chain([&wanted.like]).flat_map(|filter| filter.needs()).collect();
    // The first batch has all objects, so no change is missed before the wait.
    let mut token = String::new();
    loop {
        let batch = xe.client().events(&[class.name], &token, WAIT)?;
        xe.forget();
        xe.read(&needs)?;
        let snapshots = batch.events.iter().filter_map(|event: &Event| event.snapshot.as_ref());
        if snapshots.into_iter().any(|record| wanted.is_met(xe, record)) {
            return Ok(Printed::nothing());
        }
        token = batch.token;
    }
}
