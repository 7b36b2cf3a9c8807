//! The manual page matches the program.
#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

#[path = "../../examples/manual/page.rs"]
mod page;

use std::fs;

use clap::CommandFactory;
use daemon::config::{DaemonConfig, settings};
use daemon::options::Options;

/// Returns the settings from this configuration.
fn configured(text: &str) -> Result<DaemonConfig, String> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ringwayd.toml");
    fs::write(&file, text).unwrap();
    let options = Options { config: Some(file), ..Options::default() };
    settings(options).map_err(|error| error.to_string())
}

#[test]
fn the_page_tells_every_option() {
    let page = page::page().unwrap();
    assert!(page.contains(".TH ringwayd 8"), "{page}");
    for option in Options::command().get_arguments().filter_map(|one| one.get_long()) {
        assert!(page.contains(&option.replace('-', "\\-")), "{option}");
    }
    assert!(page.contains("\nworker\\-pool\\-size = 16\n"), "{page}");
}

#[test]
fn the_configuration_that_is_told_is_whole_and_the_usual_one() {
    // The default number of boots depends on the host's CPUs.
    let usual = configured("[limits]\nboots = 25\n").unwrap();
    assert_eq!(configured(page::CONFIGURATION).unwrap(), usual);
    let all = page::CONFIGURATION.replace("#password-file", "password-file");
    let all = all.replace("#directory", "directory");
    let named = configured(&all).unwrap().password_file.unwrap();
    assert_eq!(named.to_str().unwrap(), "/etc/ringway/passwords");
    // The parser of each table lists the keys that it knows.
    let mut known = 0;
    for table in
        ["", "[boot]\n", "[limits]\n", "[identity]\n", "[slices]\n", "[storage]\n", "[web]\n"]
    {
        let wrong = configured(&format!("{table}no-such-thing = 1\n")).unwrap_err();
        let (_, expected) = wrong.split_once("expected").unwrap();
        for name in expected.split('`').skip(1).step_by(2) {
            let forms = [format!("\n{name} = "), format!("\n[{name}]\n")];
            let all = format!("\n{all}");
            assert!(forms.iter().any(|one| all.contains(one.as_str())), "{name}: {wrong}");
            known += 1;
        }
    }
    assert!(known >= 29, "{known}");
}
