//! Device that a model describes, in real time: requests of files end when the model says so.
//!
//! Channels of several reactors submit commands. Each sets a timer for the next end of its own
//! commands, so that no reactor waits for another. A channel that starts a command of another one, by
//! reaping an end, wakes it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use reactor::{Context, Handle, PollerId, Slab};
use share::device::{Command, Device, DeviceConfig};

/// Shortest time of a timer, in nanoseconds.
const SHORTEST_NS: u64 = 1000;
/// Bytes after which disks begin again at the start of the device.
const SPAN_BYTES: u64 = 1 << 40;

/// Device that a model describes, for tests and measurements. Its bytes are those of the files.
#[derive(Debug)]
pub struct ModelDevice(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    device: Device,
    /// Time of the first command in nanoseconds: the model's time 0.
    start_ns: Option<u64>,
    /// Latest time that the model knows, in nanoseconds. Reactors read the clock at different times.
    now_ns: u64,
    /// First byte of the next disk on the device.
    next_disk: u64,
    /// Owners of the commands, by their numbers.
    commands: Slab<Owner>,
    channels: Slab<Member>,
    // Kept for its capacity.
    done: Vec<u64>,
}

/// Channel of a command, and the command's number there. `None` if the channel has gone.
#[derive(Debug)]
struct Owner {
    channel: Option<u32>,
    slot: usize,
}

/// Channel that uses the device.
#[derive(Debug)]
struct Member {
    handle: Handle,
    poller: Option<PollerId>,
    ended: Vec<usize>,
    /// Times at which its timers end, in the model's time.
    timers: Vec<u64>,
    needs_look: Arc<AtomicBool>,
}

impl Member {
    /// Returns whether a timer ends by this time.
    fn has_timer(&self, by: u64) -> bool {
        self.timers.iter().any(|timer| *timer <= by)
    }

    /// Makes the channel look.
    fn wake(&self) {
        let was = self.needs_look.swap(true, Ordering::AcqRel);
        if let (false, Some(poller)) = (was, self.poller) {
            // A reactor that has ended needs none.
            let _ = self.handle.send(move |context| context.wake(poller));
        }
    }
}

impl ModelDevice {
    /// Creates an idle device.
    pub fn new(config: DeviceConfig) -> Arc<Self> {
        let (commands, channels, done) = Default::default();
        Arc::new(Self(Mutex::new(Inner {
            device: Device::new(config),
            start_ns: None,
            now_ns: 0,
            next_disk: 0,
            commands,
            channels,
            done,
        })))
    }

    /// Returns the first byte on the device of a disk of `size` bytes.
    pub(crate) fn place(&self, size: u64) -> u64 {
        let inner = &mut *self.lock();
        let place = inner.next_disk;
        inner.next_disk = place.saturating_add(size) % SPAN_BYTES;
        place
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Hands out the ends that have come. Wakes other channels than `own`, unless their timer does.
    fn reap(&mut self, own: u32) {
        let mut done = std::mem::take(&mut self.done);
        self.device.reap(self.now_ns, &mut done);
        for id in done.drain(..) {
            let Some(Owner { channel, slot }) = self.commands.remove(id as u32) else { continue };
            let Some(channel) = channel else { continue };
            let Some(member) = self.channels.get_mut(channel) else { continue };
            member.ended.push(slot);
            if channel != own && !member.has_timer(self.now_ns) {
                member.wake();
            }
        }
        self.done = done;
    }

    /// Returns the time of a timer that channel `own` is to set. Wakes others that lack one.
    fn set_timers(&mut self, own: u32) -> Option<Duration> {
        let mut next: Option<u64> = None;
        for (end, id) in self.device.running() {
            let owner = self.commands.get(id as u32).and_then(|owner| owner.channel);
            // The channel of a command may have gone. Others wait for its end, too.
            let channel = owner.unwrap_or(own);
            let Some(member) = self.channels.get(channel) else { continue };
            if channel == own {
                next = Some(next.map_or(end, |next| next.min(end)));
            } else if !member.has_timer(end) {
                member.wake();
            }
        }
        let (next, member) = (next?, self.channels.get_mut(own)?);
        if member.has_timer(next) {
            return None;
        }
        member.timers.push(next);
        Some(Duration::from_nanos(next.saturating_sub(self.now_ns).max(SHORTEST_NS)))
    }

    fn set_now(&mut self, context: &mut Context<'_>) {
        let now = context.now_ns();
        let start = *self.start_ns.get_or_insert(now);
        self.now_ns = self.now_ns.max(now.saturating_sub(start));
    }
}

/// One channel's access to a device.
#[derive(Debug)]
pub(crate) struct ModelChannel {
    device: Arc<ModelDevice>,
    channel: u32,
    needs_look: Arc<AtomicBool>,
}

impl ModelChannel {
    /// Enters a channel of the poller that is being made or called.
    pub(crate) fn enter(device: &Arc<ModelDevice>, context: &Context<'_>) -> Self {
        let needs_look = Arc::new(AtomicBool::new(false));
        let member = Member {
            handle: context.handle(),
            poller: context.poller(),
            ended: Vec::new(),
            timers: Vec::new(),
            needs_look: Arc::clone(&needs_look),
        };
        let channel = device.lock().channels.insert(member);
        Self { device: Arc::clone(device), channel, needs_look }
    }

