//! Client of an export, for threads that may wait. It only reads.

use std::io::{self, Read, Write};

use crate::wire::{
    FIXED_NEWSTYLE, MAX_REQUEST_BYTES, NBD_MAGIC, NO_ZEROES, OPTION_MAGIC, OPTION_REPLY_MAGIC,
    REQUEST_BYTES, REQUEST_MAGIC, Reader, SIMPLE_REPLY_MAGIC, answer, code, info, option,
};

/// Most bytes of an option reply.
const OPTION_REPLY_MAX: u32 = 64 << 10;
/// Most replies to one option.
const OPTION_REPLIES_MAX: usize = 64;
/// Longest text of a server in an error, in bytes.
const TEXT_MAX: usize = 256;

/// Failure of a client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The connection failed or did not answer in time. It cannot be used any more.
    #[error(transparent)]
    Connection(#[from] io::Error),
    /// The server does not follow the protocol. The connection cannot be used any more.
    #[error("the server breaks the NBD protocol: {0}")]
    Protocol(String),
    /// The server refuses the export.
    #[error("the server refuses the export {export:?}: {reason}")]
    Refused {
        /// Name of the export.
        export: String,
        /// Reason of the server.
        reason: String,
    },
    /// The server could not read. The connection can be used again.
    #[error("the server cannot read: NBD error {0}")]
    Read(u32),
}

/// Client of one export, on a connection that may time out.
#[derive(Debug)]
pub struct NbdClient<S> {
    stream: S,
    size: u64,
    cookie: u64,
}

impl<S: Read + Write> NbdClient<S> {
    /// Makes the handshake for an export. The stream should have a deadline.
    ///
    /// # Errors
    /// As [`ClientError`] says.
    pub fn connect(stream: S, export: &str) -> Result<Self, ClientError> {
        let mut client = Self { stream, size: 0, cookie: 0 };
        let hello: [u8; 18] = client.read_array()?;
        let mut reader = Reader(&hello);
        if (reader.u64(), reader.u64()) != (Some(NBD_MAGIC), Some(OPTION_MAGIC)) {
            return Err(protocol("it does not begin as a server of this protocol"));
        }
        let flags = reader.u16().unwrap_or(0);
        if flags & FIXED_NEWSTYLE == 0 {
            return Err(protocol("it only knows the old handshake"));
        }
        let ours = u32::from(FIXED_NEWSTYLE) | u32::from(flags & NO_ZEROES);
        client.stream.write_all(&ours.to_be_bytes())?;
        client.go(export)?;
        Ok(client)
    }

    /// Returns the size of the export in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the connection.
    pub fn stream(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Reads bytes of the export, at most 32 MiB.
    ///
    /// # Errors
    /// As [`ClientError`] says.
    pub fn read_at(&mut self, offset: u64, out: &mut [u8]) -> Result<(), ClientError> {
        let len = u32::try_from(out.len()).ok().filter(|len| *len <= MAX_REQUEST_BYTES);
        let len = len.ok_or_else(|| protocol("the request is too large"))?;
        self.cookie = self.cookie.wrapping_add(1);
        let mut request = Vec::with_capacity(REQUEST_BYTES);
        request.extend(REQUEST_MAGIC.to_be_bytes());
        request.extend(0u16.to_be_bytes());
        request.extend(code::READ.to_be_bytes());
        request.extend(self.cookie.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(len.to_be_bytes());
        self.stream.write_all(&request)?;
        let reply: [u8; 16] = self.read_array()?;
        let mut reader = Reader(&reply);
        if reader.u32() != Some(SIMPLE_REPLY_MAGIC) {
            return Err(protocol("a reply is not a simple one"));
        }
        let error = reader.u32().unwrap_or(u32::MAX);
        if reader.u64() != Some(self.cookie) {
            return Err(protocol("a reply is for another request"));
        }
        if error != 0 {
            return Err(ClientError::Read(error));
        }
        Ok(self.stream.read_exact(out)?)
    }

    /// Selects the export and learns its size.
    fn go(&mut self, export: &str) -> Result<(), ClientError> {
        let mut data = Vec::with_capacity(export.len() + 6);
        data.extend(u32::try_from(export.len()).unwrap_or(u32::MAX).to_be_bytes());
        data.extend(export.as_bytes());
        data.extend(0u16.to_be_bytes());
        let mut message = OPTION_MAGIC.to_be_bytes().to_vec();
        message.extend(option::GO.to_be_bytes());
        message.extend(u32::try_from(data.len()).unwrap_or(u32::MAX).to_be_bytes());
        message.extend(data);
        self.stream.write_all(&message)?;
        let mut size = None;
        for _ in 0..OPTION_REPLIES_MAX {
            let (kind, data) = self.option_reply()?;
            let mut reader = Reader(&data);
            match kind {
                answer::ACK => {
                    self.size = size.ok_or_else(|| protocol("it does not tell the size"))?;
                    return Ok(());
                }
                answer::INFO if reader.u16() == Some(info::EXPORT) => size = reader.u64(),
                answer::INFO => {}
                kind if kind >> 31 == 1 => {
                    let text = data.get(..data.len().min(TEXT_MAX)).unwrap_or_default();
                    let text = String::from_utf8_lossy(text).escape_debug().to_string();
                    let reason = if text.is_empty() { format!("error {kind:#x}") } else { text };
                    return Err(ClientError::Refused { export: export.into(), reason });
                }
                other => return Err(protocol(format!("option reply {other}"))),
            }
        }
        Err(protocol("too many replies to one option"))
    }

    fn option_reply(&mut self) -> Result<(u32, Vec<u8>), ClientError> {
        let head: [u8; 20] = self.read_array()?;
        let mut reader = Reader(&head);
        if (reader.u64(), reader.u32()) != (Some(OPTION_REPLY_MAGIC), Some(option::GO)) {
            return Err(protocol("an option reply is for another option"));
        }
        let (kind, len) = (reader.u32().unwrap_or(0), reader.u32().unwrap_or(u32::MAX));
        if len > OPTION_REPLY_MAX {
            return Err(protocol(format!("an option reply of {len} bytes")));
        }
        let mut data = vec![0; len as usize];
        self.stream.read_exact(&mut data)?;
        Ok((kind, data))
    }

    fn read_array<const N: usize>(&mut self) -> Result<[u8; N], ClientError> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

fn protocol(problem: impl Into<String>) -> ClientError {
    ClientError::Protocol(problem.into())
}
