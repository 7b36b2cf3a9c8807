//! Sessions.

use super::prelude::*;

fields! { "session", PoolAdmin;
    /// UUID.
    uuid: ro(Str),
    /// Host that serves the session.
    this_host: ro(Ref("host")),
    /// Obsolete user reference. Always null.
    this_user: ro(Ref("user")),
    /// Time of the last use.
    last_active: ro(Date).volatile(),
    /// True if the session belongs to another host of the pool.
    pool: ro(Bool),
    /// Additional settings of clients.
    other_config: rw(PAIRS).opt(),
    /// True if the user is root of this host.
    is_local_superuser: ro(Bool).opt(),
    /// Subject of the user. Null for root.
    subject: ro(Ref("subject")).opt(),
    /// Time of the last check that the user may still log in.
    validation_time: ro(Date).opt(),
    /// Identifier of the user in its directory.
    auth_user_sid: ro(Str).opt(),
    /// Name of the user.
    auth_user_name: ro(Str).opt(),
    /// Names of the user's permissions.
    rbac_permissions: rc(STRS).opt(),
    /// Tasks that the session started.
    tasks: ro(Set(&Ref("task"))),
    /// Session from which this one was created.
    parent: rc(Ref("session")).opt(),
    /// Name that the client program gave at login.
    originator: ro(Str).opt(),
    /// True if the user logged in with a certificate.
    client_certificate: ro(Bool).opt(),
}

messages! {
    /// Logs in with name and password. Version and originator identify the client program.
    ReadOnly Login login_with_password(uname: Str, pwd: Str; version: Str, originator: Str)
        -> Ref("session");
    /// Ends this session.
    ReadOnly Short logout();
    /// Changes the password of this session's user.
    PoolAdmin Short change_password(old_pwd: Str, new_pwd: Str);
    /// Ends a session that exists only on this host.
    PoolAdmin Short local_logout();
    /// Returns the identifiers of the logged-in users.
    ReadOnly Short get_all_subject_identifiers() -> STRS;
    /// Ends all sessions of a user except this one.
    PoolOperator Short logout_subject_identifier(subject_identifier: Str);
}

/// Definition of the class.
pub static CLASS: Class =
    Class::new(("session", "Somebody who is logged in"), Role::PoolAdmin, FIELDS, MESSAGES)
        .kept(RecordStorage::Memory)
        .unlisted()
        .silent();
