//! The reactors of a process, and which of them gets the next queue.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use reactor::{Handle, Reactor};

/// Most reactors of a process, unless more are asked for: the documents' rule.
pub const DEFAULT_MAX_REACTORS: usize = 16;

/// Reactors, with the number of queues on each. Dropping it ends them.
#[derive(Debug)]
pub struct Pool {
    reactors: Vec<Reactor>,
    queues: Arc<Mutex<Vec<usize>>>,
}

/// A queue's place on a reactor; dropping it gives the place back.
#[derive(Debug)]
pub struct Place {
    handle: Handle,
    index: usize,
    queues: Arc<Mutex<Vec<usize>>>,
}

fn lock(queues: &Mutex<Vec<usize>>) -> MutexGuard<'_, Vec<usize>> {
    // Every change is one addition: a panic elsewhere leaves it whole.
    queues.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One reactor for each CPU that this process may use, up to [`DEFAULT_MAX_REACTORS`].
pub fn default_count() -> usize {
    std::thread::available_parallelism().map_or(1, |cpus| cpus.get().min(DEFAULT_MAX_REACTORS))
}

impl Pool {
    /// Starts `count` reactors, at least one.
    ///
    /// # Errors
    /// The kernel refuses threads or rings.
    pub fn start(count: usize) -> io::Result<Self> {
        let reactors = (0..count.max(1)).map(|at| Reactor::spawn(format!("reactor-{at}")));
        let reactors = reactors.collect::<Result<Vec<_>, _>>()?;
        let queues = Arc::new(Mutex::new(vec![0; reactors.len()]));
        Ok(Self { reactors, queues })
    }

    /// A place on the reactor with the fewest queues.
    pub fn place(&self) -> Place {
        let mut queues = lock(&self.queues);
        let index = least(&queues);
        if let Some(count) = queues.get_mut(index) {
            *count += 1;
        }
        drop(queues);
        let reactor = self.reactors.get(index).expect("there is a count for each reactor");
        Place { handle: reactor.handle().clone(), index, queues: self.queues.clone() }
    }

    /// Each reactor, with the queues on it.
    pub fn reactors(&self) -> Vec<(&Handle, usize)> {
        let queues = lock(&self.queues).clone();
        self.reactors.iter().map(Reactor::handle).zip(queues).collect()
    }
}

impl Place {
    /// The reactor.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(count) = lock(&self.queues).get_mut(self.index) {
            *count = count.saturating_sub(1);
        }
    }
}

/// Index of the smallest count, the first of several.
fn least(counts: &[usize]) -> usize {
    let smallest = counts.iter().enumerate().min_by_key(|(at, count)| (**count, *at));
    smallest.map_or(0, |(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_go_where_the_fewest_are() {
        let pool = Pool::start(3).unwrap();
        let counts = || pool.reactors().iter().map(|(_, queues)| *queues).collect::<Vec<_>>();
        let mut places: Vec<_> = (0..7).map(|_| pool.place()).collect();
        assert_eq!(counts(), [3, 2, 2]);
        // The fourth was the second on the first reactor.
        drop(places.remove(3));
        drop(places.remove(1));
        assert_eq!(counts(), [2, 1, 2]);
        let next = pool.place();
        assert_eq!(counts(), [2, 2, 2]);
        drop((places, next));
        assert_eq!(counts(), [0, 0, 0]);
    }
}
