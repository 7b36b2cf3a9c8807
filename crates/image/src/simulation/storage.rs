//! Simulated file with a volatile cache: a power cut loses any part of each sector's writes, and the
//! last growth of the file.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::Poll;

use super::random::Random;
use crate::ImageFile;

/// Errors EIO and ENOSPC.
const EIO: i32 = 5;
const ENOSPC: i32 = 28;

pub(super) type Bytes = Rc<[u8]>;

#[derive(Clone, Debug)]
struct Sector {
    durable: Bytes,
    /// Writes in the cache, oldest first, with their numbers.
    cached: Vec<(u64, Bytes)>,
}

#[derive(Debug)]
struct Disk {
    /// Bytes of a sector, the largest write that a power cut does not tear.
    sector_bytes: usize,
    /// All sectors that the storage has.
    sectors: Vec<Sector>,
    /// Sectors with writes in the cache.
    dirty: BTreeSet<usize>,
    /// Sectors of the file, and the size in the cache.
    durable_len: usize,
    cached_lens: Vec<(u64, usize)>,
    /// Number of the last write.
    writes: u64,
    /// Fails the calls that are this many calls ahead: at 0 the next one.
    failures: Vec<u32>,
    /// Number of writes until the storage is full for one of them.
    full_in: Option<u32>,
}

impl Disk {
    fn len(&self) -> usize {
        self.cached_lens.last().map_or(self.durable_len, |(_, len)| *len)
    }

    fn read(&self, sector: usize) -> &Bytes {
        let sector = &self.sectors[sector];
        sector.cached.last().map_or(&sector.durable, |(_, bytes)| bytes)
    }

    fn write(&mut self, sector: usize, bytes: Bytes) {
        self.writes += 1;
        self.sectors[sector].cached.push((self.writes, bytes));
        self.dirty.insert(sector);
        self.grow(sector + 1);
    }

    fn grow(&mut self, len: usize) {
        if len > self.len() {
            self.writes += 1;
            self.cached_lens.push((self.writes, len));
        }
    }
}

/// Handle of the simulated file.
#[derive(Clone, Debug)]
pub(super) struct SimFile {
    disk: Rc<RefCell<Disk>>,
    /// Whether calls end at once and never fail.
    is_direct: bool,
}

impl SimFile {
    /// Creates a file with these durable bytes, on storage with room for `room` more sectors.
    pub(super) fn new(sector_bytes: usize, content: &[u8], room: usize) -> Self {
        let zero: Bytes = vec![0; sector_bytes].into();
        let parts = content.chunks(sector_bytes).map(|part| {
            let mut bytes = part.to_vec();
            bytes.resize(sector_bytes, 0);
            Sector { durable: bytes.into(), cached: Vec::new() }
        });
        let mut sectors: Vec<_> = parts.collect();
        let durable_len = sectors.len();
        sectors.resize(durable_len + room, Sector { durable: zero, cached: Vec::new() });
        let (dirty, cached_lens, failures) = Default::default();
        let (writes, full_in) = (0, None);
        let disk = Disk {
            sector_bytes,
            sectors,
            dirty,
            durable_len,
            cached_lens,
            writes,
            failures,
            full_in,
        };
        Self { disk: Rc::new(RefCell::new(disk)), is_direct: false }
    }

    /// Returns a handle whose calls end at once and never fail.
    pub(super) fn direct(&self) -> Self {
        Self { disk: Rc::clone(&self.disk), is_direct: true }
    }

    pub(super) fn sector_bytes(&self) -> usize {
        self.disk.borrow().sector_bytes
    }

    /// Returns all bytes of the file.
    pub(super) fn dump(&self) -> Vec<u8> {
        let disk = self.disk.borrow();
        (0..disk.len()).flat_map(|sector| disk.read(sector).to_vec()).collect()
    }

    pub(super) fn sector(&self, sector: usize) -> Bytes {
        Rc::clone(self.disk.borrow().read(sector))
    }

    /// Reads the number that a data sector stores.
    pub(super) fn value(&self, sector: usize) -> u64 {
        number(self.disk.borrow().read(sector))
    }

    pub(super) fn set_value(&self, sector: usize, value: u64) {
        let mut disk = self.disk.borrow_mut();
        let mut bytes = vec![0; disk.sector_bytes];
        bytes[..8].copy_from_slice(&value.to_le_bytes());
        disk.write(sector, bytes.into());
    }

    /// Makes all writes of one sector durable, as a durable write does.
    pub(super) fn sync_sector(&self, sector: usize) {
        let mut disk = self.disk.borrow_mut();
        let sector = &mut disk.sectors[sector];
        if let Some((_, bytes)) = sector.cached.pop() {
            sector.durable = bytes;
            sector.cached.clear();
        }
    }

    /// Returns the number of the last write. A sync that begins now covers writes up to it.
    pub(super) fn last_write(&self) -> u64 {
        self.disk.borrow().writes
    }

