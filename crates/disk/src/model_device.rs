//! Device that a model describes, in real time: requests of files end when the model says so.
//!
//! Channels of several reactors submit commands. The channel that learns of the next end sets a timer
//! for it. Its reactor then hands out all ends that have come, and wakes the channels of others.

use std::collections::BTreeSet;
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
    /// Times at which a timer of a channel ends, in the model's time.
    timers: BTreeSet<(u64, u32)>,
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
    needs_look: Arc<AtomicBool>,
}

impl Member {
    /// Makes the channel look.
    fn wake(&self, context: &mut Context<'_>) {
        self.needs_look.store(true, Ordering::Release);
        let Some(poller) = self.poller else { return };
        if self.handle.number() == context.reactor() {
            context.wake(poller);
        } else {
            // A reactor that has ended needs none.
            let _ = self.handle.send(move |context| context.wake(poller));
        }
    }
}

impl ModelDevice {
    /// Creates an idle device.
    pub fn new(config: DeviceConfig) -> Arc<Self> {
        let (commands, channels, timers, done) = Default::default();
        Arc::new(Self(Mutex::new(Inner {
            device: Device::new(config),
            start_ns: None,
            now_ns: 0,
            next_disk: 0,
            commands,
            channels,
            timers,
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
    /// Hands out the ends that have come. Returns the time of a timer that channel `own` is to set.
    fn turn(&mut self, context: &mut Context<'_>, own: u32) -> Option<Duration> {
        let mut done = std::mem::take(&mut self.done);
        self.device.reap(self.now_ns, &mut done);
        for id in done.drain(..) {
            let Some(Owner { channel, slot }) = self.commands.remove(id as u32) else { continue };
            let Some(member) = channel.and_then(|it| self.channels.get_mut(it)) else { continue };
            member.ended.push(slot);
            member.wake(context);
        }
        self.done = done;
        let next = self.device.next_event()?;
        if self.timers.first().is_some_and(|(timer, _)| *timer <= next) {
            return None;
        }
        self.timers.insert((next, own));
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
        let mut done = std::mem::take(&mut inner.done);
        inner.device.reap(inner.now_ns, &mut done);
        inner.done = done;
        let id = inner.commands.insert(Owner { channel: Some(self.channel), slot });
        inner.device.submit(inner.now_ns, Command { id: id.into(), ..command });
        inner.turn(context, self.channel)
    }

    /// Returns whether [`Self::look`] has something to do.
    #[inline]
    pub(crate) fn needs_look(&self) -> bool {
        self.needs_look.load(Ordering::Relaxed)
    }

    /// Notes that a timer of the channel has ended.
    pub(crate) fn end_timer(&self) {
        let inner = &mut *self.device.lock();
        let own = inner.timers.iter().find(|(_, channel)| *channel == self.channel).copied();
        if let Some(timer) = own {
            inner.timers.remove(&timer);
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
        let timer = inner.turn(context, self.channel);
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
        for id in gone {
            if let Some(owner) = inner.commands.get_mut(id) {
                owner.channel = None;
            }
        }
        let timers = inner.timers.len();
        inner.timers.retain(|(_, channel)| *channel != self.channel);
        // Others may wait for a timer of this channel.
        if inner.timers.len() < timers
            && let Some((_, member)) = inner.channels.iter().next()
        {
            member.needs_look.store(true, Ordering::Release);
            if let Some(poller) = member.poller {
                let _ = member.handle.send(move |context| context.wake(poller));
            }
        }
    }
}
