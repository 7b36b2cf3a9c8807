//! Command lines of the programs.

pub mod blk;
pub mod io;
pub mod net;
pub mod poll;
pub mod share;
