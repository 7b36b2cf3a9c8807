//! DHCP (RFC 2131): direction and client of a message.

use crate::bytes::array;
use crate::mac::Mac;

const SERVER: u16 = 67;
const CLIENT: u16 = 68;
const REPLY: u8 = 2;

/// Returns whether these are the ports of DHCP: client and server, or relay and server.
pub(super) fn is_for(src: u16, dst: u16) -> bool {
    [SERVER, CLIENT].contains(&src) && [SERVER, CLIENT].contains(&dst)
}

/// First fields of a DHCP message, which are those of BOOTP (RFC 951).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bootp {
    /// True for a message of a server.
    pub reply: bool,
    /// `chaddr`: address of the client.
    pub client: Mac,
}

impl Bootp {
    /// Parses a message at `at`. Returns `None` if it is truncated or not for Ethernet.
    pub(super) fn parse(bytes: &[u8], at: usize) -> Option<Self> {
        let [op, hardware, length, _]: [u8; 4] = array(bytes, at)?;
        let client: [u8; 6] = array(bytes, at + 28)?;
        let ethernet = hardware == 1 && length == 6;
        let message = Self { reply: op == REPLY, client: Mac(client) };
        ethernet.then_some(message)
    }
}
