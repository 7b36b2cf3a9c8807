//! Parses and checks requests.

use disk::{Geometry, IoError, RequestKind};

use crate::wire::{MAX_REQUEST_BYTES, REQUEST_BYTES, REQUEST_MAGIC, Reader, code, error, flag};

/// Header of a request, not yet checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) flags: u16,
    pub(crate) code: u16,
    /// Client's identifier for the request.
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

impl Header {
    /// Parses a header. Returns `None` if the magic number is wrong. The start of the next request
    /// is then unknown.
    pub(crate) fn parse(bytes: &[u8; REQUEST_BYTES]) -> Option<Self> {
        let mut reader = Reader(bytes);
        if reader.u32()? != REQUEST_MAGIC {
            return None;
        }
        Some(Self {
            flags: reader.u16()?,
            code: reader.u16()?,
            cookie: reader.u64()?,
            offset: reader.u64()?,
            len: reader.u32()?,
        })
    }

    /// Returns the number of data bytes after the header.
    pub(crate) fn payload(&self) -> u32 {
        if self.code == code::WRITE { self.len } else { 0 }
    }
}

/// Client's request with a checked range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Read,
    Write { durable: bool },
    Flush,
    Trim { durable: bool },
    WriteZeroes { unmap: bool, durable: bool },
    Cache,
    BlockStatus { one: bool },
    Disconnect,
}

/// Reason why a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) error: u32,
    pub(crate) message: &'static str,
}

fn refuse<T>(error: u32, message: &'static str) -> Result<T, Refusal> {
    Err(Refusal { error, message })
}

/// Properties of disk and session against which commands are checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Geometry of the disk. Also read-only if only the export is.
    pub(crate) geometry: Geometry,
    /// True if structured replies were negotiated.
    pub(crate) structured: bool,
    /// True if `base:allocation` was negotiated.
    pub(crate) allocation: bool,
    /// True if zeroing with unmap is fast.
    pub(crate) holes_fast: bool,
    /// True if zeroing without unmap is fast.
    pub(crate) zeroes_fast: bool,
}

/// Checks a request.
pub(crate) fn check(header: &Header, limits: &Limits) -> Result<Command, Refusal> {
    let Header { flags, code, offset, len, .. } = *header;
    let (len, geometry) = (u64::from(len), &limits.geometry);
    // The protocol allows FUA on any command.
    let durable = flags & flag::FUA != 0;
    let known = match code {
        code::READ if limits.structured => flag::DF,
        code::WRITE_ZEROES => flag::NO_HOLE | flag::FAST_ZERO,
        code::BLOCK_STATUS => flag::REQ_ONE,
        _ => 0,
    };
    if flags & !(known | flag::FUA) != 0 {
        return refuse(error::INVAL, "the command does not support this flag");
    }
    let changes = |command: Command, kind: RequestKind| match geometry.check(kind, offset, len) {
        Ok(()) => Ok(command),
        Err(IoError::ReadOnly) => refuse(error::PERM, "the export is read-only"),
        Err(_) if geometry.check_inside(offset, len).is_ok() => {
            refuse(error::INVAL, "not whole blocks; the block size is in NBD_INFO_BLOCK_SIZE")
        }
        Err(_) if len == 0 => refuse(error::INVAL, "the length is zero"),
        Err(_) => refuse(error::NOSPC, "outside of the export"),
    };
    let reads = |command| match geometry.check_inside(offset, len) {
        Ok(()) => Ok(command),
        Err(_) => refuse(error::INVAL, "outside of the export, or the length is zero"),
    };
    match code {
        code::READ | code::WRITE if len > u64::from(MAX_REQUEST_BYTES) => {
            refuse(error::INVAL, "longer than the largest block in NBD_INFO_BLOCK_SIZE")
        }
        code::READ => reads(Command::Read),
        code::WRITE => changes(Command::Write { durable }, RequestKind::Write { durable }),
        code::FLUSH => Ok(Command::Flush),
        code::TRIM => changes(Command::Trim { durable }, RequestKind::Discard),
        code::WRITE_ZEROES => {
            let unmap = flags & flag::NO_HOLE == 0;
            let fast = if unmap { limits.holes_fast } else { limits.zeroes_fast };
            if flags & flag::FAST_ZERO != 0 && !fast {
                return refuse(error::NOTSUP, "fast zeroing is not supported");
            }
            let kind = RequestKind::WriteZeroes { unmap, durable };
            changes(Command::WriteZeroes { unmap, durable }, kind)
        }
        code::CACHE => reads(Command::Cache),
        code::BLOCK_STATUS if !limits.allocation => {
            refuse(error::INVAL, "no metadata context was negotiated")
        }
        code::BLOCK_STATUS => reads(Command::BlockStatus { one: flags & flag::REQ_ONE != 0 }),
        code::DISC => Ok(Command::Disconnect),
        _ => refuse(error::INVAL, "unknown command"),
    }
}

