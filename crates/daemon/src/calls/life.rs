//! Machines on a simulated host, by their calls.

mod addresses;
mod cards;
mod config;
mod cut;
mod devices;
mod ends;
mod guests;
mod interfaces;
mod killed;
mod live;
mod power;
mod storage;
mod taken;

use std::collections::BTreeMap;
use std::sync::Arc;

use model::id::VmId;
use toolstack::sim::Sim;
use xenapi::table::{FieldIx, sr, vbd, vm};
use xenapi::{NULL_REF, Value};

use crate::db::Ref;
use crate::dispatch::text;
use crate::reconcile;
use crate::records::fields::{references, uuid};
use crate::records::owed::{self, PendingOp};
use crate::trial::TestApp;

/// A house whose storage is connected, and the host under it.
pub(crate) struct SimulatedHost {
    pub(crate) test_app: TestApp,
    pub(crate) sim: Arc<Sim>,
}

/// Disks of the machines here, in bytes.
pub(crate) const DISK_BYTES: i64 = 1 << 20;
/// This boot of the host.
pub(crate) const BOOT: &str = "first";

pub(crate) fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

pub(crate) fn record<const N: usize>(members: [(&str, Value); N]) -> Value {
    Value::Map(members.map(|(name, value)| (name.to_owned(), value)).into())
}

pub(crate) fn none() -> Value {
    Value::Map(BTreeMap::new())
}

pub(crate) fn yes() -> Value {
    Value::Bool(true)
}

pub(crate) fn no() -> Value {
    Value::Bool(false)
}

/// One life of the daemon: whatever it was doing at the end is cut off.
pub(crate) fn life<T>(run: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(run)
}

impl SimulatedHost {
    pub(crate) async fn new() -> Self {
        let test_app = TestApp::new().await;
        let sim = test_app.sim.clone();
        let sim_host = Self { test_app, sim };
        sim_host.begin(BOOT).await;
        sim_host
    }

    /// Ends when everything is stored, also what was only noted: what comes after it is lost by an
    /// end.
    pub(crate) async fn stored(&self) {
        self.test_app.app.persistence.wait_attempt().await.unwrap();
    }

    /// The daemon is killed: what is not stored by now never is. Its life ends with its runtime.
    pub(crate) fn killed(&self) {
        self.test_app.app.persistence.abandon();
    }

    /// The daemon starts again with what was stored, on the host that is there now.
    pub(crate) async fn again(self, boot: &str) -> Self {
        let sim_host = self.opened().await;
        sim_host.begin(boot).await;
        sim_host
    }

    /// The same, before it looks at what is there.
    pub(crate) async fn opened(self) -> Self {
        let TestApp { app, hands, store, .. } = self.test_app;
        // Its store is let go of before it is opened again.
        drop(app);
        let test_app = TestApp::of(hands, store, self.sim.clone()).await;
        Self { test_app, sim: self.sim }
    }

    pub(crate) async fn begin(&self, boot: &str) {
        let domain_info = self.test_app.app.machines.discover().await.unwrap();
        reconcile::begin(&self.test_app.app, &domain_info, boot).await;
    }

    /// A machine of the template for installation media, without its disk.
    pub(crate) async fn machine(&self) -> Ref {
        let template = self.template("Other install media").await;
        let machine = self.made("VM.clone", [template.value(), Value::text("t")]).await;
        let without = [machine.value(), Value::text("disks")];
        self.done("VM.remove_from_other_config", without).await;
        self.done("VM.provision", [machine.value()]).await;
        machine
    }

    pub(crate) async fn template(&self, name: &str) -> Ref {
        let found = self.call("VM.get_by_name_label", [Value::text(name)]).await;
        let Value::Set(found) = found else { panic!("no set") };
        Ref::from(text(found.first().unwrap()))
    }

    pub(crate) async fn running(&self) -> Ref {
        let machine = self.machine().await;
        self.start(&machine).await;
        machine
    }

    pub(crate) async fn start(&self, machine: &Ref) {
        self.done("VM.start", [machine.value(), no(), no()]).await;
    }

    pub(crate) fn place(&self) -> Ref {
        self.test_app.app.db.read(|view| view.all(&sr::CLASS).next().unwrap().reference().clone())
    }

