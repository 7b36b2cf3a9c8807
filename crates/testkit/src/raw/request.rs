//! Virtio-blk requests: header, data, status (virtio 1.2, 5.2.6).

use super::memory::SharedMemory;
use super::ring::Desc;
use crate::error::Result;

/// Request types.
pub mod kind {
    /// Read.
    pub const IN: u32 = 0;
    /// Write.
    pub const OUT: u32 = 1;
    /// Make acknowledged writes durable.
    pub const FLUSH: u32 = 4;
    /// Read the serial, 20 bytes.
    pub const GET_ID: u32 = 8;
    /// Discard.
    pub const DISCARD: u32 = 11;
    /// Write zeroes.
    pub const WRITE_ZEROES: u32 = 13;
}

/// Status bytes.
pub mod status {
    /// Success.
    pub const OK: u8 = 0;
    /// Failure.
    pub const IOERR: u8 = 1;
    /// Not supported.
    pub const UNSUPP: u8 = 2;
    /// Value that the test writes before: the device has not written a status.
    pub const UNTOUCHED: u8 = 0xaa;
}

/// Bytes of the request header.
pub const HEADER_BYTES: u32 = 16;
/// Bytes of a sector, the unit of the header.
pub const SECTOR_BYTES: u64 = 512;

/// A request before it has addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Type, see [`kind`]; any value.
    pub kind: u32,
    /// First sector.
    pub sector: u64,
    /// Bytes that the device reads (data of a write, ranges of a discard).
    pub out: Vec<u8>,
    /// Lengths of the buffers that the device writes.
    pub input: Vec<u32>,
}

impl Request {
    /// Creates a read of `len` bytes.
    #[must_use]
    pub fn read(sector: u64, len: u32) -> Self {
        Self { kind: kind::IN, sector, out: Vec::new(), input: vec![len] }
    }

    /// Creates a read into several buffers.
    #[must_use]
    pub fn read_parts(sector: u64, lens: &[u32]) -> Self {
        Self { kind: kind::IN, sector, out: Vec::new(), input: lens.to_vec() }
    }

    /// Creates a write of bytes.
    #[must_use]
    pub fn write(sector: u64, bytes: &[u8]) -> Self {
        Self { kind: kind::OUT, sector, out: bytes.to_vec(), input: Vec::new() }
    }

    /// Creates a flush.
    #[must_use]
    pub fn flush() -> Self {
        Self { kind: kind::FLUSH, sector: 0, out: Vec::new(), input: Vec::new() }
    }

    /// Creates a read of the serial.
    #[must_use]
    pub fn get_id() -> Self {
        Self { kind: kind::GET_ID, sector: 0, out: Vec::new(), input: vec![20] }
    }

    /// Creates a DISCARD or WRITE_ZEROES of one range; `flags` 1 means "unmap".
    #[must_use]
    pub fn range(kind: u32, sector: u64, sectors: u32, flags: u32) -> Self {
        let mut out = sector.to_le_bytes().to_vec();
        out.extend(sectors.to_le_bytes());
        out.extend(flags.to_le_bytes());
        Self { kind, sector: 0, out, input: Vec::new() }
    }

    /// Creates a request of any type without data.
    #[must_use]
    pub fn bare(kind: u32) -> Self {
        Self { kind, ..Self::flush() }
    }

    /// Writes header, data and status into memory.
    ///
    /// # Errors
    /// [`crate::Error::Full`] if they do not fit.
    pub fn place(&self, memory: &mut SharedMemory) -> Result<Placed> {
        let header = memory.alloc(u64::from(HEADER_BYTES), 16)?;
        memory.write(header, &self.header())?;
        let out = memory.alloc(self.out.len() as u64, 512)?;
        memory.write(out, &self.out)?;
        let mut input = Vec::new();
        for len in &self.input {
            input.push((memory.alloc(u64::from(*len), 512)?, *len));
        }
        let status = memory.alloc(1, 1)?;
        memory.write(status, &[status::UNTOUCHED])?;
        let out_len = u32::try_from(self.out.len()).unwrap_or(u32::MAX);
        Ok(Placed { header, out: (out, out_len), input, status })
    }

    /// Returns the header's 16 bytes.
    #[must_use]
    pub fn header(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&self.kind.to_le_bytes());
        bytes[8..].copy_from_slice(&self.sector.to_le_bytes());
        bytes
    }
}

/// A request in memory: guest addresses and lengths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// Address of the header.
    pub header: u64,
    /// Address and length of the data that the device reads.
    pub out: (u64, u32),
    /// Addresses and lengths of the buffers that the device writes.
    pub input: Vec<(u64, u32)>,
    /// Address of the status byte.
    pub status: u64,
}

impl Placed {
    /// Returns the descriptors of the well-formed chain.
    #[must_use]
    pub fn descs(&self) -> Vec<Desc> {
        let mut descs = vec![Desc::readable(self.header, HEADER_BYTES)];
        if self.out.1 > 0 {
            descs.push(Desc::readable(self.out.0, self.out.1));
        }
        descs.extend(self.input.iter().map(|(addr, len)| Desc::writable(*addr, *len)));
        descs.push(Desc::writable(self.status, 1));
        descs
    }

    /// Returns the current status byte.
    ///
    /// # Errors
    /// As [`SharedMemory::read`].
    pub fn status(&self, memory: &SharedMemory) -> Result<u8> {
        memory.read_array::<1>(self.status).map(|[byte]| byte)
    }

    /// Returns the bytes that the device wrote, all buffers together.
    ///
    /// # Errors
    /// As [`SharedMemory::read`].
    pub fn data(&self, memory: &SharedMemory) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for (addr, len) in &self.input {
            bytes.extend(memory.read(*addr, *len as usize)?);
        }
        Ok(bytes)
    }
}
