//! A strict reader of OpenMetrics text, which accepts only what the specification allows.
#![allow(clippy::unwrap_used, clippy::panic)] // A page that is none is a failed test.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};

/// One sample: name, labels in order of their names, value.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Name with its suffix.
    pub name: String,
    /// Label values by name.
    pub labels: BTreeMap<String, String>,
    /// Value, a finite number.
    pub value: f64,
}

/// All samples of one family.
#[derive(Clone, Debug, Default)]
pub struct Family {
    /// Metric type.
    pub kind: String,
    /// Unit, with which the name ends.
    pub unit: Option<String>,
    /// Help text.
    pub help: Option<String>,
    /// Samples in order of the page.
    pub samples: Vec<Sample>,
}

/// Families by name.
pub type Page = BTreeMap<String, Family>;

fn is_name(text: &str) -> bool {
    let first = |c: char| c.is_ascii_alphabetic() || c == '_';
    text.starts_with(first) && text.chars().all(|c| first(c) || c.is_ascii_digit())
}

/// Reads a page.
///
/// # Errors
/// The first invalid line, and the reason.
pub fn read(text: &str) -> Result<Page, String> {
    let body = text.strip_suffix("# EOF\n").ok_or("the text does not end in # EOF")?;
    let mut page = Page::new();
    let mut current = String::new();
    for (number, line) in body.split_terminator('\n').enumerate() {
        one_line(line, &mut page, &mut current)
            .map_err(|why| format!("line {}: {why}: {line}", number + 1))?;
    }
    for (name, family) in &page {
        check(name, family).map_err(|why| format!("{name}: {why}"))?;
    }
    Ok(page)
}

fn one_line(line: &str, page: &mut Page, current: &mut String) -> Result<(), String> {
    let Some(comment) = line.strip_prefix("# ") else {
        let family = page.get_mut(current.as_str()).ok_or("a sample before its family")?;
        family.samples.push(sample(line)?);
        return Ok(());
    };
    let mut words = comment.splitn(3, ' ');
    let (what, name, rest) = (words.next(), words.next(), words.next());
    let (Some(what), Some(name), Some(rest)) = (what, name, rest) else {
        return Err("not a comment of the format".into());
    };
    if !is_name(name) {
        return Err("not a name".into());
    }
    if name != current {
        if page.contains_key(name) {
            return Err("the samples of its family are not together".into());
        }
        *current = name.into();
    }
    let family = page.entry(name.into()).or_default();
    if !family.samples.is_empty() {
        return Err("metadata after samples".into());
    }
    match what {
        "TYPE" if family.kind.is_empty() => family.kind = rest.into(),
        "UNIT" if family.unit.is_none() => family.unit = Some(rest.into()),
        "HELP" if family.help.is_none() => family.help = Some(rest.into()),
        _ => return Err("unknown or repeated metadata".into()),
    }
    Ok(())
}

fn sample(line: &str) -> Result<Sample, String> {
    let end = line.find(['{', ' ']).ok_or("no value")?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            let (label, after) = rest.split_once("=\"").ok_or("a label without a value")?;
            if !is_name(label) {
                return Err(format!("{label:?} is not a label"));
            }
            let (value, after) = quoted(after)?;
            if labels.insert(label.to_owned(), value).is_some() {
                return Err(format!("{label} occurs twice"));
            }
            match after.strip_prefix(',') {
                Some(more) => rest = more,
                None => {
                    rest = after.strip_prefix('}').ok_or("labels do not end")?;
                    break;
                }
            }
        }
    }
    let value = rest.strip_prefix(' ').ok_or("no space before the value")?;
    let value = value.parse::<f64>().map_err(|_| "not a number (timestamps are not used)")?;
    if !is_name(name) || !value.is_finite() {
        return Err("not a sample".into());
    }
    Ok(Sample { name: name.into(), labels, value })
}

/// Returns a label's value and the text after its closing quote.
fn quoted(text: &str) -> Result<(String, &str), String> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((value, &text[at + 1..])),
            '\\' => match chars.next() {
                Some((_, 'n')) => value.push('\n'),
                Some((_, c @ ('"' | '\\'))) => value.push(c),
                _ => return Err("not an escape".into()),
            },
            c => value.push(c),
        }
    }
    Err("a value does not end".into())
}

