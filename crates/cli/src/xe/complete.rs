//! Completion: candidates for the next word.
//!
//! The shell passes the words typed so far, the last one incomplete. Commands and parameters are
//! known here. Values come from the server and are cached for a moment.

use xenapi::client::Record;
use xenapi::table::{Type, class};

use crate::arguments::Arguments;
use crate::cache::Cache;
use crate::columns;
use crate::commands::{self, ResolvedCommand};
use crate::connect;
use crate::error::XeError;
use crate::help;
use crate::object_types::{self, KINDS};
use crate::params::Params;
use crate::printer::Printed;
use crate::shell::{self, LastWord};

/// Script for bash. `xe` splits the line itself, because bash also breaks words at `=` and `:`.
const BASH: &str = r#"_xe() {
    mapfile -t COMPREPLY < <(
        xe complete --line "${COMP_LINE:0:COMP_POINT}" "${COMP_WORDS[COMP_CWORD]}" 2>/dev/null)
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=:] ]] && compopt -o nospace
}
complete -F _xe xe
"#;
/// Word before a line that `xe` splits.
const LINE: &str = "--line";

/// Parameters that take a UUID of a class other than the command's.
const UUIDS: [(&str, &str); 9] = [
    ("host-uuid", "host"),
    ("network-uuid", "network"),
    ("on", "host"),
    ("sr-uuid", "SR"),
    ("template-uuid", "VM"),
    ("vdi-uuid", "VDI"),
    ("vm-uuid", "VM"),
    ("snapshot-uuid", "VM"),
    ("pool-uuid", "pool"),
];

/// Runs `xe completion bash`: prints the script for the shell.
pub(crate) fn script(params: &Params) -> Result<Printed, XeError> {
    match params.iter().next() {
        Some(("bash", _)) => Ok(Printed::Text(BASH.to_owned())),
        _ => Err(XeError::error("completion is there for bash: xe completion bash")),
    }
}

/// Splits the words after `xe complete` into those before the last one and the last one:
/// `xe complete WORDS`, or `xe complete --line LINE CURRENT`.
pub(crate) fn line_of(words: &[String]) -> (Vec<String>, LastWord) {
    match words {
        [first, line, _] if first == LINE => {
            let (words, last) = shell::words(line);
            (words.into_iter().skip(1).collect(), last)
        }
        [_, before @ .., last] => {
            (before.to_vec(), LastWord { text: last.clone(), is_quoted: false })
        }
        _ => (Vec::new(), LastWord::default()),
    }
}

/// Runs `xe complete WORDS`: prints the candidates for the last word. The first word is `xe`. With
/// `--line LINE CURRENT`, prints what the shell puts in place of the current part of the last word.
pub(crate) fn complete(arguments: &Arguments) -> Result<Printed, XeError> {
    let (typed, last_word) = line_of(&arguments.words);
    let candidates = candidates(arguments, &typed, &last_word.text);
    Ok(Printed::Values(match arguments.words.as_slice() {
        [first, _, current] if first == LINE => {
            let part = |word: String| shell::replacement(&word, &last_word, current);
            candidates.into_iter().filter_map(part).collect()
        }
        _ => candidates,
    }))
}

fn candidates(arguments: &Arguments, typed: &[String], last: &str) -> Vec<String> {
    if arguments.words.is_empty() {
        return Vec::new();
    }
    let words = Arguments::without_options(typed);
    let command = words.iter().find(|word| !word.starts_with('-') && !word.contains('='));
    if typed.last().is_some_and(|word| Arguments::takes_value(word)) {
        // The value of a switch about the server.
        return Vec::new();
    }
    let candidates = match command.and_then(|name| commands::find(name)) {
        None if command.is_some_and(|name| name != "help") => Vec::new(),
        None => {
            let names = commands::all().into_iter().map(|(name, _)| name);
            names.chain(["help".to_owned(), "completion".to_owned()]).collect()
        }
        Some(resolved_command) => match last.split_once('=') {
            None => match last.split_once(':') {
                None => help::parameters(&resolved_command),
                Some((map, _)) => keys(arguments, &resolved_command, map),
            },
            Some(("params", listed)) => {
                // The columns before the last comma stay.
                let before = listed.rsplit_once(',').map_or("", |(before, _)| before);
                let comma = if before.is_empty() { "" } else { "," };
                let columns = values(arguments, &resolved_command, "params").into_iter();
                columns.map(|column| format!("params={before}{comma}{column}")).collect()
            }
            Some((name, _)) => {
                let values = values(arguments, &resolved_command, name);
                values.into_iter().map(|value| format!("{name}={value}")).collect()
            }
        },
    };
    candidates.into_iter().filter(|word| word.starts_with(last)).collect()
}

/// Keys with a meaning, by class and map.
const KEYS: [(&str, &str, &[&str]); 4] = [
    ("VIF", "qos_algorithm_params", &["kbps", "timeslice_us"]),
    ("VIF", "other_config", &["queues", "flood-limit"]),
    (
        "VBD",
        "other_config",
        &[
            "queues",
            "cache",
            "write-cache",
            "write-cache-overflow",
            "polling-duration",
            "polling-idle-threshold",
        ],
    ),
    ("VBD", "qos_algorithm_params", &["iops", "bytes", "weight"]),
];

