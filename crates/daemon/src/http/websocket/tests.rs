use tokio::io::duplex;

use super::*;

/// Builds a frame of a client.
fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let mask = [1, 2, 3, 0xff];
    let mut bytes = frame(0, payload);
    bytes[0] = first;
    let length = bytes.len() - payload.len();
    bytes[1] |= MASKED;
    bytes.truncate(length);
    bytes.extend(mask);
    bytes.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    bytes
}

#[test]
fn a_key_is_answered_as_the_standard_does() {
    assert_eq!(answer_to("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    let mut headers = HeaderMap::new();
    let mut given = |name: header::HeaderName, value: &'static str| {
        headers.insert(name, header::HeaderValue::from_static(value));
        accept(&headers).is_some()
    };
    assert!(!given(header::SEC_WEBSOCKET_KEY, "x"));
    assert!(!given(header::SEC_WEBSOCKET_VERSION, "13"));
    assert!(!given(header::UPGRADE, "WebSocket"));
    assert!(given(header::CONNECTION, "keep-alive, Upgrade"));
    assert!(!given(header::SEC_WEBSOCKET_VERSION, "8"));
}

#[test]
fn frames_are_taken_whole_whatever_the_pieces() {
    let long = vec![b'x'; 300];
    let frames = [
        (masked(0x82, b"hello"), Frame::Bytes(b"hello".to_vec())),
        (masked(0x01, &long), Frame::Bytes(long.clone())),
        (masked(0x80, b""), Frame::Bytes(Vec::new())),
        (masked(0x89, b"ping"), Frame::Ping(b"ping".to_vec())),
        (masked(0x8a, b""), Frame::Pong),
        (masked(0x88, b"\x03\xe8"), Frame::Close),
    ];
    let (mut came, mut taken) = (Vec::new(), Vec::new());
    for byte in frames.iter().flat_map(|(bytes, _)| bytes) {
        came.push(*byte);
        taken.extend(take(&mut came).unwrap());
    }
    assert!(came.is_empty());
    assert!(taken.iter().eq(frames.iter().map(|(_, frame)| frame)), "{taken:?}");
}

#[test]
fn what_no_client_sends_is_refused() {
    let mut unmasked = masked(0x82, b"x");
    unmasked[1] &= !MASKED;
    let mut endless = masked(0x82, b"x");
    endless[1] = MASKED | 127;
    for bad in [
        unmasked,
        endless,
        masked(0xc2, b"x"),
        masked(0x83, b"x"),
        masked(0x09, b"x"),
        masked(0x89, &[0; 126]),
    ] {
        assert_eq!(take(&mut bad.clone()), Err(Broken), "{bad:?}");
    }
}

#[tokio::test]
async fn bytes_go_both_ways_until_one_side_ends() {
    let (mut browser, socket) = duplex(1 << 10);
    let (mut near, mut guest) = UnixStream::pair().unwrap();
    let carried = tokio::spawn(async move { carry(socket, &mut near).await });
    let sent = [masked(0x82, b"ls\n"), masked(0x89, b"!")].concat();
    browser.write_all(&sent).await.unwrap();
    let mut heard = [0; 3];
    guest.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"ls\n");
    let mut pong = [0; 3];
    browser.read_exact(&mut pong).await.unwrap();
    assert_eq!(pong, [0x8a, 1, b'!']);
    guest.write_all(b"bin").await.unwrap();
    let mut said = [0; 5];
    browser.read_exact(&mut said).await.unwrap();
    assert_eq!(said, [0x82, 3, b'b', b'i', b'n']);
    browser.write_all(&masked(0x88, b"")).await.unwrap();
    let mut rest = Vec::new();
    browser.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, [0x88, 0]);
    carried.await.unwrap().unwrap();
    assert_eq!(guest.read(&mut heard).await.unwrap(), 0, "the line is free for others");
}

#[tokio::test]
async fn a_line_that_ends_and_a_peer_that_errs_are_told() {
    let (mut browser, socket) = duplex(1 << 10);
    let (mut near, guest) = UnixStream::pair().unwrap();
    drop(guest);
    carry(socket, &mut near).await.unwrap();
    let mut rest = Vec::new();
    browser.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, [0x88, 0]);
    let (mut browser, socket) = duplex(1 << 10);
    let (mut near, _guest) = UnixStream::pair().unwrap();
    browser.write_all(&[0x82, 1, b'x']).await.unwrap();
    carry(socket, &mut near).await.unwrap();
    let mut rest = Vec::new();
    browser.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, [0x88, 2, 3, 0xea]);
}
