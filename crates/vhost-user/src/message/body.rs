//! Payloads: reads numbers from bytes and checks each one.

use std::os::fd::OwnedFd;

use memory::RegionSpec;

use super::{INFLIGHT_BYTES, InflightDesc, MAX_CONFIG_BYTES, MAX_TABLE_REGIONS, NO_DESCRIPTOR};
use super::{Request, RingAddr, VRING_INDEX_MASK, VRING_LOG};
use crate::error::Refusal;

/// Cursor over a payload.
pub(super) struct Body<'a> {
    pub(super) bytes: &'a [u8],
}

impl Body<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Refusal> {
        let short = Refusal::PayloadSize { got: self.bytes.len(), need: N };
        let (head, tail) = self.bytes.split_first_chunk::<N>().ok_or(short)?;
        self.bytes = tail;
        Ok(*head)
    }

    fn u16(&mut self) -> Result<u16, Refusal> {
        self.take().map(u16::from_ne_bytes)
    }

    fn u32(&mut self) -> Result<u32, Refusal> {
        self.take().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Result<u64, Refusal> {
        self.take().map(u64::from_ne_bytes)
    }

    /// Refuses a payload of any other size before any of it is used.
    fn exactly(&self, need: usize) -> Result<(), Refusal> {
        let got = self.bytes.len();
        if got == need { Ok(()) } else { Err(Refusal::PayloadSize { got, need }) }
    }

    pub(super) fn only_u64(&mut self) -> Result<u64, Refusal> {
        self.exactly(8)?;
        self.u64()
    }

    /// Reads a vring state: index and number.
    pub(super) fn vring_state(&mut self) -> Result<(u32, u32), Refusal> {
        self.exactly(8)?;
        Ok((self.u32()?, self.u32()?))
    }

    pub(super) fn inflight(&mut self) -> Result<InflightDesc, Refusal> {
        let (got, [bare, padded]) = (self.bytes.len(), INFLIGHT_BYTES);
        if got != bare && got != padded {
            return Err(Refusal::PayloadSize { got, need: bare });
        }
        let (mmap_size, mmap_offset) = (self.u64()?, self.u64()?);
        let (queues, size) = (self.u16()?, self.u16()?);
        Ok(InflightDesc { mmap_size, mmap_offset, queues, size })
    }

    fn region(&mut self) -> Result<RegionSpec, Refusal> {
        let (guest_addr, len) = (self.u64()?, self.u64()?);
        let (user_addr, file_offset) = (self.u64()?, self.u64()?);
        Ok(RegionSpec { guest_addr, user_addr, len, file_offset })
    }
}

pub(super) fn one(mut fds: Vec<OwnedFd>) -> Result<OwnedFd, Refusal> {
    let got = fds.len();
    match fds.pop() {
        Some(fd) if got == 1 => Ok(fd),
        _ => Err(Refusal::DescriptorCount { got, need: 1 }),
    }
}

/// Reads a memory table. The payload may be longer than its regions: User-Mode Linux always
/// sends space for two.
pub(super) fn mem_table(
    mut body: Body<'_>,
    fds: Vec<OwnedFd>,
) -> Result<Vec<(RegionSpec, OwnedFd)>, Refusal> {
    let got = body.bytes.len();
    let count = body.u32()?;
    body.u32()?;
    let need = usize::try_from(count).ok().filter(|n| *n <= MAX_TABLE_REGIONS);
    let need = need.ok_or(Refusal::Field {
        field: "number of memory regions",
        value: count.into(),
        accepted: "at most 32 fit into one table; add further ones singly",
    })?;
    if body.bytes.len() < need * 32 {
        return Err(Refusal::PayloadSize { got, need: 8 + need * 32 });
    }
    if fds.len() != need {
        return Err(Refusal::DescriptorCount { got: fds.len(), need });
    }
    fds.into_iter().map(|fd| Ok((body.region()?, fd))).collect()
}

pub(super) fn single_region(mut body: Body<'_>) -> Result<RegionSpec, Refusal> {
    body.exactly(40)?;
    body.u64()?;
    body.region()
}

pub(super) fn vring_addr(mut body: Body<'_>) -> Result<Request, Refusal> {
    body.exactly(40)?;
    let (index, flags) = (body.u32()?, body.u32()?);
    let addr = RingAddr { desc: body.u64()?, used: body.u64()?, avail: body.u64()? };
    if flags & VRING_LOG != 0 {
        let accepted = "logging of writes is not offered";
        return Err(Refusal::Field { field: "vring flags", value: flags.into(), accepted });
    }
    Ok(Request::SetVringAddr { index, addr })
}

pub(super) fn vring_base(mut body: Body<'_>) -> Result<Request, Refusal> {
    let (index, base) = body.vring_state()?;
    let base = u16::try_from(base).map_err(|_| Refusal::Field {
        field: "vring base",
        value: base.into(),
        accepted: "a split ring's index has 16 bits",
    })?;
    Ok(Request::SetVringBase { index, base })
}

pub(super) fn vring_enable(mut body: Body<'_>) -> Result<Request, Refusal> {
    let (index, num) = body.vring_state()?;
    let enable = match num {
        0 => false,
        1 => true,
        _ => {
            let accepted = "0 disables and 1 enables";
            return Err(Refusal::Field { field: "vring enable", value: num.into(), accepted });
        }
    };
    Ok(Request::SetVringEnable { index, enable })
}

pub(super) fn vring_fd(
    mut body: Body<'_>,
    fds: Vec<OwnedFd>,
) -> Result<(u32, Option<OwnedFd>), Refusal> {
    let value = body.only_u64()?;
    if value & !(VRING_INDEX_MASK | NO_DESCRIPTOR) != 0 {
        let accepted = "bits 0 to 7 are the index and bit 8 says that no descriptor comes";
        return Err(Refusal::Field { field: "vring descriptor word", value, accepted });
    }
    let index = (value & VRING_INDEX_MASK) as u32;
    if value & NO_DESCRIPTOR == 0 {
        return Ok((index, Some(one(fds)?)));
    }
    match fds.len() {
        0 => Ok((index, None)),
        got => Err(Refusal::DescriptorCount { got, need: 0 }),
    }
}

pub(super) fn get_config(mut body: Body<'_>) -> Result<Request, Refusal> {
    let (offset, size, flags) = (body.u32()?, body.u32()?, body.u32()?);
    let len = config_len(size)?;
    Ok(Request::GetConfig { offset, flags, len })
}

pub(super) fn set_config(mut body: Body<'_>) -> Result<Request, Refusal> {
    let (offset, size, _flags) = (body.u32()?, body.u32()?, body.u32()?);
    body.exactly(config_len(size)?)?;
    Ok(Request::SetConfig { offset, bytes: body.bytes.to_vec() })
}

fn config_len(size: u32) -> Result<usize, Refusal> {
    let len = usize::try_from(size).ok().filter(|len| *len <= MAX_CONFIG_BYTES);
    len.ok_or(Refusal::Field {
        field: "configuration size",
        value: size.into(),
        accepted: "at most 4096 bytes are carried",
    })
}
