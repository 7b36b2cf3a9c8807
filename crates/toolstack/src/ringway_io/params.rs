//! Parameters of a call on the command line: `id=d1 backend.file=/img/a.raw queues=4`.

use model::spec::{SpecError, parse_size};
use serde_json::{Map, Value};

/// Keys with text values, even if they look like numbers: a serial `007` is not 7.
const TEXT: [&str; 11] = [
    "id",
    "socket",
    "file",
    "serial",
    "socket_group",
    "binary",
    "network",
    "mac",
    "tap",
    "path",
    "format",
];
/// Keys with sizes, such as `512M`.
const SIZES: [&str; 6] = ["size", "offset", "null", "memory", "bytes_per_second", "bytes_burst"];
/// Keys with octal values, the usual form of permissions.
const OCTAL: &str = "socket_mode";

/// Parses the words after a method: none, one JSON object, or `key=value` pairs. A dot in a key
/// nests: `backend.null=1G` is `{"backend":{"null":1073741824}}`.
///
/// # Errors
/// Field `params`: a word has another form, or a key is repeated. Field `size`: a size is invalid.
pub fn params(words: &[String]) -> Result<Value, SpecError> {
    if let [only] = words
        && only.trim_start().starts_with(['{', '['])
    {
        return serde_json::from_str(only)
            .map_err(|error| refusal(format!("{only:?} is not JSON: {error}")));
    }
    let mut object = Map::new();
    for word in words {
        let Some((key, text)) = word.split_once('=') else {
            let problem = format!("{word:?} is neither key=value nor a JSON object");
            return Err(refusal(problem));
        };
        insert(&mut object, key, text)?;
    }
    Ok(Value::Object(object))
}

fn insert(object: &mut Map<String, Value>, key: &str, text: &str) -> Result<(), SpecError> {
    let twice = || refusal(format!("{key} is given twice"));
    match key.split_once('.') {
        Some((outer, inner)) => {
            let nested =
                object.entry(outer).or_insert_with(|| Value::Object(Map::new())).as_object_mut();
            insert(nested.ok_or_else(twice)?, inner, text)
        }
        None => match object.insert(key.into(), value(key, text)?) {
            None => Ok(()),
            Some(_) => Err(twice()),
        },
    }
}

fn value(key: &str, text: &str) -> Result<Value, SpecError> {
    if TEXT.contains(&key) {
        return Ok(text.into());
    }
    if SIZES.contains(&key) {
        return parse_size(text).map(Value::from);
    }
    if key == OCTAL {
        return u32::from_str_radix(text, 8)
            .map(Value::from)
            .map_err(|_| refusal(format!("{key}={text} is not octal; write for example 660")));
    }
    Ok(serde_json::from_str(text).unwrap_or_else(|_| text.into()))
}

fn refusal(problem: String) -> SpecError {
    SpecError { field: "params", problem }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(words: &[&str]) -> Result<Value, SpecError> {
        params(&words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn pairs_become_an_object() {
        let words = ["id=d1", "backend.file=/img/a=b.raw", "queues=4", "read_only=true"];
        let expected = json!({
            "id": "d1", "backend": {"file": "/img/a=b.raw"}, "queues": 4, "read_only": true
        });
        assert_eq!(parse(&words).unwrap(), expected);
        assert_eq!(parse(&[]).unwrap(), json!({}));
    }

    #[test]
    fn values_get_the_type_of_their_key() {
        let words = ["id=a", "caps.iops=500", "caps.bytes_per_second=10M"];
        let expected = json!({"id": "a", "caps": {"iops": 500, "bytes_per_second": 10 << 20}});
        assert_eq!(parse(&words).unwrap(), expected);
        let words = ["serial=007", "cache=none", "backend.null=1G", "socket_mode=660"];
        let expected = json!({
            "serial": "007", "cache": "none", "backend": {"null": 1 << 30}, "socket_mode": 0o660
        });
        assert_eq!(parse(&words).unwrap(), expected);
    }

    #[test]
    fn a_tree_is_nested_by_its_keys() {
        let words = ["backend.raw.child.file=007", "backend.raw.offset=1M", "backend.raw.size=8G"];
        let window = json!({"child": {"file": "007"}, "offset": 1 << 20, "size": 8u64 << 30});
        assert_eq!(parse(&words).unwrap(), json!({"backend": {"raw": window}}));
        let words = ["backend={\"file\":\"/img/a.raw\"}"];
        assert_eq!(parse(&words).unwrap(), json!({"backend": {"file": "/img/a.raw"}}));
    }

    #[test]
    fn a_nic_is_typed_like_a_disk() {
        let words = ["id=7", "network=10", "mac=02:00:00:00:00:01", "locked.ipv4=[\"10.0.0.1\"]"];
        let expected = json!({
            "id": "7", "network": "10", "mac": "02:00:00:00:00:01", "locked": {"ipv4": ["10.0.0.1"]}
        });
        assert_eq!(parse(&words).unwrap(), expected);
        let words = ["network=10", "tap=0", "rate.bytes_per_second=10M", "mtu=9000", "mq=false"];
        let rate = json!({"bytes_per_second": 10 << 20});
        let expected = json!({"network": "10", "tap": "0", "rate": rate, "mtu": 9000, "mq": false});
        assert_eq!(parse(&words).unwrap(), expected);
    }

    #[test]
    fn json_goes_through_as_it_is() {
        assert_eq!(parse(&[r#"{"id":"a"}"#]).unwrap(), json!({"id": "a"}));
    }

    #[test]
    fn what_cannot_be_understood_is_refused() {
        for words in [&["stats"][..], &["{\"a\":"], &["a=1", "a=2"], &["a=1", "a.b=2"]] {
            assert_eq!(parse(words).unwrap_err().field, "params", "{words:?}");
        }
        assert_eq!(parse(&["size=12X"]).unwrap_err().field, "size");
    }
}
