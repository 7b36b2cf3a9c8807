//! Common imports of the class files.

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

/// Set of texts.
pub(super) const STRS: Type = Set(&Str);
/// Map from text to text.
pub(super) const PAIRS: Type = Map(&Str, &Str);
/// Set of `data_source` records, each with sampled values of an object.
pub(super) const SOURCES: Type = Set(&Record("data_source"));
/// Map of blobs by name.
pub(super) const BLOBS: Type = Map(&Str, &Ref("blob"));
