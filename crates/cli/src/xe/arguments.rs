//! Arguments from the command line, `~/.xe` and `XE_EXTRA_ARGS`: the command and the server.

use crate::complete;
use crate::connect::ClientEnv;
use crate::error::XeError;
use crate::params::Params;

/// Parsed arguments of the program.
#[derive(Debug, Default)]
pub(crate) struct Arguments {
    pub(crate) command: String,
    pub(crate) params: Params,
    pub(crate) server: Option<String>,
    pub(crate) port: Option<u16>,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) password_file: Option<String>,
    /// Whether to connect without TLS; absent for the default of the server.
    pub(crate) plain: Option<bool>,
    /// Whether to print in the format for scripts.
    pub(crate) minimal: bool,
    /// Words of a command to complete; they are not parameters.
    pub(crate) words: Vec<String>,
    /// First typed word that is no parameter.
    pub(crate) stray: Option<String>,
}

/// Options that take a value.
const WITH_VALUE: [(&str, &str); 6] = [
    ("-s", "server"),
    ("-h", "server"),
    ("-p", "port"),
    ("-u", "username"),
    ("-pw", "password"),
    ("-pwf", "passwordfile"),
];

impl Arguments {
    /// Reads all sources. The command line overrides `XE_EXTRA_ARGS`, which overrides `~/.xe`.
    pub(crate) fn read(typed: &[String], around: &ClientEnv) -> Result<Self, XeError> {
        let mut read = Self::default();
        let typed: &[String] = match typed.split_first() {
            Some((first, words)) if first == "complete" => {
                read.command.clone_from(first);
                read.words = words.to_vec();
                &[]
            }
            _ => typed,
        };
        if typed.iter().any(|word| word == "--help" || word == "-help") {
            return Err(XeError::Usage);
        }
        // Later words override earlier ones.
        let file = read.take(&around.file_words())?;
        let extra = read.take(&around.extra_words())?;
        let mut words = read.take(typed)?.into_iter();
        if !read.command.is_empty() {
            let words = read.words.clone();
            read.typed_before(&words);
            return Ok(read);
        }
        read.command = words.next().ok_or(XeError::Usage)?;
        read.stray = words.clone().find(|word| !word.contains('=') && !word.starts_with('-'));
        let words = words.chain(extra).chain(file);
        if read.command.contains('=') {
            return Err(XeError::syntax("the name of the command is missing"));
        }
        read.params = Params::new(words.map(|word| pair(&word)).collect());
        read.minimal = read.params.flag("minimal")?;
        Ok(read)
    }

    /// Reads the options about the server from the words before the one to complete.
    fn typed_before(&mut self, words: &[String]) {
        let (before, _) = complete::line_of(words);
        // An incomplete or invalid option is none yet.
        let _rest = self.take(&before);
    }

    /// Returns whether the word is a switch whose value follows.
    pub(crate) fn takes_value(word: &str) -> bool {
        WITH_VALUE.iter().any(|(switch, _)| *switch == word)
    }

    /// Returns the words that are no options about the server. A switch without its value is left.
    pub(crate) fn without_options(words: &[String]) -> Vec<String> {
        Self::default().take(words).unwrap_or_default()
    }