/// Returns the candidates after `map:`: keys with a meaning, and those that records have.
fn keys(arguments: &Arguments, resolved_command: &ResolvedCommand, map: &str) -> Vec<String> {
    let Some(of) = resolved_command.class().and_then(class) else { return Vec::new() };
    let columns = columns::of(of);
    let Some(column) = columns.iter().find(|column| column.is(map)) else { return Vec::new() };
    let field = column.field;
    if matches!(column.ty(), Type::Set(_)) {
        return vec![format!("{map}:contains=")];
    }
    let known = KEYS.iter().filter(|(class, name, _)| *class == of.name && *name == field);
    let mut keys: Vec<String> =
        known.flat_map(|(.., keys)| keys.iter().map(|key| (*key).to_owned())).collect();
    keys.extend(asked(
        arguments,
        of.name,
        &format!("{field}:"),
        |_| true,
        |record| record.pairs(field).into_keys().map(str::to_owned).collect(),
    ));
    keys.sort();
    keys.dedup();
    keys.into_iter().map(|key| format!("{map}:{key}=")).collect()
}

/// Returns the candidates for the value after `name=`.
fn values(arguments: &Arguments, resolved_command: &ResolvedCommand, name: &str) -> Vec<String> {
    let of_class = resolved_command.class().and_then(class);
    if name == "class" {
        return KINDS.iter().map(|kind| kind.name.to_owned()).collect();
    }
    if ["params", "param-name"].contains(&name) {
        let columns = of_class.map(columns::of).unwrap_or_default();
        return columns.into_iter().map(|column| column.name.into_owned()).collect();
    }
    let (class, field) = match name {
        "uuid" => (resolved_command.class(), "uuid"),
        "vm" | "name-label" => (resolved_command.class(), "name_label"),
        "host" => (Some("host"), "name_label"),
        "template" | "template-name-label" => (Some("VM"), "name_label"),
        name => (UUIDS.iter().find(|(param, _)| *param == name).map(|(_, class)| *class), "uuid"),
    };
    let only = match resolved_command {
        ResolvedCommand::Generic(kind, _) => {
            object_types::find(kind.name).map_or(&[] as &[_], |kind| kind.only)
        }
        ResolvedCommand::Written(_) => &[],
    };
    let templates = name.starts_with("template")
        || only.iter().any(|(column, text)| *column == "is-a-template" && *text == "true");
    let Some(class) = class else { return Vec::new() };
    let meant = |one: &Record| {
        class != "VM" || one.flag("is_a_template") == templates && !one.flag("is_a_snapshot")
    };
    let what = format!("{field}-{templates}");
    asked(arguments, class, &what, meant, |record| vec![record.text(field).to_owned()])
}

/// Returns words of those records of a class that are meant. Without a server it returns none, and
/// caches nothing. `what` distinguishes the words in the cache.
fn asked(
    arguments: &Arguments,
    class: &'static str,
    what: &str,
    meant: impl Fn(&Record) -> bool,
    of: impl Fn(&Record) -> Vec<String>,
) -> Vec<String> {
    let server = arguments.server.as_deref().unwrap_or("local");
    let port = arguments.port.unwrap_or_default();
    let cache = Cache::of(&format!("{server}-{port}"), &format!("{class}-{what}"));
    if let Some(words) = cache.words() {
        return words;
    }
    // A completion must not trust a new server, and must not send a password to it.
    let Ok(mut client) = connect::login_known(arguments) else { return Vec::new() };
    let records = client.records(class);
    let _gone = client.logout();
    let Ok(records) = records else { return Vec::new() };
    let texts = records.iter().filter(|(_, one)| meant(one)).flat_map(|(_, one)| of(one));
    let mut words: Vec<_> = texts.filter(|text| !text.is_empty()).collect();
    words.sort();
    words.dedup();
    cache.keep(&words);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(words: &[&str]) -> Vec<String> {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        let arguments = Arguments { words, ..Arguments::default() };
        match complete(&arguments).unwrap() {
            Printed::Values(values) => values,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn commands_and_parameters_need_no_server() {
        assert_eq!(completed(&["xe", "vm-st"]), ["vm-start"]);
        assert_eq!(completed(&["xe", "help", "vbd-pl"]), ["vbd-plug"]);
        assert!(completed(&["xe", ""]).len() > 200);
        assert_eq!(completed(&["xe", "vdi-create", "vir"]), ["virtual-size="]);
        assert_eq!(completed(&["xe", "sr-create", "device-c"]), ["device-config:"]);
        assert_eq!(completed(&["xe", "vm-start", "--mu"]), ["--multiple"]);
        assert_eq!(completed(&["xe", "vm-list", "params=power"]), ["params=power-state"]);
        assert_eq!(completed(&["xe", "event-wait", "class=vb"]), ["class=vbd"]);
        assert_eq!(completed(&["xe", "nonsense", "x"]), [""; 0]);
        assert_eq!(
            completed(&["xe", "vm-list", "params=uuid,power-s"]),
            ["params=uuid,power-state"]
        );
        assert_eq!(completed(&["xe", "-s", "h", "-u", "root", "vm-st"]), ["vm-start"]);
        assert_eq!(completed(&["xe", "vm-start", "-s", "h", "--mu"]), ["--multiple"]);
        assert_eq!(completed(&["xe", "-s", "vm-"]), [""; 0], "the value of a switch");
        assert_eq!(completed(&["xe", "vm-list", "tags:"]), ["tags:contains="]);
        let line = |line: &str, current: &str| completed(&["--line", line, current]);
        assert_eq!(line("xe vm-st", "vm-st"), ["vm-start"]);
        assert_eq!(line("xe vif-param-set qos_algorithm_params:kb", "kb"), ["kbps="]);
        assert_eq!(line("xe vm-list params=uuid,power-s", "uuid,power-s"), ["uuid,power-state"]);
        assert_eq!(completed(&[]), [""; 0]);
    }
}
