//! Trees on the wire, and their bounds.

use serde_json::{Value, json};

use super::*;

fn parse(value: Value) -> Result<Backend, String> {
    serde_json::from_value(value).map_err(|error| error.to_string())
}

fn checked(value: Value) -> Result<Backend, String> {
    let spec = DiskSpec::new("d", "/s", parse(value)?);
    spec.validate().map(|()| spec.backend).map_err(|error| error.to_string())
}

/// Returns a chain of this many nodes, each with a file. The lowest `fds` files are `fd:N`.
fn chain_of(nodes: usize, fds: usize) -> Value {
    let file = |n| if n < fds { json!({"fd": n}) } else { json!(format!("/img/{n}")) };
    let leaf = json!({"file": file(0)});
    (1..nodes).fold(leaf, |below, n| json!({"qcow2": {"file": file(n), "backing": below}}))
}

fn chain(nodes: usize) -> Value {
    chain_of(nodes, 3)
}

#[test]
fn trees_have_one_form_on_the_wire() {
    for (wire, text, files) in [
        (json!({"file": "/img/a.raw"}), "/img/a.raw", 1),
        (json!({"file": {"fd": 3}}), "fd:3", 1),
        (json!({"null": 4096}), "null, 4096 bytes", 0),
        (json!({"memory": 4096}), "memory, 4096 bytes", 0),
        (
            json!({"model": {"name": "a", "size": 4096, "device": {"pipe": {}}, "profile": true}}),
            "model a, 4096 bytes",
            0,
        ),
        (
            json!({"raw": {"child": {"file": "/img/a.raw"}, "offset": 1024, "size": 4096}}),
            "4096 bytes at 1024 of /img/a.raw",
            1,
        ),
        (json!({"qcow2": {"file": "/sr/a.qcow2"}}), "/sr/a.qcow2", 1),
        (
            json!({"qcow2": {"file": {"fd": 7}, "backing": {"qcow2": {"file": "/sr/b.qcow2",
                "backing": {"file": "/sr/c.raw"}}}}}),
            "fd:7 over /sr/b.qcow2 over /sr/c.raw",
            3,
        ),
    ] {
        let backend = checked(wire.clone()).unwrap();
        assert_eq!(backend.to_string(), text);
        assert_eq!(backend.files().count(), files, "{text}");
        assert_eq!(serde_json::to_value(&backend).unwrap(), wire);
        let plain = ["null", "memory", "file"].iter().any(|leaf| wire.get(leaf).is_some());
        let plain = plain && text != "fd:3";
        assert_eq!(backend.is_plain(), plain, "{text}");
    }
}

#[test]
fn files_come_top_first() {
    let backend = parse(chain(4)).unwrap();
    let names: Vec<_> = backend.files().map(FileRef::to_string).collect();
    assert_eq!(names, ["/img/3", "fd:2", "fd:1", "fd:0"]);
    let place = |wire| parse(wire).unwrap().place();
    assert_eq!(
        place(json!({"raw": {"child": {"null": 4096}, "offset": 0, "size": 512}})),
        "the disk"
    );
    assert_eq!(place(json!({"file": "/img/a.raw"})), "/img/a.raw");
}

