//! Opening a TAP device, or adopting it from another process.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use net::header::HEADER_BYTES;
use reactor::tun::{self, NAME_BYTES_MAX, Tun};
use rustix::io::Errno;
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketType, socket};

use crate::TapError;

/// Most queues of a device: the kernel's own limit.
pub const QUEUES_MAX: usize = 256;

/// Flags with which every queue is attached.
const FLAGS: u32 = tun::TAP | tun::NO_PREFIX | tun::VNET_HEADER | tun::MULTI_QUEUE;
/// Offloads that the kernel may leave to this process: all of [`net::header::Offloads::KERNEL`].
const OFFLOADS: u32 = tun::CHECKSUM | tun::TCP4 | tun::TCP6 | tun::ECN;
/// Directory in which the kernel lists network devices.
const DEVICES: &str = "/sys/class/net";

/// Whether a device must exist already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TapOrigin {
    /// The device must exist. The administrator's network setup created it, and it stays.
    Existing,
    /// The device must not exist. It is created, and removed with the last of its queues.
    New,
    /// The device is used if it exists, and created if not.
    Either,
}

/// An open device. Other programs set it up or down, and add it to a bridge or not.
#[derive(Debug)]
pub struct Tap {
    name: String,
    queues: Vec<Tun>,
}

impl Tap {
    /// Opens a device with this number of queues, all attached, and sets headers and offloads.
    ///
    /// # Errors
    /// [`TapError`]. A device that was created for this call is then removed.
    pub fn open(name: &str, queues: usize, origin: TapOrigin) -> Result<Self, TapError> {
        check(name)?;
        if !(1..=QUEUES_MAX).contains(&queues) {
            return Err(TapError::Queues(queues));
        }
        let refused = |errno| explain("open", name, errno);
        let before = index(name)?;
        match (origin, before) {
            (TapOrigin::Existing, None) => return Err(TapError::NotThere(name.into())),
            (TapOrigin::New, Some(_)) => return Err(TapError::Exists(name.into())),
            _ => {}
        }
        let first = driver(name)?;
        let exclusive = if before.is_none() { tun::EXCLUSIVE } else { 0 };
        first.attach(name, FLAGS | exclusive).map_err(|errno| match errno {
            Errno::BUSY if before.is_none() => TapError::Exists(name.into()),
            errno => refused(errno),
        })?;
        // The device was deleted meanwhile. Attaching created a new one, which is removed on
        // return.
        if before.is_some() && index(name)? != before {
            return Err(TapError::NotThere(name.into()));
        }
        let mut all = vec![first];
        for _ in 1..queues {
            let queue = Tun::open().map_err(refused)?;
            queue.attach(name, FLAGS).map_err(refused)?;
            all.push(queue);
        }
        let tap = Self { name: name.into(), queues: all };
        let shown = before.and_then(|index| shown_queues(name, index));
        if shown.is_some_and(|shown| shown > queues) {
            return Err(TapError::InUse(name.into()));
        }
        tap.configure().map_err(|errno| explain("set offloads of", name, errno))?;
        Ok(tap)
    }

    /// Adopts a device that another process has opened under this name, with all its queues. The
    /// device keeps the settings of that process, and may have been renamed since.
    ///
    /// # Errors
    /// [`TapError`]: the descriptors are not queues of one device.
    pub fn adopt(name: &str, queues: Vec<OwnedFd>) -> Result<Self, TapError> {
        check(name)?;
        if !(1..=QUEUES_MAX).contains(&queues.len()) {
            return Err(TapError::Queues(queues.len()));
        }
        let (mut device, mut all) = (None, Vec::new());
        for fd in queues {
            let queue = Tun::adopt(fd);
            let is = queue.device().map_err(|errno| explain("take over", name, errno))?;
            if *device.get_or_insert_with(|| is.clone()) != is {
                return Err(TapError::NotThere(name.into()));
            }
            all.push(queue);
        }
        Ok(Self { name: name.into(), queues: all })
    }

    /// Sets headers and offloads, which belong to the device and so apply to each queue.
    fn configure(&self) -> Result<(), Errno> {
        let Some(first) = self.queues.first() else { return Ok(()) };
        first.set_header_bytes(HEADER_BYTES as u32)?;
        first.set_little_endian()?;
        first.set_offloads(OFFLOADS)
    }

    /// Returns the name of the device.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of queues.
    pub fn queues(&self) -> usize {
        self.queues.len()
    }

    /// Returns the descriptor of a queue, for [`crate::Queue::new`] and for the reactor to watch.
    pub fn queue(&self, number: usize) -> Option<Arc<OwnedFd>> {
        self.queues.get(number).map(Tun::fd)
    }

