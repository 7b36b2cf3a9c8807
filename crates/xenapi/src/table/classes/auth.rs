//! Names of users in a directory elsewhere.

use super::prelude::*;

messages! {
    /// The identifier of a user or group of this name.
    ReadOnly Short get_subject_identifier(subject_name: Str) -> Str;
    /// What is known of the user or group of this identifier.
    ReadOnly Short get_subject_information_from_identifier(subject_identifier: Str) -> PAIRS;
    /// Identifiers of the groups to which a user belongs.
    ReadOnly Short get_group_membership(subject_identifier: Str) -> STRS;
}

/// The class.
pub static CLASS: Class = Class::new(
    ("auth", "Users as a directory elsewhere knows them"),
    Role::ReadOnly,
    &[],
    MESSAGES,
)
.kept(RecordStorage::Nowhere)
.unlisted()
.silent();
