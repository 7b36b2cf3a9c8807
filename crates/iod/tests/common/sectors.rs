//! Requests of a guest that succeed, for whole sectors of one value.

use std::path::Path;

use testkit::raw::request::{Request, status};
use testkit::raw::{Guest, Setup};

pub fn connect(socket: &Path) -> Guest {
    Guest::start(socket, &Setup::default()).unwrap()
}

pub fn write(guest: &mut Guest, sector: u64, value: u8) {
    write_bytes(guest, sector, &[value; 512]);
}

pub fn write_bytes(guest: &mut Guest, sector: u64, bytes: &[u8]) {
    assert_eq!(guest.run(0, &Request::write(sector, bytes)).unwrap().status, status::OK);
}

/// Returns the value of a sector.
pub fn read(guest: &mut Guest, sector: u64) -> u8 {
    let done = guest.run(0, &Request::read(sector, 512)).unwrap();
    assert_eq!(done.status, status::OK);
    assert_eq!(done.data, [done.data[0]; 512], "torn sector {sector}");
    done.data[0]
}

pub fn flush(guest: &mut Guest) {
    assert_eq!(guest.run(0, &Request::flush()).unwrap().status, status::OK);
}
