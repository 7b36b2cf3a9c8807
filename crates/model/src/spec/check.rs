//! Checks of fields without accessing the host.

use std::path::Path;

use super::{MAX_ID_BYTES, MAX_SERIAL_BYTES, MAX_SOCKET_PATH_BYTES, SpecError, refuse};

/// Checks a disk id: 1 to 64 letters, digits, `.`, `_` or `-`, not starting with a dot or dash.
///
/// # Errors
/// Field `id`.
pub fn validate_id(id: &str) -> Result<(), SpecError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if id.is_empty() || id.len() > MAX_ID_BYTES || !id.chars().all(plain) {
        return refuse(
            "id",
            format!("{id:?} is not 1 to {MAX_ID_BYTES} of letters, digits, '.', '_', '-'"),
        );
    }
    if id.starts_with(['.', '-']) {
        return refuse("id", format!("{id:?} must start with a letter, a digit or '_'"));
    }
    Ok(())
}

/// Checks the path and the permissions of a socket to listen on.
///
/// # Errors
/// Fields `socket` and `socket_mode`.
pub fn validate_socket(path: &Path, mode: Option<u32>) -> Result<(), SpecError> {
    let bytes = path.as_os_str().as_encoded_bytes().len();
    if bytes == 0 {
        return refuse("socket", "is empty; give the path to listen on");
    }
    if bytes > MAX_SOCKET_PATH_BYTES {
        return refuse(
            "socket",
            format!(
                "path has {bytes} bytes, a Unix socket allows {MAX_SOCKET_PATH_BYTES}; \
                 use a shorter directory"
            ),
        );
    }
    if mode.is_some_and(|mode| mode > 0o777) {
        return refuse("socket_mode", "is not in 0 to 777 (octal)");
    }
    Ok(())
}

/// Checks that a disk without a socket gives no access rights of one.
pub(super) fn validate_no_socket(mode: Option<u32>, group: Option<&str>) -> Result<(), SpecError> {
    let problem = "the disk has no socket; give one, or leave this field out";
    match (mode, group) {
        (Some(_), _) => refuse("socket_mode", problem),
        (_, Some(_)) => refuse("socket_group", problem),
        (None, None) => Ok(()),
    }
}

pub(super) fn validate_serial(serial: Option<&str>) -> Result<(), SpecError> {
    let Some(serial) = serial else { return Ok(()) };
    if serial.len() > MAX_SERIAL_BYTES {
        return refuse(
            "serial",
            format!("{} bytes long, virtio-blk carries {MAX_SERIAL_BYTES}", serial.len()),
        );
    }
    if !serial.bytes().all(|b| b.is_ascii_graphic()) {
        return refuse("serial", "holds other than printable ASCII without spaces");
    }
    Ok(())
}

/// Checks a logical block size: a power of two from 512 to 4096 bytes (Linux guests accept at most
/// a page).
///
/// # Errors
/// Field `block_size`.
pub fn validate_block_size(size: u32) -> Result<(), SpecError> {
    if (512..=4096).contains(&size) && size.is_power_of_two() {
        Ok(())
    } else {
        refuse("block_size", format!("{size} is not 512, 1024, 2048 or 4096"))
    }
}
