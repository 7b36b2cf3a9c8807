//! SIGBUS guard: a front-end whose memory has a hole fails only its own session.
//!
//! An access to a mapped page raises SIGBUS if the page lies beyond the end of its file, or if the
//! file system has no room for it. The handler finds the guarded mapping that contains the address,
//! replaces it by zeroes and marks it as faulted. The access then continues and reads zeroes. The
//! session checks the mark after its batch and ends. A SIGBUS at any other address has its default
//! effect.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::MemoryError;

/// Most mappings guarded at once: 64 sessions with as many regions as the protocol allows.
pub const MAX_MAPPINGS: usize = 32768;

/// Reason for the end of a session whose mapping was replaced.
pub const HOLE: &str =
    "the front-end's memory has a hole: it was truncated, or the host has no room for it";

/// Number of mappings replaced since the start of the process.
static FAULTS: AtomicUsize = AtomicUsize::new(0);

/// Returns the number of mappings replaced so far. Cheap enough to compare after each batch.
pub fn faults() -> usize {
    FAULTS.load(Ordering::Relaxed)
}

struct Slot {
    start: AtomicUsize,
    len: AtomicUsize,
    faulted: AtomicBool,
}

static SLOTS: [Slot; MAX_MAPPINGS] = [const {
    Slot { start: AtomicUsize::new(0), len: AtomicUsize::new(0), faulted: AtomicBool::new(false) }
}; MAX_MAPPINGS];

/// A guarded address range.
#[derive(Debug)]
pub(crate) struct SigbusGuard {
    slot: usize,
}

impl SigbusGuard {
    /// Guards `len` bytes at `start`. Installs the handler on first use.
    pub(crate) fn new(start: usize, len: usize) -> Result<Self, MemoryError> {
        install();
        for (index, slot) in SLOTS.iter().enumerate() {
            let claimed =
                slot.start.compare_exchange(0, start, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            if claimed {
                slot.faulted.store(false, Ordering::Relaxed);
                slot.len.store(len, Ordering::Release);
                return Ok(Self { slot: index });
            }
        }
        Err(MemoryError::TooManyMappings { max: MAX_MAPPINGS })
    }

    fn slot(&self) -> &'static Slot {
        // The index came from enumerating SLOTS.
        &SLOTS[self.slot]
    }

    pub(crate) fn faulted(&self) -> bool {
        self.slot().faulted.load(Ordering::Relaxed)
    }

    /// Ends the guard. Called once, before the range is unmapped.
    pub(crate) fn release(&self) {
        self.slot().len.store(0, Ordering::Release);
        self.slot().start.store(0, Ordering::Release);
    }
}

fn install() {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        // SAFETY: an all-zero sigaction is a valid value; every field that matters is set below.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        // SAFETY: `handler` has the signature that SA_SIGINFO asks for and calls only
        // async-signal-safe functions.
        unsafe { libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) };
    });
}

extern "C" fn handler(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo with SA_SIGINFO; SIGBUS carries an address.
    let address = unsafe { (*info).si_addr() } as usize;
    if !cover(address) {
        // SAFETY: restoring the default disposition is async-signal-safe; the faulting
        // instruction runs again and the process ends as it would have without this handler.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    }
}

/// Maps zeroes over the guarded mapping that contains `address`. Returns whether there is one.
fn cover(address: usize) -> bool {
    for slot in &SLOTS {
        let start = slot.start.load(Ordering::Acquire);
        let len = slot.len.load(Ordering::Acquire);
        if start == 0 || address < start || address - start >= len {
            continue;
        }
        // Replace the whole range at once: single pages would exceed the kernel's limit of
        // mappings, and huge pages cannot be replaced in part. The contents are void with the
        // session.
        // SAFETY: the range is a mapping of ours that is alive (its slot is claimed), so no other
        // memory is replaced. mmap is a plain system call.
        let mapped = unsafe {
            libc::mmap(
                start as *mut libc::c_void,
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        slot.faulted.store(true, Ordering::Relaxed);
        FAULTS.fetch_add(1, Ordering::Relaxed);
        return mapped != libc::MAP_FAILED;
    }
    false
}
