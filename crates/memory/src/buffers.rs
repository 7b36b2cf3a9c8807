//! Owned scatter lists that pin the memory they point into.

mod head;
mod point;
mod split;

use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use crate::view::{Pin, Pinned};
use crate::{Mapping, MemoryError, ThreadMapping, View};

/// A scatter list: pieces of memory that stay mapped as long as this value lives.
///
/// It contains a request's data from the ring to the kernel and back. All pieces belong to one
/// [`View`] or one mapping, except the piece that [`Buffers::put_head`] puts before them. A guest
/// shares the contents, so they are copied, never borrowed. A list is one pointer, because a
/// request changes owners often.
#[derive(Default)]
pub struct Buffers(Option<Box<List>>);

#[derive(Default)]
struct List {
    iov: Vec<libc::iovec>,
    /// Number of pieces at the front that are consumed.
    first: usize,
    bytes: usize,
    pin: Option<Pin>,
    /// Pin of a first piece in other memory.
    head: Option<Pin>,
}

/// One byte of guest memory, pinned.
pub struct Byte {
    ptr: NonNull<u8>,
    _pin: Pin,
}

impl Byte {
    /// Writes the byte.
    #[inline]
    pub fn set(&self, value: u8) {
        // SAFETY: the pin keeps the byte mapped; a guest that writes it too harms only itself.
        unsafe { self.ptr.as_ptr().write_volatile(value) };
    }
}

impl std::fmt::Debug for Byte {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Byte")
    }
}

impl std::fmt::Debug for Buffers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffers({} bytes in {})", self.len(), self.iovecs().len())
    }
}

impl List {
    #[inline]
    fn push(&mut self, ptr: NonNull<u8>, len: usize) {
        self.iov.push(libc::iovec { iov_base: ptr.as_ptr().cast(), iov_len: len });
        self.bytes += len;
    }

    /// Appends a range that spans several regions.
    #[inline(never)]
    fn append_pieces(&mut self, view: &View, addr: u64, len: u32) -> Result<(), MemoryError> {
        let outside = MemoryError::Outside { addr, len: len.into() };
        let (mut addr, mut left) = (addr, u64::from(len));
        while left > 0 {
            let Some((ptr, room)) = view.find(addr) else { return Err(outside) };
            let piece = left.min(room);
            self.push(ptr, piece as usize);
            left -= piece;
            match addr.checked_add(piece) {
                Some(next) => addr = next,
                None if left == 0 => {}
                None => return Err(outside),
            }
        }
        Ok(())
    }

    /// Drops the first `count` bytes. The list must have as many.
    #[inline]
    fn advance(&mut self, count: usize) {
        let mut left = count;
        self.bytes -= left;
        while let Some(v) = self.iov.get_mut(self.first) {
            if v.iov_len > left {
                // SAFETY: left < iov_len, so the new base is inside the same piece.
                v.iov_base = unsafe { v.iov_base.byte_add(left) };
                v.iov_len -= left;
                return;
            }
            left -= v.iov_len;
            self.first += 1;
        }
    }
}

impl Buffers {
    /// Creates an empty list with capacity for `pieces`.
    pub fn with_capacity(pieces: usize) -> Self {
        Self(Some(Box::new(List { iov: Vec::with_capacity(pieces), ..List::default() })))
    }

    /// Allocates `len` bytes of zeroed memory, aligned to a page. For bounce buffers and tests.
    ///
    /// # Errors
    /// The kernel refuses the mapping.
    pub fn alloc(len: usize) -> Result<Self, MemoryError> {
        let mapping = Arc::new(Mapping::private(len.max(1))?);
        Ok(Self::from_mapping(&mapping, 0, len).unwrap_or_default())
    }

    /// Returns `len` bytes of a mapping from byte `offset`. `None`: the mapping ends before.
    pub fn from_mapping(mapping: &Arc<Mapping>, offset: usize, len: usize) -> Option<Self> {
        let ptr = mapping.at(offset, len)?;
        let pin = Some(Rc::new(Pinned::Mapping(mapping.clone())));
        let mut list = Box::new(List { pin, ..List::default() });
        if len > 0 {
            list.push(ptr, len);
        }
        Some(Self(Some(list)))
    }

