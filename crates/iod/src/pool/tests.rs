//! Placement of queues, and their moves.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::load::{LoadSource, ReactorLoads};
use super::*;

const SECOND_NS: u64 = 1_000_000_000;

#[test]
fn queues_go_where_the_fewest_are() {
    let pool = Pool::start(PoolSize::asked(3)).unwrap();
    let counts = || pool.reactors().iter().map(|(_, queues)| *queues).collect::<Vec<_>>();
    let mut places: Vec<_> = (0..7).map(|_| pool.place()).collect();
    assert_eq!(counts(), [3, 2, 2]);
    // The fourth queue was the second one on the first reactor.
    drop(places.remove(3));
    drop(places.remove(1));
    assert_eq!(counts(), [2, 1, 2]);
    let next = pool.place();
    assert_eq!(counts(), [2, 2, 2]);
    drop((places, next));
    assert_eq!(counts(), [0, 0, 0]);
}

#[test]
fn switches_have_half_of_the_reactors_that_a_host_gets() {
    let host = model::sizing::Host { cpus: 4, memory_bytes: 64 << 30 };
    for (size, all, first) in [(PoolSize::of(host), 4, 2), (PoolSize::asked(3), 3, 3)] {
        let pool = Pool::start(size).unwrap();
        assert_eq!((pool.reactors().len(), pool.of_networks().len()), (all, first));
        let places: Vec<_> = (0..all * 2).map(|_| pool.place_in_networks()).collect();
        let of_networks: Vec<_> = pool.of_networks().iter().map(|one| one.number()).collect();
        assert!(
            places
                .iter()
                .all(|reactor_lease| of_networks.contains(&reactor_lease.handle().number()))
        );
        let used = pool.reactors().iter().filter(|(_, queues)| *queues > 0).count();
        assert_eq!(used, first, "all of them are used");
    }
}

/// Queue of a disk, with a counter that a test sets.
#[derive(Clone, Debug)]
struct Made {
    label: OwnerId,
    busy: Arc<AtomicU64>,
    movable: bool,
}

impl LoadSource for Made {
    fn busy_ns(&self) -> Option<u64> {
        Some(self.busy.load(Ordering::Relaxed))
    }

    fn label(&self) -> OwnerId {
        self.label
    }

    fn can_move(&self) -> bool {
        self.movable
    }
}

/// Queues on reactors, and a clock.
struct Scene {
    loads: ReactorLoads<Made>,
    lodgers: BTreeMap<u64, Made>,
    now_ns: u64,
}

impl Scene {
    fn new(reactors: usize) -> Self {
        Self { loads: ReactorLoads::new(reactors), lodgers: BTreeMap::new(), now_ns: SECOND_NS }
    }

    fn put(&mut self, reactor: usize, label: OwnerId, movable: bool) -> u64 {
        let made = Made { label, busy: Arc::default(), movable };
        let id = self.loads.add(reactor, made.clone(), self.now_ns);
        self.lodgers.insert(id, made);
        id
    }

    /// Places a queue as a pool does. Returns its reactor.
    fn place(&mut self, label: OwnerId) -> usize {
        self.loads.read(self.now_ns);
        let at = self.loads.least(usize::MAX, label);
        self.put(at, label, true);
        at
    }

    /// Advances the clock by a second in which each of these queues has this load in thousandths.
    fn second(&mut self, busy: &[(u64, u64)]) {
        for (id, load) in busy {
            self.lodgers[id].busy.fetch_add(load * SECOND_NS / 1000, Ordering::Relaxed);
        }
        self.now_ns += SECOND_NS;
        self.loads.read(self.now_ns);
    }
}

#[test]
fn the_queues_of_a_disk_use_every_reactor() {
    let mut scene = Scene::new(4);
    // Idle queues of other owners are placed unevenly.
    let idle: Vec<_> = (0..12).map(|at| (scene.put(at % 2, 9, true), 0)).collect();
    scene.second(&idle);
    let mut placed: Vec<_> = (0..8).map(|_| scene.place(1)).collect();
    placed.sort_unstable();
    assert_eq!(placed, [0, 0, 1, 1, 2, 2, 3, 3]);
}

#[test]
fn the_next_queue_goes_where_the_least_is_done() {
    let mut scene = Scene::new(2);
    let busy = scene.put(0, 1, true);
    let idle: Vec<_> = (0..20).map(|_| (scene.put(1, 2, true), 1)).collect();
    scene.second(&[&idle[..], &[(busy, 600)]].concat());
    // Twenty idle queues weigh less than one busy queue.
    assert_eq!(scene.place(3), 1);
    // Past load does not count: after one idle second, the queue is idle like the others.
    scene.second(&[]);
    assert_eq!(scene.place(3), 0);
}

#[test]
fn what_comes_at_once_is_spread_though_nobody_knows_how_busy_it_will_be() {
    let mut scene = Scene::new(2);
    let busy = scene.put(0, 1, true);
    scene.second(&[(busy, 400)]);
    let placed: Vec<_> = (0..8).map(|_| scene.place(2)).collect();
    let there = placed.iter().filter(|at| **at == 0).count();
    assert!((2..=4).contains(&there), "{placed:?}");
}

#[test]
fn a_counter_that_begins_anew_and_a_clock_that_stands_still_do_no_harm() {
    let mut scene = Scene::new(2);
    let (id, idle) = (scene.put(0, 1, true), scene.put(1, 1, true));
    scene.second(&[(id, 900), (idle, 0)]);
    assert_eq!(scene.place(2), 1);
    scene.loads.remove(idle).unwrap();
    scene.lodgers[&id].busy.store(3, Ordering::Relaxed);
    scene.second(&[]);
    for now_ns in [scene.now_ns, 0, u64::MAX] {
        scene.loads.read(now_ns);
        assert_eq!(scene.place(2), 0, "at {now_ns}");
        scene.loads.remove(*scene.lodgers.keys().last().unwrap()).unwrap();
    }
    assert_eq!(scene.loads.find_imbalance(), []);
}

