//! Tests of `cli` as one program.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod calibrate;
mod causes;
#[path = "../common/mod.rs"]
mod common;
mod discovery;
mod disk_images;
mod doctor;
mod documents;
mod golden;
mod image;
mod image_import;
mod libvirt_xml;
mod net;
mod nics;
mod ringwayd;
mod served;
mod top;
mod usage;
mod why;
mod xe;
