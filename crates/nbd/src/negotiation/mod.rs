//! Newstyle handshake as a state machine: bytes in, bytes out.
//!
//! ```text
//! server: greeting          client: flags
//! client: option ...        server: option replies ...
//! client: EXPORT_NAME, GO   server: export information -> transmission
//! ```

#[cfg(test)]
mod tests;

use crate::wire::{
    ALLOCATION, ALLOCATION_ID, FIXED_NEWSTYLE, MAX_REQUEST_BYTES, NBD_MAGIC, NO_ZEROES,
    OPTION_MAGIC, OPTION_REPLY_MAGIC, Reader, answer, info, option, transmission,
};

/// Longest option data in bytes: a name of 4096 bytes and several queries.
pub(crate) const OPTION_BYTES_MAX: usize = 8 << 10;
/// Bytes of an option before its data.
const OPTION_HEADER: usize = 16;
/// Preferred block size in bytes: a page, unless the disk's blocks are larger.
const PREFERRED_BLOCK: u32 = 4096;

/// Export information for clients.
#[derive(Clone, Debug)]
pub(crate) struct ExportInfo {
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) size: u64,
    pub(crate) block_size: u32,
    pub(crate) read_only: bool,
}

/// Result of a step. The number is the count of input bytes that were consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The input holds no complete message yet.
    More,
    /// The reply is in the output. Another option may follow.
    Next(usize),
    /// Requests follow.
    Serve(usize),
    /// Close the connection after sending the output.
    End,
}

/// Handshake state of one client.
#[derive(Clone, Debug, Default)]
pub(crate) struct Negotiation {
    greeted: bool,
    no_zeroes: bool,
    /// True if structured replies were negotiated.
    pub(crate) structured: bool,
    /// True if `base:allocation` was negotiated.
    pub(crate) allocation: bool,
}

