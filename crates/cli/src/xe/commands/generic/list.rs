//! The `-list` command.

use xenapi::client::Record;

use crate::columns::Column;
use crate::error::XeError;
use crate::filter::Filter;
use crate::object_types::ObjectType;
use crate::params::Params;
use crate::printer::{Line, Printed};
use crate::xe::XeSession;

pub(super) fn list(
    xe: &mut XeSession,
    kind: &'static ObjectType,
    columns: &[Column],
    params: &Params,
) -> Result<Printed, XeError> {
    let mut wanted: Vec<_> = kind.only.to_vec();
    if !params.flag("all")? {
        wanted.extend(params.others(&["params"]));
    }
    let filter = Filter::read(&wanted, columns)?;
    let shown = shown(kind, columns, params.get("params"))?;
    xe.read(&filter.needs())?;
    let needs: Vec<_> = shown.iter().flat_map(|column| column.needs()).collect();
    xe.read(&needs)?;
    let records = match filter.expression() {
        Some(expression) => xe.client().records_where(kind.class, &expression)?,
        None => xe.client().records(kind.class)?,
    };
    let records = records.iter().map(|(_, record)| record);
    let admitted = records.filter(|record| filter.admits(record, xe.tables()));
    let lines = |record: &Record| shown.iter().map(|one| line(one, record, xe)).collect();
    Ok(Printed::Records(admitted.map(lines).collect()))
}

/// Returns the requested columns in their own order.
fn shown<'a>(
    kind: &ObjectType,
    columns: &'a [Column],
    asked: Option<&str>,
) -> Result<Vec<&'a Column>, XeError> {
    let names: Vec<&str> = match asked {
        None => kind.shown.to_vec(),
        Some("all") => Vec::new(),
        Some(names) => names.split(',').map(str::trim).filter(|name| !name.is_empty()).collect(),
    };
    let is_known = |name: &&&str| columns.iter().any(|column| column.is(name));
    if let Some(name) = names.iter().find(|name| !is_known(name)).filter(|_| asked.is_some()) {
        return Err(XeError::error(format!("Unknown field '{name}'")));
    }
    let wanted = |column: &&Column| names.is_empty() || names.iter().any(|name| column.is(name));
    Ok(columns.iter().filter(wanted).collect())
}

fn line(column: &Column, record: &Record, xe: &XeSession) -> Line {
    (column.heading(), column.text(record, xe.tables()))
}
