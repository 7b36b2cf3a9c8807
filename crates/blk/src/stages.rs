//! The stages of the request path as single functions. The example `stages` counts and times them.

use disk::{Geometry, Request};
use memory::{Buffers, Byte};
use virtq::{Chain, Queue};

use crate::latency::Class;
use crate::parse::{Parsed, Rules};
use crate::queue::{FinishedRequest, complete_to_guest};
use crate::spec::{S_OK, feature};

/// Parser of a device whose driver has negotiated every feature.
#[derive(Debug)]
pub struct Parser(Rules);

impl Parser {
    /// Creates a parser for a disk of this geometry.
    pub fn new(geometry: Geometry) -> Self {
        let features = feature::FLUSH | feature::DISCARD | feature::WRITE_ZEROES;
        Self(Rules { geometry, features })
    }

    /// Parses the chain into an I/O request and its status byte. `None` for any other request.
    #[inline]
    pub fn parse(&self, chain: &mut Chain) -> Option<(Request, Byte)> {
        let tag = u32::from(chain.head());
        match self.0.parse(chain) {
            Parsed::Io { kind, offset, len, data, status } => {
                Some((Request { kind, offset, len, buffers: data, tag }, status))
            }
            _ => None,
        }
    }
}

/// Completes a read.
#[inline]
pub fn complete(queue: &mut Queue, chain: Chain, buffers: Buffers, status: Byte) {
    let (class, bytes) = (Class::Read, buffers.len() as u64);
    complete_to_guest(queue, FinishedRequest { chain, status, class, bytes }, S_OK, buffers);
}
