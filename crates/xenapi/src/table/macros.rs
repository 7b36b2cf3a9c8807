//! Macros of the class files: `fields!` and `messages!`, and the functions for their contents.

use super::{
    Access, Class, DefaultValue, Field, FieldIx, Message, MessageKind, Param, RecordStorage, Role,
    Type,
};

/// Field without its name.
pub(super) struct Draft {
    ty: Type,
    access: Access,
    default: Option<DefaultValue>,
    inverse: Option<(&'static str, &'static str)>,
    volatile: bool,
    least: Option<Role>,
}

/// Creates a field that only the server writes.
pub(super) const fn ro(ty: Type) -> Draft {
    draft(ty, Access::RoRuntime)
}

/// Creates a field that `create` sets.
pub(super) const fn rc(ty: Type) -> Draft {
    draft(ty, Access::RoConstructor)
}

/// Creates a field that `create` and clients set.
pub(super) const fn rw(ty: Type) -> Draft {
    draft(ty, Access::Rw)
}

const fn draft(ty: Type, access: Access) -> Draft {
    Draft { ty, access, default: None, inverse: None, volatile: false, least: None }
}

impl Draft {
    /// Makes the field optional, with the zero of its type as the default.
    pub(super) const fn opt(self) -> Self {
        self.or(DefaultValue::Zero)
    }

    /// Makes the field optional, with this default.
    pub(super) const fn or(mut self, default_value: DefaultValue) -> Self {
        self.default = Some(default_value);
        self
    }

    /// Makes the field the set of objects whose field `field` of class `class` refers to this
    /// object.
    pub(super) const fn inverse(mut self, class: &'static str, field: &'static str) -> Self {
        self.inverse = Some((class, field));
        self
    }

    /// Marks the field as volatile: never stored, only valid at the time of the call.
    pub(super) const fn volatile(mut self) -> Self {
        self.volatile = true;
        self
    }

    /// Sets the least role that may write the field, instead of the class's.
    pub(super) const fn writer(mut self, role: Role) -> Self {
        self.least = Some(role);
        self
    }

    /// Completes the field. `writes` is the least role that may write the class.
    pub(super) const fn named(self, name: &'static str, doc: &'static str, writes: Role) -> Field {
        let Self { ty, access, default, inverse, volatile, least } = self;
        let least = match least {
            Some(role) => role,
            None => writes,
        };
        let (name, doc) = (plain(name), trimmed(doc));
        Field { name, ty, access, default, doc, inverse, volatile, least }
    }
}

/// Returns a name without the `r#` prefix of Rust keywords.
pub(super) const fn plain(name: &'static str) -> &'static str {
    match name.as_bytes() {
        [b'r', b'#', ..] => name.split_at(2).1,
        _ => name,
    }
}

/// Returns a comment without its leading space.
const fn trimmed(doc: &'static str) -> &'static str {
    match doc.as_bytes() {
        [b' ', ..] => doc.split_at(1).1,
        _ => doc,
    }
}

impl FieldIx {
    pub(super) const fn new(class: &'static str, at: usize) -> Self {
        Self { class, at }
    }
}

impl Param {
    pub(super) const fn named(name: &'static str, ty: Type, default: Option<DefaultValue>) -> Self {
        Self { name: plain(name), ty, default }
    }
}

impl Message {
    pub(super) const fn named(
        (name, doc): (&'static str, &'static str),
        params: &'static [Param],
        result: Type,
        (least, kind): (Role, MessageKind),
    ) -> Self {
        Self { name: plain(name), params, result, least, kind, doc: trimmed(doc) }
    }
}

impl Class {
    /// Creates a class whose records are stored in the state, are listed, and send events.
    pub(super) const fn new(
        (name, doc): (&'static str, &'static str),
        writes: Role,
        fields: &'static [Field],
        messages: &'static [Message],
    ) -> Self {
        Self {
            name,
            doc,
            fields,
            messages,
            record_storage: RecordStorage::State,
            listed: true,
            events: true,
            constructor: None,
            reads: Role::ReadOnly,
            writes,
            reference: Type::Ref(name),
            record: Type::Record(name),
        }
    }

    /// Disables events for the records.
    pub(super) const fn silent(mut self) -> Self {
        self.events = false;
        self
    }

    /// Disables the lists of records.
    pub(super) const fn unlisted(mut self) -> Self {
        self.listed = false;
        self
    }

    /// Sets where the records are stored.
    pub(super) const fn kept(mut self, record_storage: RecordStorage) -> Self {
        self.record_storage = record_storage;
        self
    }

    /// Lets clients create and destroy records. `kind` is how these calls run.
    pub(super) const fn created(mut self, kind: MessageKind) -> Self {
        self.constructor = Some(kind);
        self
    }

    /// Sets the least role that may read the fields.
    pub(super) const fn reads(mut self, role: Role) -> Self {
        self.reads = role;
        self
    }
}

/// Defines the fields of a class, one `name: kind(type)` each. `ro`, `rc` and `rw` define who
/// writes the field.
macro_rules! fields {
    ($class:literal, $writes:ident; $($(#[doc = $doc:literal])+ $name:ident: $draft:expr,)+) => {
        /// Numbers of the fields.
        #[allow(non_camel_case_types)] // Names as they are on the wire.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Field {
            $($(#[doc = $doc])+ $name,)+
        }

        impl From<Field> for $crate::table::FieldIx {
            fn from(field: Field) -> Self {
                Self::new($class, field as usize)
            }
        }

        pub(super) const FIELDS: &[$crate::table::Field] = &[
            $($draft.named(stringify!($name), concat!($($doc),+), $crate::table::Role::$writes),)+
        ];
    };
}

/// Defines the messages of a class: role, kind, name, parameters, result. Parameters after a
/// semicolon are optional. Their default follows the arrow, or is the zero of their type.
macro_rules! messages {
    ($($(#[doc = $doc:literal])+ $least:ident $kind:ident $name:ident(
        $($param:ident: $ty:expr),* $(; $($optional:ident: $oty:expr $(=> $preset:expr)?),+)?
    ) $(-> $result:expr)?;)*) => {
        pub(super) const MESSAGES: &[$crate::table::Message] = &[
            $($crate::table::Message::named(
                (stringify!($name), concat!($($doc),+)),
                const { &[
                    $($crate::table::Param::named(stringify!($param), $ty, None),)*
                    $($($crate::table::Param::named(
                        stringify!($optional),
                        $oty,
                        Some(messages!(@preset $($preset)?)),
                    ),)+)?
                ] },
                messages!(@result $($result)?),
                ($crate::table::Role::$least, $crate::table::MessageKind::$kind),
            ),)*
        ];
    };
    (@result) => { $crate::table::Type::Void };
    (@result $result:expr) => { $result };
    (@preset) => { $crate::table::DefaultValue::Zero };
    (@preset $preset:expr) => { $preset };
}

pub(super) use {fields, messages};