    /// Makes the writes up to `number` durable.
    pub(super) fn sync_to(&self, number: u64) {
        let disk = &mut *self.disk.borrow_mut();
        disk.dirty.retain(|sector| {
            let sector = &mut disk.sectors[*sector];
            let covered = sector.cached.partition_point(|(one, _)| *one <= number);
            if let Some((_, bytes)) = sector.cached.drain(..covered).next_back() {
                sector.durable = bytes;
            }
            !sector.cached.is_empty()
        });
        let covered = disk.cached_lens.partition_point(|(one, _)| *one <= number);
        if let Some((_, len)) = disk.cached_lens.drain(..covered).next_back() {
            disk.durable_len = len;
        }
    }

    /// Cuts the power: of each sector a random number of its cached writes has reached the medium.
    pub(super) fn cut(&self, random: &mut Random) {
        let disk = &mut *self.disk.borrow_mut();
        for sector in std::mem::take(&mut disk.dirty) {
            let sector = &mut disk.sectors[sector];
            let kept = random.below(sector.cached.len() + 1);
            if let Some(last) = kept.checked_sub(1) {
                sector.durable = Rc::clone(&sector.cached[last].1);
            }
            sector.cached.clear();
        }
        let (kept, len) = (random.below(disk.cached_lens.len() + 1), disk.len());
        if let Some(last) = kept.checked_sub(1) {
            disk.durable_len = disk.cached_lens[last].1;
        }
        disk.cached_lens.clear();
        let zero: Bytes = vec![0; disk.sector_bytes].into();
        for sector in disk.durable_len..len {
            disk.sectors[sector].durable = Rc::clone(&zero);
        }
    }

    /// Fails the call that is `ahead` calls ahead, once.
    pub(super) fn fail_later(&self, ahead: u32) {
        self.disk.borrow_mut().failures.push(ahead);
    }

    /// Is full for the write that is `ahead` writes ahead, once.
    pub(super) fn fill_later(&self, ahead: u32) {
        self.disk.borrow_mut().full_in = Some(ahead);
    }

    /// Suspends once, then says whether the call goes on.
    async fn call(&self) -> io::Result<()> {
        if self.is_direct {
            return Ok(());
        }
        let mut suspended = false;
        poll_fn(|_| {
            if std::mem::replace(&mut suspended, true) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        let failures = &mut self.disk.borrow_mut().failures;
        let fails = failures.contains(&0);
        failures.retain(|ahead| *ahead > 0);
        failures.iter_mut().for_each(|ahead| *ahead -= 1);
        if fails { Err(io::Error::from_raw_os_error(EIO)) } else { Ok(()) }
    }

    /// Returns the parts of a range: sector, first byte in it, length.
    fn parts(&self, offset: u64, len: usize) -> Vec<(usize, usize, usize)> {
        let sector_bytes = self.sector_bytes();
        let (mut at, end) = (offset as usize, offset as usize + len);
        let mut parts = Vec::new();
        while at < end {
            let within = at % sector_bytes;
            let len = (sector_bytes - within).min(end - at);
            parts.push((at / sector_bytes, within, len));
            at += len;
        }
        parts
    }

    /// Fails if the storage has no room for `len` bytes.
    fn has_room(&self, len: u64) -> io::Result<()> {
        let disk = &mut *self.disk.borrow_mut();
        let is_full = disk.full_in == Some(0) && !self.is_direct;
        disk.full_in = disk.full_in.and_then(|ahead| ahead.checked_sub(1));
        let fits = !is_full && len as usize <= disk.sectors.len() * disk.sector_bytes;
        if fits { Ok(()) } else { Err(io::Error::from_raw_os_error(ENOSPC)) }
    }
}

/// Returns the number in the first bytes of a sector.
pub(super) fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

impl ImageFile for SimFile {
    async fn read_at(&self, offset: u64, mut out: &mut [u8]) -> io::Result<()> {
        self.call().await?;
        let disk = self.disk.borrow();
        for (sector, within, len) in self.parts(offset, out.len()) {
            if sector >= disk.len() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let (part, rest) = out.split_at_mut(len);
            part.copy_from_slice(&disk.read(sector)[within..within + len]);
            out = rest;
        }
        Ok(())
    }

    async fn write_at(&self, offset: u64, mut data: &[u8]) -> io::Result<()> {
        self.call().await?;
        self.has_room(offset + data.len() as u64)?;
        for (sector, within, len) in self.parts(offset, data.len()) {
            let (part, rest) = data.split_at(len);
            let mut disk = self.disk.borrow_mut();
            let mut bytes = disk.read(sector).to_vec();
            bytes[within..within + len].copy_from_slice(part);
            disk.write(sector, bytes.into());
            data = rest;
        }
        Ok(())
    }

    async fn sync(&self) -> io::Result<()> {
        // What is written while the sync runs may stay in the cache.
        let number = self.last_write();
        self.call().await?;
        self.sync_to(number);
        Ok(())
    }

    async fn len(&self) -> io::Result<u64> {
        let disk = self.disk.borrow();
        Ok((disk.len() * disk.sector_bytes) as u64)
    }

    async fn set_len(&self, len: u64) -> io::Result<()> {
        self.allocate(0, len).await
    }

    async fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.call().await?;
        self.has_room(offset + len)?;
        let sectors = (offset + len) as usize / self.sector_bytes();
        self.disk.borrow_mut().grow(sectors);
        Ok(())
    }

    async fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.call().await?;
        for (sector, ..) in self.parts(offset, len as usize) {
            self.set_value(sector, 0);
        }
        Ok(())
    }
}
