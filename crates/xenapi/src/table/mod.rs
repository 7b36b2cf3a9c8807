//! What the API consists of: classes, their fields and messages, and the types of both.
//!
//! # Model
//! A class is data. A record of it is a value for each of its fields; fields are named by number
//! ([`FieldIx`]), and each class has an enumeration of its numbers, so that a misspelt field does
//! not compile. Getters, setters, constructors and lists are not written down: they follow from
//! the fields ([`implicit`]). A message that nobody serves is not in the table.
//!
//! # Invariants
//! No field or message twice; each reference names a class of the table or one that is left out
//! on purpose; each inverse has its partner. All of it is tested.

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

/// A class of the API.
#[derive(Debug)]
pub struct Class {
    /// Its name, as in `VM.start`.
    pub name: &'static str,
    /// What its records are.
    pub doc: &'static str,
    /// Its fields, in the order of their numbers.
    pub fields: &'static [Field],
    /// Its messages, without those that follow from its fields.
    pub messages: &'static [Message],
    /// Where its records are kept.
    pub record_storage: RecordStorage,
    /// It has `get_all`, `get_all_records` and `get_all_records_where`.
    pub listed: bool,
    /// Changes of its records are told by `event.from`.
    pub events: bool,
    /// How `create` and `destroy` are done; none: clients create and destroy no records, or do it
    /// by messages of the class.
    pub constructor: Option<MessageKind>,
    /// The least role that may read its fields.
    pub reads: Role,
    /// The least role that may create, destroy and set, where a field does not say otherwise.
    pub writes: Role,
    /// A reference to one of its records.
    pub reference: Type,
    /// One of its records.
    pub record: Type,
}

/// Where the records of a class are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordStorage {
    /// There are none.
    Nowhere,
    /// In memory: a restart forgets them.
    Memory,
    /// In the state.
    State,
}

/// A field of a class.
#[derive(Debug)]
pub struct Field {
    /// Its name, as in `VM.get_power_state`.
    pub name: &'static str,
    /// What it holds.
    pub ty: Type,
    /// Who may write it.
    pub access: Access,
    /// What it holds unless given; none for what `create` must be given.
    pub default: Option<DefaultValue>,
    /// What it tells.
    pub doc: &'static str,
    /// Kept by the database: class and field whose references this set gathers, as `VM.VBDs` has
    /// those of `VBD.VM`.
    pub inverse: Option<(&'static str, &'static str)>,
    /// Never stored: true of this moment only.
    pub volatile: bool,
    /// The least role that may set it.
    pub least: Role,
}

impl Field {
    /// What it holds when nobody gave it a value.
    pub fn initial(&self) -> Value {
        self.default
            .as_ref()
            .map_or_else(|| self.ty.zero(), |default_value| default_value.value(&self.ty))
    }
}

/// Who may write a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// `create` takes it, nobody sets it later but by a message.
    RoConstructor,
    /// Only the server.
    RoRuntime,
    /// `create` takes it and clients set it.
    Rw,
}

/// The number of a field, with its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FieldIx {
    class: &'static str,
    at: usize,
}

impl FieldIx {
    /// Its place in a record of its class.
    pub fn at(self) -> usize {
        self.at
    }

    /// The name of its class.
    pub fn class(self) -> &'static str {
        self.class
    }
}

/// A message of a class.
#[derive(Debug)]
pub struct Message {
    /// Its name, as in `VM.start`.
    pub name: &'static str,
    /// What it takes, in order, without the session.
    pub params: &'static [Param],
    /// What it answers.
    pub result: Type,
    /// The least role that may call it.
    pub least: Role,
    /// How it is carried out.
    pub kind: MessageKind,
    /// What it does.
    pub doc: &'static str,
}

/// What a message takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Param {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub ty: Type,
    /// What it is when it is left out, which is only possible at the end; none: it must be given.
    pub default: Option<DefaultValue>,
}

/// How a message is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// Before there is a session, and without one: a login.
    Login,
    /// On the spot: reads, writes, lists.
    Short,
    /// By a task. It has an `Async` form.
    Long,
    /// Waits, and holds no place in a queue while it does: `event.from`.
    Waits,
}

impl Class {
    /// The field of this name.
    pub fn field(&'static self, name: &str) -> Option<(FieldIx, &'static Field)> {
        self.numbers().find(|(_, field)| field.name == name)
    }

    /// The field of this number; none if it is a number of another class.
    pub fn field_at(&'static self, ix: FieldIx) -> Option<&'static Field> {
        self.fields.get(ix.at).filter(|_| ix.class == self.name)
    }

    /// The numbers of its fields, in order.
    pub fn numbers(&'static self) -> impl Iterator<Item = (FieldIx, &'static Field)> {
        let class = self.name;
        self.fields.iter().enumerate().map(move |(at, field)| (FieldIx { class, at }, field))
    }

    /// The message of this name, if it is written down.
    pub fn message(&'static self, name: &str) -> Option<&'static Message> {
        self.messages.iter().find(|message| message.name == name)
    }
}

/// The class of this name; names differ by case, as on the wire.
pub fn class(name: &str) -> Option<&'static Class> {
    classes().iter().copied().find(|class| class.name == name)
}
