//! The manual page, generated from the command definitions.

use crate::commands;
use crate::help::USAGE;
use crate::printer::Printed;

/// Text before the commands.
const HEAD: &str = ".TH XE 1 \"\" \"Ringway\"
.SH NAME
xe \\- manage machines, disks and networks of a Ringway host
.SH SYNOPSIS
.B xe
.I command
.RI [ name = value \" | \" \\-\\-name \" ...]\"
.SH DESCRIPTION
.B xe
speaks the XenAPI with
.BR ringwayd (8)
and has the grammar, the names and the output of XenServer's program of this name. Differences are
listed in the document
.IR xe-differences .
.SH OPTIONS
.nf
";

/// Text after the commands.
const TAIL: &str = ".SH EXIT STATUS
0: done, and for help. 1: anything else; the reason is on standard error.
.SH FILES
.TP
.I ~/.xe
Lines of name=value: server, port, username, password, passwordfile, nossl, and parameters.
.TP
.I ~/.xe-trust
Trusted certificates of servers. A certificate is trusted at the first connection; a server with
another certificate is refused.
.TP
.I /run/ringway/ringwayd.sock.control
Leads to the control group that root's
.B xe
joins, so that guests that use every CPU do not slow it.
.SH ENVIRONMENT
.TP
.B XE_EXTRA_ARGS
More arguments, separated by commas, that follow the typed ones.
.SH SEE ALSO
.BR ringwayd (8),
.BR ringway (1)
";

/// Runs `xe man`: returns the page in roff format.
pub(crate) fn page() -> Printed {
    let mut text = format!("{HEAD}{}.fi\n.SH COMMANDS\n", escaped(USAGE));
    for (name, resolved_command) in commands::all() {
        let params =
            resolved_command.required().iter().map(|name| format!("{name}=")).collect::<Vec<_>>();
        text.push_str(&format!(".TP\n.B {}\n", escaped(&name)));
        if !params.is_empty() {
            text.push_str(&format!("Needs {}. ", escaped(&params.join(", "))));
        }
        text.push_str(&escaped(&resolved_command.help()));
        text.push('\n');
    }
    Printed::Text(text + TAIL)
}

/// Escapes characters that have a meaning in roff.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    let lines = text.lines().map(|line| {
        let control = line.starts_with(['.', '\'']);
        format!("{}{line}", if control { "\\&" } else { "" })
    });
    let joined = lines.collect::<Vec<_>>().join("\n");
    if text.ends_with('\n') { joined + "\n" } else { joined }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_command() {
        let text = page().text(false);
        for (name, _) in commands::all() {
            assert!(text.contains(&format!(".B {}\n", name.replace('-', "\\-"))), "{name}");
        }
        assert!(text.starts_with(".TH XE 1"));
        assert_eq!(escaped(".a\\b\n'c-d\n"), "\\&.a\\eb\n\\&'c\\-d\n");
    }
}
