//! Entry points of the three programs, and of `ringway-io upgrade`.

pub mod blk;
pub mod io;
pub mod net;
mod upgrade;
