//! DHCP client messages (RFC 2131): they show which address a client takes, unless the server
//! refuses.
//!
//! Only client messages are used, because they are broadcast: a server's answer may not reach the
//! host. A refused client looks for another server next, and its request counts as void then.

use std::net::Ipv4Addr;

use super::frame::{AddressClaim, Mac};

/// Ethertype of the frames.
pub(super) const IPV4: u16 = 0x0800;
/// Bytes of a frame that are read: Ethernet, IPv4 and UDP headers, the fixed part, and options.
/// Every client must accept as many bytes of options (RFC 2131, section 2).
pub(super) const DHCP_BYTES: usize = 14 + 20 + 8 + 240 + 312;

/// First byte of an IPv4 header without options, and the protocol number of UDP.
const PLAIN: u8 = 0x45;
const UDP: u8 = 17;
/// UDP ports of client and server.
const PORTS: [u8; 4] = [0, 68, 0, 67];
/// BOOTP request with Ethernet addresses of six bytes.
const ASKS: [u8; 3] = [1, 1, 6];
const COOKIE: [u8; 4] = [99, 130, 83, 99];
/// DHCP options and message types (RFC 2132).
const PAD: u8 = 0;
const END: u8 = 255;
const ADDRESS: u8 = 50;
const KIND: u8 = 53;
const DISCOVER: u8 = 1;
const REQUEST: u8 = 3;
const DECLINE: u8 = 4;

/// DHCP client message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DhcpRequest {
    /// The client takes this address.
    Takes(AddressClaim),
    /// The client has no address.
    NoAddress(Mac),
}

/// Parses a frame, which may be truncated.
pub(super) fn asked(frame: &[u8]) -> Option<DhcpRequest> {
    let (_, rest) = frame.split_first_chunk::<6>()?;
    let (sender, rest) = rest.split_first_chunk::<6>()?;
    let (kind, rest) = rest.split_first_chunk::<2>()?;
    let mac = Mac::of(*sender)?;
    let (head, rest) = rest.split_first_chunk::<20>()?;
    let (ports, rest) = rest.split_first_chunk::<4>()?;
    let (_, message) = rest.split_first_chunk::<4>()?;
    let is_plain = head.first() == Some(&PLAIN) && head.get(9) == Some(&UDP);
    if u16::from_be_bytes(*kind) != IPV4 || !is_plain || *ports != PORTS {
        return None;
    }
    parse_message(mac, message)
}

fn parse_message(mac: Mac, message: &[u8]) -> Option<DhcpRequest> {
    let (head, options) = message.split_at_checked(240)?;
    let is_own = head.get(28..34) == Some(mac.bytes());
    if !is_own || !head.starts_with(&ASKS) || head.get(236..) != Some(&COOKIE) {
        return None;
    }
    match *option(options, KIND)?.first()? {
        DISCOVER | DECLINE => Some(DhcpRequest::NoAddress(mac)),
        REQUEST => {
            // A client that renews its address names it in the header.
            let named = option(options, ADDRESS).or(head.get(12..16))?;
            let address = Ipv4Addr::from(<[u8; 4]>::try_from(named).ok()?);
            let claim = AddressClaim { mac, address: address.into(), announced: true };
            claim.is_hosts().then_some(DhcpRequest::Takes(claim))
        }
        _ => None,
    }
}

/// Returns the value of the first option with this number.
fn option(mut options: &[u8], wanted: u8) -> Option<&[u8]> {
    loop {
        let (number, rest) = options.split_first()?;
        match *number {
            PAD => options = rest,
            END => return None,
            number => {
                let (length, rest) = rest.split_first()?;
                let (value, rest) = rest.split_at_checked(usize::from(*length))?;
                if number == wanted {
                    return Some(value);
                }
                options = rest;
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const OURS: [u8; 6] = [0, 0x16, 0x3e, 0, 0, 1];

    /// Builds a message with these options and with `own` as the client's address.
    pub(in super::super) fn message(own: [u8; 4], options: &[u8]) -> Vec<u8> {
        let ip = [&[PLAIN, 0, 0, 0, 0, 0, 0, 0, 64, UDP][..], &[0; 10]].concat();
        let mut fixed = [0; 236];
        fixed[..3].copy_from_slice(&ASKS);
        fixed[12..16].copy_from_slice(&own);
        fixed[28..34].copy_from_slice(&OURS);
        let frame = [&[0xff; 6][..], &OURS, &[8, 0], &ip, &PORTS, &[0; 4], &fixed, &COOKIE];
        [&frame.concat()[..], options].concat()
    }

    fn takes(frame: &[u8]) -> Option<String> {
        match asked(frame)? {
            DhcpRequest::Takes(claim) => Some(claim.address.to_string()),
            DhcpRequest::NoAddress(mac) => {
                assert_eq!(mac, Mac::of(OURS).unwrap());
                Some("looks".to_owned())
            }
        }
    }

    #[test]
    fn a_client_says_what_it_takes() {
        let none = [0; 4];
        let is = |text: &str| Some(text.to_owned());
        for (own, options, expected) in [
            (none, &[KIND, 1, DISCOVER, ADDRESS, 4, 10, 0, 0, 7, END][..], is("looks")),
            (none, &[KIND, 1, DECLINE, END], is("looks")),
            (
                none,
                &[PAD, KIND, 1, REQUEST, 61, 1, 9, ADDRESS, 4, 10, 0, 0, 7, END],
                is("10.0.0.7"),
            ),
            ([10, 0, 0, 8], &[KIND, 1, REQUEST, END], is("10.0.0.8")),
            (none, &[KIND, 1, REQUEST, END], None),
            (none, &[KIND, 1, REQUEST, ADDRESS, 4, 224, 0, 0, 1, END], None),
            (none, &[KIND, 1, REQUEST, ADDRESS, 3, 10, 0, 0, END], None),
            (none, &[KIND, 1, 7, END], None),
            (none, &[KIND, 0, END], None),
            (none, &[END, KIND, 1, REQUEST], None),
            (none, &[KIND], None),
            (none, &[ADDRESS, 200, 1], None),
        ] {
            assert_eq!(takes(&message(own, options)), expected, "{options:?}");
        }
    }

    #[test]
    fn what_is_no_message_of_its_sender_says_nothing() {
        let whole = message([0; 4], &[KIND, 1, DISCOVER, END]);
        assert!(asked(&whole).is_some());
        for at in [6, 12, 14, 23, 35, 37, 42, 43, 44, 70, 278] {
            let mut other = whole.clone();
            other[at] ^= 2;
            assert_eq!(asked(&other), None, "{at}");
        }
        (0..whole.len() - 1).for_each(|len| assert_eq!(asked(&whole[..len]), None, "{len}"));
    }
}
