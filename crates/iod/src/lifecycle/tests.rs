//! Every verb in every phase, and every end.

use super::Refused::{Exists, NotOpen};
use super::Rest::{Active, Attached, Paused};
use super::Verb::*;
use super::*;

const VERBS: [Verb; 12] = [
    Attach, Restore, Activate, Deactivate, Pause, Resume, Resize, Caps, Poll, Export, Unexport,
    Detach,
];
const RESTS: [Rest; 4] = [Attached, Active, Paused, Rest::Refused];

#[test]
fn every_verb_in_every_phase() {
    let work = |verb, rest| Ok(Begin::Work(Phase::Busy(verb, rest)));
    let inactive = |verb| Err(super::Refused::Inactive(Participle(verb)));
    let cases = [
        (Attached, Attach, Err(Exists)),
        (Attached, Activate, work(Activate, Attached)),
        (Attached, Deactivate, Ok(Begin::Nothing)),
        (Attached, Pause, inactive(Pause)),
        (Attached, Resume, inactive(Resume)),
        (Attached, Resize, inactive(Resize)),
        (Attached, Detach, work(Detach, Attached)),
        (Active, Attach, Err(Exists)),
        (Active, Activate, Ok(Begin::Nothing)),
        (Active, Deactivate, work(Deactivate, Active)),
        (Active, Pause, work(Pause, Active)),
        (Active, Resume, Ok(Begin::Nothing)),
        (Active, Resize, work(Resize, Active)),
        (Active, Detach, work(Detach, Active)),
        (Paused, Attach, Err(Exists)),
        (Paused, Activate, Err(super::Refused::Paused)),
        (Paused, Deactivate, work(Deactivate, Paused)),
        (Paused, Pause, Ok(Begin::Nothing)),
        (Paused, Resume, work(Resume, Paused)),
        (Paused, Resize, work(Resize, Paused)),
        (Paused, Detach, work(Detach, Paused)),
        (Rest::Refused, Attach, Err(Exists)),
        (Rest::Refused, Activate, work(Restore, Active)),
        (Rest::Refused, Deactivate, Err(NotOpen)),
        (Rest::Refused, Pause, Err(NotOpen)),
        (Rest::Refused, Resume, Err(NotOpen)),
        (Rest::Refused, Resize, Err(NotOpen)),
        (Rest::Refused, Detach, work(Detach, Rest::Refused)),
        (Attached, Caps, work(Caps, Attached)),
        (Active, Caps, work(Caps, Active)),
        (Paused, Caps, work(Caps, Paused)),
        (Rest::Refused, Caps, Err(NotOpen)),
        (Attached, Restore, Err(Exists)),
        (Active, Restore, Err(Exists)),
        (Paused, Restore, Err(Exists)),
        (Rest::Refused, Restore, Err(Exists)),
    ];
    // Exports are offered and ended wherever the disk is open, and so is polling changed.
    let open = [Attached, Active, Paused]
        .map(|rest| [Export, Unexport, Poll].map(|verb| (rest, verb, work(verb, rest))));
    let shut = [Export, Unexport, Poll].map(|verb| (Rest::Refused, verb, Err(NotOpen)));
    let exports = open.into_iter().flatten().chain(shut);
    let cases: Vec<_> = cases.into_iter().chain(exports).collect();
    assert_eq!(cases.len(), RESTS.len() * VERBS.len(), "every pair");
    for (rest, verb, expected) in cases {
        assert_eq!(Phase::At(rest).begin(verb), expected, "{verb:?} when {rest:?}");
    }
    for at_work in VERBS {
        for rest in RESTS {
            let phase = Phase::Busy(at_work, rest);
            assert_eq!(phase.begin(Attach), Err(Exists));
            for verb in
                [Activate, Deactivate, Pause, Resume, Resize, Caps, Poll, Export, Unexport, Detach]
            {
                let busy = Err(super::Refused::Busy(Participle(at_work)));
                assert_eq!(phase.begin(verb), busy, "{verb:?} while {at_work:?}");
            }
        }
    }
}

#[test]
fn every_end() {
    let at = |rest| Some(Phase::At(rest));
    for (verb, rest, success, failure) in [
        (Attach, Attached, at(Attached), None),
        (Attach, Active, at(Active), None),
        (Activate, Attached, at(Active), at(Attached)),
        (Deactivate, Active, at(Attached), at(Attached)),
        (Deactivate, Paused, at(Attached), at(Attached)),
        (Pause, Active, at(Paused), at(Paused)),
        (Resume, Paused, at(Active), at(Paused)),
        (Restore, Attached, at(Attached), at(Rest::Refused)),
        (Restore, Active, at(Active), at(Rest::Refused)),
        (Restore, Paused, at(Paused), at(Rest::Refused)),
        (Detach, Rest::Refused, None, None),
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
        let phase = Phase::Busy(verb, rest);
        assert_eq!(phase.end(true), success, "{verb:?} from {rest:?}");
        assert_eq!(phase.end(false), failure, "{verb:?} from {rest:?}");
    }
    // At rest there is nothing to end.
    for rest in RESTS {
        assert_eq!(Phase::At(rest).end(true), at(rest));
        assert_eq!(Phase::At(rest).end(false), at(rest));
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
