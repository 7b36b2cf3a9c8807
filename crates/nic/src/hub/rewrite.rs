//! First bytes of a frame, rewritten for another VLAN tag.

use net::frame::{PREFIX_BYTES, TAG_BYTES, ethertype};
use net::header::Header;
use net::port::TagAction;

/// Position of a tag: after the addresses.
const TAG_AT: usize = 12;
/// Bytes of a tag.
const TAG: usize = TAG_BYTES as usize;

/// Rewritten first bytes of a frame.
pub(super) struct RewrittenHead {
    bytes: [u8; PREFIX_BYTES + TAG],
    len: usize,
}

impl RewrittenHead {
    /// Returns `prefix` and `header` changed as `tag_action` demands; `None` if they stay
    /// unchanged.
    pub(super) fn new(
        prefix: &[u8],
        header: &Header,
        tag_action: TagAction,
    ) -> Option<(Self, Header)> {
        let (tag, header) = match tag_action {
            TagAction::Keep => return None,
            TagAction::Push(tag) => (Some(tag), header.tagged()),
            TagAction::Replace(tag) => (Some(tag), *header),
            TagAction::Pop => (None, header.untagged()),
        };
        let new = tag.map(|tag| [ethertype::VLAN.to_be_bytes(), tag.0.to_be_bytes()]);
        // Start of the bytes after the addresses, without a tag that is removed.
        let behind = match tag_action {
            TagAction::Push(_) => TAG_AT,
            _ => TAG_AT + TAG,
        };
        let (front, rest) = (prefix.get(..TAG_AT)?, prefix.get(behind..)?);
        let mut head = Self { bytes: [0; PREFIX_BYTES + TAG], len: 0 };
        let parts = [front, new.as_ref().map_or(&[][..], |new| new.as_flattened()), rest];
        for (place, byte) in head.bytes.iter_mut().zip(parts.into_iter().flatten()) {
            *place = *byte;
            head.len += 1;
        }
        Some((head, header))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use net::frame::Tag;

    use super::*;

    fn changed(prefix: &[u8], tag_action: TagAction) -> Vec<u8> {
        let (head, _) = RewrittenHead::new(prefix, &Header::default(), tag_action).unwrap();
        head.bytes().to_vec()
    }

    #[test]
    fn tags_come_go_and_change() {
        let plain: Vec<u8> = (0..PREFIX_BYTES as u8).collect();
        let tagged = changed(&plain, TagAction::Push(Tag(0xa007)));
        assert_eq!(tagged.len(), plain.len() + 4);
        assert_eq!((&tagged[..12], &tagged[12..16]), (&plain[..12], &[0x81, 0, 0xa0, 7][..]));
        assert_eq!(tagged[16..], plain[12..]);
        let prefix = &tagged[..PREFIX_BYTES];
        let other = changed(prefix, TagAction::Replace(Tag(9)));
        assert_eq!((&other[..14], &other[14..16]), (&tagged[..14], &[0, 9][..]));
        assert_eq!((other.len(), &other[16..]), (PREFIX_BYTES, &prefix[16..]));
        assert_eq!(changed(prefix, TagAction::Pop), plain[..PREFIX_BYTES - 4]);
        assert!(RewrittenHead::new(&plain, &Header::default(), TagAction::Keep).is_none());
        assert_eq!(changed(&plain[..14], TagAction::Push(Tag(1))).len(), 18);
    }
}
