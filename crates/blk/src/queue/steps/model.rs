//! The steps in simulated time: a device with a CPU of its own, and a driver that sleeps.
//!
//! Device and driver each have a clock; the earlier one acts. Each action takes effect when it
//! begins, so the two see one order of all actions, as the memory barriers of a real ring ensure.
//! Times are in microseconds. The costs are those of a null disk on the machine of
//! `docs/benchmarks.md`, where the model's figures can be compared with measured ones.

use super::Steps;

const SERVE: f64 = 0.1;
const PUBLISH: f64 = 0.03;
/// A system call that writes an eventfd and wakes a thread.
const CALL: f64 = 1.2;
const TAKE: f64 = 0.1;
const SUBMIT: f64 = 0.1;
const ARM: f64 = 0.05;
const SLEEP: f64 = 0.8;
const WAKE: f64 = 0.5;
/// An index moves from one CPU to the other.
const LINE: f64 = 0.08;
/// The host takes a CPU away for `STALL`, on average once in `STALL_EVERY`.
const STALL_EVERY: f64 = 500.0;
const STALL: f64 = 10.0;
/// Most requests of a turn.
const TURN: u32 = 64;

/// When the device publishes, and when it calls.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Publishing {
    /// Once, at the end of a turn.
    AtEnd,
    /// Each completion, with a call at the end of a turn if the driver wants one: SPDK's vhost.
    EachCallAtEnd,
    /// In the steps of a real queue.
    InSteps,
}

/// When a driver asks for the next call.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Arming {
    /// Before it sleeps, and looks once more: Linux.
    BeforeSleep,
    /// With each completion that it takes: the `virtio-driver` crate.
    WithEachTake,
}

#[derive(Clone, Copy)]
pub(super) enum Arrivals {
    /// So many requests in flight, each followed by another.
    Closed(u64),
    /// So many per microsecond, at random, in groups of equal size. Another CPU of the guest
    /// submits them.
    Open(f64, u64),
}

/// Results per request.
#[derive(Debug)]
pub(super) struct Figures {
    pub(super) per_us: f64,
    pub(super) calls: f64,
    /// CPU time of driver and device, without the device's polling.
    pub(super) cpu: f64,
}

/// xorshift64.
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }
}

/// Clock of one CPU.
struct Clock {
    now: f64,
    stalls_at: f64,
    busy: f64,
}

