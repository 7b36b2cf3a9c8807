//! Nouns and specifications shared by the control plane and the data plane: pure, no I/O.
//!
//! # Words
//! - **Spec**: what somebody asked for ([`spec::DiskSpec`]). Parsed once, checked by
//!   [`spec::DiskSpec::validate`], then passed on as a plain value.
//! - **NIC**: an interface of a machine, and the network that it is in ([`nic::NicSpec`]).
//! - **Export**: a disk offered to programs other than guests ([`export::ExportSpec`]).
//! - **Call**: one JSON-RPC 2.0 request to `ringway-io` ([`rpc`]). One JSON object a line.
//! - **Report**: what a running process says of itself ([`report`]).
//! - **Machine**: what `ringway run` is asked to start ([`machine`]), and where each of its
//!   devices sits ([`topology`]).
//! - **Verdict**: why a disk is slow, from what its process reports ([`why`]).
//! - **Op**: what can be done to a machine ([`vm::VmOp`]), a disk slot ([`vbd::VbdOp`]), a disk
//!   ([`vdi::VdiOp`]), a storage repository ([`sr::SrOp`]) or a network interface ([`vif::VifOp`]).
//! - **Facts**: what a decision reads of such a thing. **Gate**: `check` and `allowed` beside each
//!   of them: whether an operation may begin, and if not, by what [`refusal::Refusal`].
//! - **Exit**: how a domain ended, and what follows ([`vm::exits`]).
//! - **Volume**: a disk as its storage sees it, attached and activated ([`vdi::automaton`]).
//! - **Id**: the name of one thing that the toolstack keeps, with its kind ([`id`]).
//! - **Domain**: one running incarnation of a machine ([`domain`]).
//! - **Plan**: the steps that an operation on a machine takes ([`plan`]).
//! - **Slot**: permission for a device step; [`admission`] says who gets the next.
//! - **Sizing**: how much of a host Ringway takes, and why ([`sizing`]).
//! - **Recipe**: what a user of another VMM writes down to get a disk of ours ([`recipe`]).
//!
//! # Invariants
//! Nothing here opens, reads, sleeps or looks at the clock or the environment. The toolstack and
//! the datapath share these types and nothing else.
//!
//! # Errors
//! [`spec::SpecError`] names the field, the value and what would be accepted.
//! [`refusal::Refusal`] says why an operation may not begin.
//!
//! # How to test
//! Everything is a value: construct, validate, compare. Wire forms are tested as literal JSON.
#![forbid(unsafe_code)]

pub mod admission;
pub mod caps;
pub mod diagnosis;
pub mod disk_arg;
pub mod domain;
pub mod export;
pub mod id;
pub mod machine;
pub mod nic;
pub mod plan;
pub mod poll;
pub mod recipe;
pub mod refusal;
pub mod report;
pub mod rpc;
pub mod sizing;
pub mod spec;
pub mod sr;
pub mod topology;
pub mod vbd;
pub mod vdi;
pub mod vif;
pub mod vm;
mod wire_names;
