//! What every class file uses.

pub(super) use crate::table::DefaultValue::{
    Float as Number, Int as Whole, Ints, Pairs, Text, Yes,
};
pub(super) use crate::table::Role::{PoolOperator, VmOperator, VmPowerAdmin};
pub(super) use crate::table::Type::{
    self, Bool, Date, Enum, Float, Int, Map, Record, Ref, Set, Str,
};
pub(super) use crate::table::enums;
pub(super) use crate::table::macros::{fields, messages, rc, ro, rw};
pub(super) use crate::table::{Class, MessageKind, RecordStorage, Role};

/// Several texts.
pub(super) const STRS: Type = Set(&Str);
/// From text to text.
pub(super) const PAIRS: Type = Map(&Str, &Str);
/// Values of an object, sampled; each a `data_source`.
pub(super) const SOURCES: Type = Set(&Record("data_source"));
/// Data by name.
pub(super) const BLOBS: Type = Map(&Str, &Ref("blob"));
