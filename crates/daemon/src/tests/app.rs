//! Test application: records in memory, a manual clock, and a session of root.

use std::sync::Arc;
use std::time::Duration;

use model::admission::StepLimits;
use model::plan::Deadlines;
use toolstack::cgroup::Weights;
use toolstack::machines::{self, CpuTime, Drivers, HostCpus, Machines};
use toolstack::sim::{self, Sim};
use toolstack::sr::sim::SimSr;
use toolstack::store::MemoryStore;
use xenapi::envelope::{Call, Dialect};
use xenapi::table::Role;
use xenapi::table::resolve::resolve;
use xenapi::{Date, Value};

use crate::allowed_operations;
use crate::app::{AppState, OpSettings};
use crate::auth::Users;
use crate::bootstrap::{self, BootstrapInput, CpuFacts, DefaultSr, HostFacts, Product};
use crate::clock::tests::Hands;
use crate::db::{Db, Ref};
use crate::dispatch::limits::{CallLimiter, MAX_WAITS_OF_USER};
use crate::dispatch::{CallResult, Ctx, dispatch, text};
use crate::options::CalibrateMode;
use crate::peer::{Origin, Peer};
use crate::persistence::Persistence;
use crate::random;
use crate::records::{BootDirs, DbRecords, first_domid};
use crate::sessions::{Session, Sessions};
use crate::slices::Slices;
use crate::storage::Storage;

/// Application after its first start.
pub(crate) struct TestApp {
    pub(crate) app: Arc<AppState>,
    pub(crate) hands: Hands,
    pub(crate) session: Ref,
    /// Store of the records.
    pub(crate) store: MemoryStore,
    /// Simulated host.
    pub(crate) sim: Arc<Sim>,
}

/// Host whose CPUs are never idle.
#[derive(Debug)]
struct BusyCpus;

impl HostCpus for BusyCpus {
    fn read(&self) -> CpuTime {
        CpuTime::default()
    }
}

/// Longest time for a call to an SR. Calls that work return at once.
const TRIAL_DEADLINE: Duration = Duration::from_secs(4);

/// URL of the server.
pub(crate) const URL: &str = "https://127.0.0.1:8443";

/// Returns a client on the Unix socket.
pub(crate) fn peer() -> Peer {
    Peer { from: Origin::Unix, user_agent: None, connection_session: None }
}

/// Returns a host with two CPUs and 8 GiB.
pub(crate) fn facts() -> HostFacts {
    let cpu = CpuFacts { model_name: "A CPU".into(), mhz: 2500, ..CpuFacts::default() };
    HostFacts {
        hostname: "trial".into(),
        kernel: "6.1.0".into(),
        cpus: vec![cpu.clone(), cpu],
        sockets: 1,
        memory_total: 8 << 30,
        memory_free: 4 << 30,
    }
}

/// Creates the records of a first start. Returns their generation.
pub(crate) fn make_first(db: &Db, facts: &HostFacts) -> u64 {
    let product =
        Product { brand: "Ringway".into(), version: "7.0.0".into(), platform: "2.1.0".into() };
    let setup = BootstrapInput {
        host: facts,
        address: "127.0.0.1",
        url: URL,
        product: &product,
        kinds: &[Arc::new(SimSr::new(&Sim::new(), "dir"))],
        bridge: "rwbr0",
        boot: &[],
        slices: "none",
        now: Date(0),
    };
    let made = db.change(|tx| {
        if bootstrap::is_first(tx) {
            let id = model::id::SrId(model::id::Uuid::from_random([7; 16]));
            let sr = DefaultSr { id, kind: "dir", location: "/somewhere".into() };
            bootstrap::create_initial(tx, &setup, &sr)?;
        }
        bootstrap::refresh(tx, &setup)?;
        Ok(tx.generation())
    });
    made.unwrap()
}

impl TestApp {
    pub(crate) async fn new() -> Self {
        let hands = Hands::default();
        Self::of(hands, MemoryStore::default(), Sim::new()).await
    }

    /// Creates an application with these users in addition to the root of the host.
    pub(crate) async fn with_users(users: Users) -> Self {
        Self::built(Hands::default(), MemoryStore::default(), Sim::new(), users, None).await
    }

