//! XML in libvirt's style: two spaces a level, attributes in single quotes.

use std::fmt::Write as _;

/// Spaces a level.
const INDENT: usize = 2;

/// XML text that grows by whole elements, so that it is well-formed.
#[derive(Debug, Default)]
pub(super) struct Xml {
    text: String,
    level: usize,
}

impl Xml {
    /// Appends an element without content.
    pub(super) fn empty(&mut self, name: &str, attributes: &[(&str, &str)]) -> &mut Self {
        let attributes = written(attributes);
        self.line(&format!("<{name}{attributes}/>"))
    }

    /// Appends an element that contains only text.
    pub(super) fn text(
        &mut self,
        name: &str,
        attributes: &[(&str, &str)],
        text: &str,
    ) -> &mut Self {
        let (attributes, text) = (written(attributes), escaped(text));
        self.line(&format!("<{name}{attributes}>{text}</{name}>"))
    }

    /// Appends an element with the content that `content` writes.
    pub(super) fn element(
        &mut self,
        name: &str,
        attributes: &[(&str, &str)],
        content: impl FnOnce(&mut Self),
    ) -> &mut Self {
        let attributes = written(attributes);
        self.line(&format!("<{name}{attributes}>"));
        self.level += 1;
        content(self);
        self.level -= 1;
        self.line(&format!("</{name}>"))
    }

    /// Appends an XML comment: fixed text without two hyphens in a row.
    pub(super) fn remark(&mut self, text: &'static str) -> &mut Self {
        self.line(&format!("<!-- {text} -->"))
    }

    pub(super) fn finish(self) -> String {
        self.text
    }

    fn line(&mut self, line: &str) -> &mut Self {
        let width = self.level * INDENT;
        // Writing to a string does not fail.
        let _never = writeln!(self.text, "{:width$}{line}", "");
        self
    }
}

fn written(attributes: &[(&str, &str)]) -> String {
    attributes.iter().map(|(name, value)| format!(" {name}='{}'", escaped(value))).collect()
}

/// Escapes `text` for an element or an attribute. Earlier checks refuse control characters, which
/// XML 1.0 does not allow.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&apos;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_nest_and_everything_is_escaped() {
        let mut xml = Xml::default();
        xml.element("a", &[("b", "it's <\"&\">")], |xml| {
            xml.empty("c", &[]).text("d", &[("e", "1")], "x & y").remark("fixed");
        });
        let expected = "<a b='it&apos;s &lt;&quot;&amp;&quot;&gt;'>\n  <c/>\n  \
                        <d e='1'>x &amp; y</d>\n  <!-- fixed -->\n</a>\n";
        assert_eq!(xml.finish(), expected);
    }
}
