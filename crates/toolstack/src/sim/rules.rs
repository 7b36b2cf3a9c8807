//! Rules in a file, to try slow, failing and hung hosts from outside.
//!
//! ```toml
//! cards = ["eth0"]                               # network cards that the host has
//!
//! [[rule]]
//! sr = "0b9c4be2-1c5f-4a0e-8f5a-0c1d2e3f4a5b"   # or `vm`; any, if neither is said
//! calls = ["attach-volume", "detach-volume"]     # names of `CallKind`; any, if none is said
//! every = 10                                     # one disk in so many, the first one seen first
//! after-ms = 500
//! end = "hangs"                                  # well, fails, fails-done, hangs, hangs-done
//! ```
//! The first matching rule decides. A call without a matching rule succeeds at once. The file is
//! read at the start and whenever it changes. Hanging calls then get the new behaviour. A host NIC
//! that is not named any more stays. An invalid file changes nothing and is logged.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use model::id::{SrId, Uuid, VmId};
use rustix::fs::inotify;
use rustix::fs::inotify::{CreateFlags, WatchFlags};
use serde::Deserialize;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::{Call, CallKind, Sim, SimBehaviour, SimResult};

/// Name of the file, in the simulator's directory.
pub const RULES: &str = "rules.toml";
/// Longest file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Longest delay of a call, in milliseconds. An hour equals a hang for every purpose.
const AFTER_MS_MAX: u64 = 3_600_000;
/// Buffer for changes of the directory that are read at once, in bytes.
const CHANGES_BYTES: usize = 4096;

/// Content of the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Written {
    cards: Vec<String>,
    rule: Vec<WrittenRule>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct WrittenRule {
    sr: Option<Uuid>,
    vm: Option<Uuid>,
    calls: Option<Vec<CallKind>>,
    every: Option<u64>,
    after_ms: u64,
    end: SimResult,
}

/// Valid rules.
#[derive(Debug)]
struct Rules {
    cards: Vec<String>,
    rules: Vec<OneRule>,
}

#[derive(Debug)]
struct OneRule {
    sr: Option<SrId>,
    vm: Option<VmId>,
    calls: Option<Vec<CallKind>>,
    every: Option<u64>,
    sim_behaviour: SimBehaviour,
    /// Number of each device, in the order of their first calls.
    seen: Mutex<HashMap<Uuid, u64>>,
}

impl Rules {
    fn parse(text: &str) -> Result<Self, String> {
        let written: Written = toml::from_str(text).map_err(|error| error.to_string())?;
        let rules = written.rule.into_iter().map(|rule| {
            let WrittenRule { sr, vm, calls, every, after_ms, end } = rule;
            if every == Some(0) {
                return Err("every = 0: give 1 or more".to_owned());
            }
            if after_ms > AFTER_MS_MAX {
                return Err(format!("after-ms = {after_ms}: give up to {AFTER_MS_MAX}"));
            }
            let sim_behaviour =
                SimBehaviour { after: Duration::from_millis(after_ms), sim_result: end };
            let (sr, vm) = (sr.map(SrId), vm.map(VmId));
            Ok(OneRule { sr, vm, calls, every, sim_behaviour, seen: Mutex::default() })
        });
        Ok(Self { cards: written.cards, rules: rules.collect::<Result<_, _>>()? })
    }

    /// Reads the rules of a file; none if it does not exist.
    fn read(path: &Path) -> io::Result<Self> {
        let mut text = String::new();
        match File::open(path) {
            Ok(file) => file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(io::Error::other(format!("it is longer than {FILE_BYTES_MAX} bytes")));
        }
        Self::parse(&text).map_err(io::Error::other)
    }

    /// Applies the rules from here on.
    fn hold(self, sim: &Sim) {
        for card in &self.cards {
            // Keep an existing NIC: it may be in a bridge.
            sim.state().cards.entry(card.clone()).or_default();
        }
        sim.state().cards_changed.send_replace(());
        sim.rule(move |call| self.fate(call));
    }

    fn fate(&self, call: &Call) -> SimBehaviour {
        let rule = self.rules.iter().find(|rule| rule.fits(call));
        rule.map(|rule| rule.sim_behaviour).unwrap_or_default()
    }
}

impl OneRule {
    fn fits(&self, call: &Call) -> bool {
        self.calls.as_ref().is_none_or(|calls| calls.contains(&call.call_kind))
            && self.sr.is_none_or(|sr| call.sr == Some(sr))
            && self.vm.is_none_or(|vm| call.vm == Some(vm))
            && self.every.is_none_or(|every| self.is_turn_of(call, every))
    }

    fn is_turn_of(&self, call: &Call, every: u64) -> bool {
        let Some(device) = call.device else { return false };
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let next = u64::try_from(seen.len()).unwrap_or(u64::MAX);
        seen.entry(device).or_insert(next).is_multiple_of(every)
    }
}

/// Applies the rules of this directory, and later versions of the file. Must be called within a
/// runtime.
///
/// # Errors
/// The file exists but is invalid, or the directory cannot be watched.
pub(super) fn follow(sim: &Arc<Sim>, dir: &Path) -> io::Result<()> {
    let changes = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    let written = WatchFlags::CLOSE_WRITE | WatchFlags::MOVED_TO | WatchFlags::DELETE;
    inotify::add_watch(&changes, dir, written)?;
    let path = dir.join(RULES);
    Rules::read(&path).map_err(|error| wrong(&path, &error))?.hold(sim);
    #[expect(
        deprecated,
        reason = "what takes its place needs a promise that `OwnedFd` keeps: it owns what it names"
    )]
    let changes = AsyncFd::with_interest(changes, Interest::READABLE)?;
    tokio::spawn(watch(Arc::downgrade(sim), changes, path));
    Ok(())
}

async fn watch(sim: Weak<Sim>, changes: AsyncFd<OwnedFd>, path: PathBuf) {
    while let Ok(mut ready) = changes.readable().await {
        let touched = touched(changes.get_ref());
        ready.clear_ready();
        let Some(sim) = sim.upgrade() else { return };
        if !touched {
            continue;
        }
        match Rules::read(&path) {
            Ok(rules) => rules.hold(&sim),
            Err(error) => tracing::warn!("{}; the previous rules apply", wrong(&path, &error)),
        }
    }
}

/// Reads all pending changes. Returns whether the rules changed.
fn touched(changes: &OwnedFd) -> bool {
    let mut room = [MaybeUninit::uninit(); CHANGES_BYTES];
    let mut changes = inotify::Reader::new(changes, &mut room);
    let mut touched = false;
    while let Ok(change) = changes.next() {
        touched |= change.file_name().is_some_and(|name| name.to_bytes() == RULES.as_bytes());
    }
    touched
}

fn wrong(path: &Path, error: &io::Error) -> io::Error {
    io::Error::other(format!("{} cannot be used: {error}", path.display()))
}
