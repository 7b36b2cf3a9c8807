//! Features of the kernel's io_uring.

use io_uring::{IoUring, cqueue, opcode, squeue};

/// Result of [`probe`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Probe {
    /// True if a ring can be created at all.
    pub usable: bool,
    /// Reason why no ring can be created.
    pub problem: Option<String>,
    /// Support for DEFER_TASKRUN and SINGLE_ISSUER (Linux 6.1): completions without interrupts.
    pub defer_taskrun: bool,
    /// True if the kernel supports every operation that the datapath uses.
    pub complete: bool,
}

/// Creates rings and queries their features. The rings are closed again.
pub fn probe() -> Probe {
    let uring = match crate::ring::build() {
        Ok(uring) => uring,
        Err(error) => return Probe { problem: Some(error.to_string()), ..Probe::default() },
    };
    let mut ops = io_uring::Probe::new();
    let known = uring.submitter().register_probe(&mut ops).is_ok();
    let needed = [
        opcode::Read::CODE,
        opcode::Write::CODE,
        opcode::Readv::CODE,
        opcode::Writev::CODE,
        opcode::Fsync::CODE,
        opcode::Fallocate::CODE,
        opcode::PollAdd::CODE,
        opcode::PollRemove::CODE,
        opcode::Timeout::CODE,
        opcode::TimeoutRemove::CODE,
        opcode::Recv::CODE,
        opcode::Send::CODE,
        opcode::RecvMsg::CODE,
        opcode::SendMsg::CODE,
    ];
    let mut builder = IoUring::<squeue::Entry, cqueue::Entry>::builder();
    builder.setup_single_issuer().setup_defer_taskrun();
    Probe {
        usable: true,
        problem: None,
        defer_taskrun: builder.build(1).is_ok(),
        complete: known && needed.iter().all(|code| ops.is_supported(*code)),
    }
}
