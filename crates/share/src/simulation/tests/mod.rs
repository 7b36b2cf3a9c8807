//! Bars of the scheduler, in virtual time.

mod equal;
mod sparse;
mod weights;
