//! `ringwayd`: what the toolstack's API knows and answers.
//!
//! # Words
//! - **Record**: one object of a class, by the class's fields ([`xenapi::table`]).
//! - **Reference**: the name of a record on the wire ([`db::Ref`]).
//! - **Generation**: the number of a change. It never goes back.
//!
//! # Model
//! ```text
//! http -> api_service -> dispatch -> calls, or dispatch::generic from the class table
//!                                      |-> db -> persistence -> toolstack::store
//!                                      |    `-> events
//!                                      `-> toolstack::machines -> records -> db
//! start: state directory, records, bootstrap, drivers, reconcile, then the listeners
//! ```
//!
//! # Design
//! **The listeners know nothing of what a call does** ([`http`]). Calls arrive over TCP, TLS and a
//! Unix socket, whose mode is its authentication. Heads, bodies, peers that take no answer, and
//! connections have bounds. 64 of 1,024 connections are kept for the Unix socket; one address gets
//! 256. A page in a browser is refused at the Unix socket: forwarding the socket forwards root, but
//! not to every open page.
//!
//! **Sessions are found without a change of the records** ([`sessions`]). A session ends when the
//! password file no longer has what it began with. A connection through the Unix socket is a
//! session, so `xe` needs one call instead of three and leaves none behind when it is killed. A
//! client that fails to log in waits for the answer, by address; no other client does. A helper
//! process asks PAM for each question, because PAM modules may hang ([`auth`]).
//!
//! **Dispatch has one order** ([`dispatch`]): session, method, count of parameters, their types,
//! role. The first that is wrong is the answer. A message with a handler ([`calls`]) goes there;
//! every other follows from the class table. Writes wait until they are stored. Reads wait for
//! nothing. A long call holds one of 2,000 permits, 500 of a session, and is refused when none is
//! free.
//!
//! **Refusals come before tasks** ([`tasks`]). What may be refused at once is refused before a task
//! exists. A running task is never removed. An ended task stays for 65 minutes; of more than 200
//! ended tasks the oldest for 5 minutes; of more than 2,000 no longer.
//!
//! **Records are values by field number, not structures** ([`db`]). Code that is generic over
//! classes (getters, events, storage, `xe`) is written once. Code that needs meaning reads small
//! typed facts first ([`facts`]). Allowed operations follow at the end of each change, for those
//! objects only whose gates read what the change touched ([`allowed_operations`]).
//!
//! **One thread stores, in batches** ([`persistence`]). A call that changes something is answered
//! when it is on disk. A change that cannot be stored is undone if a client asked for it and no
//! other change uses it yet. It is kept and retried if it reports what has happened. A reserve of 1
//! MiB beside the state file serves a full disk: for changes that free space, and for those that
//! report what has happened.
//!
//! **Events have no log** ([`events`]). Objects know when they were created and changed. So a
//! client that comes late costs what has changed, and no client can fall behind.
//!
//! **Operations that end a domain are noted first** ([`records`]). The note is in the machine's
//! record, and on disk, before anything is done. It goes with the change that records the outcome.
//! So a daemon that finds a note knows that a missing domain was ended on purpose, and that no
//! guest crashed. An operation is recorded as under way in the same change that checks whether it
//! may begin. A machine that gets a domain marks its disk slots too: no disk is removed or resized
//! while a machine starts with it, nor the other way round.
//!
//! **Records follow reality** ([`reconcile`]). At the start every machine's record and domain are
//! made to agree. Noted operations are finished: a shutdown or reboot that was cut off, a start
//! with the host, a restart after a crash. An operation that ends the daemon each time is tried
//! three times more. Disk limits that were stored but perhaps not applied are applied.
//!
//! **Errors have one table** ([`errors`]), from refusals and failed steps to codes of the API.
//!
//! **Bootstrap** ([`bootstrap`]) gives an empty host its records, and refreshes at every start what
//! may have changed.
//!
//! # Invariants
//! A change of the database is whole or none, whichever part of it fails. No lock is held across a
//! wait.
//!
//! # How to test
//! `tests` beside the code run against a simulated host ([`toolstack::sim`]); `tests/` run the
//! program.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod allowed_operations;
pub mod api_service;
pub mod app;
pub mod auth;
pub mod bootstrap;
pub mod calls;
pub mod clock;
pub mod config;
mod copies;
pub mod db;
mod disk_streams;
pub mod dispatch;
pub mod drivers;
pub mod errors;
pub mod events;
pub mod facts;
mod former_life;
pub mod http;
pub mod metrics;
mod ops;
pub mod options;
pub mod peer;
pub mod persistence;
pub mod random;
pub mod reconcile;
pub mod records;
mod request_session;
mod restore;
pub mod service_manager;
pub mod sessions;
pub mod signals;
pub mod slices;
pub mod start;
pub mod storage;
pub mod tasks;
#[cfg(test)]
mod tests;
pub mod transfer;
pub mod xapi_socket;
