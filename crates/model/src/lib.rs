//! Nouns and specifications shared by the control plane and the data plane: pure, no I/O.
//!
//! # Words
//! - **Spec**: what a caller asked for ([`spec::DiskSpec`]). Parsed once, checked by
//!   [`spec::DiskSpec::validate`], then passed on as a plain value.
//! - **NIC**: an interface of a machine, and the network that it is in ([`nic::NicSpec`]).
//! - **Export**: a disk offered to programs other than guests ([`export::ExportSpec`]).
//! - **Image**: an image file without a disk, and the calls on it ([`image`]).
//! - **Merge**: images of a storage repository that become one ([`mod@coalesce`]).
//! - **Call**: one JSON-RPC 2.0 request to `ringway-io` ([`rpc`]). One JSON object a line.
//! - **Report**: what a running process reports about itself ([`report`]).
//! - **Machine**: what `ringway run` is asked to start ([`machine`]), and where each of its devices
//!   sits ([`topology`]).
//! - **Diagnosis**: why a disk or NIC is slow, from the reports of its process ([`diagnosis`]).
//! - **Op**: an operation on a machine ([`vm::VmOp`]), a disk slot ([`vbd::VbdOp`]), a disk
//!   ([`vdi::VdiOp`]), a storage repository ([`sr::SrOp`]) or a network interface ([`vif::VifOp`]).
//! - **Facts**: what a decision reads of such an object. **Gate**: `check` and `allowed` beside
//!   each of them say whether an operation may begin, and if not, why ([`refusal::Refusal`]).
//! - **Exit**: how a domain ended, and what follows ([`vm::exits`]).
//! - **Volume**: a disk as its storage sees it, attached and activated ([`vdi::automaton`]).
//! - **Id**: the name of one object that the toolstack keeps, with its kind ([`id`]).
//! - **Domain**: one running incarnation of a machine ([`domain`]).
//! - **Plan**: the steps that an operation on a machine takes ([`plan`]).
//! - **Slot**: permission for a device step; [`admission`] decides which step gets the next.
//! - **Sizing**: how much of a host Ringway takes, and why ([`sizing`]).
//! - **Recipe**: the VM's side of a disk for users of libvirt, QEMU or Cloud Hypervisor
//!   ([`recipe`]).
//!
//! # Design
//! **Decisions are functions of facts.** A gate gets facts and returns an answer or a refusal. The
//! planner gets the observed and the recorded state of a machine and returns steps. So both are
//! tested without a host, and every program that asks gets the same answer.
//!
//! **A plan has no undo list.** Independent steps run beside each other. After a failure, a cancel
//! or a restart the planner is asked to make record and reality agree. That is the same for all
//! three.
//!
//! **Hung storage must not hold up other storage** ([`admission`]). By default sixteen device steps
//! run at once on a host, ten of a machine, twelve on an SR. Beyond that, chains that have begun go
//! first. A stuck step gives back its host and machine slots, and its SR gets no more host slots.
//! An SR whose steps have never ended in time leaves the host's last slots to others. So two hung
//! SRs do not hold up a third. An SR counts as hung once its first step is late, after two seconds.
//! Until then a third SR has the four last slots instead of ten. A machine with a few disks does
//! not notice. A machine with fifty, started in these seconds, takes up to 2.8 times as long
//! (`two_srs_that_hang_do_not_slow_a_third` in `crates/toolstack/src/machines/tests/hung.rs`, in
//! simulated time).
//!
//! **A disk's PCI slot depends on its number only** ([`domain`]): seven of 255 disks are on the
//! root bus and 31 on each of eight bridges. So the third disk has the same place at every start
//! and in every machine.
//!
//! **Limits of a VIF become one value** ([`vif::limits()`]): `locking_mode`, `ipv4_allowed`,
//! `ipv6_allowed`, the network's `default_locking_mode`, `qos_algorithm_type` `ratelimit`, and
//! `other-config:flood-limit`.
//!
//! # Invariants
//! Nothing here opens, reads, sleeps or looks at the clock or the environment. The toolstack and
//! the data plane share these types and nothing else.
//!
//! # Errors
//! [`spec::SpecError`] names the field, the value and what would be accepted. [`refusal::Refusal`]
//! says why an operation may not begin.
//!
//! # How to test
//! Everything is a value: construct, validate, compare. Wire forms are tested as literal JSON.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod admission;
pub mod boot_pace;
pub mod calibration;
pub mod caps;
pub mod coalesce;
pub mod diagnosis;
pub mod disk_arg;
pub mod domain;
pub mod export;
pub mod id;
pub mod image;
pub mod image_arg;
pub mod image_stream;
pub mod machine;
pub mod nic;
pub mod plan;
pub mod poll;
pub mod recipe;
pub mod refusal;
pub mod report;
pub mod rpc;
pub mod share;
pub mod signature;
pub mod sizing;
pub mod spec;
pub mod sr;
pub mod topology;
pub mod vbd;
pub mod vdi;
pub mod vif;
pub mod vm;
mod wire_names;
