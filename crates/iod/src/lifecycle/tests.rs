//! Every verb in every phase, and every end.

use super::StableState::{Active, Attached, Paused};
use super::Verb::*;
use super::VerbRefused::{Exists, NotOpen};
use super::*;

#[test]
fn a_disk_without_a_socket_is_never_active() {
    let of_active = [Activate, Pause, Resume, Resize];
    for verb in VERBS {
        let refused = verb.check_without_socket().err();
        let expected =
            of_active.contains(&verb).then_some(super::VerbRefused::NoSocket(VerbText(verb)));
        assert_eq!(refused, expected, "{verb:?}");
    }
}

const VERBS: [Verb; 14] = [
    Attach, Restore, Activate, Deactivate, Pause, Resume, Resize, Caps, Weight, Profile, Poll,
    Export, Unexport, Detach,
];
const RESTS: [StableState; 4] = [Attached, Active, Paused, StableState::Refused];

#[test]
fn every_verb_in_every_phase() {
    let work = |verb, stable_state| Ok(VerbDecision::Work(Phase::Busy(verb, stable_state)));
    let inactive = |verb| Err(super::VerbRefused::Inactive(VerbText(verb)));
    let cases = [
        (Attached, Attach, Err(Exists)),
        (Attached, Activate, work(Activate, Attached)),
        (Attached, Deactivate, Ok(VerbDecision::Nothing)),
        (Attached, Pause, inactive(Pause)),
        (Attached, Resume, inactive(Resume)),
        (Attached, Resize, inactive(Resize)),
        (Attached, Detach, work(Detach, Attached)),
        (Active, Attach, Err(Exists)),
        (Active, Activate, Ok(VerbDecision::Nothing)),
        (Active, Deactivate, work(Deactivate, Active)),
        (Active, Pause, work(Pause, Active)),
        (Active, Resume, Ok(VerbDecision::Nothing)),
        (Active, Resize, work(Resize, Active)),
        (Active, Detach, work(Detach, Active)),
        (Paused, Attach, Err(Exists)),
        (Paused, Activate, Err(super::VerbRefused::Paused)),
        (Paused, Deactivate, work(Deactivate, Paused)),
        (Paused, Pause, Ok(VerbDecision::Nothing)),
        (Paused, Resume, work(Resume, Paused)),
        (Paused, Resize, work(Resize, Paused)),
        (Paused, Detach, work(Detach, Paused)),
        (StableState::Refused, Attach, Err(Exists)),
        (StableState::Refused, Activate, work(Restore, Active)),
        (StableState::Refused, Deactivate, Err(NotOpen)),
        (StableState::Refused, Pause, Err(NotOpen)),
        (StableState::Refused, Resume, Err(NotOpen)),
        (StableState::Refused, Resize, Err(NotOpen)),
        (StableState::Refused, Detach, work(Detach, StableState::Refused)),
        (Attached, Caps, work(Caps, Attached)),
        (Active, Caps, work(Caps, Active)),
        (Paused, Caps, work(Caps, Paused)),
        (StableState::Refused, Caps, Err(NotOpen)),
        (Attached, Weight, work(Weight, Attached)),
        (Active, Weight, work(Weight, Active)),
        (Paused, Weight, work(Weight, Paused)),
        (StableState::Refused, Weight, Err(NotOpen)),
        (Attached, Restore, Err(Exists)),
        (Active, Restore, Err(Exists)),
        (Paused, Restore, Err(Exists)),
        (StableState::Refused, Restore, Err(Exists)),
    ];
    // Exports start and end in every open state, and polling can be changed and a profile used there.
    let open = [Attached, Active, Paused].map(|stable_state| {
        [Export, Unexport, Poll, Profile].map(|verb| (stable_state, verb, work(verb, stable_state)))
    });
    let shut =
        [Export, Unexport, Poll, Profile].map(|verb| (StableState::Refused, verb, Err(NotOpen)));
    let exports = open.into_iter().flatten().chain(shut);
    let cases: Vec<_> = cases.into_iter().chain(exports).collect();
    assert_eq!(cases.len(), RESTS.len() * VERBS.len(), "every pair");
    for (stable_state, verb, expected) in cases {
        assert_eq!(Phase::At(stable_state).begin(verb), expected, "{verb:?} when {stable_state:?}");
    }
    for at_work in VERBS {
        for stable_state in RESTS {
            let phase = Phase::Busy(at_work, stable_state);
            assert_eq!(phase.begin(Attach), Err(Exists));
            for verb in [
                Activate, Deactivate, Pause, Resume, Resize, Caps, Weight, Profile, Poll, Export,
                Unexport, Detach,
            ] {
                let busy = Err(super::VerbRefused::Busy(VerbText(at_work)));
                assert_eq!(phase.begin(verb), busy, "{verb:?} while {at_work:?}");
            }
        }
    }
}

#[test]
fn every_end() {
    let at = |stable_state| Some(Phase::At(stable_state));
    for (verb, stable_state, success, failure) in [
        (Attach, Attached, at(Attached), None),
        (Attach, Active, at(Active), None),
        (Activate, Attached, at(Active), at(Attached)),
        (Deactivate, Active, at(Attached), at(Attached)),
        (Deactivate, Paused, at(Attached), at(Attached)),
        (Pause, Active, at(Paused), at(Paused)),
        (Resume, Paused, at(Active), at(Paused)),
        (Restore, Attached, at(Attached), at(StableState::Refused)),
        (Restore, Active, at(Active), at(StableState::Refused)),
        (Restore, Paused, at(Paused), at(StableState::Refused)),
        (Detach, StableState::Refused, None, None),
        (Export, Attached, at(Attached), at(Attached)),
        (Unexport, Active, at(Active), at(Active)),
        (Resize, Active, at(Active), at(Active)),
        (Resize, Paused, at(Paused), at(Paused)),
        (Caps, Attached, at(Attached), at(Attached)),
        (Caps, Active, at(Active), at(Active)),
        (Caps, Paused, at(Paused), at(Paused)),
        (Poll, Active, at(Active), at(Active)),
        (Detach, Attached, None, None),
        (Detach, Active, None, None),
        (Detach, Paused, None, None),
    ] {
        let phase = Phase::Busy(verb, stable_state);
        assert_eq!(phase.end(true), success, "{verb:?} from {stable_state:?}");
        assert_eq!(phase.end(false), failure, "{verb:?} from {stable_state:?}");
    }
    // Without a running verb, `end` changes nothing.
    for stable_state in RESTS {
        assert_eq!(Phase::At(stable_state).end(true), at(stable_state));
        assert_eq!(Phase::At(stable_state).end(false), at(stable_state));
    }
}

#[test]
fn the_refusal_says_what_goes_on() {
    let busy = Phase::Busy(Deactivate, Active).begin(Detach).unwrap_err();
    let text = busy.to_string();
    assert_eq!(text, "the disk is being deactivated; try again when that has ended");
    let text = Phase::At(Attached).begin(Pause).unwrap_err().to_string();
    assert!(text.contains("can be paused; activate it first"), "{text}");
}
