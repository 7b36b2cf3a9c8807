//! Nouns and specifications shared by the control plane and the data plane: pure, no I/O.
//!
//! # Words
//! - **Spec**: what somebody asked for ([`spec::DiskSpec`]). Parsed once, checked by
//!   [`spec::DiskSpec::validate`], then passed on as a plain value.
//! - **Export**: a disk offered to programs other than guests ([`export::ExportSpec`]).
//! - **Call**: one JSON-RPC 2.0 request to `ringway-io` ([`rpc`]). One JSON object a line.
//! - **Report**: what a running process says of itself ([`report`]).
//! - **Machine**: what `ringway run` is asked to start ([`machine`]), and where each of its
//!   devices sits ([`topology`]).
//! - **Verdict**: why a disk is slow, from what its process reports ([`why`]).
//! - **Id**: the name of one thing that the toolstack keeps, with its kind ([`id`]).
//! - **Recipe**: what a user of another VMM writes down to get a disk of ours ([`recipe`]).
//!
//! # Invariants
//! Nothing here opens, reads, sleeps or looks at the clock or the environment. The toolstack and
//! the datapath share these types and nothing else.
//!
//! # Errors
//! [`spec::SpecError`] names the field, the value and what would be accepted.
//!
//! # How to test
//! Everything is a value: construct, validate, compare. Wire forms are tested as literal JSON.
#![forbid(unsafe_code)]

pub mod caps;
pub mod disk_arg;
pub mod export;
pub mod id;
pub mod machine;
pub mod poll;
pub mod recipe;
pub mod report;
pub mod rpc;
pub mod spec;
pub mod topology;
pub mod why;
