//! Media in a guest's drive: a few bytes of code, which firmware boots from a CD or, without one,
//! from a disk.

use model::domain::BootFrom;
use serde_json::json;
use testkit::boot_sector::bootable;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::timeout;
use toolstack::hv::{CdMedium, Hypervisor};

use super::world::{DOMID, PATIENCE, World, firmware, machine, vbd};

/// Sector size of a CD, in bytes.
const SECTOR: usize = 2048;

/// Returns code that writes a letter to the serial line. When it receives one, it restarts the boot
/// through firmware, which resets the machine.
///
/// ```text
///       mov dx, 0x3f8; mov al, letter; out dx, al; mov dx, 0x3fd
/// wait: in al, dx; test al, 1; jz wait
///       mov dx, 0x3f8; in al, dx; int 0x19
/// ```
fn says(letter: u8) -> Vec<u8> {
    let mut code = vec![0xba, 0xf8, 0x03, 0xb0, letter, 0xee, 0xba, 0xfd, 0x03, 0xec, 0xa8, 0x01];
    code.extend([0x74, 0xfb, 0xba, 0xf8, 0x03, 0xec, 0xcd, 0x19]);
    code
}

/// Returns a CD that boots this code, by the El Torito specification. The record in sector 17 names
/// the catalogue. The words of its first entry sum to zero, and the second entry names the code.
fn cd(code: &[u8]) -> Vec<u8> {
    const CATALOGUE: u8 = 19;
    const CODE: u8 = 20;
    let mut image = vec![0; (usize::from(CODE) + 1) * SECTOR];
    let mut put = |sector: u8, offset: usize, bytes: &[u8]| {
        let at = usize::from(sector) * SECTOR + offset;
        image[at..at + bytes.len()].copy_from_slice(bytes);
    };
    put(17, 0, b"\0CD001\x01EL TORITO SPECIFICATION");
    put(17, 0x47, &[CATALOGUE]);
    put(CATALOGUE, 0, &[0x01]);
    put(CATALOGUE, 28, &[0xaa, 0x55, 0x55, 0xaa]);
    // Four sectors of 512 bytes, no emulation of a disk.
    put(CATALOGUE, 32, &[0x88, 0, 0, 0, 0, 0, 4, 0, CODE]);
    put(CODE, 0, code);
    image
}

pub(super) async fn seen() {
    let mut world = World::new();
    let mut spec = firmware(vec![BootFrom::Cd(vbd(1)), BootFrom::Disk(vbd(9))]);
    spec.cds = vec![vbd(1)];
    world.hv.create(machine(), DOMID, &spec).await.unwrap();
    let image = world.image("disk", &bootable(&says(b'-')));
    let mut plug = world.disk(9, &image).await;
    plug.boot_index = Some(1);
    world.hv.plug_disk(machine(), &plug).await.unwrap();
    let mut line = UnixStream::connect(world.hv.console(machine()).unwrap()).await.unwrap();
    world.hv.run(machine()).await.unwrap();

    shows(&mut line, b'-').await;
    // The test is about media within one domain, so a reset must not end it.
    world.restart();
    let stays = json!({ "reboot": "reset" });
    world.control().await.execute("set-action", stays, PATIENCE).await.unwrap();
    world.hv.list().await.unwrap();
    for letter in [b'a', b'b', b'a'] {
        let name = char::from(letter).to_string();
        let cd_medium = CdMedium { file: world.image(&name, &cd(&says(letter))) };
        world.hv.set_medium(machine(), vbd(1), Some(&cd_medium)).await.unwrap();
        line.write_all(b".").await.unwrap();
        shows(&mut line, letter).await;
        // An empty drive is not tested: firmware sometimes misses the error.
        world.hv.set_medium(machine(), vbd(1), None).await.unwrap();
    }
    world.clear().await;
}

/// Waits for the guest's next letter, which must be this one.
async fn shows(line: &mut UnixStream, letter: u8) {
    let mut seen = [0];
    timeout(PATIENCE, line.read_exact(&mut seen)).await.expect("the guest says nothing").unwrap();
    assert_eq!(char::from(seen[0]), char::from(letter));
}