fn check(name: &str, family: &Family) -> Result<(), String> {
    if family.help.is_none() {
        return Err("no help".into());
    }
    if let Some(unit) = &family.unit
        && !name.ends_with(&format!("_{unit}"))
    {
        return Err(format!("its name does not end in {unit}"));
    }
    let suffixes: &[&str] = match family.kind.as_str() {
        "counter" => &["_total", "_created"],
        "gauge" | "stateset" => &[""],
        "histogram" => &["_bucket", "_sum", "_count", "_created"],
        "info" => &["_info"],
        other => return Err(format!("unknown type {other:?}")),
    };
    if family.kind == "counter" && name.ends_with("_total") {
        return Err("the family has the suffix of its samples".into());
    }
    let mut seen = BTreeSet::new();
    for sample in &family.samples {
        if !suffixes.iter().any(|suffix| sample.name == format!("{name}{suffix}")) {
            return Err(format!("{} is not a sample of a {}", sample.name, family.kind));
        }
        if !seen.insert((sample.name.clone(), sample.labels.clone())) {
            return Err(format!("{sample:?} occurs twice"));
        }
        let value = sample.value;
        let fine = match family.kind.as_str() {
            "info" => value == 1.0,
            "stateset" => sample.labels.contains_key(name) && (value == 0.0 || value == 1.0),
            "gauge" => true,
            _ => value >= 0.0,
        };
        if !fine {
            return Err(format!("{sample:?} has a wrong value"));
        }
    }
    if family.kind == "histogram" { histograms(family) } else { Ok(()) }
}

/// Buckets, sum and count of one histogram.
type Series = (Vec<(f64, f64)>, Option<f64>, Option<f64>);

/// Checks histograms: bounds rise, counts do not fall, and the last bucket equals the count.
fn histograms(family: &Family) -> Result<(), String> {
    let mut all: BTreeMap<_, Series> = BTreeMap::new();
    for sample in &family.samples {
        let mut labels = sample.labels.clone();
        let bound = labels.remove("le");
        let one = all.entry(labels).or_default();
        match (sample.name.rsplit('_').next(), bound) {
            (Some("bucket"), Some(bound)) => {
                let bound = bound.parse().map_err(|_| format!("bound {bound:?}"))?;
                one.0.push((bound, sample.value));
            }
            (Some("sum"), None) => one.1 = Some(sample.value),
            (Some("count"), None) => one.2 = Some(sample.value),
            (Some("created"), None) => {}
            _ => return Err(format!("{sample:?}")),
        }
    }
    for (labels, (buckets, sum, count)) in all {
        let rising = buckets.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1);
        let last = buckets.last().is_some_and(|last| last.0.is_infinite() && Some(last.1) == count);
        if !rising || !last || sum.is_none() {
            return Err(format!("invalid histogram: {labels:?}"));
        }
    }
    Ok(())
}

/// Sends `request` and returns head and body of the response.
pub fn ask(mut stream: impl Read + Write, request: &str) -> (String, String) {
    stream.write_all(request.as_bytes()).unwrap();
    answer(stream)
}

fn answer(mut stream: impl Read) -> (String, String) {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
    (head.into(), body.into())
}

/// Scrapes a page like a Prometheus server.
pub fn scrape(stream: impl Read + Write) -> Page {
    let head = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    page(ask(stream, head))
}

/// Reads the response to a scrape that was already sent.
pub fn hear(stream: impl Read) -> Page {
    page(answer(stream))
}

fn page((head, body): (String, String)) -> Page {
    // Names of headers are not case sensitive.
    let head = head.to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 200 ok\r\n"), "{head}");
    assert!(head.contains("application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(head.contains(&format!("content-length: {}", body.len())), "{head}");
    read(&body).unwrap_or_else(|why| panic!("{why}"))
}

/// Returns the value of a family's only sample with these labels.
pub fn value(page: &Page, family: &str, suffix: &str, labels: &[(&str, &str)]) -> f64 {
    let name = format!("{family}{suffix}");
    let fits = |one: &&Sample| {
        one.name == name
            && labels.iter().all(|(key, text)| one.labels.get(*key).is_some_and(|has| has == text))
    };
    let all: Vec<_> = page[family].samples.iter().filter(fits).collect();
    assert_eq!(all.len(), 1, "{name} {labels:?}: {all:?}");
    all[0].value
}
