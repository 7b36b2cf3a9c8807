//! Packet socket for one kind of frame on one bridge.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind, Read as _};
use std::os::fd::AsRawFd as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use model::id::VifId;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{SockaddrStorage, bind};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::dhcp::{self, DHCP_BYTES};
use super::filter::CaptureFilter;
use super::frame::{self, FRAME_BYTES};
use super::lock;
use super::table::Table;

/// Pause of a socket after each read. Claims are reported within this time.
pub(super) const PACE: Duration = Duration::from_secs(1);
/// Most frames of one read: more than the kernel buffers for a socket of default size.
const FRAMES_MAX: usize = 512;

/// Opens a socket that receives only these frames from now on.
///
/// # Errors
/// The device does not exist, or a system call failed.
pub(super) fn open(bridge: &str, capture_filter: CaptureFilter) -> io::Result<Socket> {
    let protocol = Protocol::from(i32::from(capture_filter.ethertype().to_be()));
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(protocol))?;
    socket.set_nonblocking(true)?;
    socket.attach_filter(capture_filter.program())?;
    // The kernel's list of devices contains the addresses for `bind`.
    let device = getifaddrs()?.filter(|one| one.interface_name == bridge).find_map(|one| {
        let address = one.address.as_ref().and_then(SockaddrStorage::as_link_addr);
        address.copied()
    });
    let device = device.ok_or_else(|| io::Error::from(ErrorKind::NotFound))?;
    bind(socket.as_raw_fd(), &device)?;
    // Discard frames of other devices, received before the `bind`.
    let mut frame = [0; FRAME_BYTES];
    for _ in 0..FRAMES_MAX {
        match (&socket).read(&mut frame) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            _ => {}
        }
    }
    Ok(socket)
}

/// Records claims and reports changed interfaces, until the receiver is gone.
pub(super) async fn listen(
    (socket, capture_filter): (AsyncFd<Socket>, CaptureFilter),
    table: Arc<Mutex<Table>>,
    sender: mpsc::Sender<VifId>,
) {
    while let Ok(changed) = read_frames(&socket, capture_filter, &table).await {
        for vif in changed {
            if sender.send(vif).await.is_err() {
                return;
            }
        }
        sleep(PACE).await;
    }
}

/// Waits for frames and reads those that have arrived. Returns the interfaces whose addresses have
/// changed.
async fn read_frames(
    socket: &AsyncFd<Socket>,
    capture_filter: CaptureFilter,
    table: &Mutex<Table>,
) -> io::Result<BTreeSet<VifId>> {
    let (mut changed, mut frame) = (BTreeSet::new(), [0; DHCP_BYTES]);
    let mut ready = socket.readable().await?;
    for _ in 0..FRAMES_MAX {
        match ready.try_io(|socket| socket.get_ref().read(&mut frame)) {
            Err(_nothing_more) => break,
            Ok(Ok(bytes)) => {
                let frame = frame.get(..bytes).unwrap_or_default();
                changed.extend(process_frame(capture_filter, frame, table));
            }
            // The bridge went down. It may come up again. A recreated bridge gets new sockets.
            Ok(Err(error)) => tracing::debug!(%error, "a network is down"),
        }
    }
    Ok(changed)
}

/// Processes a frame. Returns the interface whose addresses have changed.
fn process_frame(
    capture_filter: CaptureFilter,
    frame: &[u8],
    table: &Mutex<Table>,
) -> Option<VifId> {
    match capture_filter {
        CaptureFilter::Arp | CaptureFilter::Neighbours => {
            lock(table).claimed(&frame::claim(frame)?)
        }
        CaptureFilter::Dhcp => lock(table).asked(&dhcp::asked(frame)?),
    }
}
