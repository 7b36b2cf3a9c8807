//! State of a map that its channels and its owner share.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;

use crate::format::Pieces;
use crate::journal::{EntryId, Journal};
use crate::map::{Base, Map, PageId, Place, Word, order};

/// Map and journal of an image, with the questions of its channels.
#[derive(Debug)]
pub struct Shared {
    /// The map.
    pub map: Map,
    /// The journal.
    pub journal: Journal,
    /// Number of changes of references. Raised before the request that caused one is acknowledged.
    commits: AtomicU64,
    /// Number of changes that are durable.
    durable: AtomicU64,
    /// True once a sync or a write of references failed: later flushes fail, too.
    lost: AtomicBool,
    /// Questions about busy granules that the owner keeps.
    waiters: AtomicU64,
    questions: Mutex<VecDeque<Question>>,
}

/// Question of a channel to the owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The channel that gets the answer.
    pub channel: u32,
    /// Tag that the channel chose.
    pub tag: u32,
    /// The question.
    pub kind: QuestionKind,
}

/// Kind of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuestionKind {
    /// Load the word of a granule.
    Read(u64),
    /// Return the parts of a mixed granule. The channel holds an epoch from before it loaded the
    /// word until it has read all parts that lie in the file.
    Describe(u64),
    /// Return the words of the page of a granule, for a caller that needs no map.
    Words(u64),
    /// Make a granule writable.
    Write(u64),
    /// Make whole granules zero, if the channel has not taken the claim before.
    Discard {
        /// First granule.
        granule: u64,
        /// Number of granules.
        count: u64,
        /// Claim on the question.
        claim: Claim,
    },
    /// Make all acknowledged writes durable.
    Flush,
    /// Make room in the rings of the journal.
    Fold,
    /// A channel has committed a grant, for which other requests wait. No answer.
    Committed(u64),
    /// A channel could not fill a grant. No answer.
    Failed(Grant),
}

/// Right to decide about a question: the owner takes it to carry the question out, the channel to
/// withdraw it. The first one gets it.
#[derive(Clone, Debug, Default)]
pub struct Claim(Arc<AtomicBool>);

impl Claim {
    /// Takes the claim. Returns false if it was taken before.
    pub fn take(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}

impl PartialEq for Claim {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Claim {}

/// Permission to fill a granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The granule.
    pub granule: u64,
    /// Page of its word, which stays linked while the word is busy.
    pub page: PageId,
    /// Word that holds until the commit.
    pub prior: Word,
    /// Place to fill.
    pub place: Place,
    /// Source of the blocks that the channel does not write.
    pub base: Base,
    /// Entry of the journal.
    pub entry: EntryId,
}

/// Answer of the owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The channel that asked.
    pub channel: u32,
    /// Tag of the question.
    pub tag: u32,
    /// The answer.
    pub kind: AnswerKind,
}

/// Kind of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerKind {
    /// The word may have changed: load it again.
    Look,
    /// The parts of a mixed granule.
    Pieces(Pieces),
    /// The words of a page.
    Words(Arc<[Word]>),
    /// The channel fills the granule and commits it.
    Granted(Grant),
    /// So many granules are zero, the first ones of the question. Ask for the others again.
    Zeroed(u64),
    /// The request is done, or failed.
    Done(Result<(), Errno>),
}

impl Shared {
    /// Joins an empty map and a journal.
    pub fn new(map: Map, journal: Journal) -> Self {
        Self {
            map,
            journal,
            // Entries of a former process may not be durable.
            commits: AtomicU64::new(1),
            durable: AtomicU64::new(0),
            lost: AtomicBool::new(false),
            waiters: AtomicU64::new(0),
            questions: Mutex::default(),
        }
    }

    /// Asks the owner.
    pub fn ask(&self, question: Question) {
        self.questions.lock().unwrap_or_else(PoisonError::into_inner).push_back(question);
    }

    /// Takes the oldest question.
    pub fn next_question(&self) -> Option<Question> {
        self.questions.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Returns the number of changes so far.
    pub fn commits(&self) -> u64 {
        self.commits.load(Ordering::SeqCst)
    }

    /// Counts a change of a reference, after it is in the journal and before any channel can see it:
    /// a request that relies on it needs a round to be durable.
    pub fn count_commit(&self) {
        order::count_commit(&self.commits);
    }

    /// Counts recorded blocks as a change and adds them to the mask of a word, if it is still data
    /// in the same cluster. Returns whether it was.
    pub(crate) fn add_blocks(&self, page: PageId, granule: u64, blocks: Word) -> bool {
        self.map.add_blocks(&self.commits, page, granule, blocks)
    }

    /// Notes that the first `commits` changes are durable.
    pub(crate) fn set_durable(&self, commits: u64) {
        self.durable.fetch_max(commits, Ordering::SeqCst);
    }

    /// Returns the number of changes that are not durable.
    pub(crate) fn undurable(&self) -> u64 {
        self.commits().saturating_sub(self.durable.load(Ordering::SeqCst))
    }

    /// Returns whether every change is durable. Then a flush is a sync of the file.
    pub fn is_durable(&self) -> bool {
        self.durable.load(Ordering::SeqCst) == self.commits()
    }

    /// Returns whether a flush has failed.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Notes that a flush has failed. Every later flush fails.
    pub fn set_lost(&self) {
        self.lost.store(true, Ordering::Release);
    }

    /// Counts questions that wait for a commit. The owner looks at the word again afterwards.
    pub(crate) fn set_waiters(&self, waiters: u64) {
        order::announce_waiters(&self.waiters, waiters);
    }

    /// Returns whether questions wait for a commit, after the channel has stored its word.
    pub(crate) fn has_waiters(&self) -> bool {
        order::has_waiters(&self.waiters)
    }
}
