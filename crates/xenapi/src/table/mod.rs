//! Contents of the API: classes, their fields and messages, and the types of both.
//!
//! # Model
//! A class is data. A record has a value for each field of its class. Code names fields by number
//! ([`FieldIx`]). Each class has an enumeration of its numbers, so that a misspelt field does not
//! compile. Getters, setters, constructors and lists are not listed here: they follow from the
//! fields ([`resolve`]). The table omits messages without a handler.
//!
//! # Invariants
//! No field or message appears twice. Each reference names a class of the table, or one that is
//! omitted on purpose. Each inverse has its partner. Tests check all of this.

mod classes;
pub mod enums;
mod macros;
pub mod resolve;
mod roles;
#[cfg(test)]
mod tests;
mod types;

pub use classes::*;
pub use roles::Role;
pub use types::{DefaultValue, Enum, Type};

use crate::Value;

/// Class of the API.
#[derive(Debug)]
pub struct Class {
    /// Name, as in `VM.start`.
    pub name: &'static str,
    /// Description of the records.
    pub doc: &'static str,
    /// Fields in the order of their numbers.
    pub fields: &'static [Field],
    /// Explicit messages, without those that follow from the fields.
    pub messages: &'static [Message],
    /// Storage of the records.
    pub record_storage: RecordStorage,
    /// True if the class has `get_all`, `get_all_records` and `get_all_records_where`.
    pub listed: bool,
    /// True if `event.from` reports changes of the records.
    pub events: bool,
    /// Execution of `create` and `destroy`. `None` if clients cannot create and destroy records,
    /// or do it with explicit messages.
    pub constructor: Option<MessageKind>,
    /// Least role that may read the fields.
    pub reads: Role,
    /// Least role that may create, destroy and set. A field may require another.
    pub writes: Role,
    /// Type of a reference to a record.
    pub reference: Type,
    /// Type of a record.
    pub record: Type,
}

/// Storage of the records of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordStorage {
    /// The class has no records.
    Nowhere,
    /// Memory only. A restart loses the records.
    Memory,
    /// Persistent state.
    State,
}

/// Field of a class.
#[derive(Debug)]
pub struct Field {
    /// Name, as in `VM.get_power_state`.
    pub name: &'static str,
    /// Type of the value.
    pub ty: Type,
    /// Write access.
    pub access: Access,
    /// Default value. `None` if `create` requires the field.
    pub default: Option<DefaultValue>,
    /// Description.
    pub doc: &'static str,
    /// Class and field whose references this set contains, as `VM.VBDs` contains those of `VBD.VM`.
    /// The database maintains the set.
    pub inverse: Option<(&'static str, &'static str)>,
    /// True if the field is never stored and only valid at the time of the call.
    pub volatile: bool,
    /// Least role that may set the field.
    pub least: Role,
}

impl Field {
    /// Returns the initial value.
    pub fn initial(&self) -> Value {
        self.default
            .as_ref()
            .map_or_else(|| self.ty.zero(), |default_value| default_value.value(&self.ty))
    }
}

/// Write access to a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// `create` sets the field. Later only messages change it.
    RoConstructor,
    /// Only the server writes the field.
    RoRuntime,
    /// `create` and clients set the field.
    Rw,
}

/// Number of a field, with its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FieldIx {
    class: &'static str,
    at: usize,
}

impl FieldIx {
    /// Returns the index in a record of the class.
    pub fn at(self) -> usize {
        self.at
    }

    /// Returns the name of the class.
    pub fn class(self) -> &'static str {
        self.class
    }
}

/// Message of a class.
#[derive(Debug)]
pub struct Message {
    /// Name, as in `VM.start`.
    pub name: &'static str,
    /// Parameters in order, without the session.
    pub params: &'static [Param],
    /// Type of the result.
    pub result: Type,
    /// Least role that may call the message.
    pub least: Role,
    /// Execution of the message.
    pub kind: MessageKind,
    /// Description.
    pub doc: &'static str,
}

/// Parameter of a message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Param {
    /// Name.
    pub name: &'static str,
    /// Type.
    pub ty: Type,
    /// Default value. `None` if the parameter is required. Only the last parameters can have
    /// defaults.
    pub default: Option<DefaultValue>,
}

/// Execution of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// Runs without a session, before there is one: a login.
    Login,
    /// Runs immediately: reads, writes, lists.
    Short,
    /// Runs as a task and has an `Async` form.
    Long,
    /// Waits without occupying a slot of the long calls: `event.from`.
    Waits,
}

impl Class {
    /// Returns the field with this name.
    pub fn field(&'static self, name: &str) -> Option<(FieldIx, &'static Field)> {
        self.numbers().find(|(_, field)| field.name == name)
    }

    /// Returns the field with this number, or `None` if the number belongs to another class.
    pub fn field_at(&'static self, ix: FieldIx) -> Option<&'static Field> {
        self.fields.get(ix.at).filter(|_| ix.class == self.name)
    }

    /// Returns the numbers of the fields, in order.
    pub fn numbers(&'static self) -> impl Iterator<Item = (FieldIx, &'static Field)> {
        let class = self.name;
        self.fields.iter().enumerate().map(move |(at, field)| (FieldIx { class, at }, field))
    }

    /// Returns the explicit message with this name.
    pub fn message(&'static self, name: &str) -> Option<&'static Message> {
        self.messages.iter().find(|message| message.name == name)
    }
}

/// Returns the class with this name. Names are case-sensitive, as on the wire.
pub fn class(name: &str) -> Option<&'static Class> {
    classes().iter().copied().find(|class| class.name == name)
}
