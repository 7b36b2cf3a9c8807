//! An owned scatter list that pins the memory it points into.

mod head;
mod point;

use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use crate::view::{Pin, Pinned};
use crate::{Mapping, MemoryError, ThreadMapping, View};

/// A scatter list: pieces of memory that stay mapped as long as this value lives.
///
/// It is what a request's data is from the ring to the kernel and back. All of it belongs to one
/// [`View`] or one mapping, but for what [`Buffers::put_head`] puts before it. Contents are shared
/// with a guest, so they are copied, never borrowed. To move it is to move one pointer: on the way of
/// a request it changes hands often.
#[derive(Default)]
pub struct Buffers(Option<Box<List>>);

#[derive(Default)]
struct List {
    iov: Vec<libc::iovec>,
    /// Pieces before this one have been consumed.
    first: usize,
    bytes: usize,
    pin: Option<Pin>,
    /// Of a first piece that lies elsewhere.
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

    /// Appends what does not lie in one region.
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

    /// Drops the first `count` bytes, which there are.
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
    /// A list with room for `pieces`.
    pub fn with_capacity(pieces: usize) -> Self {
        Self(Some(Box::new(List { iov: Vec::with_capacity(pieces), ..List::default() })))
    }

    /// Fresh zeroed memory of `len` bytes, aligned to a page. For bounce buffers and tests.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn alloc(len: usize) -> Result<Self, MemoryError> {
        let mapping = Arc::new(Mapping::private(len.max(1))?);
        Ok(Self::from_mapping(&mapping, 0, len).unwrap_or_default())
    }

    /// `len` bytes of a mapping of ours, from byte `offset` on; `None` when it does not reach.
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
    /// [`MemoryError::Outside`]; what was appended before the hole stays.
    ///
    /// # Panics
    /// If the list already holds memory of another view: one list, one pin.
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

    /// Appends `len` bytes of an area from byte `offset` on; false, and nothing appended, when it
    /// does not reach. What follows the last piece makes that longer.
    ///
    /// # Panics
    /// If the list already holds memory of something else: one list, one pin.
    #[must_use]
    pub fn append_area(
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
        // One that has been consumed is not made longer.
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

    /// Empties the list and unpins its memory; capacity stays.
    #[inline]
    pub fn clear(&mut self) {
        if let Some(list) = &mut self.0
            && !(list.iov.is_empty() && list.pin.is_none() && list.head.is_none())
        {
            list.iov.clear();
            (list.first, list.bytes) = (0, 0);
            (list.pin, list.head) = (None, None);
        }
    }

    /// Bytes in the list.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |list| list.bytes)
    }

    /// No bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pieces, for the kernel. They stay where they are when the list moves.
    #[inline]
    pub fn iovecs(&self) -> &[libc::iovec] {
        self.0.as_ref().and_then(|list| list.iov.get(list.first..)).unwrap_or_default()
    }

    /// Every piece starts on a multiple of `start` bytes and is a multiple of `len` bytes long
    /// (powers of two).
    pub fn is_aligned(&self, start: usize, len: usize) -> bool {
        let (start, len) = (start.wrapping_sub(1), len.wrapping_sub(1));
        self.iovecs().iter().all(|v| v.iov_base as usize & start == 0 && v.iov_len & len == 0)
    }

    /// Pieces that the list has room for without asking for memory.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.0.as_ref().map_or(0, |list| list.iov.capacity())
    }

    /// Drops the first `count` bytes, or all when there are fewer.
    pub fn advance(&mut self, count: usize) {
        if let Some(list) = &mut self.0 {
            list.advance(count.min(list.bytes));
        }
    }

    /// Keeps the first `count` bytes.
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

    /// Takes the last byte off the list, which has no head of its own.
    #[inline]
    pub fn take_last_byte(&mut self) -> Option<Byte> {
        let list = self.0.as_mut()?;
        // The byte pins what the rest of the list lies in.
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

    /// Copies the first bytes into `out` without consuming them; returns how many.
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

    /// Takes a fixed header off the front; `None`, and nothing taken, when the list is shorter.
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

    /// Copies `data` to the front of the list; returns how many bytes fitted.
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

    /// Copies the whole list into `mapping` from byte `offset` on; false when it does not fit.
    pub fn copy_to(&self, mapping: &Mapping, offset: usize) -> bool {
        let Some(mut at) = mapping.at(offset, self.len()) else { return false };
        for v in self.iovecs() {
            // SAFETY: `at` is followed by what is left of the list, checked above. Guest memory
            // may overlap nothing of ours: the mapping is private to the host.
            unsafe {
                std::ptr::copy_nonoverlapping(v.iov_base.cast::<u8>(), at.as_ptr(), v.iov_len);
                at = at.add(v.iov_len);
            }
        }
        true
    }

    /// Fills the whole list from `mapping`, from byte `offset` on; false when it does not reach.
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

    /// Copies as many bytes as both lists hold from the front of `source`; returns how many.
    pub fn copy_from_buffers(&self, source: &Buffers) -> usize {
        source.reader().copy_to(self)
    }
}
