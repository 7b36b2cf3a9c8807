//! Tests of every feature bit, with and without the bits that it needs.

use proptest::prelude::*;

use super::*;

const ALL: OfferedFeatures =
    OfferedFeatures { offloads: true, mergeable: true, pairs: 4, control: true, mtu: true };

#[test]
fn whatever_is_offered_may_be_accepted_whole() {
    for control in [false, true] {
        for bits in 0..8 {
            let (offloads, mergeable) = (bits & 1 != 0, bits & 2 != 0);
            let pairs = if bits & 4 != 0 { 8 } else { 1 };
            let offered_features =
                OfferedFeatures { offloads, mergeable, pairs, control, mtu: mergeable };
            let features = offered_features.accept(offered_features.bits()).unwrap();
            assert_eq!(features.has(MQ), pairs > 1 && control);
            assert_eq!(features.has(MRG_RXBUF), mergeable);
            let all = if offloads { Offloads::KERNEL } else { Offloads::default() };
            assert_eq!(features.receives(), all);
            assert_eq!(features.sends(), Offloads { vouches: false, ..all });
        }
    }
}

#[test]
fn each_kind_of_tcp_is_left_by_its_own_bit() {
    let none = Offloads::default();
    let some = Offloads { checksum: true, ..none };
    let (tcp4, tcp6) = (Offloads { tcp4: true, ..some }, Offloads { tcp6: true, ..some });
    for (bits, sends) in [(CSUM, some), (CSUM | HOST_TSO4, tcp4), (CSUM | HOST_TSO6, tcp6)] {
        let features = ALL.accept(bits).unwrap();
        assert_eq!((features.sends(), features.receives()), (sends, none));
    }
    for (bits, receives) in [(GUEST_TSO4, tcp4), (GUEST_TSO6, tcp6)] {
        let features = ALL.accept(GUEST_CSUM | bits).unwrap();
        let receives = Offloads { vouches: true, ..receives };
        assert_eq!((features.sends(), features.receives()), (none, receives));
    }
}

#[test]
fn a_feature_without_what_it_needs_is_refused() {
    for (feature, needs) in NEEDS {
        if ALL.bits() & feature == 0 {
            continue;
        }
        // Alone, and with all bits except those it needs.
        for bits in [feature, ALL.bits() & !needs] {
            assert!(matches!(ALL.accept(bits), Err(FeatureError::Needs { .. })), "{feature:#x}");
        }
    }
    let ecn = ALL.accept(GUEST_CSUM | GUEST_TSO6 | GUEST_ECN).unwrap();
    assert!(ecn.receives().ecn && !ecn.receives().tcp4, "either kind of TCP will do");
}

#[test]
fn what_was_not_offered_is_refused_and_the_transports_bits_are_not_ours() {
    for bit in [1 << 10, 1 << 14, CTRL_VLAN, 1 << 56, 1 << 60] {
        assert_eq!(ALL.accept(bit), Err(FeatureError::NotOffered(bit)));
    }
    // VHOST_F_LOG_ALL and VHOST_USER_F_PROTOCOL_FEATURES.
    assert!(ALL.accept(VERSION_1 | 1 << 26 | 1 << 30).is_ok());
}

/// Such a driver may have accepted everything, or nothing but version 1.
#[test]
fn any_driver_works_with_the_features_assumed_for_lost_ones() {
    for lost in [0, 1 << 30, 1 << 26 | 1 << 30] {
        let features = ALL.accept(lost).unwrap();
        assert!(are_lost(lost) && features.has(VERSION_1));
        assert_eq!(features.sends(), Offloads { vouches: false, ..Offloads::KERNEL });
        assert_eq!(features.receives(), Offloads::default());
        assert!(!features.has(MRG_RXBUF) && !features.has(EVENT_IDX) && !features.has(CTRL_VQ));
        assert_eq!(ALL.roles(features).pairs(), ALL.pairs);
    }
    assert!(!are_lost(VERSION_1) && !are_lost(CSUM));
    let plain = OfferedFeatures { offloads: false, ..ALL }.accept(0).unwrap();
    assert_eq!(plain.sends(), Offloads::default(), "only offered features are assumed");
}

#[test]
fn a_front_end_that_answers_the_control_queue_may_keep_it() {
    for bit in [MQ, CTRL_RX, CTRL_MAC_ADDR] {
        assert!(ALL.accept(bit | VERSION_1).is_ok(), "{bit:#x}");
        let none = OfferedFeatures { control: false, ..ALL };
        assert_eq!(none.accept(bit), Err(FeatureError::NotOffered(bit)));
    }
}

proptest! {
    #[test]
    fn what_is_accepted_keeps_all_promises(random: u64) {
        let bits = random & ALL.bits() | VERSION_1;
        let sound = NEEDS.iter().all(|(one, needs)| bits & one == 0 || bits & needs != 0);
        prop_assert_eq!(ALL.accept(bits).is_ok(), sound);
    }
}