    /// What a disk is made of.
    pub(crate) fn new_disk(&self) -> Value {
        record([
            ("name_label", Value::text("d")),
            ("SR", self.place().value()),
            ("virtual_size", Value::Int(DISK_BYTES)),
            ("type", Value::text("user")),
            ("sharable", no()),
            ("read_only", no()),
            ("other_config", none()),
        ])
    }

    pub(crate) async fn disk(&self) -> Ref {
        self.made("VDI.create", [self.new_disk()]).await
    }

    /// What a device of this kind is made of.
    pub(crate) fn slot(&self, machine: &Ref, disk: Option<&Ref>, kind: &str) -> Value {
        record([
            ("VM", machine.value()),
            ("VDI", disk.map_or_else(|| Value::text(NULL_REF), Ref::value)),
            ("userdevice", Value::text("autodetect")),
            ("bootable", no()),
            ("mode", Value::text(if kind == "CD" { "RO" } else { "RW" })),
            ("type", Value::text(kind)),
            ("empty", Value::Bool(disk.is_none())),
            ("other_config", none()),
            ("qos_algorithm_type", Value::text("")),
            ("qos_algorithm_params", none()),
        ])
    }

    /// A disk of its own in a machine.
    pub(crate) async fn device(&self, machine: &Ref) -> (Ref, Ref) {
        let disk = self.disk().await;
        let slot = self.made("VBD.create", [self.slot(machine, Some(&disk), "Disk")]).await;
        (slot, disk)
    }

    pub(crate) async fn call(
        &self,
        method: &str,
        params: impl IntoIterator<Item = Value>,
    ) -> Value {
        self.test_app.call(method, params).await.unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    pub(crate) async fn done(&self, method: &str, params: impl IntoIterator<Item = Value>) {
        assert_eq!(self.call(method, params).await, Value::text(""), "{method}");
    }

    pub(crate) async fn made(&self, method: &str, params: impl IntoIterator<Item = Value>) -> Ref {
        Ref::from(text(&self.call(method, params).await))
    }

    pub(crate) async fn refused(
        &self,
        method: &str,
        params: impl IntoIterator<Item = Value>,
    ) -> Vec<String> {
        match self.test_app.call(method, params).await {
            Err(error) => error.details(),
            Ok(answer) => panic!("{method} is not refused: {answer:?}"),
        }
    }

    pub(crate) fn get(&self, of: &Ref, field: impl Into<FieldIx>) -> Value {
        self.test_app.app.db.read(|view| view.get(of, field).unwrap().clone())
    }

    pub(crate) fn power(&self, machine: &Ref) -> String {
        text(&self.get(machine, vm::Field::power_state)).to_owned()
    }

    pub(crate) fn id(&self, machine: &Ref) -> VmId {
        let db = &self.test_app.app.db;
        VmId(db.read(|view| uuid(view, machine, vm::Field::uuid)).unwrap())
    }

    pub(crate) fn slots(&self, machine: &Ref) -> Vec<Ref> {
        let db = &self.test_app.app.db;
        db.read(|view| references(view, machine, vm::Field::VBDs)).unwrap()
    }

    pub(crate) fn attached(&self, slot: &Ref) -> bool {
        self.get(slot, vbd::Field::currently_attached) == yes()
    }

    /// What the machine is owed, as it is recorded.
    pub(crate) fn owed(&self, machine: &Ref) -> Option<PendingOp> {
        self.test_app.app.db.read(|view| owed::of(view, machine))
    }

    /// Ends when this is true of the records; they are looked at when they change.
    pub(crate) async fn until(&self, is: impl Fn(&Self) -> bool) {
        let mut changed = self.test_app.app.db.changed();
        while !is(self) {
            changed.changed().await.unwrap();
        }
    }

    /// Messages by name, the oldest first.
    pub(crate) fn messages(&self) -> Vec<String> {
        self.test_app.app.db.read(|view| {
            let all = view.all(&xenapi::table::message::CLASS);
            let field = xenapi::table::message::Field::name;
            all.map(|one| text(one.get(field.into()).unwrap()).to_owned()).collect()
        })
    }

    /// Nothing was done that a real host would have suffered from, and nothing is left of machines.
    pub(crate) fn assert_clean(&self) {
        assert_eq!(self.sim.broken(), Vec::<String>::new());
        assert_eq!(self.sim.leftovers(), Vec::<String>::new());
    }
}
