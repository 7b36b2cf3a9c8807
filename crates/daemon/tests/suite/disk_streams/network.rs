//! `xe vdi-export` and `vdi-import` at another host, over TLS.

use super::*;

#[test]
fn xe_carries_disks_over_tls() {
    let mut world = World::with(&["--listen", "127.0.0.1:0"]);
    let password = world.daemon.password().unwrap();
    let (disk, content) = (world.disk(), bytes(4));
    assert_eq!(world.put(&format!("vdi={disk}"), &content).status, 200);
    let other = world.disk();
    let [from, to] = [&disk, &other]
        .map(|disk| world.client.record("VDI", disk).unwrap().text("uuid").to_owned());
    for format in ["raw", "vhd", "qcow2"] {
        let file = world.daemon.dir().join(format!("disk.{format}"));
        let file = format!("filename={}", file.display());
        let format = format!("format={format}");
        assert_eq!(world.put(&format!("vdi={other}"), &bytes(9)).status, 200);
        for (command, uuid) in [("vdi-export", &from), ("vdi-import", &to)] {
            let words = [command, &format!("uuid={uuid}"), &file, &format];
            let ran = crate::tls::xe(&world.daemon, &password, &words);
            assert!(ran.status.success(), "{words:?}: {}", String::from_utf8_lossy(&ran.stderr));
        }
        assert!(world.content(&other) == content, "{format}");
    }
    // A refusal names its reason here, too.
    let file = format!("filename={}", world.daemon.dir().join("disk.raw").display());
    let words = ["vdi-import", &format!("uuid={to}"), &file, "format=qcow2"];
    let refused = crate::tls::xe(&world.daemon, &password, &words);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("not a qcow2 image"), "{said}");
    assert!(world.content(&other) == content);
}
