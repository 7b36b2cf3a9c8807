//! Invalid bodies.

use proptest::prelude::*;

use crate::envelope::tests::{JAVA, NODE, OLD, PYTHON, call_of, dialects};
use crate::envelope::*;

#[test]
fn bodies_that_are_too_long_or_no_text() {
    let limit = Limits::CALL.bytes;
    for encoding in [Encoding::Xml, Encoding::Json] {
        let long = vec![b' '; limit + 1];
        assert_eq!(parse(encoding, &long), Err(BadBody::TooLarge { limit }));
        assert!(matches!(parse(encoding, &long[1..]), Err(BadBody::Malformed(_))));
        for bytes in [&b"<methodCall>\xff"[..], b"{\"method\":\"\xc3\"}", b"\xed\xa0\x80"] {
            let refused = parse(encoding, bytes);
            assert!(matches!(&refused, Err(BadBody::Malformed(why)) if why.contains("not UTF-8")));
        }
    }
    let padding = " ".repeat(limit - JAVA.len());
    assert!(parse(Encoding::Xml, (JAVA.to_owned() + &padding).as_bytes()).is_ok());
    let padding = " ".repeat(limit - NODE.len());
    assert!(parse(Encoding::Json, (NODE.to_owned() + &padding).as_bytes()).is_ok());
}

#[test]
fn what_is_wrong_is_told_in_few_words() {
    let xml = format!("<methodCall></{}>", "&".repeat(100_000));
    let json = format!("\"{}\"", "&".repeat(100_000));
    for (encoding, body) in [(Encoding::Xml, xml), (Encoding::Json, json)] {
        let page = parse(encoding, body.as_bytes()).unwrap_err().page();
        assert!(page.len() < 2_000, "{}", page.len());
    }
}

#[test]
fn a_body_that_was_cut_off_is_no_call() {
    for (encoding, body) in [
        (Encoding::Xml, PYTHON.trim_end()),
        (Encoding::Xml, JAVA),
        (Encoding::Json, NODE),
        (Encoding::Json, OLD),
    ] {
        for end in 0..body.len() {
            let refused = parse(encoding, &body.as_bytes()[..end]);
            assert!(matches!(refused, Err(BadBody::Malformed(_))), "{}", &body[..end]);
        }
        let doubled = body.repeat(2);
        assert!(parse(encoding, doubled.as_bytes()).is_err());
    }
}

#[test]
fn a_call_of_no_method() {
    let unnamed = b"<methodCall><methodName> </methodName></methodCall>";
    assert!(matches!(parse(Encoding::Xml, unnamed), Err(BadBody::Unfit(_))));
    for text in [
        "<methodCall/>",
        "<methodCall><params/></methodCall>",
        "<methodCall><methodName>m</methodName><param/></methodCall>",
        "<methodCall><methodName>m</methodName><params/><params/></methodCall>",
        "<methodCall><methodName>m</methodName><params><value/></params></methodCall>",
        "<methodCall><methodName>m</methodName><params><param/></params></methodCall>",
        "<methodCall><methodName>m<value/></methodName></methodCall>",
        "<methodResponse><params/></methodResponse>",
        "<value/>",
    ] {
        let refused = parse(Encoding::Xml, text.as_bytes());
        assert!(matches!(refused, Err(BadBody::Malformed(_))), "{text}");
    }
}

/// Returns a body in which a few bytes are removed, changed or inserted.
fn damaged(body: &'static str) -> impl Strategy<Value = Vec<u8>> {
    let damage = (0..body.len(), 0..4_usize, prop::collection::vec(any::<u8>(), 0..3));
    prop::collection::vec(damage, 1..4).prop_map(|damages| {
        let mut bytes = body.as_bytes().to_vec();
        for (at, lost, put_in) in damages {
            let at = at.min(bytes.len());
            let end = (at + lost).min(bytes.len());
            bytes.splice(at..end, put_in);
        }
        bytes
    })
}

proptest! {
    #[test]
    fn any_body_is_read(
        bytes in prop::collection::vec(any::<u8>(), 0..60),
        python in damaged(PYTHON),
        node in damaged(NODE),
    ) {
        for body in [&bytes, &python, &node] {
            for encoding in [Encoding::Xml, Encoding::Json] {
                let _ = parse(encoding, body);
            }
            for dialect in dialects() {
                let _ = outcome(&call_of("VM.start", dialect), body);
            }
        }
    }
}