    /// Sets whether the device spreads frames to a queue. At the start it does. Frames that wait in
    /// a queue are lost when it is detached. At least one queue should stay attached.
    ///
    /// # Errors
    /// The system call failed, for example because the queue is already in this state.
    pub fn set_attached(&self, number: usize, attached: bool) -> Result<(), TapError> {
        let queue = self.queues.get(number).ok_or(TapError::Queues(number))?;
        let doing = if attached { "attach a queue of" } else { "detach a queue of" };
        queue.set_queue(attached).map_err(|errno| explain(doing, &self.name, errno))
    }
}

fn check(name: &str) -> Result<(), TapError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let starts = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if starts && name.len() <= NAME_BYTES_MAX && name.chars().all(plain) {
        return Ok(());
    }
    Err(TapError::Name(name.chars().take(2 * NAME_BYTES_MAX).collect()))
}

/// Returns the index of the device of this name, if it exists.
fn index(name: &str) -> Result<Option<u32>, TapError> {
    let socket = socket(AddressFamily::UNIX, SocketType::DGRAM, None);
    match socket.and_then(|socket| name_to_index(socket, name)) {
        Ok(index) => Ok(Some(index)),
        Err(Errno::NODEV) => Ok(None),
        Err(errno) => Err(explain("look for", name, errno)),
    }
}

/// Opens the driver and checks that it has the required features.
fn driver(name: &str) -> Result<Tun, TapError> {
    let driver = Tun::open().map_err(|errno| match errno {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => TapError::NoDriver,
        Errno::ACCESS | Errno::PERM => {
            TapError::Denied { doing: "open the TUN driver", name: name.into() }
        }
        errno => explain("open", name, errno),
    })?;
    let features = driver.features().map_err(|errno| explain("open", name, errno))?;
    for (flag, what) in [(tun::MULTI_QUEUE, "several queues"), (tun::VNET_HEADER, "offloads")] {
        if features & flag == 0 {
            return Err(TapError::Lacks(what));
        }
    }
    Ok(driver)
}

fn explain(doing: &'static str, name: &str, errno: Errno) -> TapError {
    let name = name.to_owned();
    match errno {
        Errno::PERM | Errno::ACCESS => TapError::Denied { doing: "use the device", name },
        Errno::BUSY => TapError::InUse(name),
        Errno::INVAL => match shown_flags(&name) {
            Some(flags) if flags & tun::TAP == 0 => TapError::NotTap(name),
            Some(flags) if flags & tun::MULTI_QUEUE == 0 => TapError::OneQueue(name),
            None if Path::new(DEVICES).join(&name).exists() => TapError::NotTap(name),
            _ => TapError::Refused { doing, name, errno },
        },
        errno => TapError::Refused { doing, name, errno },
    }
}

/// Reads the flags of a device of the TUN driver from sysfs.
fn shown_flags(name: &str) -> Option<u32> {
    let text = std::fs::read_to_string(Path::new(DEVICES).join(name).join("tun_flags")).ok()?;
    u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
}

/// Counts the queues of a device, those of all processes. `None` if sysfs shows the devices of
/// another network namespace.
fn shown_queues(name: &str, index: u32) -> Option<usize> {
    let shown = Path::new(DEVICES).join(name);
    let number = std::fs::read_to_string(shown.join("ifindex")).ok()?;
    if number.trim().parse::<u32>().ok()? != index {
        return None;
    }
    let all = std::fs::read_dir(shown.join("queues")).ok()?.flatten();
    Some(all.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"tx-")).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_no_device_can_have_are_refused_before_anything_is_tried() {
        for bad in ["", "a/b", "..", "-x", "a%d", "a b", "1234567890123456", "\u{e4}"] {
            let error = Tap::open(bad, 1, TapOrigin::Either).unwrap_err();
            assert_eq!(error, TapError::Name(bad.into()));
        }
        let long = "x".repeat(5000);
        let error = Tap::open(&long, 1, TapOrigin::Either).unwrap_err().to_string();
        assert!(error.len() < 200, "{error}");
        for queues in [0, 257, usize::MAX] {
            let error = Tap::open("rwt", queues, TapOrigin::Either).unwrap_err();
            assert_eq!(error, TapError::Queues(queues));
        }
    }

    #[test]
    fn what_should_be_there_is_not_made() {
        let error = Tap::open("rwt-none", 1, TapOrigin::Existing).unwrap_err();
        assert_eq!(error, TapError::NotThere("rwt-none".into()));
        assert_eq!(index("rwt-none"), Ok(None));
        assert_eq!(index("lo"), Ok(Some(1)), "the first device of every kernel");
        assert_eq!(Tap::open("lo", 1, TapOrigin::New).unwrap_err(), TapError::Exists("lo".into()));
    }
}
