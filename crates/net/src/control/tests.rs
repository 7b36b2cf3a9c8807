//! Tests of every command, and of invalid ones.

use proptest::prelude::*;

use super::*;
use crate::features::{AcceptedFeatures, OfferedFeatures, feature};
use crate::mac::Mac;
use crate::test_frames::mac;

fn features(bits: u64) -> AcceptedFeatures {
    let offered_features =
        OfferedFeatures { offloads: true, mergeable: true, pairs: 4, control: true, mtu: true };
    offered_features.accept(bits | feature::VERSION_1).unwrap()
}

fn all() -> ControlFeatures {
    let bits = feature::CTRL_VQ | feature::CTRL_RX | feature::CTRL_MAC_ADDR | feature::MQ;
    ControlFeatures { features: features(bits), pairs: 4 }
}

fn parse(bytes: &[u8]) -> Result<Command, CommandError> {
    Command::parse(bytes, all())
}

/// Returns a table as Linux writes it.
fn table(stations: &[Mac], groups: &[Mac]) -> Vec<u8> {
    let list = |macs: &[Mac]| {
        let bytes = macs.iter().flat_map(|mac| mac.0);
        (macs.len() as u32).to_le_bytes().into_iter().chain(bytes).collect::<Vec<_>>()
    };
    [&[1, 0][..], &list(stations), &list(groups)].concat()
}

#[test]
fn every_command_is_known() {
    assert_eq!(parse(&[0, 0, 1]), Ok(Command::Promiscuous(true)));
    assert_eq!(parse(&[0, 1, 0]), Ok(Command::AllMulticast(false)));
    assert_eq!(parse(&[1, 1, 2, 0, 0, 0, 0, 9]), Ok(Command::Address(mac(9))));
    assert_eq!(parse(&[4, 0, 4, 0]), Ok(Command::Pairs(4)));
    let group = Mac([0x33, 0x33, 0, 0, 0, 1]);
    assert_eq!(
        parse(&table(&[mac(1), mac(2)], &[group])),
        Ok(Command::Table(vec![mac(1), mac(2), group]))
    );
    assert_eq!(parse(&table(&[], &[])), Ok(Command::Table(vec![])));
}

#[test]
fn what_is_wrong_is_refused() {
    let unknown = |class, command| CommandError::Unknown { class, command };
    for (bytes, error) in [
        (&[][..], CommandError::Short(0)),
        (&[4], CommandError::Short(1)),
        (&[0, 0], CommandError::Data(0)),
        (&[0, 0, 1, 1], CommandError::Data(2)),
        (&[0, 2, 1], unknown(0, 2)),
        (&[1, 2], unknown(1, 2)),
        (&[2, 0, 1, 0], unknown(2, 0)),
        (&[4, 1], unknown(4, 1)),
        (&[255, 255], unknown(255, 255)),
        (&[4, 0, 0, 0], CommandError::Pairs(0)),
        (&[4, 0, 5, 0], CommandError::Pairs(5)),
        (&[4, 0, 255, 255], CommandError::Pairs(u16::MAX)),
        (&[4, 0, 1], CommandError::Data(1)),
        (&[4, 0, 1, 0, 0], CommandError::Data(3)),
        (&[1, 1, 2, 0, 0, 0, 0], CommandError::Data(5)),
        (&[1, 1, 0, 0, 0, 0, 0, 0], CommandError::NoStation(Mac::default())),
        (&[1, 1, 1, 0, 0, 0, 0, 0], CommandError::NoStation(Mac([1, 0, 0, 0, 0, 0]))),
    ] {
        assert_eq!(parse(bytes), Err(error), "{bytes:?}");
    }
}

#[test]
fn tables_have_limits_and_must_be_whole() {
    let most = vec![mac(1); ADDRESSES_MAX];
    let whole = table(&most, &[]);
    assert_eq!(whole.len(), COMMAND_BYTES_MAX);
    assert_eq!(parse(&whole), Ok(Command::Table(most.clone())));
    for cut in [2, 3, 5, 6, 11, whole.len() - 4, whole.len() - 1] {
        assert_eq!(parse(&whole[..cut]), Err(CommandError::Data(cut - 2)), "{cut} bytes");
    }
    assert_eq!(parse(&[&whole[..], &[0]].concat()), Err(CommandError::Long));
    assert_eq!(parse(&[&table(&[], &[])[..], &[0]].concat()), Err(CommandError::Data(9)));
    // The stated count decides, whatever follows.
    for huge in [ADDRESSES_MAX as u32 + 1, u32::MAX] {
        let claim = [&[1, 0][..], &huge.to_le_bytes(), &[0; 12]].concat();
        assert_eq!(parse(&claim), Err(CommandError::LargeTable));
        let second = [&[1, 0, 1, 0, 0, 0][..], &[2; 6], &huge.to_le_bytes()].concat();
        assert_eq!(parse(&second), Err(CommandError::LargeTable));
    }
}

