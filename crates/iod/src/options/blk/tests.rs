//! Options and the specs that result from them.

use clap::CommandFactory;
use model::spec::{BlockSize, CacheMode, Caps, OnFull, PollMode};

use super::*;

fn parse(line: &str) -> Result<BlkOptions, clap::Error> {
    BlkOptions::try_parse_from(line.split(' '))
}

#[test]
fn the_definition_is_sound() {
    BlkOptions::command().debug_assert();
    let capabilities: serde_json::Value = serde_json::from_str(CAPABILITIES).unwrap();
    assert_eq!(capabilities["type"], "block");
}

#[test]
fn every_option_reaches_the_spec() {
    let line = "ringway-blk --socket-path /s --blk-file /i --read-only --num-queues 4 \
                --serial A1 --block-size 512 --cache writeback --poll always \
                --poll-max-us 50 --poll-idle-threshold 0 \
                --on-full error --socket-mode 640 --socket-group kvm \
                --stop-deadline 5s --iops 100 --iops-burst 300 --bps 10M --bps-burst 20M \
                --burst-seconds 60 --record off";
    let spec = parse(line).unwrap().spec().unwrap();
    let expected = DiskSpec {
        queues: 4,
        read_only: true,
        serial: Some("A1".into()),
        block_size: Some(BlockSize::Bytes(512)),
        cache: CacheMode::Writeback,
        poll: Some(PollMode::Always),
        poll_max_us: Some(50),
        poll_idle_threshold: Some(0),
        on_full: OnFull::Error,
        record: false,
        stop_deadline_ms: 5000,
        caps: Some(Caps {
            iops: Some(100),
            iops_burst: Some(300),
            bytes_per_second: Some(10 << 20),
            bytes_burst: Some(20 << 20),
            burst_seconds: 60,
        }),
        socket_mode: Some(0o640),
        socket_group: Some("kvm".into()),
        ..DiskSpec::new("disk", "/s", Backend::File("/i".into()))
    };
    assert_eq!(spec, expected);
    let spec = parse("ringway-blk --fd 3 --memory 1G").unwrap().spec().unwrap();
    assert_eq!(spec.backend, Backend::Memory(1 << 30));
    let window = r#"{"raw":{"child":{"file":{"fd":3}},"offset":512,"size":4096}}"#;
    let spec = parse(&format!("ringway-blk --socket-path /s --backend {window}")).unwrap().spec();
    assert_eq!(serde_json::to_string(&spec.unwrap().backend).unwrap(), window);
    let usual = "ringway-blk --socket-path=/s --null=2M --poll auto --poll-max-us 128";
    let spec = parse(usual).unwrap().spec().unwrap();
    assert_eq!(spec, DiskSpec::new("disk", "/s", Backend::Null(2 << 20)));
    let spec = parse("ringway-blk --socket-path=/s --null=2M").unwrap().spec().unwrap();
    assert_eq!(spec, DiskSpec::new("disk", "/s", Backend::Null(2 << 20)));
}

