//! The memory of one connection.
//!
//! ```text
//! area: | received, not parsed yet | headers to send | rooms ...                     |
//! room: |              ... header of the reply | data, aligned to a page ... |
//! ```
//! A request that is too large for a room gets an area of its own, one at a time.

use memory::{Buffers, MemoryError, ThreadMapping};

use crate::wire::MAX_REQUEST_BYTES;

/// Bytes received ahead of what is parsed: a client's whole depth of headers, and no more of its
/// data than is cheap to copy.
pub(crate) const RECEIVE_BYTES: usize = 32 << 10;
/// Bytes of headers and of other replies without data in one send.
pub(crate) const HEADER_BYTES: usize = 32 << 10;
/// Bytes of rooms.
const ROOM_BYTES: usize = 4 << 20;
/// Largest request that gets a room.
const ROOM_MAX: usize = 1 << 20;
/// What direct I/O wants at most.
const PAGE: usize = 4096;

/// Most memory that one connection holds, in bytes.
pub const MEMORY_MAX: usize =
    RECEIVE_BYTES + HEADER_BYTES + ROOM_BYTES + MAX_REQUEST_BYTES as usize + 3 * PAGE;

/// Memory for the data of one request.
#[derive(Debug)]
pub(crate) struct RequestBuffer {
    pub(crate) thread_mapping: ThreadMapping,
    /// Where the data begins.
    pub(crate) data: usize,
    /// Its pages among the rooms; none for an area of its own.
    pages: Option<(usize, usize)>,
}

impl RequestBuffer {
    /// A list of `len` bytes from byte `from` of the data on.
    pub(crate) fn list(&self, mut list: Buffers, from: usize, len: usize) -> Option<Buffers> {
        list.clear();
        list.append_area(&self.thread_mapping, self.data.checked_add(from)?, len).then_some(list)
    }

    /// It has an area of its own: no list may hold it with others.
    pub(crate) fn is_own(&self) -> bool {
        self.pages.is_none()
    }
}

/// Why there is no room.
#[derive(Debug)]
pub(crate) enum BufferError {
    /// There will be when other requests have ended.
    Yet,
    /// The kernel has no memory.
    Memory,
}

/// All memory of a connection.
#[derive(Debug)]
pub(crate) struct ConnectionBuffers {
    pub(crate) thread_mapping: ThreadMapping,
    /// Free pages: first and count, in order, never adjacent.
    free: Vec<(usize, usize)>,
    /// A room with an area of its own is out.
    own: bool,
}

impl ConnectionBuffers {
    pub(crate) fn new() -> Result<Self, MemoryError> {
        let fixed = RECEIVE_BYTES + HEADER_BYTES;
        let thread_mapping = ThreadMapping::private(fixed + ROOM_BYTES)?;
        Ok(Self { thread_mapping, free: vec![(fixed / PAGE, ROOM_BYTES / PAGE)], own: false })
    }

    /// Room for `len` bytes.
    pub(crate) fn take(&mut self, len: usize) -> Result<RequestBuffer, BufferError> {
        if len > ROOM_MAX {
            return self.take_own(len);
        }
        // One page more, whose end holds the header.
        let need = len.div_ceil(PAGE) + 1;
        let at = self.free.iter().position(|(_, count)| *count >= need).ok_or(BufferError::Yet)?;
        let Some((first, count)) = self.free.get_mut(at) else { return Err(BufferError::Yet) };
        let taken = *first;
        *first += need;
        *count -= need;
        if *count == 0 {
            self.free.remove(at);
        }
        let pages = Some((taken, need));
        Ok(RequestBuffer {
            thread_mapping: self.thread_mapping.clone(),
            data: (taken + 1) * PAGE,
            pages,
        })
    }

    fn take_own(&mut self, len: usize) -> Result<RequestBuffer, BufferError> {
        if self.own {
            return Err(BufferError::Yet);
        }
        let thread_mapping = ThreadMapping::private(len + PAGE).map_err(|_| BufferError::Memory)?;
        self.own = true;
        Ok(RequestBuffer { thread_mapping, data: PAGE, pages: None })
    }

    /// Takes a room back.
    pub(crate) fn put(&mut self, request_buffer: RequestBuffer) {
        let Some((first, count)) = request_buffer.pages else {
            self.own = false;
            return;
        };
        let at = self.free.partition_point(|(start, _)| *start < first);
        let joins_next = self.free.get(at).is_some_and(|(start, _)| *start == first + count);
        let before = at.checked_sub(1).and_then(|before| self.free.get_mut(before));
        match before.filter(|(start, held)| *start + *held == first) {
            Some((_, held)) => {
                *held += count;
                if joins_next {
                    let (_, more) = self.free.remove(at);
                    if let Some((_, held)) = self.free.get_mut(at - 1) {
                        *held += more;
                    }
                }
            }
            None if joins_next => {
                if let Some(next) = self.free.get_mut(at) {
                    *next = (first, next.1 + count);
                }
            }
            None => self.free.insert(at, (first, count)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_free(connection_buffers: &ConnectionBuffers) -> bool {
        connection_buffers.free == ConnectionBuffers::new().unwrap().free && !connection_buffers.own
    }

    #[test]
    fn rooms_end_and_come_back() {
        let mut connection_buffers = ConnectionBuffers::new().unwrap();
        let mut request_buffers = Vec::new();
        let refused = loop {
            match connection_buffers.take(1 << 20) {
                Ok(request_buffer) => request_buffers.push(request_buffer),
                Err(why) => break why,
            }
        };
        assert!(matches!(refused, BufferError::Yet) && request_buffers.len() == 3);
        assert!(connection_buffers.take(4096).is_ok(), "small ones fit where large ones do not");
        let own = connection_buffers.take(MAX_REQUEST_BYTES as usize).unwrap();
        assert!(
            own.is_own() && matches!(connection_buffers.take((1 << 20) + 1), Err(BufferError::Yet))
        );
        connection_buffers.put(own);
        assert!(connection_buffers.take((1 << 20) + 1).is_ok());
    }

    proptest::proptest! {
        #[test]
        fn rooms_never_overlap_and_pages_are_never_lost(
            steps in proptest::collection::vec((1usize..100_000, 0usize..20), 1..200),
        ) {
            let (mut connection_buffers, mut held) = (ConnectionBuffers::new().unwrap(), Vec::<(RequestBuffer, usize)>::new());
            for (len, which) in steps {
                if which < held.len() {
                    connection_buffers.put(held.swap_remove(which).0);
                } else if let Ok(request_buffer) = connection_buffers.take(len) {
                    assert!(request_buffer.data % PAGE == 0 && request_buffer.list(Buffers::default(), 0, len).is_some());
                    for (other, size) in &held {
                        let apart = request_buffer.data + len <= other.data - 64
                            || other.data + size <= request_buffer.data - 64;
                        assert!(apart);
                    }
                    held.push((request_buffer, len));
                }
            }
            held.into_iter().for_each(|(request_buffer, _)| connection_buffers.put(request_buffer));
            assert!(all_free(&connection_buffers));
        }
    }
}
