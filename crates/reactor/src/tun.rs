//! The kernel's TUN driver: its calls, each as a function that cannot be misused. What they are for
//! is in the crate `tap`.

use std::ffi::{c_int, c_uint};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};

use rustix::io::Errno;

/// Where the driver is.
pub const PATH: &str = "/dev/net/tun";
/// Bytes of a device's name without the zero at its end, at most.
pub const NAME_BYTES_MAX: usize = libc::IFNAMSIZ - 1;

/// Flags of [`Tun::attach`]: Ethernet frames.
pub const TAP: u32 = libc::IFF_TAP as u32;
/// No prefix of the driver's own before each frame.
pub const NO_PREFIX: u32 = libc::IFF_NO_PI as u32;
/// A virtio-net header before each frame.
pub const VNET_HEADER: u32 = libc::IFF_VNET_HDR as u32;
/// Several queues, each a descriptor.
pub const MULTI_QUEUE: u32 = libc::IFF_MULTI_QUEUE as u32;
/// There must be no such device yet.
pub const EXCLUSIVE: u32 = libc::IFF_TUN_EXCL as u32;

/// Bits of [`Tun::set_offloads`]: frames may come with a checksum that is left to do.
pub const CHECKSUM: u32 = libc::TUN_F_CSUM;
/// Segments of TCP over IPv4 may come in one frame.
pub const TCP4: u32 = libc::TUN_F_TSO4;
/// Likewise over IPv6.
pub const TCP6: u32 = libc::TUN_F_TSO6;
/// Likewise with ECN.
pub const ECN: u32 = libc::TUN_F_TSO_ECN;

/// A descriptor of the driver: a queue of a device once it was attached to one.
#[derive(Clone, Debug)]
pub struct Tun(Arc<OwnedFd>);

impl Tun {
    /// A new descriptor of the driver, which never waits.
    ///
    /// # Errors
    /// The kernel's refusal: ENOENT or ENODEV if it has no such driver, EACCES.
    pub fn open() -> Result<Self, Errno> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        Ok(Self(Arc::new(rustix::fs::open(PATH, flags, Mode::empty())?)))
    }

    /// A descriptor of the driver that somebody else has opened.
    pub fn adopt(fd: OwnedFd) -> Self {
        Self(Arc::new(fd))
    }

    /// Name of the device that it is a queue of, as it is called now.
    ///
    /// # Errors
    /// The kernel's refusal: EBADFD if it is attached to none, ENOTTY if it is not the driver's.
    pub fn device(&self) -> Result<String, Errno> {
        // SAFETY: the request is plain data, for which zeroes are valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        // SAFETY: this call writes one request, which lives until it returns.
        outcome(unsafe { libc::ioctl(self.raw(), libc::TUNGETIFF, &raw mut request) })?;
        let name = request.ifr_name.iter().map(|byte| byte.cast_unsigned());
        let name: Vec<u8> = name.take_while(|byte| *byte != 0).collect();
        String::from_utf8(name).map_err(|_| Errno::INVAL)
    }

    /// The descriptor, for reads and writes.
    pub fn fd(&self) -> Arc<OwnedFd> {
        self.0.clone()
    }

    fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Flags that the driver knows.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn features(&self) -> Result<u32, Errno> {
        let mut bits: c_uint = 0;
        // SAFETY: this call writes one unsigned int, which `bits` is.
        let result = unsafe { libc::ioctl(self.raw(), libc::TUNGETFEATURES, &raw mut bits) };
        outcome(result).map(|()| bits)
    }

    /// Makes it a queue of the device of this name, which is made if it is not there.
    ///
    /// # Errors
    /// The kernel's refusal; ENAMETOOLONG if no device can have such a name.
    pub fn attach(&self, name: &str, flags: u32) -> Result<(), Errno> {
        if name.len() > NAME_BYTES_MAX || name.contains('\0') {
            return Err(Errno::NAMETOOLONG);
        }
        // SAFETY: the request is plain data, for which zeroes are valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from.cast_signed();
        }
        request.ifr_ifru.ifru_flags = (flags as u16).cast_signed();
        // SAFETY: this call reads and writes one request, which lives until it returns.
        outcome(unsafe { libc::ioctl(self.raw(), libc::TUNSETIFF, &raw mut request) })
    }

    /// Bytes of the header before each frame, of all queues of the device.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn set_header_bytes(&self, bytes: u32) -> Result<(), Errno> {
        self.set(libc::TUNSETVNETHDRSZ, bytes)
    }

    /// The header's fields have the byte order of virtio 1, whatever the host's is.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn set_little_endian(&self) -> Result<(), Errno> {
        self.set(libc::TUNSETVNETLE, 1)
    }

    /// What the kernel may leave to be done in frames that it gives us.
    ///
    /// # Errors
    /// The kernel's refusal: EINVAL for bits that it does not know.
    pub fn set_offloads(&self, bits: u32) -> Result<(), Errno> {
        let bits = libc::c_ulong::from(bits);
        // SAFETY: this call takes a number in place of a pointer.
        outcome(unsafe { libc::ioctl(self.raw(), libc::TUNSETOFFLOAD, bits) })
    }

    /// Whether the device spreads frames to this queue.
    ///
    /// # Errors
    /// The kernel's refusal: EINVAL if it is so already.
    pub fn set_queue(&self, attached: bool) -> Result<(), Errno> {
        let flag = if attached { libc::IFF_ATTACH_QUEUE } else { libc::IFF_DETACH_QUEUE };
        // SAFETY: the request is plain data, for which zeroes are valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        request.ifr_ifru.ifru_flags = (flag as u16).cast_signed();
        // SAFETY: this call reads one request, which lives until it returns.
        outcome(unsafe { libc::ioctl(self.raw(), libc::TUNSETQUEUE, &raw const request) })
    }

    fn set(&self, call: libc::Ioctl, value: u32) -> Result<(), Errno> {
        let value = value as c_int;
        // SAFETY: the calls that are made by this read one int, which lives until they return.
        outcome(unsafe { libc::ioctl(self.raw(), call, &raw const value) })
    }
}

fn outcome(result: c_int) -> Result<(), Errno> {
    if result >= 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}