impl Clock {
    /// Spends between half of `cost` and one and a half.
    fn spend(&mut self, cost: f64, random: &mut Random) {
        let mut took = cost * (0.5 + random.unit());
        if self.now > self.stalls_at {
            self.stalls_at = self.now + random.exponential(STALL_EVERY);
            took += STALL;
        }
        self.now += took;
        self.busy += took;
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Doing {
    Work,
    /// The driver falls asleep, or the device has written the eventfd.
    Signal,
    Publish,
    Sleep,
}

/// Ring and both sides.
pub(super) struct Model {
    random: Random,
    /// A generator of its own: both ways of publishing see the same arrivals.
    arrival_random: Random,
    publishing: Publishing,
    arming: Arming,
    arrivals: Arrivals,
    wake_up: f64,
    steps: Steps,
    device: Clock,
    driver: Clock,
    device_does: Doing,
    driver_does: Doing,
    /// Time at which the sleeping driver runs again.
    wakes_at: f64,
    next_arrival: f64,
    available: u64,
    available_seen: u64,
    served: u64,
    published: u64,
    published_seen: u64,
    taken: u64,
    /// Used index at which the driver wants a call.
    event: u64,
    /// Published index at the last decision about a call.
    decided: u64,
    to_submit: u64,
    called: bool,
    turn: u32,
    /// Available index when the device looked last whether the driver is awake.
    looked_at: u64,
    calls: u64,
}

impl Model {
    pub(super) fn new(
        publishing: Publishing,
        arming: Arming,
        arrivals: Arrivals,
        wake_up: f64,
    ) -> Self {
        let mut random = Random(20_161);
        let mut clock =
            || Clock { now: 0.0, stalls_at: random.exponential(STALL_EVERY), busy: 0.0 };
        let (device, driver) = (clock(), clock());
        let (to_submit, next_arrival) = match arrivals {
            Arrivals::Closed(depth) => (depth, f64::INFINITY),
            Arrivals::Open(..) => (0, 0.0),
        };
        Self {
            random,
            arrival_random: Random(7_919),
            publishing,
            arming,
            arrivals,
            wake_up,
            steps: Steps::new(true),
            device,
            driver,
            device_does: Doing::Work,
            driver_does: Doing::Work,
            wakes_at: f64::INFINITY,
            next_arrival,
            available: 0,
            available_seen: 0,
            served: 0,
            published: 0,
            published_seen: 0,
            taken: 0,
            event: 0,
            decided: 0,
            to_submit,
            called: false,
            turn: 0,
            looked_at: 0,
            calls: 0,
        }
    }

    pub(super) fn run(mut self, requests: u64) -> Figures {
        while self.taken < requests {
            let driver_at = match self.driver_does {
                Doing::Sleep => self.wakes_at,
                _ => self.driver.now,
            };
            if self.next_arrival <= driver_at.min(self.device.now) {
                self.arrive();
            } else if driver_at <= self.device.now {
                self.drive(driver_at);
            } else {
                self.serve(driver_at.min(self.next_arrival));
            }
        }
        let n = self.taken as f64;
        Figures {
            per_us: n / self.driver.now.max(self.device.now),
            calls: self.calls as f64 / n,
            cpu: (self.driver.busy + self.device.busy) / n,
        }
    }

    fn arrive(&mut self) {
        let Arrivals::Open(rate, group) = self.arrivals else { return };
        self.available += group;
        self.driver.busy += SUBMIT * group as f64;
        self.next_arrival += self.arrival_random.exponential(group as f64 / rate);
    }

    fn drive(&mut self, at: f64) {
        self.driver.now = at;
        let cost = match self.driver_does {
            Doing::Sleep => {
                self.driver_does = Doing::Work;
                (self.wakes_at, self.called) = (f64::INFINITY, false);
                WAKE
            }
            Doing::Signal => {
                // A call that came meanwhile keeps it awake.
                self.driver_does = if self.called { Doing::Work } else { Doing::Sleep };
                self.called = false;
                0.0
            }
            Doing::Publish => {
                self.available += 1;
                self.to_submit -= 1;
                self.driver_does = Doing::Work;
                0.0
            }
            Doing::Work => self.take_or_submit(),
        };
        self.driver.spend(cost, &mut self.random);
    }

    /// The driver takes all completions, then submits as many requests, one by one, then sleeps.
    fn take_or_submit(&mut self) -> f64 {
        if self.published_seen > self.taken {
            self.taken += 1;
            self.to_submit += u64::from(matches!(self.arrivals, Arrivals::Closed(_)));
            if self.arming == Arming::WithEachTake {
                self.event = self.taken;
            }
            return TAKE;
        }
        if self.published > self.taken {
            self.published_seen = self.published;
            return LINE;
        }
        if self.to_submit > 0 {
            self.driver_does = Doing::Publish;
            return SUBMIT;
        }
        if self.arming == Arming::BeforeSleep && self.event != self.taken {
            self.event = self.taken;
            return ARM;
        }
        self.driver_does = Doing::Signal;
        SLEEP
    }

    /// One action of the device. Nothing else happens before `next`.
    fn serve(&mut self, next: f64) {
        let cost = match self.device_does {
            Doing::Publish => self.publish(),
            Doing::Signal => {
                self.device_does = Doing::Work;
                self.called = true;
                if self.driver_does == Doing::Sleep && self.wakes_at == f64::INFINITY {
                    self.wakes_at =
                        self.device.now + self.wake_up * (0.8 + 0.4 * self.random.unit());
                }
                0.0
            }
            _ if self.served < self.available_seen && self.turn < TURN => {
                if self.turn == 0 {
                    self.steps.begin_turn((self.available_seen - self.served) as u16);
                    self.looked_at = self.available;
                }
                self.turn += 1;
                self.served += 1;
                let due = match self.publishing {
                    Publishing::AtEnd => false,
                    Publishing::EachCallAtEnd => true,
                    Publishing::InSteps => self.steps.request_ended(),
                };
                if due {
                    self.device_does = Doing::Publish;
                }
                SERVE
            }
            _ if self.available_seen < self.available && self.turn < TURN => {
                self.available_seen = self.available;
                LINE
            }
            _ if self.decided < self.served => {
                (self.device_does, self.turn) = (Doing::Publish, 0);
                0.0
            }
            _ if self.turn > 0 => {
                self.turn = 0;
                0.0
            }
            _ => return self.device.now = next.max(self.device.now + PUBLISH),
        };
        self.device.spend(cost, &mut self.random);
    }

    fn publish(&mut self) -> f64 {
        self.device_does = Doing::Work;
        self.published = self.served;
        if self.publishing == Publishing::EachCallAtEnd && self.turn > 0 {
            return PUBLISH + LINE;
        }
        let active = self.looked_at != self.available;
        self.looked_at = self.available;
        if self.publishing == Publishing::InSteps && self.turn > 0 && active {
            return PUBLISH + LINE;
        }
        let wanted = self.event >= self.decided && self.event < self.published;
        self.decided = self.published;
        if !wanted {
            return PUBLISH + LINE;
        }
        self.calls += 1;
        self.device_does = Doing::Signal;
        PUBLISH + LINE + CALL
    }
}