/// Returns the error that the client receives for a failure of the disk.
pub(crate) fn refusal(failure: IoError) -> Refusal {
    let (error, message) = match failure {
        IoError::Storage(rustix::io::Errno::NOMEM) => (error::NOMEM, "out of memory"),
        IoError::Memory => (error::NOMEM, "memory of the server cannot be reached"),
        IoError::Storage(_) => (error::IO, "the storage failed"),
        IoError::Short => (error::IO, "the storage is shorter than the disk"),
        IoError::Unreachable => (error::IO, "the source of the image cannot be reached"),
        IoError::Full => (error::NOSPC, "the storage is full"),
        IoError::ReadOnly => (error::PERM, "the disk is read-only"),
        IoError::Range => (error::INVAL, "outside of the disk"),
        IoError::Unsupported => (error::NOTSUP, "the disk cannot do that"),
    };
    Refusal { error, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(read_only: bool) -> Limits {
        let geometry = Geometry {
            size: 1 << 26,
            block_size: 512,
            read_only,
            discard: true,
            discard_granularity: 512,
        };
        Limits {
            geometry,
            structured: true,
            allocation: true,
            holes_fast: true,
            zeroes_fast: false,
        }
    }

    fn header(code: u16, flags: u16, offset: u64, len: u32) -> Header {
        Header { flags, code, cookie: 7, offset, len }
    }

    fn bytes(magic: u32, h: &Header) -> [u8; REQUEST_BYTES] {
        let mut out = Vec::new();
        out.extend(magic.to_be_bytes());
        out.extend(h.flags.to_be_bytes());
        out.extend(h.code.to_be_bytes());
        out.extend(h.cookie.to_be_bytes());
        out.extend(h.offset.to_be_bytes());
        out.extend(h.len.to_be_bytes());
        out.try_into().unwrap()
    }

    #[test]
    fn a_header_is_read_as_it_was_sent() {
        let sent = header(code::WRITE, flag::FUA, 1 << 40, 4096);
        assert_eq!(Header::parse(&bytes(REQUEST_MAGIC, &sent)), Some(sent));
        assert_eq!(Header::parse(&bytes(!REQUEST_MAGIC, &sent)), None);
        assert_eq!((sent.payload(), header(code::READ, 0, 0, 512).payload()), (4096, 0));
    }

    #[test]
    fn commands_are_checked() {
        let (end, max) = (1u64 << 26, MAX_REQUEST_BYTES);
        let ok = |command| (0, Some(command));
        let no = |error| (error, None);
        for (code, flags, offset, len, (error, command)) in [
            (code::READ, flag::DF, 0, 512, ok(Command::Read)),
            (code::READ, 0, 1, 1, ok(Command::Read)),
            (code::READ, 0, end - 1, 2, no(error::INVAL)),
            (code::READ, 0, u64::MAX, 2, no(error::INVAL)),
            (code::READ, 0, 0, 0, no(error::INVAL)),
            (code::READ, 0, 0, max, ok(Command::Read)),
            (code::READ, 0, 0, max + 1, no(error::INVAL)),
            (code::READ, flag::NO_HOLE, 0, 512, no(error::INVAL)),
            (code::WRITE, flag::FUA, 0, 512, ok(Command::Write { durable: true })),
            (code::WRITE, 0, 1, 512, no(error::INVAL)),
            (code::WRITE, 0, end, 512, no(error::NOSPC)),
            (code::WRITE, 0, u64::MAX - 511, 512, no(error::NOSPC)),
            (code::WRITE, flag::DF, 0, 512, no(error::INVAL)),
            (code::FLUSH, 0, 0, 0, ok(Command::Flush)),
            (code::TRIM, 0, 512, 1 << 25, ok(Command::Trim { durable: false })),
            (code::TRIM, 0, 512, u32::MAX, no(error::NOSPC)),
            (
                code::WRITE_ZEROES,
                flag::FAST_ZERO,
                0,
                1 << 26,
                ok(Command::WriteZeroes { unmap: true, durable: false }),
            ),
            (code::WRITE_ZEROES, flag::FAST_ZERO | flag::NO_HOLE, 0, 512, no(error::NOTSUP)),
            (code::CACHE, 0, 0, 512, ok(Command::Cache)),
            (code::BLOCK_STATUS, flag::REQ_ONE, 0, 1, ok(Command::BlockStatus { one: true })),
            (code::DISC, 0, 9, 9, ok(Command::Disconnect)),
            (8, 0, 0, 512, no(error::INVAL)),
            (u16::MAX, u16::MAX, u64::MAX, u32::MAX, no(error::INVAL)),
        ] {
            let got = check(&header(code, flags, offset, len), &limits(false));
            assert_eq!((got.map_or_else(|r| r.error, |_| 0), got.ok()), (error, command), "{code}");
        }
        for code in [code::WRITE, code::TRIM, code::WRITE_ZEROES] {
            let got = check(&header(code, 0, 0, 512), &limits(true));
            assert_eq!(got.unwrap_err().error, error::PERM);
        }
        let plain = Limits { structured: false, allocation: false, ..limits(false) };
        for (code, flags) in [(code::READ, flag::DF), (code::BLOCK_STATUS, 0)] {
            assert_eq!(
                check(&header(code, flags, 0, 512), &plain).unwrap_err().error,
                error::INVAL
            );
        }
    }

    proptest::proptest! {
        #[test]
        fn what_passes_is_inside(code: u16, flags: u16, offset: u64, len: u32, read_only: bool) {
            let limits = limits(read_only);
            if let Ok(command) = check(&header(code % 9, flags % 32, offset, len), &limits) {
                let ranged = !matches!(command, Command::Flush | Command::Disconnect);
                if ranged {
                    assert!(offset + u64::from(len) <= limits.geometry.size);
                }
            }
        }
    }
}
