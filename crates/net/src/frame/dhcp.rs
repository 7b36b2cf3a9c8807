//! DHCP (RFC 2131): who asks, and which address a server has leased to whom.

use std::net::Ipv4Addr;

use super::{Frame, Udp, Upper};
use crate::bytes::{array, be32, byte};
use crate::mac::Mac;

/// Bytes of a frame that [`Lease::parse`] looks at. Options of a common server's answer are within
/// the 576 bytes that any client takes (RFC 2131, 2).
pub const LEASE_BYTES: usize = 14 + 4 + 576;
/// Most options of an answer that are walked.
const OPTIONS_MAX: usize = 64;

const SERVER: u16 = 67;
const CLIENT: u16 = 68;
const REPLY: u8 = 2;
/// Bytes before the magic cookie.
const FIXED: usize = 236;
const COOKIE: u32 = 0x6382_5363;
const MESSAGE_TYPE: u8 = 53;
const ACK: u8 = 5;
const PAD: u8 = 0;
const END: u8 = 255;

/// Ports between which DHCP is spoken: client and server, or relay and server.
pub(super) fn is_for(src: u16, dst: u16) -> bool {
    [SERVER, CLIENT].contains(&src) && [SERVER, CLIENT].contains(&dst)
}

/// The first fields of a DHCP message, which are BOOTP's (RFC 951).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bootp {
    /// A server's answer.
    pub reply: bool,
    /// `yiaddr`: what the client is to have.
    pub yours: Ipv4Addr,
    /// `chaddr`: who the client is.
    pub client: Mac,
}

impl Bootp {
    /// Parses a message at `at`; `None`: it is cut off, or not for Ethernet.
    pub(super) fn parse(bytes: &[u8], at: usize) -> Option<Self> {
        let [op, hardware, length, _]: [u8; 4] = array(bytes, at)?;
        let (yours, client): ([u8; 4], [u8; 6]) = (array(bytes, at + 16)?, array(bytes, at + 28)?);
        let ethernet = hardware == 1 && length == 6;
        let said = Self { reply: op == REPLY, yours: yours.into(), client: Mac(client) };
        ethernet.then_some(said)
    }
}

/// An address that a server has leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// To whom.
    pub client: Mac,
    /// What.
    pub address: Ipv4Addr,
}

impl Lease {
    /// Looks for an acknowledged lease in a frame of which [`Frame::is_dhcp_reply`] holds: `bytes`
    /// are its first [`LEASE_BYTES`], or all, in a private copy. The message type must be among the
    /// options proper; servers put nothing but long names elsewhere (RFC 2132, 9.3).
    pub fn parse(bytes: &[u8], len: usize) -> Option<Self> {
        let frame = Frame::parse(bytes, len).ok()?;
        let (at, Upper::Udp(Udp { bootp: Some(bootp), src: SERVER, .. })) = frame.transport()?
        else {
            return None;
        };
        let base = usize::from(at) + 8;
        let sound = bootp.reply && be32(bytes, base + FIXED)? == COOKIE;
        if !sound || bootp.yours.is_unspecified() || !bootp.client.is_station() {
            return None;
        }
        let mut at = base + FIXED + 4;
        for _ in 0..OPTIONS_MAX {
            match byte(bytes, at)? {
                PAD => at += 1,
                END => return None,
                MESSAGE_TYPE => {
                    let ack = byte(bytes, at + 1)? == 1 && byte(bytes, at + 2)? == ACK;
                    return ack.then_some(Self { client: bootp.client, address: bootp.yours });
                }
                _ => at += 2 + usize::from(byte(bytes, at + 1)?),
            }
        }
        None
    }
}
