//! Random bytes from the kernel.

use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

/// Returns 16 unpredictable bytes. A session's reference authorises its user, so it must be secret.
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
