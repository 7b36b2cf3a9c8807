//! Calls and errors keep their meaning on the wire.

use std::io;

use model::id::VdiId;
use model::image::ImageFormat;

use super::*;
use crate::sr::{Names, SnapshotOf, Space, SrError, Volume};

fn again<T: Serialize + serde::de::DeserializeOwned>(value: &T) -> T {
    serde_json::from_str(&serde_json::to_string(value).unwrap()).unwrap()
}

#[test]
fn calls_come_as_they_went() {
    let vdi = Uuid::from_random([7; 16]);
    for sr_request in [
        SrRequest::Create,
        SrRequest::Destroy,
        SrRequest::Probe,
        SrRequest::Attach,
        SrRequest::Scan,
        SrRequest::Space,
        SrRequest::OpenLayers,
        SrRequest::Layers,
        SrRequest::RemoveLayers { slot: vdi, volatile_only: true },
        SrRequest::CreateVolume { vdi, bytes: u64::MAX },
        SrRequest::PrepareImage { vdi, bytes: 1, format: ImageFormat::Vhd },
        SrRequest::SettleImage { vdi },
        SrRequest::DestroyVolume { vdi },
        SrRequest::ResizeVolume { vdi, bytes: 1 },
        SrRequest::FindVolume { vdi },
        SrRequest::PrepareCopy { vdi, bytes: 1, storage_blocks: true },
        SrRequest::PrepareLayer { vdi, layer: vdi, served: Some("a".into()) },
        SrRequest::SettleLayer { vdi, served: None },
        SrRequest::CanShare { vdi },
        SrRequest::ShareImages { vdi, of: vdi, snapshot: Some(1) },
        SrRequest::PrepareImport { vdi },
        SrRequest::SettleImport { vdi, layer: Some(vdi) },
        SrRequest::AbandonImport { vdi },
        SrRequest::BeginMerge { into: vdi, kept: vec![vdi.to_string()] },
        SrRequest::MergeUsers,
        SrRequest::SwitchMerge { vdi },
        SrRequest::EndMerge,
        SrRequest::ForeignFiles,
    ] {
        let call = Call { id: 3, sr: vdi, place: "/a \"b\"".into(), work: sr_request.clone() };
        let received = again(&call);
        assert_eq!(
            (received.id, received.sr, received.place, received.work),
            (3, vdi, call.place, sr_request)
        );
    }
    let bad = r#"{"id":1,"sr":"x","place":"/a","work":"scan"}"#;
    let error = serde_json::from_str::<Call>(bad).unwrap_err().to_string();
    assert!(error.contains("`x` is no UUID"), "{error}");
}

#[test]
fn errors_keep_what_they_say() {
    let vdi = VdiId(Uuid::from_random([7; 16]));
    let os = |source| SrError::Os { what: "cannot read /a".into(), source };
    for error in [
        SrError::Config { key: "location".into(), why: "is not absolute".into() },
        SrError::Vanished { path: "/a".into() },
        SrError::NoVolume(vdi),
        SrError::NotEmpty { volumes: 2 },
        SrError::Full { needed: 5, free: 4 },
        os(io::Error::from_raw_os_error(5)),
        os(io::Error::other("odd")),
        SrError::Worker("no thread".into()),
    ] {
        let expected = format!("{error:?}");
        let received: SrError = again(&WireError::from(error)).into();
        // The text of a system error is that of its number.
        assert_eq!(format!("{received:?}"), expected);
    }
}

#[test]
fn a_scan_of_the_most_volumes_fits_into_a_line() {
    let vdi = VdiId(Uuid::from_random([7; 16]));
    let [label, description] = Names::MAX_BYTES.map(|most| "x".repeat(most - 2));
    let names = Names { label, description };
    assert!(names.are_short());
    let volume = Volume {
        vdi,
        virtual_bytes: u64::MAX,
        physical_bytes: u64::MAX,
        read_only: false,
        snapshot_of: Some(SnapshotOf { vdi, unix_seconds: i64::MIN }),
        resets: true,
        names: Some(names),
        file_name: None,
        format: ImageFormat::Qcow2,
    };
    let sr_response = SrResponse::scan((Space::default(), vec![volume; 64]).into());
    let bytes = serde_json::to_string(&Answer { id: 1, outcome: Ok(sr_response) }).unwrap().len();
    assert!(bytes / 64 * MAX_VOLUMES < MAX_LINE_BYTES, "{bytes}");
}