    #[inline]
    fn list(&mut self) -> &mut List {
        self.0.get_or_insert_default()
    }

    /// Appends `len` bytes at guest address `addr`.
    ///
    /// # Errors
    /// [`MemoryError::Outside`]. Bytes appended before the hole stay in the list.
    ///
    /// # Panics
    /// The list already contains memory of another view. One list has one pin.
    #[inline(always)]
    pub fn append(&mut self, view: &View, addr: u64, len: u32) -> Result<(), MemoryError> {
        let list = self.list();
        match &list.pin {
            Some(pin) => assert!(view.same_pin(pin), "one list of buffers has one view"),
            None => list.pin = Some(view.pin()),
        }
        match view.find(addr) {
            Some((ptr, room)) if u64::from(len) <= room && len > 0 => {
                list.push(ptr, len as usize);
                Ok(())
            }
            _ => list.append_pieces(view, addr, len),
        }
    }

    /// Appends `len` bytes of a thread mapping from byte `offset`. Returns false and appends
    /// nothing if the mapping ends before. A range that follows the last piece extends it.
    ///
    /// # Panics
    /// The list already contains other memory. One list has one pin.
    #[must_use]
    pub fn append_mapping(
        &mut self,
        thread_mapping: &ThreadMapping,
        offset: usize,
        len: usize,
    ) -> bool {
        let Some(ptr) = thread_mapping.mapping.at(offset, len) else { return false };
        let list = self.list();
        match &list.pin {
            Some(pin) => {
                assert!(Rc::ptr_eq(&thread_mapping.pin, pin), "one list of buffers has one area")
            }
            None => list.pin = Some(thread_mapping.pin.clone()),
        }
        // A piece that has been consumed is not extended.
        match list.iov.get_mut(list.first..).and_then(|rest| rest.last_mut()) {
            _ if len == 0 => {}
            Some(last) if last.iov_base.wrapping_byte_add(last.iov_len) == ptr.as_ptr().cast() => {
                last.iov_len += len;
                list.bytes += len;
            }
            _ => list.push(ptr, len),
        }
        true
    }

    /// Empties the list and unpins its memory. The capacity stays.
    #[inline]
    pub fn clear(&mut self) {
        if let Some(list) = &mut self.0
            // A list with pieces has a pin.
            && (list.pin.is_some() || list.head.is_some())
        {
            list.iov.clear();
            (list.first, list.bytes) = (0, 0);
            (list.pin, list.head) = (None, None);
        }
    }