    /// Submits a command, whose number is chosen here. `slot` is its number in the channel. Returns the
    /// time of a timer to set.
    pub(crate) fn submit(
        &self,
        context: &mut Context<'_>,
        slot: usize,
        command: Command,
    ) -> Option<Duration> {
        let inner = &mut *self.device.lock();
        inner.set_now(context);
        // Ends that have come let commands start that waited.
        inner.reap(self.channel);
        if let Some(member) = inner.channels.get(self.channel).filter(|it| !it.ended.is_empty()) {
            member.wake();
        }
        let id = inner.commands.insert(Owner { channel: Some(self.channel), slot });
        inner.device.submit(inner.now_ns, Command { id: id.into(), ..command });
        inner.set_timers(self.channel)
    }

    /// Returns whether [`Self::look`] has something to do.
    #[inline]
    pub(crate) fn needs_look(&self) -> bool {
        self.needs_look.load(Ordering::Relaxed)
    }

    /// Notes that a timer of the channel has ended.
    pub(crate) fn end_timer(&self) {
        let inner = &mut *self.device.lock();
        if let Some(member) = inner.channels.get_mut(self.channel) {
            // Timers end in order.
            let first = (0..member.timers.len()).min_by_key(|at| member.timers.get(*at));
            if let Some(first) = first {
                member.timers.swap_remove(first);
            }
        }
        self.needs_look.store(true, Ordering::Release);
    }

    /// Moves the numbers of commands that have ended into `ended`. Returns the time of a timer to set.
    pub(crate) fn look(
        &self,
        context: &mut Context<'_>,
        ended: &mut Vec<usize>,
    ) -> Option<Duration> {
        let inner = &mut *self.device.lock();
        inner.set_now(context);
        inner.reap(self.channel);
        let timer = inner.set_timers(self.channel);
        self.needs_look.store(false, Ordering::Relaxed);
        if let Some(member) = inner.channels.get_mut(self.channel) {
            ended.append(&mut member.ended);
        }
        timer
    }
}

impl Drop for ModelChannel {
    fn drop(&mut self) {
        let inner = &mut *self.device.lock();
        inner.channels.remove(self.channel);
        let own = Some(self.channel);
        let gone: Vec<u32> =
            inner.commands.iter().filter(|it| it.1.channel == own).map(|it| it.0).collect();
        for &id in &gone {
            if let Some(owner) = inner.commands.get_mut(id) {
                owner.channel = None;
            }
        }
        // Others may wait for the ends of its commands.
        if let (false, Some((_, member))) = (gone.is_empty(), inner.channels.iter().next()) {
            member.wake();
        }
    }
}
