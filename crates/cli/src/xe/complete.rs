//! Completion: candidates for the next word.
//!
//! The shell passes the words typed so far, the last one incomplete. Commands and parameters are
//! known here. Values come from the server and are cached for a moment.

use xenapi::table::class;

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

/// Script for bash. It leaves the text before the last `=` in place.
const BASH: &str = r#"_xe() {
    local line=${COMP_LINE:0:COMP_POINT} words at
    read -r -a words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    local last=${words[-1]} prefix=
    local IFS=$'\n'
    COMPREPLY=($(xe complete "${words[@]}" 2>/dev/null))
    [[ $last == *=* ]] && prefix=${last%"${last##*=}"}
    COMPREPLY=("${COMPREPLY[@]#"$prefix"}")
    for at in "${!COMPREPLY[@]}"; do printf -v "COMPREPLY[at]" %q "${COMPREPLY[at]}"; done
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=:] ]] && compopt -o nospace
}
complete -F _xe xe
"#;

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

/// Runs `xe complete WORDS`: prints the candidates for the last word. The first word is `xe`.
pub(crate) fn complete(arguments: &Arguments) -> Result<Printed, XeError> {
    let (typed, last) = match arguments.words.split_last() {
        Some((last, before)) => (before.get(1..).unwrap_or_default(), last.as_str()),
        None => return Ok(Printed::nothing()),
    };
    let command = typed.iter().find(|word| !word.starts_with('-') && !word.contains('='));
    let candidates = match command.and_then(|name| commands::find(name)) {
        None if command.is_some_and(|name| name != "help") => Vec::new(),
        None => {
            let names = commands::all().into_iter().map(|(name, _)| name);
            names.chain(["help".to_owned(), "completion".to_owned()]).collect()
        }
        Some(resolved_command) => match last.split_once('=') {
            None => help::parameters(&resolved_command),
            Some((name, _)) => {
                let values = values(arguments, &resolved_command, name);
                values.into_iter().map(|value| format!("{name}={value}")).collect()
            }
        },
    };
    Ok(Printed::Values(candidates.into_iter().filter(|word| word.starts_with(last)).collect()))
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
    class.map(|class| asked(arguments, class, field, templates)).unwrap_or_default()
}

/// Returns the values of this field in all records of a class. Without a server it returns none,
/// and caches nothing.
fn asked(arguments: &Arguments, class: &'static str, field: &str, templates: bool) -> Vec<String> {
    let server = arguments.server.as_deref().unwrap_or("local");
    let port = arguments.port.unwrap_or_default();
    let cache = Cache::of(&format!("{server}-{port}"), &format!("{class}-{field}-{templates}"));
    if let Some(words) = cache.words() {
        return words;
    }
    // A completion must not trust a new server, and must not send a password to it.
    let Ok(mut client) = connect::login_known(arguments) else { return Vec::new() };
    let records = client.records(class);
    let _gone = client.logout();
    let Ok(records) = records else { return Vec::new() };
    let meant = |one: &xenapi::client::Record| {
        class != "VM" || one.flag("is_a_template") == templates && !one.flag("is_a_snapshot")
    };
    let texts = records.iter().filter(|(_, one)| meant(one)).map(|(_, one)| one.text(field));
    let mut words: Vec<_> = texts.filter(|text| !text.is_empty()).map(str::to_owned).collect();
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
        assert_eq!(completed(&[]), [""; 0]);
    }
}
