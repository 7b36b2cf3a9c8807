//! Feature bits of the vhost-user protocol.

/// Virtio feature bit that announces protocol features (`VHOST_USER_F_PROTOCOL_FEATURES`). The
/// session adds it to the device's offer and removes it from the bits that the device receives.
pub const PROTOCOL_FEATURES: u64 = 1 << 30;

/// Several queues.
pub const MQ: u64 = 1 << 0;
/// Every request can be acknowledged.
pub const REPLY_ACK: u64 = 1 << 3;
/// The backend may send requests to the front-end.
pub const BACKEND_REQ: u64 = 1 << 5;
/// Messages read and write configuration space.
pub const CONFIG: u64 = 1 << 9;
/// The backend records requests in flight in memory that the front-end preserves if the backend
/// dies.
pub const INFLIGHT_SHMFD: u64 = 1 << 12;
/// The device can be reset.
pub const RESET_DEVICE: u64 = 1 << 13;
/// Messages add and remove single memory regions.
pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;

/// Protocol features that a session offers. It does not offer the dirty log, postcopy and in-band
/// kicks.
pub const OFFERED: u64 =
    MQ | REPLY_ACK | BACKEND_REQ | CONFIG | INFLIGHT_SHMFD | RESET_DEVICE | CONFIGURE_MEM_SLOTS;

/// Virtio feature bit of the event index, which changes the layout of a ring's notifications.
pub(crate) const RING_EVENT_IDX: u64 = 1 << 29;
