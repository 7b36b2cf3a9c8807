//! Tests and their helpers.

mod cds;
mod ends;
mod guest;
mod many;
mod paused;
mod world;

use crate::Test;

/// All tests.
pub(super) const TESTS: &[Test] = &[
    ("a_domain_comes_stands_and_is_forgotten", |rt| rt.block_on(paused::comes_and_goes())),
    ("a_domain_is_found_by_another_daemon", |rt| rt.block_on(paused::found_again())),
    ("disks_and_media_come_before_the_first_instruction", |rt| rt.block_on(paused::devices())),
    ("what_cannot_start_says_why", |rt| rt.block_on(paused::start_failures())),
    ("an_emulator_that_does_not_answer_is_ended", |rt| rt.block_on(paused::silent())),
    ("ends_are_told_apart", |rt| rt.block_on(ends::distinguished())),
    ("an_end_is_told_to_a_daemon_that_was_away", |rt| rt.block_on(ends::kept())),
    ("a_guest_sees_what_is_in_its_drive", |rt| rt.block_on(cds::seen())),
    ("a_kernel_that_panics_is_told", |rt| rt.block_on(guest::panics())),
    ("a_guest_sees_every_disk_that_it_was_given", |rt| rt.block_on(many::seen())),
    ("a_guest_gets_a_disk_gives_it_back_and_goes_down", |rt| rt.block_on(guest::lives())),
];
