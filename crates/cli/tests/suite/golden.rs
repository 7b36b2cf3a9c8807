//! Tests of `ringway golden`.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use serde_json::{Value, json};
use testkit::process::eventually;
use testkit::raw::request::Request;

use crate::served::Served;

#[test]
fn an_image_is_shown_warmed_and_its_boot_set_moves() {
    let (io, folder) = (Served::start(&[]), tempfile::tempdir().unwrap());
    assert!(io.stdout(&["golden", "status"]).contains("no disk of this host"));
    let source = folder.path().join("gold.raw");
    std::fs::write(&source, vec![7; 2 << 20]).unwrap();
    let cache = folder.path().join("cache");
    let backend = json!({"golden": {"source": {"file": source}, "cache": cache}});
    io.attach("d1", backend, json!({"read_only": true}));
    io.guest("d1").run(0, &Request::read(1280, 512)).unwrap();
    let text = io.stdout(&["golden", "status"]);
    assert!(text.contains("d1") && text.contains("0 of 2 MiB, 3 %"), "{text}");

    let set = io.stdout(&["golden", "boot-set", "export", "d1"]);
    let file = folder.path().join("set.boot");
    std::fs::write(&file, &set).unwrap();
    let (file, there) = (file.to_str().unwrap(), folder.path().join("there"));
    let there = there.to_str().unwrap();
    // Without a running ringway-io, the command starts one.
    let mut import = io.command(&["golden", "boot-set", "import", file, "--cache", there]);
    let output = import.env_remove("RINGWAY_CONTROL").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let stored = std::fs::read_dir(there).unwrap().next().unwrap().unwrap();
    let json = |text: &str| -> Value { serde_json::from_str(text).unwrap() };
    assert_eq!(json(&std::fs::read_to_string(stored.path()).unwrap()), json(&set));

    io.stdout(&["golden", "warm", "d1", "--rate", "64K"]);
    io.stdout(&["golden", "warm", "d1", "--cancel"]);
    assert!(io.stdout(&["golden", "status"]).contains("warming canceled"));
    let status =
        || -> Value { serde_json::from_str(&io.stdout(&["golden", "status", "--json"])).unwrap() };
    let identity = status()[0]["golden"]["identity"].as_str().unwrap().to_owned();
    io.stdout(&["golden", "warm", &identity]);
    eventually("the image is warm", || status()[0]["golden"]["warm"]["phase"] == "done");
    assert_eq!(status()[0]["golden"]["stored"], 32);
    assert!(io.stdout(&["golden", "status"]).contains("2 of 2 MiB, 100 %"));
    let here = cache.to_str().unwrap();
    let clean = ["golden", "clean", "--cache", here, "--unused-for", "0"];
    assert!(io.stdout(&clean).contains("stays: a process uses it"));
    assert!(io.stdout(&["golden", "clean", "--cache", here, "--keep", "1G"]).contains(&identity));
    for (words, reason) in [
        (&["golden", "warm", "x"][..], "no disk here is on the golden image"),
        (&["golden", "warm", "d1", "--rate", "1K"], "rate must be at least"),
        (&["golden", "boot-set", "import", "/etc/hostname", "--cache", "/c"], "is no boot set"),
    ] {
        let output = io.ringway(words);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && text.contains(reason), "{text}");
    }
}
