//! Tests with complete, truncated and hostile handshakes.

use proptest::prelude::*;

use super::*;

fn offer() -> ExportInfo {
    ExportInfo {
        name: "d1".into(),
        description: "a disk".into(),
        size: 1 << 20,
        block_size: 512,
        read_only: false,
    }
}

fn option(code: u32, data: &[u8]) -> Vec<u8> {
    let mut out = OPTION_MAGIC.to_be_bytes().to_vec();
    out.extend(code.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
    out
}

fn go(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend((wanted.len() as u16).to_be_bytes());
    wanted.iter().for_each(|kind| data.extend(kind.to_be_bytes()));
    data
}

fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend((queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend((query.len() as u32).to_be_bytes());
        data.extend(query.as_bytes());
    }
    data
}

/// Returns a negotiation after the client's flags.
fn greeted(no_zeroes: bool) -> Negotiation {
    let mut all = Negotiation::default();
    let flags = if no_zeroes { 3u32 } else { 1 };
    assert_eq!(all.step(&offer(), &flags.to_be_bytes(), &mut Vec::new()), Step::Next(4));
    all
}

/// Returns types and data of the option replies in `out`.
fn answers(out: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let (mut reader, mut all) = (Reader(out), Vec::new());
    while !reader.0.is_empty() {
        assert_eq!(reader.u64(), Some(OPTION_REPLY_MAGIC));
        reader.u32().unwrap();
        let kind = reader.u32().unwrap();
        all.push((kind, reader.text().unwrap().to_vec()));
    }
    all
}

fn asked(client: &mut Negotiation, code: u32, data: &[u8]) -> (Step, Vec<(u32, Vec<u8>)>) {
    let mut out = Vec::new();
    let step = client.step(&offer(), &option(code, data), &mut out);
    (step, answers(&out))
}

fn kinds(answers: &[(u32, Vec<u8>)]) -> Vec<u32> {
    answers.iter().map(|(kind, _)| *kind).collect()
}

#[test]
fn go_tells_what_was_asked_and_serves() {
    for name in ["d1", ""] {
        let mut client = greeted(true);
        asked(&mut client, option::STRUCTURED_REPLY, &[]);
        let data = go(name, &[info::NAME, info::DESCRIPTION, info::BLOCK_SIZE, 77]);
        let (step, replies) = asked(&mut client, option::GO, &data);
        assert_eq!(step, Step::Serve(16 + data.len()));
        let (i, a) = (answer::INFO, answer::ACK);
        assert_eq!(kinds(&replies), [i, i, i, i, a]);
        let flags = client.flags(&offer());
        assert_eq!(replies[0].1[..10], [0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0]);
        assert_eq!(replies[0].1[10..], flags.to_be_bytes());
        assert_eq!(replies[1].1[2..], *b"d1");
        assert_eq!(replies[2].1[2..], *b"a disk");
        assert_eq!(replies[3].1[2..], [0, 0, 2, 0, 0, 0, 16, 0, 2, 0, 0, 0]);
        use transmission::*;
        assert_eq!(flags & (SEND_DF | CAN_MULTI_CONN | READ_ONLY), SEND_DF | CAN_MULTI_CONN);
        let read_only = client.flags(&ExportInfo { read_only: true, ..offer() });
        assert_eq!(read_only & (READ_ONLY | SEND_TRIM | SEND_FLUSH), READ_ONLY);
    }
    let mut client = greeted(true);
    let (step, replies) = asked(&mut client, option::INFO, &go("d1", &[]));
    assert!(matches!(step, Step::Next(_)));
    assert_eq!(kinds(&replies), [answer::INFO, answer::INFO, answer::ACK]);
    let (step, replies) = asked(&mut client, option::GO, &go("d2", &[]));
    assert!(matches!(step, Step::Next(_)) && kinds(&replies) == [answer::ERR_UNKNOWN]);
}

#[test]
fn the_old_way_serves_with_and_without_zeroes() {
    for (no_zeroes, bytes) in [(true, 10), (false, 134)] {
        let mut out = Vec::new();
        let message = option(option::EXPORT_NAME, b"d1");
        let step = greeted(no_zeroes).step(&offer(), &message, &mut out);
        assert_eq!((step, out.len()), (Step::Serve(18), bytes));
    }
    let mut out = Vec::new();
    let step = greeted(true).step(&offer(), &option(option::EXPORT_NAME, b"d2"), &mut out);
    assert_eq!((step, out.len()), (Step::End, 0));
}

#[test]
fn contexts_need_structured_replies() {
    let mut client = greeted(true);
    let data = contexts("d1", &["base:allocation", "qemu:dirty"]);
    let (_, replies) = asked(&mut client, option::SET_META_CONTEXT, &data);
    assert_eq!(kinds(&replies), [answer::ERR_INVALID]);
    asked(&mut client, option::STRUCTURED_REPLY, &[]);
    let (_, replies) = asked(&mut client, option::SET_META_CONTEXT, &data);
    assert_eq!(kinds(&replies), [answer::META_CONTEXT, answer::ACK]);
    assert_eq!(replies[0].1, b"\0\0\0\x01base:allocation");
    assert!(client.allocation);
    for queries in [&[][..], &["base:"], &["base:allocation"]] {
        let data = contexts("", queries);
        let (_, replies) = asked(&mut client, option::LIST_META_CONTEXT, &data);
        assert_eq!(kinds(&replies), [answer::META_CONTEXT, answer::ACK], "{queries:?}");
    }
    assert!(client.allocation, "listing changes nothing");
    for (queries, name) in [(&["x"][..], "d1"), (&[], "d1"), (&["base:allocation"], "d2")] {
        client.allocation = true;
        asked(&mut client, option::SET_META_CONTEXT, &contexts(name, queries));
        assert!(!client.allocation, "{queries:?} of {name}");
    }
}

#[test]
fn what_is_refused_is_answered_and_the_next_option_is_taken() {
    for (code, data, kind) in [
        (option::STARTTLS, &b""[..], answer::ERR_POLICY),
        (option::LIST, b"x", answer::ERR_INVALID),
        (option::STRUCTURED_REPLY, b"x", answer::ERR_INVALID),
        (option::GO, b"\0\0\0", answer::ERR_INVALID),
        (option::GO, b"\0\0\0\x09d1\0\0", answer::ERR_INVALID),
        (option::GO, b"\0\0\0\x02d1\0\x09\0\0", answer::ERR_INVALID),
        (option::GO, b"\0\0\0\x02d1\0\0tail", answer::ERR_INVALID),
        (option::GO, b"\xff\xff\xff\xffd1\0\0", answer::ERR_INVALID),
        (11, b"", answer::ERR_UNSUP),
        (u32::MAX, b"junk", answer::ERR_UNSUP),
    ] {
        let mut client = greeted(true);
        let (step, replies) = asked(&mut client, code, data);
        assert_eq!(step, Step::Next(16 + data.len()), "{code} {data:?}");
        assert_eq!(kinds(&replies), [kind], "{code} {data:?}");
        assert!(!replies[0].1.is_empty(), "a refusal says why");
        let (_, replies) = asked(&mut client, option::LIST, &[]);
        assert_eq!(kinds(&replies), [answer::SERVER, answer::ACK]);
        assert_eq!(replies[0].1, b"\0\0\0\x02d1");
    }
    let (step, replies) = asked(&mut greeted(true), option::ABORT, &[]);
    assert_eq!((step, kinds(&replies)), (Step::End, vec![answer::ACK]));
}

#[test]
fn what_is_no_handshake_ends() {
    let end = |client: &mut Negotiation, input: &[u8]| {
        assert_eq!(client.step(&offer(), input, &mut Vec::new()), Step::End, "{input:?}");
    };
    end(&mut Negotiation::default(), &4u32.to_be_bytes());
    end(&mut Negotiation::default(), b"GET / HTTP/1.1\r\n");
    end(&mut greeted(true), b"GET / HTTP/1.1\r\nHost");
    let mut long = option(option::GO, &[]);
    long[12..16].copy_from_slice(&(OPTION_BYTES_MAX as u32 + 1).to_be_bytes());
    end(&mut greeted(true), &long);
    // Queries may be empty, so only the length of the option data bounds their number.
    let mut queries = contexts("d1", &[]);
    let count = queries.len() - 4;
    queries[count..].copy_from_slice(&u32::MAX.to_be_bytes());
    let mut client = greeted(true);
    asked(&mut client, option::STRUCTURED_REPLY, &[]);
    let (_, replies) = asked(&mut client, option::SET_META_CONTEXT, &queries);
    assert_eq!(kinds(&replies), [answer::ERR_INVALID]);
}

#[test]
fn every_truncation_waits_for_more() {
    let messages = [
        option(option::GO, &go("d1", &[info::NAME])),
        option(option::SET_META_CONTEXT, &contexts("d1", &["base:allocation"])),
        option(option::EXPORT_NAME, b"d1"),
        option(option::ABORT, b"bye"),
    ];
    for message in messages {
        for cut in 0..message.len() {
            let mut out = Vec::new();
            let step = greeted(true).step(&offer(), &message[..cut], &mut out);
            assert_eq!((step, out.len()), (Step::More, 0), "{cut} of {message:?}");
        }
    }
}

proptest! {
    /// For any input, a step consumes at most all of it and writes a bounded reply.
    #[test]
    fn garbage_is_bounded(
        code in 0u32..12,
        data in proptest::collection::vec(any::<u8>(), 0..200),
        tail in proptest::collection::vec(any::<u8>(), 0..50),
        structured: bool,
    ) {
        let mut client = greeted(true);
        client.structured = structured;
        let mut input = option(code, &data);
        input.extend(&tail);
        let mut out = Vec::new();
        match client.step(&offer(), &input, &mut out) {
            Step::Next(used) | Step::Serve(used) => prop_assert_eq!(used, input.len() - tail.len()),
            Step::End => {}
            Step::More => prop_assert!(false, "the message was whole"),
        }
        prop_assert!(out.len() < 1024);
    }

    #[test]
    fn noise_never_panics(noise in proptest::collection::vec(any::<u8>(), 0..100)) {
        let _ = Negotiation::default().step(&offer(), &noise, &mut Vec::new());
        let _ = greeted(false).step(&offer(), &noise, &mut Vec::new());
    }
}
