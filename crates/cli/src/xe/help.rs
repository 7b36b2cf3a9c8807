//! Help: commands and their parameters.

use crate::commands::{self, ResolvedCommand};
use crate::error::XeError;
use crate::params::{Params, STANDARD};
use crate::printer::Printed;

/// Usage text of the program.
pub(crate) const USAGE: &str = "Usage:
  xe <command>
    [ -s <server> ]            Host, or path of a socket; this host unless given
    [ -p <port> ]              Port of the server
    [ -u <username> -pw <password> | -pwf <file> ]
                               Who logs in; a file has the name and the password in two lines
    [ --nossl ]                Without TLS
    [ --minimal ]              For scripts: values only, with commas between them
    [ <name>=<value> | --<name> ... ]
                               Parameters of the command

What is in ~/.xe (name=value) and XE_EXTRA_ARGS (with commas between) comes after what is typed.

To get help on a command:      xe help <command>
To get a list of commands:     xe help --all
";

/// Maximum width of a list of names.
const WIDTH: usize = 78;

/// Runs `xe help`: of the named commands, of all commands, or of the common ones.
pub(crate) fn help(params: &Params, minimal: bool) -> Result<Printed, XeError> {
    let named: Vec<_> =
        params.iter().map(|(name, _)| name).filter(|name| !STANDARD.contains(name)).collect();
    if !named.is_empty() {
        let records = named.into_iter().map(of_one).collect::<Result<_, _>>()?;
        return Ok(Printed::Records(records));
    }
    let all = params.flag("all")?;
    let commands = commands::all().into_iter();
    let names: Vec<_> = commands
        .filter(|(_, resolved_command)| all || resolved_command.is_common())
        .map(|(name, _)| name)
        .collect();
    if minimal {
        return Ok(Printed::Values(names));
    }
    let which = if all { "All commands" } else { "Common commands" };
    Ok(Printed::Text(format!("{USAGE}\n{which}:\n{}", in_lines(&names))))
}

fn of_one(name: &str) -> Result<Vec<(String, String)>, XeError> {
    let resolved_command = commands::find(name).ok_or_else(|| XeError::unknown(name))?;
    let line = |heading: &str, text: String| (heading.to_owned(), text);
    Ok(vec![
        line("command name", name.to_owned()),
        line("reqd params", resolved_command.required().join(", ")),
        line("optional params", resolved_command.optional().join(", ")),
        line("description", resolved_command.help()),
    ])
}

/// Formats names with commas. Names with the same prefix begin a new line together.
fn in_lines(names: &[String]) -> String {
    let mut text = String::new();
    let mut line = String::new();
    let mut kind = "";
    for name in names {
        let of = name.split('-').next().unwrap_or_default();
        let is_new = of != kind;
        kind = of;
        if !line.is_empty() && (is_new || line.len() + name.len() + 2 > WIDTH) {
            text.push_str(&line);
            text.push('\n');
            line.clear();
        }
        line.push_str(if line.is_empty() { "    " } else { ", " });
        line.push_str(name);
    }
    text + &line + "\n"
}

/// Returns the parameters of a command as completion candidates.
pub(crate) fn parameters(resolved_command: &ResolvedCommand) -> Vec<String> {
    let required = resolved_command.required().iter().map(|name| (*name).to_owned());
    let names = required.chain(resolved_command.optional()).filter(|name| !name.starts_with('<'));
    names
        .map(|name| if name.starts_with("--") || name.ends_with(':') { name } else { name + "=" })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(names: &[&str]) -> Params {
        Params::new(names.iter().map(|name| ((*name).to_owned(), String::new())).collect())
    }

    #[test]
    fn one_command() {
        let text = help(&params(&["vbd-plug"]), false).unwrap().text(false);
        assert_eq!(
            text,
            "command name       : vbd-plug\n        reqd params: uuid\n    optional params: \n        \
             description: Plugs a disk device into its running machine.\n\n\n"
        );
        let error = help(&params(&["vbd-plop"]), false).unwrap_err();
        assert!(error.errors().starts_with("Unknown command: vbd-plop; did you mean vbd-plug?\n"));
    }

    #[test]
    fn all_commands_and_those_that_are_needed_most() {
        let all =
            Params::new(vec![("all".into(), "true".into()), ("minimal".into(), "true".into())]);
        let names = help(&all, true).unwrap().text(true);
        for name in ["vm-start", "vm-list", "vdi-param-set", "event-wait"] {
            assert!(names.split(',').any(|one| one.trim_end() == name), "{name}");
        }
        let common = help(&params(&[]), true).unwrap().text(true);
        assert!(common.contains("vm-start,") && !common.contains("vdi-param-set"), "{common}");
        let text = help(&all, false).unwrap().text(false);
        assert!(text.lines().all(|line| line.len() <= 100), "{text}");
        assert!(text.starts_with("Usage:\n  xe <command>\n"));
    }
}
