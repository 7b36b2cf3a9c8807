//! Tests of VM operations on a simulated host, by API calls.

pub(super) use std::collections::BTreeMap;
pub(super) use std::sync::Arc;

pub(super) use model::id::VmId;
pub(super) use toolstack::sim::Sim;
pub(super) use xenapi::table::{FieldIx, sr, vbd, vm};
pub(super) use xenapi::{NULL_REF, Value};

pub(super) use crate::db::Ref;
pub(super) use crate::dispatch::text;
pub(super) use crate::ops::pending_op::{self, PendingOp};
pub(super) use crate::reconcile;
pub(super) use crate::records::fields::{references, uuid};
pub(super) use crate::tests::app::TestApp;

/// Daemon with an attached SR on a simulated host.
pub(crate) struct SimulatedHost {
    pub(crate) test_app: TestApp,
    pub(crate) sim: Arc<Sim>,
}

/// Size of the test VDIs, in bytes.
pub(crate) const DISK_BYTES: i64 = 1 << 20;
/// Boot ID of the simulated host.
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

/// Runs one life of the daemon. The end of the runtime aborts all of its tasks.
pub(crate) fn life<T>(run: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(run)
}

impl SimulatedHost {
    pub(crate) async fn new() -> Self {
        Self::on(TestApp::new().await).await
    }

    /// Creates a busy host, where one VM boots at a time.
    pub(crate) async fn busy() -> Self {
        Self::on(TestApp::busy().await).await
    }

    async fn on(test_app: TestApp) -> Self {
        let sim = test_app.sim.clone();
        let sim_host = Self { test_app, sim };
        sim_host.begin(BOOT).await;
        sim_host
    }

    /// Waits until everything is stored, including observed changes. Later changes are lost by a
    /// kill.
    pub(crate) async fn stored(&self) {
        self.test_app.app.persistence.wait_attempt().await.unwrap();
    }

    /// Kills the daemon: changes not stored yet are lost. The end of the runtime ends its tasks.
    pub(crate) fn killed(&self) {
        self.test_app.app.persistence.abandon();
    }

    /// Restarts the daemon with the stored state, on the same host.
    pub(crate) async fn again(self, boot: &str) -> Self {
        let sim_host = self.opened().await;
        sim_host.begin(boot).await;
        sim_host
    }

    /// Restarts the daemon like `again`, but without the discovery of the host.
    pub(crate) async fn opened(self) -> Self {
        let TestApp { app, hands, store, .. } = self.test_app;
        // The store must be closed before it is opened again.
        drop(app);
        let test_app = TestApp::of(hands, store, self.sim.clone()).await;
        Self { test_app, sim: self.sim }
    }

    pub(crate) async fn begin(&self, boot: &str) {
        let domain_info = self.test_app.app.machines.discover().await.unwrap();
        reconcile::begin(&self.test_app.app, &domain_info, boot).await;
    }

    /// Creates a VM from the template for installation media, without its disk and CD drive.
    pub(crate) async fn machine(&self) -> Ref {
        let template = self.template("Other install media").await;
        let machine = self.made("VM.clone", [template.value(), Value::text("t")]).await;
        let without = [machine.value(), Value::text("disks")];
        self.done("VM.remove_from_other_config", without).await;
        for drive in self.slots(&machine) {
            self.done("VBD.destroy", [drive.value()]).await;
        }
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

    /// Returns the parameters of a new VDI.
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

    /// Returns the parameters of a new VBD of this type.
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

    /// Creates a VDI with a VBD in a VM.
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

    /// Returns the recorded pending op of a VM.
    pub(crate) fn owed(&self, machine: &Ref) -> Option<PendingOp> {
        self.test_app.app.db.read(|view| pending_op::of(view, machine))
    }

    /// Waits until a condition on the records holds. Checks it after each change.
    pub(crate) async fn until(&self, is: impl Fn(&Self) -> bool) {
        let mut changed = self.test_app.app.db.changed();
        while !is(self) {
            changed.changed().await.unwrap();
        }
    }

    /// Returns the names of the messages, oldest first.
    pub(crate) fn messages(&self) -> Vec<String> {
        self.of_messages(xenapi::table::message::Field::name)
    }

    /// Returns the bodies of the messages, oldest first.
    pub(crate) fn bodies(&self) -> Vec<String> {
        self.of_messages(xenapi::table::message::Field::body)
    }

    fn of_messages(&self, field: xenapi::table::message::Field) -> Vec<String> {
        self.test_app.app.db.read(|view| {
            let all = view.all(&xenapi::table::message::CLASS);
            all.map(|one| text(one.get(field.into()).unwrap()).to_owned()).collect()
        })
    }

    /// Asserts that no driver was misused and that no resources of VMs remain.
    pub(crate) fn assert_clean(&self) {
        assert_eq!(self.sim.broken(), Vec::<String>::new());
        assert_eq!(self.sim.leftovers(), Vec::<String>::new());
    }
}