#[test]
fn a_reactor_with_two_busy_queues_more_than_another_gives_one_away() {
    let mut scene = Scene::new(3);
    let busy: Vec<_> = (0..4).map(|_| scene.put(0, 1, true)).collect();
    let (light, other) = (scene.put(0, 1, true), scene.put(1, 2, true));
    let mut all: Vec<_> = busy.iter().map(|id| (*id, 240)).collect();
    all.extend([(light, 30), (other, 500)]);
    // No load is known yet.
    assert_eq!(scene.loads.find_imbalance(), []);
    scene.second(&all);
    // Two of the four move to the empty reactor. The result of 2, 1 and 2 is even.
    let moves = scene.loads.find_imbalance();
    assert_eq!(moves.len(), 2, "{moves:?}");
    assert!(moves.iter().all(|(id, to)| busy.contains(id) && *to == 2), "{moves:?}");
    for (id, to) in moves {
        let twin = scene.loads.add_move_target(id, to).unwrap();
        let (_, event) = scene.loads.remove(id).unwrap();
        assert!(!event, "a move is no reason for another look");
        scene.loads.moved([id, twin]);
        assert!(scene.loads.remove(twin).unwrap().1);
        scene.loads.add(to, scene.lodgers[&id].clone(), scene.now_ns);
    }
    assert_eq!(scene.loads.find_imbalance(), []);
}

#[test]
fn what_cannot_move_or_would_not_help_stays() {
    let mut scene = Scene::new(2);
    let pinned: Vec<_> = (0..3).map(|_| (scene.put(0, 1, false), 300)).collect();
    scene.second(&pinned);
    assert_eq!(scene.loads.find_imbalance(), []);
    // The other reactor has the same load in smaller parts.
    let mut scene = Scene::new(2);
    let mut all: Vec<_> = (0..2).map(|_| (scene.put(0, 1, true), 300)).collect();
    all.extend((0..6).map(|_| (scene.put(1, 2, true), 100)));
    scene.second(&all);
    assert_eq!(scene.loads.find_imbalance(), []);
}

/// Queue that counts requests to move it, and releases its lease like a queue that moves.
#[derive(Debug, Default)]
struct Movable {
    reactor_lease: Mutex<Option<ReactorLease>>,
}

impl QueueMover for Movable {
    fn move_queue(&self, from: u64, to: ReactorLease) -> bool {
        let mut reactor_lease = self.reactor_lease.lock().unwrap();
        assert_eq!(reactor_lease.as_ref().map(ReactorLease::id), Some(from));
        *reactor_lease = Some(to);
        true
    }
}

/// Places four queues at once, of which every second one is half busy.
fn come(pool: &Pool) -> Vec<Arc<Movable>> {
    let clock = Arc::new(|| reactor::clock_ns() / 2);
    let tenants: Vec<Arc<Movable>> = (0..4).map(|_| Arc::default()).collect();
    for (tenant, at) in tenants.iter().zip(0..) {
        let weak = Arc::downgrade(tenant);
        let reactor_lease = pool.place_queue(PlacedQueue {
            label: 1,
            busy_ns: if at % 2 == 0 { Some(clock.clone()) } else { Some(Arc::new(|| 0)) },
            queue_mover: Some(weak),
        });
        *tenant.reactor_lease.lock().unwrap() = Some(reactor_lease);
    }
    tenants
}

fn wait_for_a_move(pool: &Pool) {
    let until = Instant::now() + Duration::from_secs(20);
    while pool.moves() == 0 {
        assert!(Instant::now() < until, "nothing has moved");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_is_busy_moves_when_something_comes_and_only_then() {
    let pool = Pool::start(PoolSize::asked(2)).unwrap();
    // All busy queues are on the first reactor.
    let _tenants = come(&pool);
    wait_for_a_move(&pool);
    let counts: Vec<_> = pool.reactors().iter().map(|(_, queues)| *queues).collect();
    assert_eq!((pool.moves(), counts), (1, vec![1, 3]));
}

#[test]
fn what_comes_just_before_the_decision_is_measured_and_moves_too() {
    let pool = Pool::start(PoolSize::asked(2)).unwrap();
    let idle = PlacedQueue { label: 2, busy_ns: Some(Arc::new(|| 0)), queue_mover: None };
    let _idle = pool.place_queue(idle);
    // All busy queues are on the second reactor, and no queue is placed after them.
    std::thread::sleep(Duration::from_millis(200));
    let _tenants = come(&pool);
    wait_for_a_move(&pool);
}

#[test]
fn what_comes_is_measured_by_the_next_reading_unless_nobody_counts() {
    let mut scene = Scene::new(2);
    assert!(!scene.loads.unmeasured());
    let id = scene.put(0, 1, true);
    assert!(scene.loads.unmeasured());
    let twin = scene.loads.add_move_target(id, 1).unwrap();
    scene.loads.remove(id).unwrap();
    scene.loads.moved([id, twin]);
    assert!(scene.loads.unmeasured(), "where it goes makes it no better known");
    scene.second(&[]);
    assert!(!scene.loads.unmeasured());
    let pool = Pool::start(PoolSize::asked(2)).unwrap();
    let _place = pool.place();
    assert!(!lock(&pool.shared.placements).loads.unmeasured());
}
