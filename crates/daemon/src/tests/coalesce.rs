//! Tests of merges of images in the background.

use model::id::SrId;
use toolstack::sim::{CallKind, SimBehaviour, SimResult};
use xenapi::table::{pbd, sr, task, vdi};

use super::simulated_host::*;

impl SimulatedHost {
    fn behaves(&self, call_kind: CallKind, result: SimResult) {
        self.sim.rule(move |call| match call.call_kind == call_kind {
            true => SimBehaviour::ends(result),
            false => SimBehaviour::default(),
        });
    }

    fn works(&self) {
        self.sim.rule(|_| SimBehaviour::default());
    }

    fn sr_id(&self) -> SrId {
        let place = self.place();
        SrId(self.test_app.app.db.read(|view| uuid(view, &place, sr::Field::uuid)).unwrap())
    }

    fn left(&self) -> usize {
        self.sim.merges_left(self.sr_id())
    }

    /// Returns the task of a merge with this status.
    fn merge(&self, status: &str) -> Option<Ref> {
        let all = self.test_app.app.db.read(|view| {
            view.all(&task::CLASS).map(|task| task.reference().clone()).collect::<Vec<_>>()
        });
        all.into_iter().find(|task| {
            text(&self.get(task, task::Field::name_label)) == "SR.coalesce"
                && text(&self.get(task, task::Field::status)) == status
        })
    }

    fn shown(&self, of: &Ref, field: impl Into<FieldIx>) -> Option<String> {
        let Value::Map(members) = self.get(of, field) else { panic!() };
        members.get("coalesce").map(|it| text(it).to_owned())
    }

    /// Waits until no merge is shown.
    async fn quiet(&self) {
        let place = self.place();
        self.until(|host| {
            host.merge("pending").is_none() && host.shown(&place, sr::Field::sm_config).is_none()
        })
        .await;
    }

    async fn scan(&self) {
        self.done("SR.scan", [self.place().value()]).await;
    }
}

#[tokio::test]
async fn images_are_merged_until_nothing_is_left() {
    let sim_host = SimulatedHost::new().await;
    let (disk, other) = (sim_host.disk().await, sim_host.disk().await);
    sim_host.sim.add_merges(sim_host.sr_id(), 3);
    sim_host.done("VDI.destroy", [other.value()]).await;
    sim_host.until(|host| host.left() == 0).await;
    sim_host.quiet().await;
    assert!(sim_host.merge("success").is_some());
    assert_eq!(sim_host.shown(&disk, vdi::Field::sm_config), None);
    sim_host.assert_clean();
}

#[tokio::test]
async fn a_merge_is_shown_and_can_be_cancelled() {
    let sim_host = SimulatedHost::new().await;
    let (disk, place) = (sim_host.disk().await, sim_host.place());
    sim_host.behaves(CallKind::Convert, SimResult::Hangs);
    sim_host.sim.add_merges(sim_host.sr_id(), 1);
    sim_host.scan().await;
    let expected = Some("merging 2 images, 50%".to_owned());
    sim_host.until(|host| host.shown(&place, sr::Field::sm_config) == expected).await;
    assert_eq!(sim_host.shown(&disk, vdi::Field::sm_config), expected);
    let under_way = sim_host.merge("pending").unwrap();
    assert_eq!(sim_host.get(&under_way, task::Field::progress), Value::Float(0.5));
    // A snapshot does not wait for the copy, and does not inherit what is shown.
    let snapshot = sim_host.made("VDI.snapshot", [disk.value(), none()]).await;
    assert_eq!(sim_host.shown(&snapshot, vdi::Field::sm_config), None);
    sim_host.scan().await;
    sim_host.done("task.cancel", [under_way.value()]).await;
    sim_host.until(|host| host.merge("cancelled") == Some(under_way.clone())).await;
    // The calls meanwhile have asked for another look.
    sim_host.works();
    sim_host.until(|host| host.left() == 0).await;
    sim_host.quiet().await;
    assert_eq!(sim_host.shown(&disk, vdi::Field::sm_config), None);
    sim_host.assert_clean();
}