#[test]
fn the_format_of_an_image_is_stated() {
    let backend = |line: &str| {
        let line = format!("ringway-blk --socket-path /s --blk-file /a {line}");
        serde_json::to_string(&parse(line.trim()).unwrap().spec().unwrap().backend).unwrap()
    };
    assert_eq!(backend(""), r#"{"file":"/a"}"#);
    assert_eq!(backend("--format raw"), r#"{"file":"/a"}"#);
    assert_eq!(backend("--format qcow2"), r#"{"qcow2":{"file":"/a"}}"#);
    let layers = backend("--format qcow2 --backing /b --backing-format raw");
    assert_eq!(layers, r#"{"qcow2":{"file":"/a","backing":{"file":"/b"}}}"#);
    let chain = backend(
        "--format qcow2 --backing /b --backing /c --backing-format qcow2 --backing-format raw",
    );
    let below = r#"{"qcow2":{"file":"/b","backing":{"file":"/c"}}}"#;
    assert_eq!(chain, format!(r#"{{"qcow2":{{"file":"/a","backing":{below}}}}}"#));
}

#[test]
fn each_refusal_names_the_option() {
    for (line, named) in [
        ("ringway-blk --null 1M", "--socket-path"),
        ("ringway-blk --socket-path /s", "--blk-file"),
        ("ringway-blk --socket-path /s --fd 3 --null 1M", "--fd"),
        ("ringway-blk --socket-path /s --null 1M --memory 1M", "--memory"),
        (r#"ringway-blk --socket-path /s --blk-file /a --backend {"null":512}"#, "--backend"),
        ("ringway-blk --socket-path /s --backend /a", "--backend"),
        (r#"ringway-blk --socket-path /s --backend {"flie":"/a"}"#, "unknown variant `flie`"),
        (r#"ringway-blk --socket-path /s --backend {"file":{"fd":2}}"#, "a standard stream"),
        ("ringway-blk --fd 3 --connect --null 1M", "--connect"),
        ("ringway-blk --fd 3 --supervise --null 1M", "--supervise"),
        ("ringway-blk --socket-path /s --null 1M --frob", "--frob"),
        ("ringway-blk --socket-path /s --null 1M --format qcow2", "--null"),
        ("ringway-blk --socket-path /s --blk-file /a --format vmdk", "--format"),
        ("ringway-blk --socket-path /s --blk-file /a --backing /b", "--backing-format"),
        ("ringway-blk --socket-path /s --null 1M --num-queues 0", "--num-queues"),
        ("ringway-blk --socket-path /s --null 1M --num-queues 257", "--num-queues"),
        ("ringway-blk --socket-path /s --null 1M --num-queues many", "--num-queues"),
        ("ringway-blk --socket-path /s --null 1X", "--null"),
        ("ringway-blk --socket-path /s --null 1M --cache some", "--cache"),
        ("ringway-blk --socket-path /s --null 1M --poll maybe", "--poll"),
        ("ringway-blk --socket-path /s --null 1M --poll-max-us 10001", "0..=10000"),
        ("ringway-blk --socket-path /s --null 1M --poll-max-us=-1", "0..=10000"),
        ("ringway-blk --socket-path /s --null 1M --poll-idle-threshold 101", "0..=100"),
        ("ringway-blk --socket-path /s --null 1M --poll-idle-threshold half", "--poll-idle"),
        ("ringway-blk --socket-path /s --null 1M --socket-mode 999", "--socket-mode"),
        ("ringway-blk --socket-path /s --null 1M --reactors 0", "--reactors"),
        ("ringway-blk --socket-path /s --null 1M --iops many", "--iops"),
        ("ringway-blk --socket-path /s --null 1M --iops-burst 9", "--iops"),
        ("ringway-blk --socket-path /s --null 1M --stop-deadline soon", "--stop-deadline"),
        ("ringway-blk --socket-path /s --null 1M --serial 123456789012345678901", "--serial"),
    ] {
        let error = parse(line).unwrap_err().to_string();
        assert!(error.contains(named), "{line}: {error}");
    }
    for (line, field) in [
        ("ringway-blk --socket-path /s --null 0", "backend"),
        ("ringway-blk --socket-path /s --null 513", "backend"),
        (r#"ringway-blk --socket-path /s --backend {"null":513}"#, "backend"),
        ("ringway-blk --socket-path /s --null 1M --stop-deadline 0", "stop_deadline_ms"),
        ("ringway-blk --socket-path /s --null 1M --iops 0", "caps.iops"),
        ("ringway-blk --socket-path /s --blk-file /a --backing /b --backing-format raw", "backing"),
        ("ringway-blk --socket-path /s --null 1M --bps 1", "caps.bytes_per_second"),
        ("ringway-blk --socket-path /s --null 1M --block-size 100", "block_size"),
    ] {
        assert_eq!(parse(line).unwrap().spec().unwrap_err().field, field, "{line}");
    }
}
