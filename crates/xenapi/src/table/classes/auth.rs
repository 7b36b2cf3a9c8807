//! Names of users in an external directory.

use super::prelude::*;

messages! {
    /// Returns the identifier of the user or group with this name.
    ReadOnly Short get_subject_identifier(subject_name: Str) -> Str;
    /// Returns information about the user or group with this identifier.
    ReadOnly Short get_subject_information_from_identifier(subject_identifier: Str) -> PAIRS;
    /// Returns the identifiers of the groups of a user.
    ReadOnly Short get_group_membership(subject_identifier: Str) -> STRS;
}

/// Definition of the class.
pub static CLASS: Class = Class::new(
    ("auth", "Users as a directory elsewhere knows them"),
    Role::ReadOnly,
    &[],
    MESSAGES,
)
.kept(RecordStorage::Nowhere)
.unlisted()
.silent();
