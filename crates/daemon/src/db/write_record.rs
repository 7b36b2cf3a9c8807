//! What a change has done, and how it is taken back before it has ended.

use xenapi::Value;
use xenapi::table::{Class, FieldIx};

use super::tables::Tables;
use super::{Object, Ref};

/// One write of a change.
#[derive(Clone, Copy, Debug)]
pub enum WriteRecord<'a> {
    /// An object was made.
    Made(&'static Class, &'a Ref),
    /// A field of an object was set; what it held before.
    Set(FieldIx, &'a Ref, &'a Value),
    /// A set of references of an object follows from what was set elsewhere: who came or went.
    Gathered(FieldIx, &'a Ref, &'a str),
    /// An object was destroyed, which was like this.
    Gone(&'a Object),
}

impl<'a> WriteRecord<'a> {
    /// The class of the object.
    pub fn class(&self) -> &'static str {
        match self {
            Self::Made(class, _) => class.name,
            Self::Set(field, ..) | Self::Gathered(field, ..) => field.class(),
            Self::Gone(object) => object.class.name,
        }
    }

    /// The object.
    pub fn reference(&self) -> &'a Ref {
        match self {
            Self::Made(_, reference)
            | Self::Set(_, reference, _)
            | Self::Gathered(_, reference, _) => reference,
            Self::Gone(object) => &object.reference,
        }
    }
}

/// How to take back what was done.
#[derive(Debug)]
pub(super) enum Undo {
    Made(&'static Class, Ref),
    /// Nothing of it has changed, and it shall be told.
    Told(&'static Class, Ref),
    Set(FieldIx, Ref, Value),
    /// The last member of this set of this object has come.
    Joined(FieldIx, Ref, Value),
    /// This member, in this place, has gone.
    Left(FieldIx, Ref, usize, Value),
    Destroyed(Object),
}

impl Undo {
    /// As others are told of it.
    pub(super) fn touched(&self) -> Option<WriteRecord<'_>> {
        match self {
            Self::Made(class, reference) => Some(WriteRecord::Made(class, reference)),
            Self::Told(..) => None,
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

    /// Class and reference of the object.
    pub(super) fn object(&self) -> (&'static str, &Ref) {
        match self {
            Self::Made(class, reference) | Self::Told(class, reference) => (class.name, reference),
            Self::Set(field, reference, _)
            | Self::Joined(field, reference, _)
            | Self::Left(field, reference, ..) => (field.class(), reference),
            Self::Destroyed(object) => (object.class.name, &object.reference),
        }
    }

    /// Takes it back; everything after it has been taken back.
    pub(super) fn apply(self, tables: &mut Tables) {
        match self {
            Self::Made(class, reference) => drop(tables.take(class.name, &reference)),
            Self::Told(..) => {}
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
