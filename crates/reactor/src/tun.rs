//! Ioctls of the kernel's TUN driver as safe functions. The crate `tap` uses them.

use std::ffi::{c_int, c_uint};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};

use rustix::io::Errno;

/// Path of the driver's device node.
pub const PATH: &str = "/dev/net/tun";
/// Most bytes of a device's name, without the terminating zero.
pub const NAME_BYTES_MAX: usize = libc::IFNAMSIZ - 1;

/// Flag of [`Tun::attach`]: Ethernet frames.
pub const TAP: u32 = libc::IFF_TAP as u32;
/// Flag of [`Tun::attach`]: no packet information of the driver before each frame.
pub const NO_PREFIX: u32 = libc::IFF_NO_PI as u32;
/// Flag of [`Tun::attach`]: a virtio-net header before each frame.
pub const VNET_HEADER: u32 = libc::IFF_VNET_HDR as u32;
/// Flag of [`Tun::attach`]: several queues, each with a descriptor.
pub const MULTI_QUEUE: u32 = libc::IFF_MULTI_QUEUE as u32;
/// Flag of [`Tun::attach`]: the device must not exist yet.
pub const EXCLUSIVE: u32 = libc::IFF_TUN_EXCL as u32;

/// Offload of [`Tun::set_offloads`]: frames may have a partial checksum.
pub const CHECKSUM: u32 = libc::TUN_F_CSUM;
/// Offload of [`Tun::set_offloads`]: one frame may hold several TCP segments over IPv4.
pub const TCP4: u32 = libc::TUN_F_TSO4;
/// Offload of [`Tun::set_offloads`]: one frame may hold several TCP segments over IPv6.
pub const TCP6: u32 = libc::TUN_F_TSO6;
/// Offload of [`Tun::set_offloads`]: such segments may have ECN set.
pub const ECN: u32 = libc::TUN_F_TSO_ECN;

/// Descriptor of the driver: a queue of a device once it is attached to the device.
#[derive(Clone, Debug)]
pub struct Tun(Arc<OwnedFd>);

impl Tun {
    /// Opens a new nonblocking descriptor of the driver.
    ///
    /// # Errors
    /// The kernel's error: ENOENT or ENODEV without such a driver, EACCES without permission.
    pub fn open() -> Result<Self, Errno> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        Ok(Self(Arc::new(rustix::fs::open(PATH, flags, Mode::empty())?)))
    }

    /// Takes over a descriptor of the driver that another process has opened.
    pub fn adopt(fd: OwnedFd) -> Self {
        Self(Arc::new(fd))
    }

    /// Returns the current name of the device that this queue belongs to.
    ///
    /// # Errors
    /// The kernel's error: EBADFD if the descriptor is attached to no device, ENOTTY if it is not
    /// the driver's.
    pub fn device(&self) -> Result<String, Errno> {
        // SAFETY: the request is plain data, for which zeroes are valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        // SAFETY: this call writes one request, which lives until it returns.
        outcome(unsafe { libc::ioctl(self.raw(), libc::TUNGETIFF, &raw mut request) })?;
        let name = request.ifr_name.iter().map(|byte| byte.cast_unsigned());
        let name: Vec<u8> = name.take_while(|byte| *byte != 0).collect();
        String::from_utf8(name).map_err(|_| Errno::INVAL)
    }

    /// Returns the descriptor, for reads and writes.
    pub fn fd(&self) -> Arc<OwnedFd> {
        self.0.clone()
    }

    fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Returns the flags that the driver supports.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn features(&self) -> Result<u32, Errno> {
        let mut bits: c_uint = 0;
        // SAFETY: this call writes one unsigned int, which `bits` is.
        let result = unsafe { libc::ioctl(self.raw(), libc::TUNGETFEATURES, &raw mut bits) };
        outcome(result).map(|()| bits)
    }

    /// Attaches the descriptor as a queue to the device with this name. Creates the device if it
    /// does not exist.
    ///
    /// # Errors
    /// The kernel's error; ENAMETOOLONG if a device cannot have such a name.
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

    /// Sets the size of the header before each frame in bytes, for all queues of the device.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_header_bytes(&self, bytes: u32) -> Result<(), Errno> {
        self.set(libc::TUNSETVNETHDRSZ, bytes)
    }

    /// Sets the byte order of the header's fields to that of virtio 1 (little-endian), on any host.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_little_endian(&self) -> Result<(), Errno> {
        self.set(libc::TUNSETVNETLE, 1)
    }

    /// Sets the offloads that frames from the kernel may leave to the reader.
    ///
    /// # Errors
    /// The kernel's error: EINVAL for bits that it does not know.
    pub fn set_offloads(&self, bits: u32) -> Result<(), Errno> {
        let bits = libc::c_ulong::from(bits);
        // SAFETY: this call takes a number in place of a pointer.
        outcome(unsafe { libc::ioctl(self.raw(), libc::TUNSETOFFLOAD, bits) })
    }

    /// Sets whether the device spreads frames to this queue.
    ///
    /// # Errors
    /// The kernel's error: EINVAL if that is the state already.
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
        // SAFETY: the ioctls passed to this function read one int, which lives until they return.
        outcome(unsafe { libc::ioctl(self.raw(), call, &raw const value) })
    }
}

fn outcome(result: c_int) -> Result<(), Errno> {
    if result >= 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}