#[test]
fn a_tree_that_cannot_be_is_refused_with_the_reason() {
    let window = |child: Value, offset: u64, size: u64| json!({"raw": {"child": child, "offset": offset, "size": size}});
    let file = || json!({"file": "/img/a.raw"});
    let deep = "x".repeat(1000);
    for (wire, reason) in [
        (json!({"flie": "/a"}), "unknown variant `flie`"),
        (json!({"file": {"fd": 3, "path": "/a"}}), "a path or {\"fd\": NUMBER}"),
        (json!({"file": {"fd": -1}}), "a path or {\"fd\": NUMBER}"),
        (json!({"file": {"fd": 1u64 << 31}}), "fd 2147483648 is not in 0 to 2147483647"),
        (json!({"file": ""}), "file path is empty"),
        (json!({"qcow2": {"file": ""}}), "file path is empty"),
        (json!({"qcow2": {"backing": file()}}), "missing field `file`"),
        (json!({"qcow2": {"file": "/a", "backng": file()}}), "unknown field `backng`"),
        (json!({"raw": {"child": file(), "offset": 0}}), "missing field `size`"),
        (json!({"raw": {"child": file(), "offset": 0, "size": 512, "sise": 1}}), "`sise`"),
        (window(file(), 0, 0), "0 bytes is not in 1 to"),
        (window(file(), 0, 513), "513 bytes is not a multiple of 512"),
        (window(file(), 513, 512), "offset 513 is not a multiple of 512"),
        (window(file(), u64::MAX - 511, 512), "end behind byte"),
        (window(json!({"null": 4096}), 512, 4096), "4096 bytes at 512 end behind byte 4096"),
        (window(window(file(), 0, 1024), 512, 1024), "end behind byte 1024"),
        (window(json!({"memory": 513}), 0, 512), "513 bytes is not a multiple"),
        (
            json!({"qcow2": {"file": "/a", "backing": {"file": "/./a"}}}),
            "/./a is in the tree twice",
        ),
        (
            json!({"qcow2": {"file": {"fd": 4}, "backing": {"file": {"fd": 4}}}}),
            "fd:4 is in the tree twice",
        ),
        (json!({"qcow2": {"file": "/".to_owned() + &deep.repeat(40)}}), "more than 32768"),
        (
            window(json!({"model": {"name": "a", "size": 4096, "device": {"flash": {}}}}), 0, 512),
            "a model is a whole disk",
        ),
        (
            json!({"model": {"name": "a", "size": 513, "device": {"flash": {}}}}),
            "513 bytes is not a multiple of 512",
        ),
        (chain(MAX_TREE_DEPTH + 1), "more than 60 nodes"),
        (chain_of(50, 41), "41 files are handed in, at most 40 can be"),
    ] {
        let error = checked(wire.clone()).unwrap_err();
        assert!(error.contains(reason), "{wire}: {error}");
    }
    assert_eq!(checked(chain(MAX_TREE_DEPTH)).unwrap().files().count(), MAX_TREE_DEPTH);
    assert_eq!(checked(chain_of(50, MAX_TREE_FDS)).unwrap().files().count(), 50);
    // A tree that was not parsed has the same bound.
    let over = |child| Backend::Raw { child: Box::new(child), offset: 0, size: 512 };
    let tall = (0..MAX_TREE_DEPTH).fold(Backend::Null(512), |child, _| over(child));
    assert!(DiskSpec::new("d", "/s", tall).validate().is_err());
}

#[test]
fn the_deepest_tree_fits_in_what_readers_of_json_accept() {
    let five_levels = format!(r#"{{"a":{{"b":{{"c":{{"d":{{"backend":{}}}}}}}}}}}"#, chain(60));
    assert!(serde_json::from_str::<Value>(&five_levels).is_ok());
    let hostile = r#"{"raw":{"offset":0,"size":512,"child":"#.repeat(10_000);
    assert!(serde_json::from_str::<Backend>(&hostile).is_err());
}

proptest::proptest! {
    /// Any tree of known and unknown words gives a checked value or an error, never a panic.
    #[test]
    fn any_tree_is_checked_or_refused(
        words in proptest::collection::vec((0..6usize, proptest::num::u64::ANY), 1..80),
    ) {
        let tree = words.into_iter().fold(Value::Null, |below, (word, n)| match word {
            0 => json!({"null": n}),
            1 => json!({"file": {"fd": n}}),
            2 => json!({"qcow2": {"file": n.to_string(), "backing": below}}),
            3 => json!({"raw": {"child": below, "offset": n / 2, "size": n}}),
            4 => json!({"raw": {"child": below, "offset": n, "size": 512}, "file": "/a"}),
            _ => json!([below]),
        });
        if let Ok(backend) = checked(tree) {
            proptest::prop_assert!(backend.nodes().count() <= MAX_TREE_DEPTH);
            let end = |node: &Backend| match node {
                Backend::Raw { offset, size, .. } => offset.checked_add(*size),
                _ => Some(0),
            };
            proptest::prop_assert!(backend.nodes().all(|node| end(node).is_some()));
            let wire = serde_json::to_value(&backend).unwrap();
            proptest::prop_assert_eq!(parse(wire), Ok(backend));
        }
    }
}