    /// Returns the number of bytes in the list.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |list| list.bytes)
    }

    /// Returns whether the list has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the pieces for the kernel. Their addresses stay valid when the list moves.
    #[inline]
    pub fn iovecs(&self) -> &[libc::iovec] {
        self.0.as_ref().and_then(|list| list.iov.get(list.first..)).unwrap_or_default()
    }

    /// Returns whether every piece starts at a multiple of `start` bytes and has a multiple of
    /// `len` bytes. Both must be powers of two.
    pub fn is_aligned(&self, start: usize, len: usize) -> bool {
        let (start, len) = (start.wrapping_sub(1), len.wrapping_sub(1));
        self.iovecs().iter().all(|v| v.iov_base as usize & start == 0 && v.iov_len & len == 0)
    }

    /// Returns the number of pieces that fit without another allocation.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.0.as_ref().map_or(0, |list| list.iov.capacity())
    }

    /// Drops the first `count` bytes, or all bytes if there are fewer.
    pub fn advance(&mut self, count: usize) {
        if let Some(list) = &mut self.0 {
            list.advance(count.min(list.bytes));
        }
    }

    /// Shortens the list to its first `count` bytes.
    pub fn truncate(&mut self, count: usize) {
        let Some(list) = &mut self.0 else { return };
        while list.bytes > count {
            let Some(last) = list.iov.last_mut() else { return };
            let cut = last.iov_len.min(list.bytes - count);
            last.iov_len -= cut;
            list.bytes -= cut;
            if last.iov_len == 0 {
                list.iov.pop();
            }
        }
    }

    /// Removes the last byte of the list and returns it. `None` if the list is empty or has a head.
    #[inline]
    pub fn take_last_byte(&mut self) -> Option<Byte> {
        let list = self.0.as_mut()?;
        // The byte pins the memory of the list, which may not be the memory of its head.
        if list.bytes == 0 || list.head.is_some() {
            return None;
        }
        let pin = list.pin.clone()?;
        let last = list.iov.last_mut()?;
        // SAFETY: pieces are never empty, so the last byte is inside the piece.
        let ptr = unsafe { last.iov_base.cast::<u8>().add(last.iov_len - 1) };
        last.iov_len -= 1;
        list.bytes -= 1;
        if last.iov_len == 0 {
            list.iov.pop();
        }
        Some(Byte { ptr: NonNull::new(ptr)?, _pin: pin })
    }

    /// Copies the first bytes into `out` without consuming them. Returns their number.
    pub fn peek(&self, out: &mut [u8]) -> usize {
        let mut done = 0;
        for v in self.iovecs() {
            let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) else { break };
            let count = v.iov_len.min(rest.len());
            // SAFETY: the pin keeps `count` bytes readable; `rest` is ours and as long.
            unsafe {
                std::ptr::copy_nonoverlapping(v.iov_base.cast::<u8>(), rest.as_mut_ptr(), count);
            }
            done += count;
        }
        done
    }

    /// Removes a fixed header from the front. Returns `None` and removes nothing if the list is
    /// shorter.
    #[inline]
    pub fn take_front<const N: usize>(&mut self) -> Option<[u8; N]> {
        let mut out = [0; N];
        match self.iovecs().first() {
            Some(v) if v.iov_len >= N => {
                // SAFETY: the pin keeps N bytes readable; they are copied once, and `out` is ours.
                out = unsafe { v.iov_base.cast::<[u8; N]>().read_unaligned() };
            }
            _ if self.peek(&mut out) < N => return None,
            _ => {}
        }
        self.0.as_mut()?.advance(N);
        Some(out)
    }

    /// Copies `data` to the front of the list. Returns the number of bytes that fitted.
    pub fn write(&self, data: &[u8]) -> usize {
        let mut done = 0;
        for v in self.iovecs() {
            let Some(rest) = data.get(done..).filter(|rest| !rest.is_empty()) else { break };
            let count = v.iov_len.min(rest.len());
            // SAFETY: the pin keeps `count` bytes writable; `rest` is as long.
            unsafe {
                std::ptr::copy_nonoverlapping(rest.as_ptr(), v.iov_base.cast::<u8>(), count);
            }
            done += count;
        }
        done
    }

    /// Writes zeroes over the whole list.
    pub fn zero(&self) {
        for v in self.iovecs() {
            // SAFETY: the pin keeps the piece writable.
            unsafe { std::ptr::write_bytes(v.iov_base.cast::<u8>(), 0, v.iov_len) };
        }
    }

    /// Copies the whole list into `mapping` at byte `offset`. Returns false if it does not fit.
    pub fn copy_to(&self, mapping: &Mapping, offset: usize) -> bool {
        let Some(mut at) = mapping.at(offset, self.len()) else { return false };
        for v in self.iovecs() {
            // SAFETY: `at` is followed by the remaining bytes of the list, checked above. Guest
            // memory cannot overlap the mapping, which is private to the host.
            unsafe {
                std::ptr::copy_nonoverlapping(v.iov_base.cast::<u8>(), at.as_ptr(), v.iov_len);
                at = at.add(v.iov_len);
            }
        }
        true
    }

    /// Fills the whole list from byte `offset` of `mapping`. Returns false if the mapping ends
    /// before.
    pub fn copy_from(&self, mapping: &Mapping, offset: usize) -> bool {
        let Some(mut at) = mapping.at(offset, self.len()) else { return false };
        for v in self.iovecs() {
            // SAFETY: as in `copy_to`, in the other direction.
            unsafe {
                std::ptr::copy_nonoverlapping(at.as_ptr(), v.iov_base.cast::<u8>(), v.iov_len);
                at = at.add(v.iov_len);
            }
        }
        true
    }

    /// Copies bytes from the front of `source` to the front of this list, up to the length of the
    /// shorter list. Returns their number.
    pub fn copy_from_buffers(&self, source: &Buffers) -> usize {
        source.reader().copy_to(self)
    }
}
