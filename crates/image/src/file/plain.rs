//! File or block device of the host, through the page cache or direct.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, fdatasync, ftruncate, seek};
use rustix::io::{Errno, pread, pwrite, retry_on_intr};

use super::ImageFile;

/// Open file or block device. Every operation ends before its future is first polled to the end.
#[derive(Debug)]
pub struct PlainFile {
    fd: Arc<OwnedFd>,
    /// Alignment of offsets, lengths and buffers in bytes; 1 through the page cache.
    block: usize,
}

impl PlainFile {
    /// Wraps a file that uses the page cache.
    pub fn new(fd: OwnedFd) -> Self {
        Self::shared(Arc::new(fd))
    }

    /// As [`Self::new`], with a descriptor that has other users.
    pub fn shared(fd: Arc<OwnedFd>) -> Self {
        Self { fd, block: 1 }
    }

    /// Wraps a file that was opened for direct I/O in blocks of `block` bytes, a power of two up to
    /// 4,096. A write of a part of a block reads and writes the whole block: no other writer may
    /// use its rest meanwhile.
    ///
    /// # Errors
    /// `block` is no such number.
    pub fn direct(fd: impl Into<Arc<OwnedFd>>, block: usize) -> io::Result<Self> {
        if !block.is_power_of_two() || block > 4096 {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        Ok(Self { fd: fd.into(), block })
    }

    /// Returns the open file.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Returns the whole blocks that contain `len` bytes at `offset`.
    fn blocks(&self, offset: u64, len: usize) -> io::Result<Range<u64>> {
        let block = self.block as u64;
        let end =
            offset.checked_add(len as u64).and_then(|end| end.checked_next_multiple_of(block));
        let end = end.filter(|&end| end <= i64::MAX as u64);
        let end = end.ok_or(io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(offset - offset % block..end)
    }

    /// Reads into `out` until it is full or the file ends. Returns the number of bytes.
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < out.len() {
            let at = offset + done as u64;
            match retry_on_intr(|| pread(&self.fd, &mut out[done..], at))? {
                0 => break,
                // The rest of a direct read that stops within a block is the end of the file.
                bytes if bytes % self.block != 0 => return Ok(done + bytes),
                bytes => done += bytes,
            }
        }
        Ok(done)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            match retry_on_intr(|| pwrite(&self.fd, &data[done..], at))? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                bytes => done += bytes,
            }
        }
        Ok(())
    }
}

/// Zeroed bytes at an address that is a multiple of a block.
struct AlignedBytes {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBytes {
    fn new(len: usize, block: usize) -> Self {
        let bytes = vec![0; len + block];
        let start = bytes.as_ptr().addr().wrapping_neg() % block;
        Self { bytes, start, len }
    }

    fn get(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

impl ImageFile for PlainFile {
    async fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let blocks = self.blocks(offset, out.len())?;
        let complete = if self.block == 1 {
            self.read(offset, out)? == out.len()
        } else {
            let mut bounce = AlignedBytes::new((blocks.end - blocks.start) as usize, self.block);
            let bytes = self.read(blocks.start, bounce.get())?;
            let skip = (offset - blocks.start) as usize;
            let found = bounce.get().get(skip..bytes).and_then(|found| found.get(..out.len()));
            found.map(|found| out.copy_from_slice(found)).is_some()
        };
        if complete { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    async fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let blocks = self.blocks(offset, data.len())?;
        if self.block == 1 {
            return self.write(offset, data);
        }
        let mut bounce = AlignedBytes::new((blocks.end - blocks.start) as usize, self.block);
        if blocks.end - blocks.start != data.len() as u64 {
            // Bytes behind the end of the file stay zero.
            self.read(blocks.start, bounce.get())?;
        }
        let skip = (offset - blocks.start) as usize;
        bounce.get()[skip..skip + data.len()].copy_from_slice(data);
        self.write(blocks.start, bounce.get())
    }

    async fn sync(&self) -> io::Result<()> {
        Ok(fdatasync(&self.fd)?)
    }

    async fn len(&self) -> io::Result<u64> {
        // A block device reports its size only here.
        Ok(seek(self.fd.as_fd(), SeekFrom::End(0))?)
    }

    async fn set_len(&self, len: u64) -> io::Result<()> {
        Ok(ftruncate(&self.fd, len)?)
    }

    async fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        space(fallocate(&self.fd, FallocateFlags::empty(), offset, len))
    }

    async fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        space(fallocate(&self.fd, punch, offset, len))
    }
}

fn space(result: Result<(), Errno>) -> io::Result<()> {
    result.map_err(|errno| match errno {
        Errno::OPNOTSUPP | Errno::NOSYS => io::ErrorKind::Unsupported.into(),
        errno => errno.into(),
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::{ImageError, run_now};

    fn now<T>(future: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        run_now(async { Ok(future.await) }).unwrap_or_else(|error: ImageError| panic!("{error}"))
    }

    /// The bounce does not depend on O_DIRECT, so it is tested on any file system.
    fn file(block: usize) -> PlainFile {
        let fd = OwnedFd::from(tempfile::tempfile().unwrap());
        PlainFile::direct(fd, block).unwrap()
    }

    #[test]
    fn writes_of_parts_of_blocks_keep_the_rest() {
        let file = file(512);
        now(file.write_at(0, &[1; 1024])).unwrap();
        now(file.write_at(500, &[2; 20])).unwrap();
        let mut found = [0; 1024];
        now(file.read_at(0, &mut found)).unwrap();
        assert!(found[..500].iter().all(|&byte| byte == 1));
        assert!(found[500..520].iter().all(|&byte| byte == 2));
        assert!(found[520..].iter().all(|&byte| byte == 1));
        let mut middle = [0; 30];
        now(file.read_at(495, &mut middle)).unwrap();
        assert_eq!(middle, found[495..525]);
    }

    #[test]
    fn a_read_behind_the_end_is_an_error() {
        for block in [1, 512] {
            let file = file(block);
            now(file.set_len(1000)).unwrap();
            assert_eq!(now(file.len()).unwrap(), 1000);
            now(file.read_at(990, &mut [0; 10])).unwrap();
            for offset in [991, 2000, u64::MAX] {
                assert!(now(file.read_at(offset, &mut [0; 10])).is_err(), "{offset}");
            }
        }
    }

    #[test]
    fn punched_bytes_are_zero_and_the_size_stays() {
        let file = file(1);
        now(file.write_at(0, &[7; 8192])).unwrap();
        now(file.punch(0, 4096)).unwrap();
        now(file.allocate(8192, 4096)).unwrap();
        now(file.sync()).unwrap();
        let mut found = [9; 12288];
        now(file.read_at(0, &mut found)).unwrap();
        assert!(found[..4096].iter().chain(&found[8192..]).all(|&byte| byte == 0));
        assert!(found[4096..8192].iter().all(|&byte| byte == 7));
    }

    #[test]
    fn blocks_are_powers_of_two() {
        for block in [0, 3, 8192] {
            let fd = OwnedFd::from(tempfile::tempfile().unwrap());
            assert!(PlainFile::direct(fd, block).is_err(), "{block}");
        }
    }
}
