//! Feature bits of the protocol itself.

/// Virtio feature bit that announces protocol features (`VHOST_USER_F_PROTOCOL_FEATURES`). The
/// session adds it to what the device offers and takes it out of what the device hears.
pub const PROTOCOL_FEATURES: u64 = 1 << 30;

/// Several queues.
pub const MQ: u64 = 1 << 0;
/// Every request can be acknowledged.
pub const REPLY_ACK: u64 = 1 << 3;
/// We may send requests of our own.
pub const BACKEND_REQ: u64 = 1 << 5;
/// Configuration space is read and written by messages.
pub const CONFIG: u64 = 1 << 9;
/// Requests in flight are recorded in memory that the front-end keeps over our death.
pub const INFLIGHT_SHMFD: u64 = 1 << 12;
/// The device can be reset.
pub const RESET_DEVICE: u64 = 1 << 13;
/// Memory regions come and go singly.
pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;

/// What a session offers. The dirty log, postcopy and in-band kicks are not among it.
pub const OFFERED: u64 =
    MQ | REPLY_ACK | BACKEND_REQ | CONFIG | INFLIGHT_SHMFD | RESET_DEVICE | CONFIGURE_MEM_SLOTS;

/// Virtio feature bit of the event index; a ring's layout of notifications depends on it.
pub(crate) const RING_EVENT_IDX: u64 = 1 << 29;
