//! A front-end that does exactly what a test says, right or wrong.
//!
//! # Layers
//! - [`wire`]: numbers, and [`wire::Message`] whose parts may contradict each other.
//! - [`connection`]: a socket with deadlines, descriptors in both directions.
//! - [`frontend`]: the protocol's messages as methods.
//! - [`memory`], [`ring`], [`request`], [`config`]: shared memory, split rings and virtio-blk.
//! - [`nic`]: frames, as a virtio-net driver sends and gets them.
//! - [`guest`]: all of it together, for tests that need a working guest first.
//! - [`malformed`]: the catalogue of broken requests and rings, each with what a backend may do.
//! - [`hostile`]: the same for messages.
//!
//! # Model
//! The memory is a memfd that only the backend maps. We use it with plain reads and writes, so there
//! is no unsafe code and no race with our own mapping. Guest addresses, user addresses and file
//! offsets differ.
//!
//! # Example
//! ```no_run
//! use testkit::raw::{Guest, Setup, request::{Request, status}};
//! # fn main() -> testkit::Result<()> {
//! let mut guest = Guest::start("/run/disk.sock".as_ref(), &Setup::default())?;
//! let done = guest.run(0, &Request::read(0, 4096))?;
//! assert_eq!(done.status, status::OK);
//! # Ok(())
//! # }
//! ```

pub mod config;
pub mod connection;
pub mod frontend;
pub mod guest;
pub mod hostile;
pub mod malformed;
pub mod memory;
pub mod nic;
pub mod request;
pub mod ring;
pub mod wire;

pub use connection::Connection;
pub use frontend::{Frontend, Negotiated, VringAddr};
pub use guest::{Done, Guest, Setup, WaitEvent};
pub use malformed::Malformed;
pub use memory::{Region, SharedMemory};
pub use wire::Message;
