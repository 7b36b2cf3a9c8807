//! Replies to requests in memory: pure functions of bytes.

use anyhow::{Context, Result, ensure};

/// Approximate number of bytes per send.
pub(super) const OUT_BYTES: usize = 1 << 20;
/// Largest supported read or write in bytes.
pub(super) const DATA_MAX: usize = 1 << 20;

pub(super) const REQUEST_BYTES: usize = 28;
const SIMPLE_BYTES: usize = 16;
pub(super) const STRUCTURED_BYTES: usize = 28;

/// Kind of reply to reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reads {
    Simple,
    Structured,
    Holes,
}

/// Bytes consumed from the input and written to the output.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Answered {
    pub(super) taken: usize,
    pub(super) given: usize,
}

/// Replies to the complete requests in `input`, up to one send. The data of a read is the current
/// content of `output`.
pub(super) fn answer(input: &[u8], output: &mut [u8], kind: Reads) -> Result<Answered> {
    let mut done = Answered::default();
    while done.given < OUT_BYTES {
        let Some(request) = input.get(done.taken..done.taken + REQUEST_BYTES) else { break };
        let (read, write) = (request[7] == 0, request[7] == 1);
        let len = u32_at(request, 24) as usize;
        ensure!(len <= DATA_MAX, "a request of {len} bytes");
        let taken = REQUEST_BYTES + if write { len } else { 0 };
        if input.len() < done.taken + taken {
            break;
        }
        done.taken += taken;
        // DISC has no reply.
        if request[7] == 2 {
            continue;
        }
        let reply = output.get_mut(done.given..).context("no room")?;
        if kind != Reads::Simple && read {
            let (code, payload, rest) = match kind {
                Reads::Holes => (2, 12, 4),
                _ => (1, len as u32 + 8, len),
            };
            reply[..8].copy_from_slice(&[0x66, 0x8e, 0x33, 0xef, 0, 1, 0, code]);
            reply[8..16].copy_from_slice(&request[8..16]);
            reply[16..20].copy_from_slice(&u32::to_be_bytes(payload));
            reply[20..28].copy_from_slice(&request[16..24]);
            if kind == Reads::Holes {
                reply[28..32].copy_from_slice(&request[24..28]);
            }
            done.given += STRUCTURED_BYTES + rest;
        } else {
            reply[..8].copy_from_slice(&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0]);
            reply[8..16].copy_from_slice(&request[8..16]);
            done.given += SIMPLE_BYTES + if read { len } else { 0 };
        }
    }
    Ok(done)
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let four = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
    four.map_or(0, u32::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(code: u8, cookie: u8, offset: u8, len: u32) -> Vec<u8> {
        let mut bytes = vec![0x25, 0x60, 0x95, 0x13, 0, 0, 0, code, 0, 0, 0, 0, 0, 0, 0, cookie];
        bytes.extend([0, 0, 0, 0, 0, 0, 0, offset]);
        bytes.extend(len.to_be_bytes());
        bytes
    }

    #[test]
    fn whole_requests_are_answered_and_parts_are_kept() {
        let mut output = vec![7; OUT_BYTES + DATA_MAX];
        let read = request(0, 1, 9, 512);
        let write = [request(1, 2, 0, 4), vec![1, 2, 3, 4]].concat();
        let input = [read, write.clone(), request(2, 3, 0, 0), write[..30].to_vec()].concat();
        let done = answer(&input, &mut output, Reads::Structured).unwrap();
        assert_eq!(done, Answered { taken: 28 + 32 + 28, given: 28 + 512 + 16 });
        assert_eq!(output[8..28], [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 2, 8, 0, 0, 0, 0, 0, 0, 0, 9]);
        assert_eq!(output[28..540], [7; 512]);
        assert_eq!(output[540..548], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0]);
        assert_eq!(output[555], 2);
        assert!(answer(&request(0, 1, 0, 1 << 30), &mut output, Reads::Holes).is_err());
        let done = answer(&input, &mut output, Reads::Holes).unwrap();
        assert_eq!(done.given, 32 + 16);
        assert_eq!(output[4..8], [0, 1, 0, 2]);
        assert_eq!(output[16..32], [0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 2, 0]);
    }
}
