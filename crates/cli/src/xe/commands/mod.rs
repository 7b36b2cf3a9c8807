//! Commands: those with a definition of their own, and those of all object types.

mod console;
mod event_wait;
mod generic;
mod host;
mod message;
mod network;
mod snapshot;
mod storage;
mod template;
mod vbd;
mod vdi;
mod vdi_transfer;
mod vm;
mod vm_cd;
mod vm_disk;
mod vm_memory;

use xenapi::Value;

use crate::error::XeError;
use crate::object_types::{self, KINDS, ObjectType};
use crate::params::Params;
use crate::printer::Printed;
use crate::selector::{self, SelectorType};
use crate::xe::{XeSession, text_of};
pub(crate) use generic::Verb;

/// A command with a definition of its own.
#[derive(Debug)]
pub(crate) struct Command {
    /// Name of the command.
    pub(crate) name: &'static str,
    /// Required parameters.
    pub(crate) required: &'static [&'static str],
    /// Optional parameters; a name that ends with a colon takes keys.
    pub(crate) optional: &'static [&'static str],
    /// Help text, a sentence.
    pub(crate) help: &'static str,
    /// Type of objects that it selects.
    pub(crate) selector_type: Option<&'static SelectorType>,
    /// Whether it is one of the most frequently used commands.
    pub(crate) common: bool,
    /// Whether Ringway's daemon does not implement it yet; other servers may.
    pub(crate) later: bool,
    /// Implementation.
    pub(crate) run: Run,
}

/// Implementation of a command.
#[derive(Debug)]
pub(crate) enum Run {
    /// This call on the record with the given `uuid`.
    OnUuid(&'static str),
    /// This call on each selected object.
    OnSelected(&'static SelectorType, &'static str),
    /// This call on each selected object with `new-name-label`. Prints the UUIDs of new objects.
    Naming(&'static SelectorType, &'static str),
    /// A function.
    Own(fn(&mut XeSession, &Params) -> Result<Printed, XeError>),
}

impl Run {
    /// Runs the command.
    pub(crate) fn run(&self, xe: &mut XeSession, params: &Params) -> Result<Printed, XeError> {
        match self {
            Self::Own(run) => run(xe, params),
            Self::OnUuid(method) => {
                let class = class_of(method);
                let reference = xe.by_uuid(class, params.required("uuid")?)?;
                xe.run(method, &[reference])?;
                Ok(Printed::nothing())
            }
            Self::OnSelected(selector_type, method) => {
                let all = selector::some(xe, params, selector_type, &[])?;
                selector::together(xe, all, |xe, one| xe.begin(method, &[one.value()]))?;
                Ok(Printed::nothing())
            }
            Self::Naming(selector_type, method) => {
                let name = Value::text(params.required("new-name-label")?);
                let own = ["new-name-label", "new-name-description"];
                let all = selector::some(xe, params, selector_type, &own)?;
                let made = selector::together(xe, all, |xe, one| {
                    xe.begin(method, &[one.value(), name.clone()])
                })?;
                named(xe, class_of(method), &made, params.get("new-name-description"))
            }
        }
    }
}

/// Sets the description of new objects if there is one, and returns their UUIDs.
pub(crate) fn named(
    xe: &mut XeSession,
    class: &str,
    made: &[Value],
    description: Option<&str>,
) -> Result<Printed, XeError> {
    let mut uuids = Vec::new();
    for one in made {
        if let Some(text) = description {
            let method = format!("{class}.set_name_description");
            xe.run(&method, &[one.clone(), Value::text(text)])?;
        }
        uuids.push(xe.uuid_of(class, &text_of(one))?);
    }
    Ok(Printed::Values(uuids))
}

fn class_of(method: &str) -> &str {
    method.split('.').next().unwrap_or_default()
}

impl Command {
    const fn new(name: &'static str, help: &'static str, run: Run) -> Self {
        Self {
            name,
            required: &[],
            optional: &[],
            help,
            selector_type: None,
            common: false,
            later: false,
            run,
        }
    }

    /// Defines a command that calls a method on the record with the given `uuid`.
    const fn on_uuid(name: &'static str, method: &'static str, help: &'static str) -> Self {
        Self::new(name, help, Run::OnUuid(method)).required(&["uuid"])
    }

    /// Defines a command that calls a method on each selected object.
    const fn on_selected(
        name: &'static str,
        selector_type: &'static SelectorType,
        method: &'static str,
        help: &'static str,
    ) -> Self {
        Self::new(name, help, Run::OnSelected(selector_type, method)).of(selector_type)
    }

    /// Defines a command that runs a function.
    const fn own(
        name: &'static str,
        help: &'static str,
        run: fn(&mut XeSession, &Params) -> Result<Printed, XeError>,
    ) -> Self {
        Self::new(name, help, Run::Own(run))
    }

    const fn required(mut self, params: &'static [&'static str]) -> Self {
        self.required = params;
        self
    }

    const fn optional(mut self, params: &'static [&'static str]) -> Self {
        self.optional = params;
        self
    }

    const fn of(mut self, selector_type: &'static SelectorType) -> Self {
        self.selector_type = Some(selector_type);
        self
    }

    const fn common(mut self) -> Self {
        self.common = true;
        self
    }

    const fn later(mut self) -> Self {
        self.later = true;
        self
    }
}

/// Optional parameter that stands for all fields of a class.
const FIELD: &str = "<field>";

/// Help text of a command that the daemon does not implement yet.
const LATER: &str = "Hosts of Ringway do not support it yet (NOT_IMPLEMENTED).";

