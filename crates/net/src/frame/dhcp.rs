//! DHCP (RFC 2131): who asks, and for whom.

use crate::bytes::array;
use crate::mac::Mac;

const SERVER: u16 = 67;
const CLIENT: u16 = 68;
const REPLY: u8 = 2;

/// Ports between which DHCP is spoken: client and server, or relay and server.
pub(super) fn is_for(src: u16, dst: u16) -> bool {
    [SERVER, CLIENT].contains(&src) && [SERVER, CLIENT].contains(&dst)
}

/// The first fields of a DHCP message, which are BOOTP's (RFC 951).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bootp {
    /// A server's answer.
    pub reply: bool,
    /// `chaddr`: who the client is.
    pub client: Mac,
}

impl Bootp {
    /// Parses a message at `at`; `None`: it is cut off, or not for Ethernet.
    pub(super) fn parse(bytes: &[u8], at: usize) -> Option<Self> {
        let [op, hardware, length, _]: [u8; 4] = array(bytes, at)?;
        let client: [u8; 6] = array(bytes, at + 28)?;
        let ethernet = hardware == 1 && length == 6;
        let said = Self { reply: op == REPLY, client: Mac(client) };
        ethernet.then_some(said)
    }
}
