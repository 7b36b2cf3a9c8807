//! Parses a descriptor chain into a checked request or a status.

use disk::{Geometry, IoError, RequestKind};
use memory::{Buffers, Byte};
use virtq::Chain;

use crate::spec::*;

/// A parsed request.
#[derive(Debug)]
pub(crate) enum Parsed {
    /// I/O in a checked range.
    Io {
        kind: RequestKind,
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
        data: Buffers,
        status: Byte,
    },
    /// A GET_ID request.
    Id { data: Buffers, status: Byte },
    /// A request that ends at once with the status `code`.
    Refused { code: u8, status: Byte },
    /// A chain without a status byte, which cannot be answered.
    NoStatusByte,
}

/// Geometry and features that parsing depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) geometry: Geometry,
    /// Negotiated features.
    pub(crate) features: u64,
}

impl Rules {
    /// Returns whether each write must be durable, because the driver will not flush
    /// (virtio 1.2, 5.2.6.2).
    fn write_through(&self) -> bool {
        self.features & feature::FLUSH == 0
    }

    /// Parses `chain` and takes the buffers that the request needs out of it.
    pub(crate) fn parse(&self, chain: &mut Chain) -> Parsed {
        let Some(status) = chain.writable.take_last_byte() else { return Parsed::NoStatusByte };
        let Some(header) = chain.readable.take_front::<HEADER>() else {
            return Parsed::Refused { code: S_IOERR, status };
        };
        let kind = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        let mut sector = [0; 8];
        sector.copy_from_slice(&header[8..]);
        let sector = u64::from_le_bytes(sector);
        let durable = self.write_through();
        match kind {
            T_IN => {
                let data = std::mem::take(&mut chain.writable);
                self.data(RequestKind::Read, sector, data, status)
            }
            T_OUT => {
                let data = std::mem::take(&mut chain.readable);
                self.data(RequestKind::Write { durable }, sector, data, status)
            }
            T_FLUSH => {
                let data = Buffers::default();
                Parsed::Io { kind: RequestKind::Flush, offset: 0, len: 0, data, status }
            }
            T_GET_ID => Parsed::Id { data: std::mem::take(&mut chain.writable), status },
            T_DISCARD if self.features & feature::DISCARD != 0 => {
                self.segment(&mut chain.readable, status, |flags| match flags {
                    0 => Some(RequestKind::Discard),
                    _ => None,
                })
            }
            T_WRITE_ZEROES if self.features & feature::WRITE_ZEROES != 0 => {
                self.segment(&mut chain.readable, status, |flags| match flags {
                    0 => Some(RequestKind::WriteZeroes { unmap: false, durable }),
                    SEGMENT_UNMAP => Some(RequestKind::WriteZeroes { unmap: true, durable }),
                    _ => None,
                })
            }
            _ => Parsed::Refused { code: S_UNSUPP, status },
        }
    }

    fn data(&self, kind: RequestKind, sector: u64, data: Buffers, status: Byte) -> Parsed {
        let len = data.len() as u64;
        let in_bounds = len <= DATA_MAX;
        match sector.checked_mul(SECTOR).filter(|_| in_bounds) {
            Some(offset) if self.geometry.check(kind, offset, len).is_ok() => {
                Parsed::Io { kind, offset, len, data, status }
            }
            _ => Parsed::Refused { code: S_IOERR, status },
        }
    }

    /// Parses a discard or write-zeroes request with its one segment (virtio 1.2, 5.2.6.2).
    fn segment(
        &self,
        readable: &mut Buffers,
        status: Byte,
        kind: impl Fn(u32) -> Option<RequestKind>,
    ) -> Parsed {
        let exact = readable.len() == SEGMENT;
        let Some(raw) = readable.take_front::<SEGMENT>().filter(|_| exact) else {
            return Parsed::Refused { code: S_IOERR, status };
        };
        let mut sector = [0; 8];
        sector.copy_from_slice(&raw[..8]);
        let sectors = u32::from_le_bytes([raw[8], raw[9], raw[10], raw[11]]);
        let flags = u32::from_le_bytes([raw[12], raw[13], raw[14], raw[15]]);
        let Some(kind) = kind(flags) else {
            return Parsed::Refused { code: S_UNSUPP, status };
        };
        let len = u64::from(sectors) * SECTOR;
        match u64::from_le_bytes(sector).checked_mul(SECTOR) {
            Some(offset)
                if sectors <= RANGE_SECTORS_MAX
                    && self.geometry.check(kind, offset, len).is_ok() =>
            {
                Parsed::Io { kind, offset, len, data: Buffers::default(), status }
            }
            _ => Parsed::Refused { code: S_IOERR, status },
        }
    }
}

/// Returns the status byte for an outcome.
pub(crate) fn status_of(outcome: Result<(), IoError>) -> u8 {
    match outcome {
        Ok(()) => S_OK,
        Err(IoError::Unsupported) => S_UNSUPP,
        Err(_) => S_IOERR,
    }
}
