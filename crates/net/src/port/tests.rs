//! Tests of every locking mode under every default.

use super::*;
use crate::test_frames::mac;

#[test]
fn modes() {
    let open = |mode: EffectiveMode<'_>| match mode {
        EffectiveMode::Open => "open",
        EffectiveMode::Locked(_) => "locked",
        EffectiveMode::Closed => "closed",
    };
    for (locking_mode, default, expected) in [
        (LockingMode::NetworkDefault, DefaultMode::Unlocked, "open"),
        (LockingMode::NetworkDefault, DefaultMode::Disabled, "closed"),
        (LockingMode::Unlocked, DefaultMode::Unlocked, "open"),
        (LockingMode::Unlocked, DefaultMode::Disabled, "open"),
        (LockingMode::Locked, DefaultMode::Unlocked, "locked"),
        (LockingMode::Locked, DefaultMode::Disabled, "locked"),
        (LockingMode::Disabled, DefaultMode::Unlocked, "closed"),
        (LockingMode::Disabled, DefaultMode::Disabled, "closed"),
    ] {
        let policy = PortPolicy { locking_mode, ..PortPolicy::open(NetworkId(1)) };
        assert_eq!(open(policy.mode(default)), expected, "{locking_mode:?} {default:?}");
    }
}

#[test]
fn a_lock_has_room_for_so_many() {
    let v4 = vec![Ipv4Addr::LOCALHOST; ADDRESSES_MAX + 1];
    let policy = PortPolicy::open(NetworkId(1));
    assert!(policy.clone().locked(mac(1), &v4[1..], &[]).is_ok());
    assert_eq!(policy.locked(mac(1), &v4, &[]).unwrap_err(), AddressLockError(ADDRESSES_MAX + 1));
}
