//! Commands of all object types: `-list` and the `-param-` commands.

mod list;
mod one;

use xenapi::table::{Class, Type, class};

use crate::columns::{self, Column};
use crate::error::XeError;
use crate::object_types::ObjectType;
use crate::params::Params;
use crate::printer::Printed;
use crate::xe::XeSession;
use list::list;
use one::ParamTarget;

/// Operation on an object type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    ParamList,
    ParamGet,
    ParamSet,
    ParamAdd,
    ParamRemove,
    ParamClear,
    List,
}

impl Verb {
    /// All operations. If one suffix ends with another, the longer comes first.
    pub(crate) const ALL: [Self; 7] = [
        Self::ParamList,
        Self::ParamGet,
        Self::ParamSet,
        Self::ParamAdd,
        Self::ParamRemove,
        Self::ParamClear,
        Self::List,
    ];

    /// Returns the suffix of the command's name after the object type.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::ParamList => "-param-list",
            Self::ParamGet => "-param-get",
            Self::ParamSet => "-param-set",
            Self::ParamAdd => "-param-add",
            Self::ParamRemove => "-param-remove",
            Self::ParamClear => "-param-clear",
            Self::List => "-list",
        }
    }

    /// Returns whether the object type has a column that the operation needs.
    pub(crate) fn suits(self, kind: &ObjectType) -> bool {
        let any = |fits: fn(&Column) -> bool| columns_of(kind).iter().any(fits);
        match self {
            Self::List | Self::ParamList | Self::ParamGet => true,
            Self::ParamSet | Self::ParamClear => any(is_settable),
            Self::ParamAdd | Self::ParamRemove => any(has_addable),
        }
    }

    /// Returns whether the operation takes fields, or any key of a map, as parameters.
    pub(crate) fn takes_fields(self) -> bool {
        matches!(self, Self::List | Self::ParamSet | Self::ParamAdd)
    }

    pub(crate) fn required(self) -> &'static [&'static str] {
        match self {
            Self::List => &[],
            Self::ParamList | Self::ParamSet => &["uuid"],
            Self::ParamGet | Self::ParamAdd | Self::ParamClear => &["uuid", "param-name"],
            Self::ParamRemove => &["uuid", "param-name", "param-key"],
        }
    }

    pub(crate) fn optional(self, kind: &ObjectType) -> Vec<String> {
        let columns = columns_of(kind);
        let name = |column: &Column| match column.ty() {
            Type::Map(..) => format!("{}:", column.name),
            _ => column.name.to_string(),
        };
        match self {
            Self::List => {
                let sets = columns.iter().filter(|column| matches!(column.ty(), Type::Set(_)));
                let contains = sets.map(|column| format!("{}:contains", column.name));
                let own = ["params", "--all"].map(str::to_owned).into_iter();
                own.chain(columns.iter().map(name)).chain(contains).collect()
            }
            Self::ParamSet => columns.iter().filter(|one| is_settable(one)).map(name).collect(),
            Self::ParamGet | Self::ParamAdd => vec!["param-key".to_owned()],
            Self::ParamList | Self::ParamRemove | Self::ParamClear => Vec::new(),
        }
    }

    pub(crate) fn help(self, kind: &ObjectType) -> String {
        let many = kind.many;
        match self {
            Self::List => format!(
                "Lists {many}: all, or those that have these values. The value of a key of a map \
                 is <map>:<key>=<value>, a member of a set is <set>:contains=<value>."
            ),
            Self::ParamList => format!("Lists all fields of one of the {many}."),
            Self::ParamGet => format!(
                "Prints one field of one of the {many}, or the value of a map's key `param-key`."
            ),
            Self::ParamSet => format!(
                "Sets fields of one of the {many}: <field>=<value>, or <map>:<key>=<value>."
            ),
            Self::ParamAdd => format!(
                "Adds to a field of one of the {many}: to a set `param-key`, to a map \
                 <key>=<value>."
            ),
            Self::ParamRemove => {
                format!("Removes a member of a set, or a key of a map, of one of the {many}.")
            }
            Self::ParamClear => format!("Empties a field of one of the {many}."),
        }
    }

    /// Runs the command.
    pub(crate) fn run(
        self,
        xe: &mut XeSession,
        kind: &'static ObjectType,
        params: &Params,
    ) -> Result<Printed, XeError> {
        let columns = columns_of(kind);
        if self == Self::List {
            return list(xe, kind, &columns, params);
        }
        let (reference, record) = xe.find(kind.class, params.required("uuid")?)?;
        let mut param_target = ParamTarget { xe, reference, record, columns };
        match self {
            Self::ParamList => param_target.all().map(|lines| Printed::Records(vec![lines])),
            Self::ParamGet => param_target.get(params).map(Printed::value),
            Self::ParamSet => param_target.set(params),
            Self::ParamAdd => param_target.add(params),
            Self::ParamRemove => param_target.remove(params),
            Self::ParamClear => param_target.clear(params),
            Self::List => Ok(Printed::nothing()),
        }
    }
}

fn columns_of(kind: &ObjectType) -> Vec<Column> {
    class_of(kind).map(columns::of).unwrap_or_default()
}

fn class_of(kind: &ObjectType) -> Option<&'static Class> {
    class(kind.class)
}

fn is_settable(column: &Column) -> bool {
    column.method("set_").is_some() || column.method("add_to_").is_some()
}

fn has_addable(column: &Column) -> bool {
    column.method("add_").is_some() || column.method("add_to_").is_some()
}