/// Returns the server's greeting, the first message of the handshake.
pub(crate) fn greeting() -> Vec<u8> {
    let mut out = NBD_MAGIC.to_be_bytes().to_vec();
    out.extend(OPTION_MAGIC.to_be_bytes());
    out.extend((FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
    out
}

impl Negotiation {
    /// Consumes at most one message from the front of `input` and appends replies to `out`.
    pub(crate) fn step(
        &mut self,
        export_info: &ExportInfo,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Step {
        if !self.greeted {
            return self.client_flags(input);
        }
        let mut reader = Reader(input);
        let (Some(magic), Some(code), Some(len)) = (reader.u64(), reader.u32(), reader.u32())
        else {
            return Step::More;
        };
        let len = len as usize;
        if magic != OPTION_MAGIC || len > OPTION_BYTES_MAX {
            return Step::End;
        }
        let Some(data) = reader.bytes(len) else { return Step::More };
        let used = OPTION_HEADER + len;
        let refused = match code {
            option::EXPORT_NAME => return self.export_name(export_info, data, used, out),
            option::ABORT => {
                reply(out, code, answer::ACK, &[]);
                return Step::End;
            }
            option::LIST => self.list(export_info, data, out),
            option::STARTTLS => Err((answer::ERR_POLICY, "a Unix socket needs no TLS")),
            option::INFO | option::GO => match self.info(export_info, code, data, out) {
                Ok(()) if code == option::GO => return Step::Serve(used),
                other => other,
            },
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                reply(out, code, answer::ACK, &[]);
                Ok(())
            }
            option::STRUCTURED_REPLY => Err((answer::ERR_INVALID, "this option has no data")),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.meta_context(export_info, code, data, out)
            }
            _ => Err((answer::ERR_UNSUP, "unknown option")),
        };
        if let Err((kind, message)) = refused {
            reply(out, code, kind, message.as_bytes());
        }
        Step::Next(used)
    }

    fn client_flags(&mut self, input: &[u8]) -> Step {
        let Some(flags) = Reader(input).u32() else { return Step::More };
        if flags & !u32::from(FIXED_NEWSTYLE | NO_ZEROES) != 0 {
            return Step::End;
        }
        self.greeted = true;
        self.no_zeroes = flags & u32::from(NO_ZEROES) != 0;
        Step::Next(4)
    }

    fn flags(&self, export_info: &ExportInfo) -> u16 {
        use transmission::*;
        let always = HAS_FLAGS | CAN_MULTI_CONN | SEND_CACHE;
        let structured = if self.structured { SEND_DF } else { 0 };
        let changes = SEND_FLUSH | SEND_FUA | SEND_TRIM | SEND_WRITE_ZEROES | SEND_FAST_ZERO;
        always | structured | if export_info.read_only { READ_ONLY } else { changes }
    }

    /// Handles `EXPORT_NAME`, the oldest way to choose an export. This option has no error reply.
    fn export_name(
        &self,
        export_info: &ExportInfo,
        data: &[u8],
        used: usize,
        out: &mut Vec<u8>,
    ) -> Step {
        if !names(export_info, data) {
            return Step::End;
        }
        out.extend(export_info.size.to_be_bytes());
        out.extend(self.flags(export_info).to_be_bytes());
        if !self.no_zeroes {
            out.extend([0; 124]);
        }
        Step::Serve(used)
    }

    fn list(
        &self,
        export_info: &ExportInfo,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Refused> {
        if !data.is_empty() {
            return Err((answer::ERR_INVALID, "this option has no data"));
        }
        let mut entry = (export_info.name.len() as u32).to_be_bytes().to_vec();
        entry.extend(export_info.name.as_bytes());
        reply(out, option::LIST, answer::SERVER, &entry);
        reply(out, option::LIST, answer::ACK, &[]);
        Ok(())
    }

    fn info(
        &mut self,
        export_info: &ExportInfo,
        code: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Refused> {
        let mut reader = Reader(data);
        let parse = |reader: &mut Reader<'_>| {
            let name = reader.text().map(<[u8]>::to_vec)?;
            let count = usize::from(reader.u16()?);
            let wanted = reader.bytes(count.checked_mul(2)?)?.to_vec();
            reader.0.is_empty().then_some((name, wanted))
        };
        let (name, wanted) = parse(&mut reader).ok_or(MALFORMED)?;
        if !names(export_info, &name) {
            return Err((answer::ERR_UNKNOWN, "no export of this name"));
        }
        let wants = |kind: u16| wanted.chunks_exact(2).any(|pair| pair == kind.to_be_bytes());
        let mut item = |kind: u16, parts: &[&[u8]]| {
            let mut body = kind.to_be_bytes().to_vec();
            parts.iter().for_each(|part| body.extend(*part));
            reply(out, code, answer::INFO, &body);
        };
        let (size, flags) = (export_info.size.to_be_bytes(), self.flags(export_info).to_be_bytes());
        item(info::EXPORT, &[&size, &flags]);
        if wants(info::NAME) {
            item(info::NAME, &[export_info.name.as_bytes()]);
        }
        if wants(info::DESCRIPTION) && !export_info.description.is_empty() {
            item(info::DESCRIPTION, &[export_info.description.as_bytes()]);
        }
        // Sent even if not requested. Clients that ignore block sizes are served too: reads need no
        // alignment, but unaligned writes fail.
        let (least, preferred) =
            (export_info.block_size, export_info.block_size.max(PREFERRED_BLOCK));
        let [least, preferred, most] = [least, preferred, MAX_REQUEST_BYTES].map(u32::to_be_bytes);
        item(info::BLOCK_SIZE, &[&least, &preferred, &most]);
        reply(out, code, answer::ACK, &[]);
        Ok(())
    }

    fn meta_context(
        &mut self,
        export_info: &ExportInfo,
        code: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Refused> {
        let sets = code == option::SET_META_CONTEXT;
        if sets {
            // A failed option also clears the contexts negotiated before.
            self.allocation = false;
        }
        if !self.structured {
            return Err((answer::ERR_INVALID, "negotiate structured replies first"));
        }
        let mut reader = Reader(data);
        let name = reader.text().ok_or(MALFORMED)?;
        let count = reader.u32().ok_or(MALFORMED)?;
        // A list without queries returns all contexts.
        let mut matches = !sets && count == 0;
        for _ in 0..count {
            let query = reader.text().ok_or(MALFORMED)?;
            matches |= query == ALLOCATION.as_bytes() || (!sets && query == b"base:");
        }
        if !reader.0.is_empty() {
            return Err(MALFORMED);
        }
        if !names(export_info, name) {
            return Err((answer::ERR_UNKNOWN, "no export of this name"));
        }
        if matches {
            let id = if sets { ALLOCATION_ID } else { 0 };
            let mut context = id.to_be_bytes().to_vec();
            context.extend(ALLOCATION.as_bytes());
            reply(out, code, answer::META_CONTEXT, &context);
        }
        self.allocation |= sets && matches;
        reply(out, code, answer::ACK, &[]);
        Ok(())
    }
}

/// Error reply and its message.
type Refused = (u32, &'static str);

const MALFORMED: Refused = (answer::ERR_INVALID, "the option's data is malformed");

/// Returns whether `name` is this export's name or empty, the default export.
fn names(export_info: &ExportInfo, name: &[u8]) -> bool {
    name.is_empty() || name == export_info.name.as_bytes()
}

fn reply(out: &mut Vec<u8>, code: u32, kind: u32, data: &[u8]) {
    out.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend(code.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
}