#[tokio::test]
async fn a_merge_that_fails_waits_for_the_next_call() {
    let sim_host = SimulatedHost::new().await;
    sim_host.disk().await;
    sim_host.behaves(CallKind::Convert, SimResult::Fails);
    sim_host.sim.add_merges(sim_host.sr_id(), 1);
    sim_host.scan().await;
    sim_host.until(|host| host.merge("failure").is_some()).await;
    sim_host.quiet().await;
    let failed = sim_host.merge("failure").unwrap();
    let Value::Set(why) = sim_host.get(&failed, task::Field::error_info) else { panic!() };
    assert_eq!(why.first(), Some(&Value::text("SR_BACKEND_FAILURE")));
    assert_eq!(sim_host.left(), 1);
    // The new image exists, and a volume does not change to it at first.
    sim_host.behaves(CallKind::SwitchMerge, SimResult::Fails);
    sim_host.scan().await;
    sim_host.quiet().await;
    assert_eq!(sim_host.left(), 1);
    sim_host.behaves(CallKind::Convert, SimResult::Fails);
    sim_host.scan().await;
    sim_host.until(|host| host.left() == 0).await;
    sim_host.quiet().await;
    sim_host.assert_clean();
}

#[tokio::test]
async fn other_config_keeps_images_as_they_are() {
    let sim_host = SimulatedHost::new().await;
    let (disk, place) = (sim_host.disk().await, sim_host.place());
    let off = |of: &Ref| [of.value(), Value::text("coalesce"), Value::text("false")];
    let on = |of: &Ref| [of.value(), Value::text("coalesce")];
    sim_host.done("SR.add_to_other_config", off(&place)).await;
    sim_host.sim.add_merges(sim_host.sr_id(), 1);
    sim_host.scan().await;
    sim_host.done("VDI.add_to_other_config", off(&disk)).await;
    sim_host.done("SR.remove_from_other_config", on(&place)).await;
    sim_host.scan().await;
    sim_host.quiet().await;
    assert_eq!((sim_host.left(), sim_host.merge("success")), (1, None));
    sim_host.done("VDI.remove_from_other_config", on(&disk)).await;
    sim_host.scan().await;
    sim_host.until(|host| host.left() == 0).await;
    sim_host.quiet().await;
}

#[tokio::test]
async fn a_merge_ends_before_its_storage_is_detached() {
    let sim_host = SimulatedHost::new().await;
    let disk = sim_host.disk().await;
    let place = sim_host.place();
    let db = &sim_host.test_app.app.db;
    let link = db.read(|view| references(view, &place, sr::Field::PBDs)).unwrap().pop().unwrap();
    sim_host.behaves(CallKind::Convert, SimResult::Hangs);
    sim_host.sim.add_merges(sim_host.sr_id(), 1);
    sim_host.scan().await;
    sim_host.until(|host| host.merge("pending").is_some()).await;
    sim_host.done("PBD.unplug", [link.value()]).await;
    assert!(sim_host.merge("cancelled").is_some());
    assert_eq!(sim_host.shown(&disk, vdi::Field::sm_config), None);
    sim_host.works();
    sim_host.done("PBD.plug", [link.value()]).await;
    assert_eq!(sim_host.get(&link, pbd::Field::currently_attached), yes());
    sim_host.until(|host| host.left() == 0).await;
    sim_host.quiet().await;
    sim_host.assert_clean();
}

/// A disk that changes to a merged image is not in use.
#[tokio::test]
async fn a_disk_is_destroyed_while_it_changes_its_images() {
    let sim_host = SimulatedHost::new().await;
    let disk = sim_host.disk().await;
    sim_host.behaves(CallKind::SwitchMerge, SimResult::Hangs);
    sim_host.sim.add_merges(sim_host.sr_id(), 1);
    sim_host.scan().await;
    sim_host.until(|host| host.merge("pending").is_some()).await;
    let destroyed = sim_host.test_app.call("VDI.destroy", [disk.value()]);
    let meanwhile = async {
        tokio::task::yield_now().await;
        sim_host.works();
    };
    let (destroyed, ()) = tokio::join!(destroyed, meanwhile);
    destroyed.unwrap();
    sim_host.until(|host| host.left() == 0).await;
    sim_host.quiet().await;
    sim_host.assert_clean();
}
