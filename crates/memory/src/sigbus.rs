//! A front-end that truncates its memory fails its own session only.
//!
//! Touching a mapped page whose file no longer reaches it raises SIGBUS. The handler looks the
//! address up among the mappings that are guarded, replaces that mapping by zeroes and marks it;
//! the access goes on and reads zeroes. The session sees the mark after its batch and
//! ends (design 4.8). A SIGBUS anywhere else takes its default course.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::MemoryError;

/// Mappings that can be guarded at once: 64 sessions with as many regions as the protocol allows.
pub const MAX_MAPPINGS: usize = 32768;

/// Mappings that were replaced since the start of the process.
static FAULTS: AtomicUsize = AtomicUsize::new(0);

/// How many mappings were replaced so far: cheap to compare between two batches.
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

/// One guarded address range.
#[derive(Debug)]
pub(crate) struct SigbusGuard {
    slot: usize,
}

impl SigbusGuard {
    /// Guards `len` bytes at `start`; installs the handler on first use.
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

    /// Stops guarding. Called once, before the range is unmapped.
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
        // instruction runs again and the process ends as it would have without us.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    }
}

/// Puts zeroes over the guarded mapping that holds `address`.
fn cover(address: usize) -> bool {
    for slot in &SLOTS {
        let start = slot.start.load(Ordering::Acquire);
        let len = slot.len.load(Ordering::Acquire);
        if start == 0 || address < start || address - start >= len {
            continue;
        }
        // The whole range at once: a hole a page would run into the kernel's limit of mappings,
        // and huge pages cannot be replaced in part. What was there is void with the session.
        // SAFETY: the range is a mapping of ours that is alive (its slot is claimed), so
        // replacing it takes nothing from anybody else. mmap is a plain system call.
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