    /// Takes the options about the server and returns the other words.
    fn take(&mut self, words: &[String]) -> Result<Vec<String>, XeError> {
        let mut rest = Vec::new();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if let Some((_, name)) = WITH_VALUE.iter().find(|(switch, _)| switch == word) {
                let value = words.next();
                let value =
                    value.ok_or_else(|| XeError::syntax(&format!("{word} has no value")))?;
                self.set(name, value)?;
                continue;
            }
            if matches!(word.as_str(), "--nossl" | "--debug" | "--debug-on-fail" | "--trace") {
                if word == "--nossl" {
                    self.plain = Some(true);
                }
                continue;
            }
            let known = word.split_once('=').map(|(name, value)| self.set(name, value));
            if !known.transpose()?.unwrap_or(false) {
                rest.push(word.clone());
            }
        }
        if let Some(switch) = rest.iter().find(|word| is_unknown_switch(word)) {
            return Err(XeError::syntax(&format!("unknown switch {switch}")));
        }
        Ok(rest)
    }

    /// Sets an option about the server. Returns whether `name` is one.
    fn set(&mut self, name: &str, value: &str) -> Result<bool, XeError> {
        let text = || Some(value.to_owned());
        match name {
            "server" => self.server = text(),
            "port" => {
                let port = value.parse();
                self.port = Some(port.map_err(|_| {
                    XeError::error(format!("the port is a number up to 65535, and not '{value}'"))
                })?);
            }
            "username" => self.username = text(),
            "password" => self.password = text(),
            "passwordfile" => self.password_file = text(),
            "nossl" => self.plain = Some(value == "true"),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Returns whether the word has one dash and is not an option that takes a value.
fn is_unknown_switch(word: &str) -> bool {
    word.starts_with('-') && !word.starts_with("--") && !word.contains('=')
}

/// Splits a word into name and value. `--name` means `name=true`; without `=` the value is empty.
fn pair(word: &str) -> (String, String) {
    if let Some(name) = word.strip_prefix("--").filter(|name| !name.contains('=')) {
        return (name.to_owned(), "true".to_owned());
    }
    let word = word.strip_prefix("--").unwrap_or(word);
    let (name, value) = word.split_once('=').unwrap_or((word, ""));
    (name.to_owned(), value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_with(file: &str, extra: &str, typed: &str) -> Result<Arguments, XeError> {
        let typed: Vec<_> = typed.split_whitespace().map(str::to_owned).collect();
        Arguments::read(&typed, &ClientEnv::of_text(file, extra))
    }

    fn pairs(arguments: &Arguments) -> Vec<(&str, &str)> {
        arguments.params.iter().collect()
    }

    #[test]
    fn a_command_and_its_parameters() {
        let read = read_with("", "", "vm-start vm=a --force on=h other-config:k=a=b word").unwrap();
        assert_eq!(read.command, "vm-start");
        let expected =
            [("vm", "a"), ("force", "true"), ("on", "h"), ("other-config:k", "a=b"), ("word", "")];
        assert_eq!(pairs(&read), expected);
        assert_eq!(read.stray.as_deref(), Some("word"));
        assert!(!read.minimal && read.plain.is_none());
        assert!(read_with("", "", "vm-list --minimal").unwrap().minimal);
        assert!(read_with("", "", "vm-list minimal=true").unwrap().minimal);
    }

    #[test]
    fn where_the_server_is_can_stand_anywhere() {
        for typed in [
            "-s h -p 8443 -u root -pw secret vm-list params=all",
            "vm-list -s h params=all -p 8443 -u root -pw secret",
            "vm-list server=h port=8443 username=root password=secret params=all",
        ] {
            let read = read_with("", "", typed).unwrap();
            assert_eq!(read.command, "vm-list", "{typed}");
            assert_eq!(pairs(&read), [("params", "all")], "{typed}");
            assert_eq!(read.server.as_deref(), Some("h"));
            assert_eq!((read.port, read.username.as_deref()), (Some(8443), Some("root")));
            assert_eq!(read.password.as_deref(), Some("secret"));
        }
        let read = read_with("", "", "--nossl -pwf /f vm-list").unwrap();
        assert_eq!(read.plain, Some(true));
        assert_eq!(read.password_file.as_deref(), Some("/f"));
    }

    #[test]
    fn what_is_typed_comes_first() {
        let file = "server=file\nusername=f\n# a comment\nminimal = true\n";
        let read = read_with(file, "-s,extra,port=1", "vm-list -s typed").unwrap();
        assert_eq!(read.server.as_deref(), Some("typed"));
        assert_eq!((read.port, read.username.as_deref()), (Some(1), Some("f")));
        assert!(read.minimal);
        let read = read_with("", "password=a\\,b,--nossl", "vm-list").unwrap();
        assert_eq!((read.password.as_deref(), read.plain), (Some("a,b"), Some(true)));
    }

    #[test]
    fn what_makes_no_sense() {
        assert!(matches!(read_with("", "", ""), Err(XeError::Usage)));
        assert!(matches!(read_with("", "", "vm-list --help"), Err(XeError::Usage)));
        let error = read_with("", "", "vm=a").unwrap_err().errors();
        assert!(error.starts_with("Syntax error: the name of the command"), "{error}");
        let error = read_with("", "", "vm-list -x").unwrap_err().errors();
        assert!(error.starts_with("Syntax error: unknown switch -x\nFor usage"), "{error}");
        assert!(read_with("", "", "vm-list -s").is_err());
        assert!(read_with("", "", "vm-list -p 65536").is_err());
    }

    #[test]
    fn words_to_complete_are_no_parameters() {
        let read = read_with("server=h\n", "", "complete xe vm-start -x vm=").unwrap();
        assert_eq!(read.command, "complete");
        assert_eq!(read.words, ["xe", "vm-start", "-x", "vm="]);
        assert_eq!(read.server.as_deref(), Some("h"));
    }
}