/// Commands with a definition of their own, file by file.
const WRITTEN: &[&[Command]] = &[
    console::COMMANDS,
    event_wait::COMMANDS,
    host::COMMANDS,
    message::COMMANDS,
    network::COMMANDS,
    snapshot::COMMANDS,
    storage::COMMANDS,
    template::COMMANDS,
    vbd::COMMANDS,
    vdi::COMMANDS,
    vdi_transfer::COMMANDS,
    vm::COMMANDS,
    vm_cd::COMMANDS,
    vm_disk::COMMANDS,
    vm_memory::COMMANDS,
];

/// A command found by its name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ResolvedCommand {
    /// A command with a definition of its own.
    Written(&'static Command),
    /// A command of all object types.
    Generic(&'static ObjectType, Verb),
}

/// Returns the command of this name.
pub(crate) fn find(name: &str) -> Option<ResolvedCommand> {
    let written = WRITTEN.iter().flat_map(|commands| commands.iter());
    let written =
        written.into_iter().find(|command| command.name == name).map(ResolvedCommand::Written);
    written.or_else(|| {
        let verb = Verb::ALL.into_iter().find(|verb| name.ends_with(verb.suffix()))?;
        let kind = object_types::find(name.strip_suffix(verb.suffix())?)?;
        verb.suits(kind).then_some(ResolvedCommand::Generic(kind, verb))
    })
}

/// Returns all commands by name.
pub(crate) fn all() -> Vec<(String, ResolvedCommand)> {
    let written = WRITTEN.iter().flat_map(|commands| commands.iter());
    let mut all: Vec<_> = written
        .map(|command| (command.name.to_owned(), ResolvedCommand::Written(command)))
        .collect();
    for kind in KINDS {
        let verbs = Verb::ALL.into_iter().filter(|verb| verb.suits(kind));
        let generic = verbs.map(|verb| {
            (format!("{}{}", kind.name, verb.suffix()), ResolvedCommand::Generic(kind, verb))
        });
        all.extend(generic);
    }
    all.sort_by(|(one, _), (other, _)| one.cmp(other));
    all
}

impl ResolvedCommand {
    /// Returns the required parameters.
    pub(crate) fn required(&self) -> &'static [&'static str] {
        match self {
            Self::Written(command) => command.required,
            Self::Generic(_, verb) => verb.required(),
        }
    }

    /// Returns the optional parameters.
    pub(crate) fn optional(&self) -> Vec<String> {
        match self {
            Self::Written(command) => {
                let own = command.optional.iter().map(|name| (*name).to_owned());
                let selects =
                    command.selector_type.iter().flat_map(|selector_type| selecting(selector_type));
                own.chain(selects).collect()
            }
            Self::Generic(kind, verb) => verb.optional(kind),
        }
    }

    /// Returns a parameter that the command does not have. A command that takes the fields of objects
    /// checks them itself, and has none.
    pub(crate) fn unknown<'a>(&self, params: &'a Params) -> Option<&'a str> {
        let takes_fields = match self {
            Self::Written(command) => {
                command.selector_type.is_some() || command.optional.contains(&FIELD)
            }
            Self::Generic(_, verb) => verb.takes_fields(),
        };
        let optional = self.optional();
        let known = self.required().iter().copied().chain(optional.iter().map(String::as_str));
        let others = || params.others(&known.collect::<Vec<_>>());
        if takes_fields { None } else { others().first().map(|(name, _)| *name) }
    }

    /// Checks that the command has all parameters.
    ///
    /// # Errors
    /// One is missing, or the command does not have it.
    pub(crate) fn check(&self, params: &Params) -> Result<(), XeError> {
        let unknown = self.unknown(params);
        for name in self.required() {
            params.required(name).map_err(|missing| missing.beside(unknown))?;
        }
        unknown.map_or(Ok(()), |name| {
            Err(XeError::syntax(&format!("'{name}' is no parameter of this command")))
        })
    }

    /// Returns the help text.
    pub(crate) fn help(&self) -> String {
        match self {
            Self::Written(command) => {
                let later = command.later.then(|| LATER.to_owned());
                let who = command.selector_type.map(how_to_select);
                let parts = [Some(command.help.to_owned()), later, who];
                parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
            }
            Self::Generic(kind, verb) => verb.help(kind),
        }
    }

    /// Returns whether it is one of the most frequently used commands.
    pub(crate) fn is_common(&self) -> bool {
        match self {
            Self::Written(command) => command.common,
            Self::Generic(kind, verb) => {
                *verb == Verb::List && ["vm", "sr", "network", "vdi", "vbd"].contains(&kind.name)
            }
        }
    }

    /// Returns the class of its parameter `uuid`, if it has one.
    pub(crate) fn class(&self) -> Option<&'static str> {
        match self {
            Self::Written(command) => match command.run {
                Run::OnUuid(method) => method.split('.').next(),
                _ => command.selector_type.map(|selector_type| selector_type.class).or_else(|| {
                    let kind = command.name.split('-').next().and_then(object_types::find);
                    kind.map(|kind| kind.class)
                }),
            },
            Self::Generic(kind, _) => Some(kind.class),
        }
    }
}

/// Returns the selecting parameters.
fn selecting(selector_type: &SelectorType) -> Vec<String> {
    [selector_type.param, FIELD, "--multiple"].map(str::to_owned).to_vec()
}

fn how_to_select(selector_type: &SelectorType) -> String {
    format!(
        "{} are selected by {}=<name or UUID>, or by any of their fields as in the list; selecting \
         several needs --multiple.",
        selector_type.many, selector_type.param
    )
}

#[cfg(test)]
mod tests;