    /// Creates an application on a busy host, where one VM boots at a time.
    pub(crate) async fn busy() -> Self {
        let users = Users::File("/nowhere/password".into());
        let cpus = Some(Arc::new(BusyCpus) as Arc<dyn HostCpus>);
        Self::built(Hands::default(), MemoryStore::default(), Sim::new(), users, cpus).await
    }

    /// Creates an application with this stored state and simulated host.
    pub(crate) async fn of(hands: Hands, store: MemoryStore, sim: Arc<Sim>) -> Self {
        Self::built(hands, store, sim, Users::File("/nowhere/password".into()), None).await
    }

    async fn built(
        hands: Hands,
        store: MemoryStore,
        sim: Arc<Sim>,
        users: Users,
        cpus: Option<Arc<dyn HostCpus>>,
    ) -> Self {
        let opened = Persistence::open(
            Box::new(store.clone()),
            random::bytes,
            allowed_operations::update_allowed,
            Date(0),
        );
        let (db, persistence) = opened.unwrap();
        persistence.wait_generation(make_first(&db, &facts())).await.unwrap();
        let settings = OpSettings {
            boot: BootDirs::default(),
            queue_deadline: Duration::from_secs(1),
            limits: StepLimits::default(),
            calibrate: CalibrateMode::Auto,
            state: "/nowhere".into(),
            certificate: "-----BEGIN CERTIFICATE-----".to_owned(),
        };
        let boots = if cpus.is_some() { 1 } else { StepLimits::default().boots };
        let drivers = Drivers { cpus, ..sim::drivers(&sim) };
        let first_domid = first_domid(&db);
        let work = machines::MachinesConfig {
            first_domid,
            limits: StepLimits { boots, ..StepLimits::default() },
            ..machines::MachinesConfig::new("/nowhere".into())
        };
        let clock = hands.clock();
        let records = Arc::new(DbRecords::new(
            db.clone(),
            clock.clone(),
            BootDirs::default(),
            Deadlines::default(),
            URL.to_owned(),
        ));
        let machines = Machines::new(drivers.clone(), records, work);
        let app = Arc::new(AppState {
            db,
            persistence,
            sessions: Sessions::new(hands.clock(), users),
            tasks: Default::default(),
            call_limiter: Default::default(),
            wait_limiter: CallLimiter::new(usize::MAX, MAX_WAITS_OF_USER),
            writes: Default::default(),
            restarts: Default::default(),
            machines,
            storage: Storage::new(&drivers, TRIAL_DEADLINE),
            coalescer: Default::default(),
            drivers,
            slices: Slices::none(Weights::default()).into(),
            clock,
            settings,
        });
        let params = ["root", ""].map(Value::text).to_vec();
        let call =
            Call { method: "session.login_with_password".into(), params, dialect: Dialect::Xml };
        let session = dispatch(&app, call, &peer()).await.unwrap();
        let session = Ref::from(text(&session));
        Self { app, hands, session, store, sim }
    }

    /// Makes a call with exactly these parameters.
    pub(crate) async fn raw(&self, method: &str, params: Vec<Value>) -> CallResult {
        let call = Call { method: method.into(), params, dialect: Dialect::Xml };
        dispatch(&self.app, call, &peer()).await
    }

    /// Makes a call in root's session.
    pub(crate) async fn call(
        &self,
        method: &str,
        params: impl IntoIterator<Item = Value>,
    ) -> CallResult {
        let session = std::iter::once(self.session.value());
        self.raw(method, session.chain(params).collect()).await
    }

    /// Makes a call in root's session that must succeed with a reference.
    pub(crate) async fn made(&self, method: &str, params: impl IntoIterator<Item = Value>) -> Ref {
        Ref::from(text(&self.call(method, params).await.unwrap()))
    }

    /// Makes a call in root's session that must fail. Returns its code and parameters.
    pub(crate) async fn refused(
        &self,
        method: &str,
        params: impl IntoIterator<Item = Value>,
    ) -> Vec<String> {
        self.call(method, params).await.unwrap_err().details()
    }

    /// Returns the context of a call by another user.
    pub(crate) fn ctx_of(&self, user: &str, role: Role, method: &str) -> Ctx {
        let (method, _) = resolve(method).unwrap();
        let session = Session {
            reference: self.app.new_ref(),
            user: user.into(),
            role,
            root: false,
            from: Origin::Unix,
        };
        Ctx::new(&self.app, session, method)
    }
}
