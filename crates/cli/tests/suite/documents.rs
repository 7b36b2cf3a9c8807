//! Tests of the commands in README and docs. Ringway's commands run as written, in a directory of
//! the test. Other references must exist.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use tempfile::TempDir;
use testkit::process::{PROCESS_DEADLINE, Process, find_binary};

/// Commands that are not run: other programs, and commands that run long or end other processes.
const NOT_RUN: [&str; 7] =
    ["make", "install", "virsh", "pkill", "qemu-system-x86_64", "cargo", "$"];
/// Commands that run long or need a guest: the test checks only their options.
const LONG: [&str; 3] = ["ringway run ", "ringway lab ", "ringway demo"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns the commands of each fenced shell block.
fn blocks(document: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(root().join(document)).unwrap();
    let fenced = text.split("\n```").skip(1).step_by(2);
    let shell = fenced.filter_map(|block| {
        let (kind, text) = block.split_once('\n')?;
        ["sh", "console"].contains(&kind).then(|| text.replace("\\\n", " "))
    });
    let command = |line: &str| {
        let line = line.split(" #").next().unwrap_or_default();
        line.trim().trim_start_matches("$ ").to_owned()
    };
    shell.map(|text| text.lines().map(command).filter(|line| !line.is_empty()).collect()).collect()
}

fn documents() -> Vec<(String, Vec<String>)> {
    let mut all = Vec::new();
    let names = ["README.md", "docs/libvirt.md", "docs/why-not-qemu-block.md"];
    for name in names.into_iter().chain([
        "docs/why-is-my-vm-slow.md",
        "docs/polling.md",
        "docs/architecture.md",
    ]) {
        all.extend(blocks(name).into_iter().map(|block| (name.to_owned(), block)));
    }
    all
}

/// A directory in place of the root for `/run`, `/srv` and `/img`.
struct Place {
    dir: TempDir,
    /// Background processes.
    running: Vec<Process>,
}

impl Place {
    /// Creates the images and directories that `block` needs. Also starts its `ringway-io` with its
    /// disks, unless the block starts and attaches them.
    fn for_block(block: &[String]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut place = Self { dir, running: Vec::new() };
        for folder in ["run", "srv", "img"] {
            std::fs::create_dir(place.dir.path().join(folder)).unwrap();
        }
        let all = place.here(&block.join("\n"));
        for word in all.split([' ', '=', '\n', ',']).filter(|word| word.ends_with(".raw")) {
            let image = std::fs::File::create(place.dir.path().join(word)).unwrap();
            image.set_len(1 << 20).unwrap();
        }
        if all.contains("ringway-io --control") {
            return place;
        }
        place.run("mkdir -p /run/ringway");
        place.start("ringway-io --control /run/ringway/io.sock");
        if !all.contains("disk.attach") && !all.contains("ringway-blk") {
            for id in ["d1", "d2", "vm1"] {
                let attach = "ringway io disk.attach backend.null=1M";
                place.run(&format!("{attach} id={id} socket=/run/ringway/{id}.sock"));
            }
            let attach = "ringway io nic.attach network=other mac=02:00:00:00:00:09";
            place.run(&format!("{attach} id=n1 socket=/run/ringway/n1.sock"));
        }
        place
    }

    fn here(&self, text: &str) -> String {
        let root = self.dir.path().display();
        ["run", "srv", "img"].iter().fold(text.to_owned(), |text, folder| {
            text.replace(&format!("/{folder}/"), &format!("{root}/{folder}/"))
        })
    }

    fn shell(&self, text: &str) -> Command {
        let ours = find_binary("ringway").unwrap();
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", ours.parent().unwrap().display());
        let mut shell = Command::new("sh");
        shell.args(["-ec", &self.here(text)]).current_dir(self.dir.path()).env("PATH", path);
        shell.env("RINGWAY_CONTROL", self.dir.path().join("run/ringway/io.sock"));
        shell.stdin(Stdio::null());
        shell
    }

    fn run(&self, command: &str) {
        let output = self.shell(command).output().unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
    }

    /// Starts the command in the background and waits until its socket exists, or takes calls.
    fn start(&mut self, command: &str) {
        let die = if command.contains("-io") { "--die-with-parent" } else { "" };
        let mut shell = self.shell(&format!("exec {command} {die}"));
        let mut process = Process::start(&mut shell).unwrap();
        let command = self.here(command);
        let socket = command.split(' ').find(|word| word.ends_with(".sock")).unwrap();
        let until = Instant::now() + PROCESS_DEADLINE;
        // A front-end that leaves could end a server of one disk.
        let is_ready = || match die {
            "" => Path::new(socket).exists(),
            _ => UnixStream::connect(socket).is_ok(),
        };
        while !is_ready() {
            let runs = process.is_running().unwrap() && Instant::now() < until;
            assert!(runs, "{command}: {}", process.stderr());
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        self.running.push(process);
    }
}

/// Returns whether a shell runs a part of a command in the background.
fn has_background(command: &str) -> bool {
    let others = ["&&", ">&", "<&", "&>"].iter();
    let left = others.fold(command.to_owned(), |left, operator| left.replace(operator, " "));
    // Quoted text is no operator.
    left.split(['\'', '"']).step_by(2).any(|part| part.contains('&'))
}

#[test]
fn background_commands_are_recognized() {
    for command in ["a&", "a & b", "(a &)", "a &b", "a&& b &"] {
        assert!(has_background(command), "{command}");
    }
    for command in ["a && b", "a 2>&1", "a &>b", "a 'x & y'", "a <&3", "a"] {
        assert!(!has_background(command), "{command}");
    }
}

/// Checks that each `--option` of a Ringway command is in its help.
fn check_options(command: &str) {
    let words: Vec<_> = command.split_whitespace().collect();
    let named = words.iter().take(2).take_while(|word| !word.starts_with('-'));
    let mut help = Command::new(find_binary(words[0]).unwrap());
    let help = help.args(named.skip(1)).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    for option in words.iter().filter(|word| word.starts_with("--")) {
        let known = help.split([' ', ',', '\n', '=']).any(|word| word == *option);
        // The lab's own program documents its options.
        assert!(known || words[1] == "lab", "{command}: {option} is not in its help");
    }
}

#[test]
fn commands_of_ours_run_as_they_are_written() {
    let mut run = 0;
    for (name, block) in documents() {
        if !block.iter().any(|command| command.contains("ringway-") || command.contains("ringway "))
        {
            continue;
        }
        // `tests/guests/readme.rs` runs commands that need a daemon, on a real guest.
        if block.iter().any(|command| command.starts_with("ringwayd")) {
            continue;
        }
        println!("{name}: {block:#?}");
        let mut place = Place::for_block(&block);
        for command in &block {
            // Skip the part after a pipe: it is another program.
            let command = command.split(" | ").next().unwrap();
            let program = command.split(' ').next().unwrap();
            if NOT_RUN.contains(&program) {
                continue;
            }
            if program.starts_with("ringway") {
                check_options(command.split(" >").next().unwrap().trim_end_matches(" &"));
                run += 1;
            }
            let waits_for_all = command.strip_suffix(" &").unwrap_or(command);
            assert!(
                !has_background(waits_for_all),
                "{name}: `{command}` starts something in the background, which only a line that \
                 ends with ` &` may: the test would wait for its end"
            );
            match command.strip_suffix(" &") {
                _ if LONG.iter().any(|long| command.starts_with(long)) => {}
                Some(command) => place.start(command),
                None => place.run(command),
            }
        }
    }
    assert!(run >= 12, "{run} commands were found");
}

#[test]
fn targets_and_tests_that_are_named_exist() {
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    let mut found = 0;
    for command in documents().into_iter().flat_map(|(_, block)| block) {
        for part in command.split("&&").map(str::trim) {
            let words: Vec<_> = part.split_whitespace().collect();
            let after = |flag| words.iter().skip_while(|word| **word != flag).nth(1);
            if words[0] == "make" {
                for target in &words[1..] {
                    assert!(makefile.contains(&format!("\n{target}:")), "{part}: no {target}");
                    found += 1;
                }
            }
            if let (Some(package), Some(test)) = (after("-p"), after("--test")) {
                let tests = root().join(format!("crates/{package}/tests"));
                let forms = [format!("{test}.rs"), format!("{test}/main.rs")];
                assert!(forms.iter().any(|form| tests.join(form).is_file()), "{part}: no {test}");
                found += 1;
            }
        }
    }
    assert!(found >= 4, "{found} were found");
}
