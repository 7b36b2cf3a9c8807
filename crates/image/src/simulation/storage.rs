//! Simulated file with a volatile cache: a power cut loses any part of each sector's writes.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::Poll;

use super::random::Random;
use crate::ImageFile;

/// Bytes of a sector, the largest write that a power cut does not tear.
pub(super) const SECTOR: usize = 16;

type Bytes = [u8; SECTOR];

#[derive(Clone, Debug, Default)]
struct Sector {
    durable: Bytes,
    /// Writes in the cache, oldest first, with their numbers.
    cached: Vec<(u64, Bytes)>,
}

#[derive(Debug, Default)]
struct Disk {
    sectors: Vec<Sector>,
    /// Number of the last write.
    writes: u64,
    /// Fails the calls that are this many calls ahead: at 0 the next one.
    failures: Vec<u32>,
}

/// Handle of the simulated file.
#[derive(Clone, Debug, Default)]
pub(super) struct SimFile(Rc<RefCell<Disk>>);

impl SimFile {
    pub(super) fn new(sectors: usize) -> Self {
        let sectors = vec![Sector::default(); sectors];
        Self(Rc::new(RefCell::new(Disk { sectors, ..Disk::default() })))
    }

    pub(super) fn read_sector(&self, sector: usize) -> Bytes {
        let sector = &self.0.borrow().sectors[sector];
        sector.cached.last().map_or(sector.durable, |(_, bytes)| *bytes)
    }

    pub(super) fn write_sector(&self, sector: usize, bytes: Bytes) {
        let mut disk = self.0.borrow_mut();
        disk.writes += 1;
        let number = disk.writes;
        disk.sectors[sector].cached.push((number, bytes));
    }

    /// Reads the number that a data sector stores.
    pub(super) fn value(&self, sector: usize) -> u64 {
        let bytes = self.read_sector(sector);
        u64::from_le_bytes(bytes[..8].try_into().unwrap())
    }

    pub(super) fn set_value(&self, sector: usize, value: u64) {
        let mut bytes = Bytes::default();
        bytes[..8].copy_from_slice(&value.to_le_bytes());
        self.write_sector(sector, bytes);
    }

    /// Makes all writes of one sector durable, as a durable write does.
    pub(super) fn sync_sector(&self, sector: usize) {
        let sector = &mut self.0.borrow_mut().sectors[sector];
        if let Some((_, bytes)) = sector.cached.pop() {
            sector.durable = bytes;
            sector.cached.clear();
        }
    }

    /// Returns the number of the last write. A sync that begins now covers writes up to it.
    pub(super) fn last_write(&self) -> u64 {
        self.0.borrow().writes
    }

    /// Makes the writes up to `number` durable.
    pub(super) fn sync_to(&self, number: u64) {
        for sector in &mut self.0.borrow_mut().sectors {
            let covered = sector.cached.partition_point(|(one, _)| *one <= number);
            if let Some((_, bytes)) = sector.cached.drain(..covered).next_back() {
                sector.durable = bytes;
            }
        }
    }

    /// Cuts the power: of each sector a random number of its cached writes has reached the medium.
    pub(super) fn cut(&self, random: &mut Random) {
        for sector in &mut self.0.borrow_mut().sectors {
            let kept = random.below(sector.cached.len() + 1);
            if let Some(last) = kept.checked_sub(1) {
                sector.durable = sector.cached[last].1;
            }
            sector.cached.clear();
        }
    }

    /// Fails the call that is `ahead` calls ahead, once.
    pub(super) fn fail_later(&self, ahead: u32) {
        self.0.borrow_mut().failures.push(ahead);
    }

    /// Suspends once, then says whether the call goes on.
    async fn call(&self) -> io::Result<()> {
        let mut suspended = false;
        poll_fn(|_| {
            if std::mem::replace(&mut suspended, true) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        let failures = &mut self.0.borrow_mut().failures;
        let fails = failures.contains(&0);
        failures.retain(|ahead| *ahead > 0);
        failures.iter_mut().for_each(|ahead| *ahead -= 1);
        if fails { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) }
    }
}

impl ImageFile for SimFile {
    async fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.call().await?;
        for (at, part) in out.chunks_mut(SECTOR).enumerate() {
            part.copy_from_slice(&self.read_sector(offset as usize / SECTOR + at)[..part.len()]);
        }
        Ok(())
    }

    async fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.call().await?;
        for (at, part) in data.chunks(SECTOR).enumerate() {
            let mut bytes = Bytes::default();
            bytes[..part.len()].copy_from_slice(part);
            self.write_sector(offset as usize / SECTOR + at, bytes);
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
        Ok((self.0.borrow().sectors.len() * SECTOR) as u64)
    }

    async fn set_len(&self, len: u64) -> io::Result<()> {
        self.call().await?;
        self.0.borrow_mut().sectors.resize(len as usize / SECTOR, Sector::default());
        Ok(())
    }

    async fn allocate(&self, _: u64, _: u64) -> io::Result<()> {
        self.call().await
    }

    async fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.call().await?;
        for at in 0..len as usize / SECTOR {
            self.write_sector(offset as usize / SECTOR + at, Bytes::default());
        }
        Ok(())
    }
}
