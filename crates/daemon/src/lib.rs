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

pub mod allowed_operations;
pub mod api_service;
pub mod app;
pub mod auth;
pub mod bootstrap;
pub mod calls;
pub mod clock;
pub mod config;
pub mod db;
pub mod dispatch;
pub mod drivers;
pub mod errors;
pub mod events;
pub mod facts;
pub mod http;
pub mod log;
pub mod metrics;
pub mod options;
pub mod persistence;
pub mod random;
pub mod reconcile;
pub mod records;
pub mod service_manager;
pub mod sessions;
pub mod signals;
pub mod slices;
pub mod start;
pub mod storage;
pub mod tasks;
pub mod transfer;
#[cfg(test)]
mod trial;
pub mod xapi_socket;
