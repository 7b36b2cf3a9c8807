//! What the API consists of: classes, their fields and messages, and the types of both.

/// The type of a field, a parameter or a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// No result: empty text on the wire.
    Void,
    /// Text.
    Str,
    /// A whole number of 64 bits.
    Int,
    /// A number.
    Float,
    /// Yes or no.
    Bool,
    /// A moment.
    Date,
    /// One of several words.
    Enum(&'static Enum),
    /// A reference to a record of this class.
    Ref(&'static str),
    /// Several of a type.
    Set(&'static Type),
    /// From one type to another; keys are text on the wire.
    Map(&'static Type, &'static Type),
    /// A whole record of this class.
    Record(&'static str),
}

/// Words of which a value is one.
#[derive(Debug, PartialEq, Eq)]
pub struct Enum {
    /// Its name, for example `vm_power_state`.
    pub name: &'static str,
    /// The words, as they are on the wire.
    pub words: &'static [&'static str],
}
