//! How class files are written: `fields!` and `messages!`, and what stands in them.

use super::{
    Access, Class, DefaultValue, Field, FieldIx, Message, MessageKind, Param, RecordStorage, Role,
    Type,
};

/// A field before it has its name.
pub(super) struct Draft {
    ty: Type,
    access: Access,
    default: Option<DefaultValue>,
    inverse: Option<(&'static str, &'static str)>,
    volatile: bool,
    least: Option<Role>,
}

/// A field that only the server writes.
pub(super) const fn ro(ty: Type) -> Draft {
    draft(ty, Access::RoRuntime)
}

/// A field that `create` takes.
pub(super) const fn rc(ty: Type) -> Draft {
    draft(ty, Access::RoConstructor)
}

/// A field that `create` takes and clients set.
pub(super) const fn rw(ty: Type) -> Draft {
    draft(ty, Access::Rw)
}

const fn draft(ty: Type, access: Access) -> Draft {
    Draft { ty, access, default: None, inverse: None, volatile: false, least: None }
}

impl Draft {
    /// It need not be given: then it is the zero of its type.
    pub(super) const fn opt(self) -> Self {
        self.or(DefaultValue::Zero)
    }

    /// It need not be given: then it is this.
    pub(super) const fn or(mut self, default_value: DefaultValue) -> Self {
        self.default = Some(default_value);
        self
    }

    /// It gathers the references of this field of this class.
    pub(super) const fn inverse(mut self, class: &'static str, field: &'static str) -> Self {
        self.inverse = Some((class, field));
        self
    }

    /// It is true of this moment only.
    pub(super) const fn volatile(mut self) -> Self {
        self.volatile = true;
        self
    }

    /// The least role that may set it is not that of the class.
    pub(super) const fn writer(mut self, role: Role) -> Self {
        self.least = Some(role);
        self
    }

    /// The field, in a class that this role may write.
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

/// A name without the mark of names that are Rust's own words.
pub(super) const fn plain(name: &'static str) -> &'static str {
    match name.as_bytes() {
        [b'r', b'#', ..] => name.split_at(2).1,
        _ => name,
    }
}

/// A comment without the blank after its slashes.
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
    /// A class whose records are in the state, are listed, and whose changes are told.
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

    /// Its changes are not told.
    pub(super) const fn silent(mut self) -> Self {
        self.events = false;
        self
    }

    /// Nobody lists its records.
    pub(super) const fn unlisted(mut self) -> Self {
        self.listed = false;
        self
    }

    /// Its records are kept there.
    pub(super) const fn kept(mut self, record_storage: RecordStorage) -> Self {
        self.record_storage = record_storage;
        self
    }

    /// Clients create and destroy its records, and this is how it is done.
    pub(super) const fn created(mut self, kind: MessageKind) -> Self {
        self.constructor = Some(kind);
        self
    }

    /// The least role that may read its fields is another.
    pub(super) const fn reads(mut self, role: Role) -> Self {
        self.reads = role;
        self
    }
}

/// The fields of a class, one `name: kind(type)` each: `ro`, `rc` and `rw` say who writes it.
macro_rules! fields {
    ($class:literal, $writes:ident; $($(#[doc = $doc:literal])+ $name:ident: $draft:expr,)+) => {
        /// The numbers of its fields.
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

/// The messages of a class: role, kind, name, parameters, result. Parameters after a semicolon
/// may be left out: then they are what stands after the arrow, or the zero of their type.
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
