//! Writes of a change, and how to undo them before the change ends.

use xenapi::Value;
use xenapi::table::{Class, FieldIx};

use super::tables::Tables;
use super::{Object, Ref};

/// One write of a change.
#[derive(Clone, Copy, Debug)]
pub enum WriteRecord<'a> {
    /// Object was created.
    Made(&'static Class, &'a Ref),
    /// Field of an object was set. Holds the old value.
    Set(FieldIx, &'a Ref, &'a Value),
    /// Derived set of an object gained or lost this member.
    Gathered(FieldIx, &'a Ref, &'a str),
    /// Object was destroyed. Holds its last state.
    Gone(&'a Object),
}

impl<'a> WriteRecord<'a> {
    /// Returns the class of the object.
    pub fn class(&self) -> &'static str {
        match self {
            Self::Made(class, _) => class.name,
            Self::Set(field, ..) | Self::Gathered(field, ..) => field.class(),
            Self::Gone(object) => object.class.name,
        }
    }

    /// Returns the reference of the object.
    pub fn reference(&self) -> &'a Ref {
        match self {
            Self::Made(_, reference)
            | Self::Set(_, reference, _)
            | Self::Gathered(_, reference, _) => reference,
            Self::Gone(object) => &object.reference,
        }
    }
}

/// Undo information of one write.
#[derive(Debug)]
pub(super) enum Undo {
    Made(&'static Class, Ref),
    /// Object was published without a change.
    Touched(&'static Class, Ref),
    Set(FieldIx, Ref, Value),
    /// Derived set of an object gained this last member.
    Joined(FieldIx, Ref, Value),
    /// Derived set of an object lost this member at this position.
    Left(FieldIx, Ref, usize, Value),
    Destroyed(Object),
}

impl Undo {
    /// Returns the write as others see it.
    pub(super) fn touched(&self) -> Option<WriteRecord<'_>> {
        match self {
            Self::Made(class, reference) => Some(WriteRecord::Made(class, reference)),
            Self::Touched(..) => None,
            Self::Set(field, reference, was) => Some(WriteRecord::Set(*field, reference, was)),
            Self::Joined(set, holder, member) | Self::Left(set, holder, _, member) => {
                match member {
                    Value::Str(member) => Some(WriteRecord::Gathered(*set, holder, member)),
                    _ => None,
                }
            }
            Self::Destroyed(object) => Some(WriteRecord::Gone(object)),
        }
    }

    /// Returns class and reference of the object.
    pub(super) fn object(&self) -> (&'static str, &Ref) {
        match self {
            Self::Made(class, reference) | Self::Touched(class, reference) => {
                (class.name, reference)
            }
            Self::Set(field, reference, _)
            | Self::Joined(field, reference, _)
            | Self::Left(field, reference, ..) => (field.class(), reference),
            Self::Destroyed(object) => (object.class.name, &object.reference),
        }
    }

    /// Undoes the write. All later writes must have been undone before.
    pub(super) fn apply(self, tables: &mut Tables) {
        match self {
            Self::Made(class, reference) => drop(tables.take(class.name, &reference)),
            Self::Touched(..) => {}
            Self::Set(field, reference, was) => drop(tables.set(field, &reference, was)),
            Self::Joined(set, holder, _) => {
                tables.members(set, &holder).and_then(Vec::pop);
            }
            Self::Left(set, holder, at, member) => {
                if let Some(members) = tables.members(set, &holder) {
                    members.insert(at.min(members.len()), member);
                }
            }
            Self::Destroyed(object) => tables.put(object),
        }
    }
}
