//! How a disk is polled, changed while it runs.

use serde::Deserialize;

use crate::poll::{PollChange, PollMode, change};

/// Parameters of `disk.poll`. What is absent stays as it is; `null` is as the process is set.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetPoll {
    /// The disk's id.
    pub id: String,
    /// See [`DiskSpec::poll`](crate::spec::DiskSpec::poll).
    #[serde(default, deserialize_with = "change::mode")]
    pub poll: Option<Option<PollMode>>,
    /// See [`DiskSpec::poll_max_us`](crate::spec::DiskSpec::poll_max_us).
    #[serde(default, deserialize_with = "change::max_us")]
    pub poll_max_us: Option<Option<u16>>,
    /// See [`DiskSpec::poll_idle_threshold`](crate::spec::DiskSpec::poll_idle_threshold).
    #[serde(default, deserialize_with = "change::idle_threshold")]
    pub poll_idle_threshold: Option<Option<u8>>,
}

impl SetPoll {
    /// What is to change.
    pub fn change(&self) -> PollChange {
        let &Self { poll, poll_max_us, poll_idle_threshold, .. } = self;
        PollChange { poll, poll_max_us, poll_idle_threshold }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::rpc::Call;

    #[test]
    fn a_change_tells_nothing_from_null() {
        let parse = |params: Value| match Call::parse("disk.poll", params) {
            Ok(Call::DiskPoll(set)) => set.change(),
            other => panic!("{other:?}"),
        };
        let nothing = PollChange::default();
        assert_eq!(parse(json!({"id":"a"})), nothing);
        let null = PollChange { poll: Some(None), ..nothing };
        assert_eq!(parse(json!({"id":"a","poll":null})), null);
        let set = PollChange { poll_max_us: Some(Some(0)), ..nothing };
        assert_eq!(parse(json!({"id":"a","poll_max_us":0})), set);
        match Call::parse("poll.defaults", json!({"poll":"off","poll_idle_threshold":null})) {
            Ok(Call::PollDefaults(change)) => {
                assert_eq!(change.poll, Some(Some(PollMode::Off)));
                assert_eq!((change.poll_max_us, change.poll_idle_threshold), (None, Some(None)));
            }
            other => panic!("{other:?}"),
        }
    }
}
