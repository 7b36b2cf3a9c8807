//! Randomness, from the kernel.

use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

/// Sixteen bytes that nobody can foretell: references are made of them, and who knows the
/// reference of a session speaks for its user.
pub fn bytes() -> [u8; 16] {
    let mut bytes = [0; 16];
    let filled = retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty()));
    assert!(filled == Ok(bytes.len()), "Linux fills so few bytes at once, or waits until it can");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_are_alike() {
        assert_ne!(bytes(), bytes());
    }
}
