//! Measurement of storage repositories when they are plugged.

use std::time::Duration;

use model::calibration::{PROFILE_VERSION, RequestCost, StorageDevice, StorageProfile};
use xenapi::table::sr;

use super::simulated_host::*;
use super::storage::{connection, home, made_sr};
use crate::records::fields::pairs;

fn profile() -> StorageProfile {
    let cost = RequestCost { request_ns: 10_000, mib_ns: 1_000_000 };
    StorageProfile {
        version: PROFILE_VERSION,
        device: StorageDevice::default(),
        reads: cost,
        writes: cost,
        knee_ns: 660_000,
        requests_min: 2,
        latency_ns: 80_000,
        piece_bytes: None,
        piece_gain_percent: 0,
        seeks: false,
    }
}

#[tokio::test]
async fn a_plug_measures_the_storage_unless_that_is_forbidden() {
    let sim_host = SimulatedHost::new().await;
    let at_start = sim_host.sim.measured().len();
    sim_host.sim.set_profile(profile());
    let place = sim_host.made("SR.create", made_sr("dir", &home(&sim_host))).await;
    let mut changed = sim_host.test_app.app.db.changed();
    let shown = || {
        let app = &sim_host.test_app.app;
        let config = app.db.read(|view| pairs(view, &place, sr::Field::sm_config)).unwrap();
        config.get("profile-knee-us").cloned()
    };
    let until_shown = async {
        while shown().is_none() {
            changed.changed().await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(20), until_shown).await.unwrap();
    assert_eq!(shown().as_deref(), Some("660"));
    let link = connection(&sim_host, &place);
    let plug = async |sim_host: &SimulatedHost| {
        sim_host.done("PBD.unplug", [link.value()]).await;
        sim_host.done("PBD.plug", [link.value()]).await;
        sim_host.sim.measured().len() - at_start
    };
    assert_eq!(plug(&sim_host).await, 2);
    let forbid = [place.value(), Value::text("calibrate"), Value::text("false")];
    sim_host.done("SR.add_to_other_config", forbid).await;
    assert_eq!(plug(&sim_host).await, 2);
    sim_host.done("SR.remove_from_other_config", [place.value(), Value::text("calibrate")]).await;
    assert_eq!(plug(&sim_host).await, 3);
}
