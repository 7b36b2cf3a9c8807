//! `ringwayd`: what the toolstack's API knows and answers.
//!
//! # Words
//! - **Record**: one object of a class, by the class's fields ([`xenapi::table`]).
//! - **Reference**: what a record is called on the wire ([`db::Ref`]).
//! - **Generation**: the number of a change. It never goes back.
//!
//! # Invariants
//! A change of the database is whole or none, whoever fails in it. No lock is held while somebody
//! waits.
#![forbid(unsafe_code)]

pub mod db;
