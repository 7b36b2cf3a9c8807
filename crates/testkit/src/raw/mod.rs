//! A front-end that sends exactly what a test says, right or wrong.
//!
//! # Layers
//! - [`wire`]: numbers, and [`wire::Message`] whose parts may contradict each other.
//! - [`connection`]: a socket with deadlines, descriptors in both directions.
//! - [`frontend`]: the protocol's messages as methods.
//! - [`memory`], [`ring`], [`request`], [`config`]: shared memory, split rings and virtio-blk.
//! - [`nic`]: frames, as a virtio-net driver sends and receives them.
//! - [`guest`]: all of these together, for tests that need a working guest first.
//! - [`malformed`]: the catalogue of broken requests and rings, with the allowed reactions.
//! - [`hostile`]: the same for messages.
//!
//! # Model
//! The memory is a memfd that only the backend maps. The test uses plain reads and writes on the
//! file, so it has no unsafe code and no race with a mapping of its own. Guest addresses, user
//! addresses and file offsets differ.
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
pub mod greedy;
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
pub use greedy::GreedyFrontend;
pub use guest::{Done, Guest, Setup, WaitEvent};
pub use malformed::Malformed;
pub use memory::{Region, SharedMemory};
pub use wire::Message;