#[test]
fn what_was_not_negotiated_is_not_there() {
    let commands: [(&[u8], u64); 5] = [
        (&[0, 0, 1], feature::CTRL_RX),
        (&[0, 1, 1], feature::CTRL_RX),
        (&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0], feature::CTRL_RX),
        (&[1, 1, 2, 0, 0, 0, 0, 9], feature::CTRL_MAC_ADDR),
        (&[4, 0, 1, 0], feature::MQ),
    ];
    for (bytes, needs) in commands {
        let with = |bits| ControlFeatures { features: features(bits), ..all() };
        assert!(Command::parse(bytes, with(feature::CTRL_VQ | needs)).is_ok(), "{bytes:?}");
        let without = Command::parse(bytes, with(feature::CTRL_VQ));
        assert!(matches!(without, Err(CommandError::Unknown { .. })), "{bytes:?}");
    }
}

#[test]
fn filters_let_pass_what_was_asked_for() {
    let groups = [Mac([0x33, 0x33, 0, 0, 0, 1]), Mac([1, 0, 0x5e, 0, 0, 1])];
    let wants = |control_settings: &ControlSettings| {
        let all = [mac(1), mac(2), mac(3), groups[0], groups[1], Mac::BROADCAST];
        all.map(|mac| u8::from(control_settings.wants(mac)))
    };
    let mut control_settings = ControlSettings::nothing(mac(1));
    assert_eq!((control_settings.pairs(), wants(&control_settings)), (1, [1, 1, 1, 1, 1, 1]));
    control_settings.apply(Command::Promiscuous(false));
    assert_eq!(wants(&control_settings), [1, 0, 0, 0, 0, 1]);
    control_settings.apply(parse(&table(&[mac(2)], &[groups[1]])).unwrap());
    assert_eq!(wants(&control_settings), [1, 1, 0, 0, 1, 1]);
    control_settings.apply(Command::AllMulticast(true));
    assert_eq!(wants(&control_settings), [1, 1, 0, 1, 1, 1]);
    control_settings.apply(Command::Table(vec![]));
    control_settings.apply(Command::Address(mac(3)));
    assert_eq!(
        (control_settings.address(), wants(&control_settings)),
        (mac(3), [0, 0, 1, 1, 1, 1])
    );
    control_settings.apply(Command::Promiscuous(true));
    control_settings.apply(Command::Pairs(3));
    assert_eq!((control_settings.pairs(), wants(&control_settings)), (3, [1, 1, 1, 1, 1, 1]));
}

/// Generates bytes that are commands more often than random bytes.
fn like_commands() -> impl Strategy<Value = Vec<u8>> {
    let data = proptest::collection::vec(prop_oneof![0..4u8, any::<u8>()], 0..64);
    (0..6u8, 0..4u8, data)
        .prop_map(|(class, command, data)| [&[class, command][..], &data[..]].concat())
}

proptest! {
    #[test]
    fn whatever_is_asked_for_stays_within_what_there_is(
        random in proptest::collection::vec(
            prop_oneof![like_commands(), proptest::collection::vec(any::<u8>(), 0..40)],
            0..20,
        ),
        bits in any::<u64>(),
        pairs in 1..8u16,
    ) {
        let control = feature::CTRL_VQ | feature::CTRL_RX | feature::CTRL_MAC_ADDR | feature::MQ;
        let control_features = ControlFeatures { features: features(bits & control), pairs };
        let mut control_settings = ControlSettings::nothing(mac(1));
        for bytes in random {
            let before = control_settings.clone();
            match Command::parse(&bytes, control_features) {
                Ok(command) => control_settings.apply(command),
                Err(_) => prop_assert_eq!(&control_settings, &before),
            }
            prop_assert!((1..=pairs).contains(&control_settings.pairs()));
            prop_assert!(control_settings.address().is_station() && control_settings.wants(control_settings.address()));
            prop_assert!(control_settings.wants(Mac::BROADCAST));
            let mut twin = ControlSettings::nothing(control_settings.address());
            control_settings.commands().into_iter().for_each(|command| twin.apply(command));
            prop_assert_eq!(&twin, &control_settings);
        }
    }
}
