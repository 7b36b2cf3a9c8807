//! Who is logged in.

use super::prelude::*;

fields! { "session", PoolAdmin;
    /// Its UUID.
    uuid: ro(Str),
    /// The host that answers.
    this_host: ro(Ref("host")),
    /// The user, in the times before subjects; none.
    this_user: ro(Ref("user")),
    /// When it was last used.
    last_active: ro(Date).volatile(),
    /// It belongs to another host of the pool.
    pool: ro(Bool),
    /// Whatever clients keep with it.
    other_config: rw(PAIRS).opt(),
    /// Its user is root of this host.
    is_local_superuser: ro(Bool).opt(),
    /// The user as a subject, unless it is root.
    subject: ro(Ref("subject")).opt(),
    /// When it was last found that the user still may log in.
    validation_time: ro(Date).opt(),
    /// The user's identifier where users are kept.
    auth_user_sid: ro(Str).opt(),
    /// The user's name.
    auth_user_name: ro(Str).opt(),
    /// What the user may do, by name.
    rbac_permissions: rc(STRS).opt(),
    /// Calls that it began.
    tasks: ro(Set(&Ref("task"))),
    /// The session from which it was made.
    parent: rc(Ref("session")).opt(),
    /// The program that logged in, as it names itself.
    originator: ro(Str).opt(),
    /// The user showed a certificate.
    client_certificate: ro(Bool).opt(),
}

messages! {
    /// Logs in by name and password. Version and originator tell who is calling.
    ReadOnly Login login_with_password(uname: Str, pwd: Str; version: Str, originator: Str)
        -> Ref("session");
    /// Ends this session.
    ReadOnly Short logout();
    /// Changes the password of the user of this session.
    PoolAdmin Short change_password(old_pwd: Str, new_pwd: Str);
    /// Ends a session that only this host knows.
    PoolAdmin Short local_logout();
    /// Identifiers of the users who are logged in.
    ReadOnly Short get_all_subject_identifiers() -> STRS;
    /// Ends all sessions of a user but this one.
    PoolOperator Short logout_subject_identifier(subject_identifier: Str);
}

/// The class.
pub static CLASS: Class =
    Class::new(("session", "Somebody who is logged in"), Role::PoolAdmin, FIELDS, MESSAGES)
        .kept(RecordStorage::Memory)
        .unlisted()
        .silent();
