use proptest::prelude::*;

use super::*;

fn read(mut bytes: &[u8]) -> Result<(Head, Vec<u8>), HttpError> {
    let head = read_head(&mut bytes)?;
    let body = read_body(&mut bytes, head.length, 64)?;
    Ok((head, body))
}

fn why(bytes: &str) -> String {
    match read(bytes.as_bytes()) {
        Err(HttpError::Malformed(why)) => why.to_owned(),
        Err(HttpError::Io(error)) => error.to_string(),
        other => panic!("{bytes}: {other:?}"),
    }
}

#[test]
fn answers_of_several_servers() {
    let plain = b"HTTP/1.1 200 OK\r\nContent-Type: text/xml\r\ncontent-length: 3\r\n\r\nabcd";
    let (head, body) = read(plain).unwrap();
    assert_eq!(head, Head { status: 200, length: Length::Bytes(3), keep: true });
    assert_eq!(body, b"abc");
    let chunked = b"HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nX: y\r\n\r\n";
    assert_eq!(read(chunked).unwrap().1, b"abc0123456789");
    let old = b"HTTP/1.0 500 Internal\r\nConnection: close\r\n\r\n<html>";
    let (head, body) = read(old).unwrap();
    assert_eq!((head.status, head.keep, body.as_slice()), (500, false, b"<html>".as_slice()));
    let kept = b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n";
    assert!(read(kept).unwrap().0.keep);
    let closed = b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 0\r\n\r\n";
    assert!(!read(closed).unwrap().0.keep);
}

#[test]
fn what_is_no_answer() {
    let ended = "the connection ended before the answer";
    for (bytes, reason) in [
        ("", ended),
        ("HTTP/1.1 200", ended),
        ("HTTP/1.1 200 OK\r\nA: b\r\n", ended),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", ended),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc", ended),
        ("HTTP/2 200\r\n\r\n", "no HTTP/1"),
        ("220 mail.example\r\n", "no HTTP/1"),
        ("hello\r\n", "no status"),
        ("HTTP/1.1 abc\r\n\r\n", "the status is no number"),
        ("HTTP/1.1 200 OK\r\nno name\r\n\r\n", "a header has no name"),
        ("HTTP/1.1 200 OK\r\na name: b\r\n\r\n", "a header has no name"),
        ("HTTP/1.1 200 OK\r\nA: \u{1}\r\n\r\n", "the head has an invalid character"),
        ("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "the length is no number"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na", "two lengths"),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\na",
            "two lengths",
        ),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "an unknown transfer encoding"),
        ("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n", "a content encoding"),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 65\r\n\r\n",
            "the body is too long: ask for less at once",
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n",
            "the body is too long: ask for less at once",
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
            "the size of a chunk is no number",
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
            "a chunk is longer than its size",
        ),
    ] {
        assert_eq!(why(bytes), reason, "{bytes}");
    }
    let open = format!("HTTP/1.1 200 OK\r\n\r\n{}", "a".repeat(65));
    assert_eq!(why(&open), "the body is too long: ask for less at once");
    let long = format!("HTTP/1.1 200 OK\r\nA: {}", "a".repeat(HEAD_BYTES_MAX));
    assert_eq!(why(&long), "the head is too long");
}

proptest! {
    #[test]
    fn any_bytes_are_read(rest in proptest::collection::vec(any::<u8>(), 0..200), which in 0..3_usize) {
        let head: &[u8] = [
            &b""[..],
            b"HTTP/1.1 200 OK\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        ][which];
        let _ = read(&[head, &rest].concat()).is_ok();
    }
}
