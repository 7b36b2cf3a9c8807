//! Memory of one connection.
//!
//! ```text
//! connection area: | receive area | headers to send | request buffers ...       |
//! request buffer:  |         ... header of the reply | data, page-aligned ...   |
//! ```
//! A request larger than [`BUFFER_MAX`] gets a separate mapping. A connection has at most one such
//! mapping at a time.

use memory::{Buffers, MemoryError, ThreadMapping};

use crate::wire::MAX_REQUEST_BYTES;

/// Size of the receive area in bytes. It holds the headers of a client's whole queue depth. It is
/// small, so that little write data must be copied out of it.
pub(crate) const RECEIVE_BYTES: usize = 32 << 10;
/// Space in bytes for headers and other replies without data in one send.
pub(crate) const HEADER_BYTES: usize = 32 << 10;
/// Total size of the request buffers in the connection's own area, in bytes.
const BUFFERS_BYTES: usize = 4 << 20;
/// Largest request in bytes that gets its buffer in the connection's own area.
const BUFFER_MAX: usize = 1 << 20;
/// Largest alignment in bytes that direct I/O requires.
const PAGE: usize = 4096;

/// Upper bound of one connection's memory, in bytes.
pub const MEMORY_MAX: usize =
    RECEIVE_BYTES + HEADER_BYTES + BUFFERS_BYTES + MAX_REQUEST_BYTES as usize + 3 * PAGE;

/// Buffer for the data of one request.
#[derive(Debug)]
pub(crate) struct RequestBuffer {
    pub(crate) thread_mapping: ThreadMapping,
    /// Offset of the first data byte in the mapping.
    pub(crate) data: usize,
    /// First page and page count in the connection's own area. `None` for a separate mapping.
    pages: Option<(usize, usize)>,
}

impl RequestBuffer {
    /// Returns a list of `len` bytes of the data, starting at byte `from`.
    pub(crate) fn list(&self, mut list: Buffers, from: usize, len: usize) -> Option<Buffers> {
        list.clear();
        list.append_mapping(&self.thread_mapping, self.data.checked_add(from)?, len).then_some(list)
    }

    /// Returns whether the buffer has a separate mapping. Such a buffer cannot share a list with
    /// others.
    pub(crate) fn is_own(&self) -> bool {
        self.pages.is_none()
    }
}

/// Reason why no buffer is available.
#[derive(Debug)]
pub(crate) enum BufferError {
    /// All buffers are in use. Retry after another request has ended.
    Yet,
    /// The kernel has no memory.
    Memory,
}

/// All memory of a connection.
#[derive(Debug)]
pub(crate) struct ConnectionBuffers {
    pub(crate) thread_mapping: ThreadMapping,
    /// Free page ranges as first page and count, sorted, never adjacent.
    free: Vec<(usize, usize)>,
    /// True while a request uses a separate mapping.
    own: bool,
}

impl ConnectionBuffers {
    pub(crate) fn new() -> Result<Self, MemoryError> {
        let fixed = RECEIVE_BYTES + HEADER_BYTES;
        let thread_mapping = ThreadMapping::private(fixed + BUFFERS_BYTES)?;
        Ok(Self { thread_mapping, free: vec![(fixed / PAGE, BUFFERS_BYTES / PAGE)], own: false })
    }

    /// Allocates a buffer for `len` bytes.
    pub(crate) fn take(&mut self, len: usize) -> Result<RequestBuffer, BufferError> {
        if len > BUFFER_MAX {
            return self.take_own(len);
        }
        // The extra page precedes the data. Its end holds the header of the reply.
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

    /// Frees a buffer.
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
