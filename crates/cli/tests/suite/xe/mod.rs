//! Tests of the exact output of `xe` against a server in the test.
#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod server;

use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Output, Stdio};

use server::Server;
use tempfile::TempDir;
use xenapi::codes;

struct World {
    dir: TempDir,
    server: Server,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("xe-").tempdir().unwrap();
        let server = Server::start(dir.path());
        Self { dir, server }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xe"));
        command
            .arg("-s")
            .arg(&self.server.socket)
            .args(words)
            .env("HOME", self.dir.path())
            .env("XDG_CACHE_HOME", self.dir.path().join("cache"))
            .env_remove("XE_EXTRA_ARGS")
            .stdin(Stdio::null());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// Runs `xe` and returns its standard output. It must succeed.
    fn prints(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{words:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs `xe` and returns its standard error. It must fail.
    fn fails(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{words:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

const LIST: &str = "\
uuid ( RO)           : uuid-db
     name-label ( RW): db, of web
    power-state ( RO): halted


uuid ( RO)           : uuid-dom0
     name-label ( RW): Control domain on host: one
    power-state ( RO): running


uuid ( RO)           : uuid-web
     name-label ( RW): web
    power-state ( RO): running


";

#[test]
fn lists() {
    let world = World::new();
    assert_eq!(world.prints(&["vm-list"]), LIST);
    assert_eq!(world.server.calls(), ["VM.get_all_records"], "one call is enough");
    assert_eq!(world.prints(&["vm-list", "--minimal"]), "uuid-db,uuid-dom0,uuid-web\n");
    assert_eq!(
        world.prints(&["vm-list", "params=name-label", "--minimal"]),
        "db\\, of web,Control domain on host: one,web\n"
    );
    // Columns stay in their own order.
    assert_eq!(
        world.prints(&["vm-list", "params=name-label,uuid", "name-label=web"]),
        "uuid ( RO)          : uuid-web\n    name-label ( RW): web\n\n\n"
    );
    assert_eq!(world.prints(&["template-list", "--minimal"]), "uuid-t\n");
    assert_eq!(world.prints(&["vm-list", "name-label=none"]), "");
    assert_eq!(world.prints(&["vm-list", "name-label=none", "--minimal"]), "\n");
    assert_eq!(
        world.prints(&["vbd-list"]),
        "uuid ( RO)             : uuid-d\n          vm-uuid ( RO): uuid-web\n    \
         vm-name-label ( RO): web\n         vdi-uuid ( RO): uuid-v\n            empty ( RO): false\n           \
         device ( RO): \n\n\n"
    );
}

#[test]
fn filters() {
    let world = World::new();
    for (filter, uuids) in [
        (&["uuid=uuid-web"][..], "uuid-web"),
        (&["uuid=UUID-WEB"], "uuid-web"),
        (&["power-state=halted"], "uuid-db"),
        (&["is-control-domain=true"], "uuid-dom0"),
        (&["other-config:zone=b"], "uuid-web"),
        (&["tags:contains=blue"], "uuid-web"),
        (&["power-state=running", "is-control-domain=false"], "uuid-web"),
        (&["power-state=running", "name-label=db, of web"], ""),
    ] {
        let words = [&["vm-list", "--minimal"], filter].concat();
        assert_eq!(world.prints(&words), format!("{uuids}\n"), "{filter:?}");
    }
    assert_eq!(world.prints(&["vbd-list", "vm-name-label=web", "--minimal"]), "uuid-d\n");
    assert_eq!(world.fails(&["vm-list", "nonsense=1"]), "Error: Unknown field 'nonsense'\n");
    let asked = "VM.get_all_records_where (field \"uuid\"=\"uuid-web\")";
    assert!(world.server.calls().contains(&asked.to_owned()), "{:?}", world.server.calls());
}

#[test]
fn one_field_and_all_of_them() {
    let world = World::new();
    let get = |words: &[&str]| world.prints(&[&["vm-param-get", "uuid=uuid-web"], words].concat());
    assert_eq!(get(&["param-name=power-state"]), "running\n");
    assert_eq!(get(&["param-name=other-config"]), "k: v; zone: b\n");
    assert_eq!(get(&["param-name=other-config", "param-key=zone"]), "b\n");
    assert_eq!(get(&["param-name=tags"]), "blue; a,b\n");
    assert_eq!(get(&["param-name=tags", "--minimal"]), "blue; a\\,b\n");
    let all = world.prints(&["vm-param-list", "uuid=uuid-web"]);
    for line in ["power-state ( RO): running", "other-config (MRW): k: v; zone: b"] {
        assert!(all.contains(line), "{all}");
    }
    assert_eq!(
        world.fails(&["vm-param-get", "uuid=uuid-web", "param-name=other-config", "param-key=x"]),
        "Error: Key x not found in map\n"
    );
    world.prints(&["vm-param-set", "uuid=uuid-web", "name-label=new", "other-config:zone=c"]);
    let calls = world.server.calls();
    assert_eq!(
        calls[calls.len() - 4..],
        [
            "VM.set_name_label OpaqueRef:web new",
            "VM.set_in_other_config OpaqueRef:web zone c",
            "VM.remove_from_other_config OpaqueRef:web zone",
            "VM.add_to_other_config OpaqueRef:web zone c",
        ]
    );
    assert_eq!(
        world.fails(&["vm-param-set", "uuid=uuid-web", "power-state=halted"]),
        "Error: Field 'power-state' is read-only\n"
    );
}

#[test]
fn machines_are_selected() {
    let world = World::new();
    assert_eq!(world.prints(&["vm-start", "vm=web"]), "");
    assert_eq!(
        world.server.calls(),
        [
            "VM.get_all_records_where (field \"uuid\"=\"web\") or (field \"name_label\"=\"web\")",
            "Async.VM.start OpaqueRef:web false false",
            "event.from [\"task/OpaqueRef:task1\"]  30.0",
            "task.destroy OpaqueRef:task1",
        ]
    );
    world.prints(&["vm-start", "uuid=uuid-web", "paused=true"]);
    assert!(world.server.calls().contains(&"Async.VM.start OpaqueRef:web true false".into()));
    world.prints(&["vm-shutdown", "vm=uuid-web", "--force"]);
    assert!(world.server.calls().contains(&"Async.VM.hard_shutdown OpaqueRef:web".into()));
    assert_eq!(world.fails(&["vm-start", "vm=none"]), "Error: No matching VMs found\n");
    // Templates and the control domain are never selected.
    for (name, is) in [
        ("Other install media", "a template. vm-install makes a VM of it"),
        ("Control domain on host: one", "the control domain of the host"),
    ] {
        let error = world.fails(&["vm-shutdown", &format!("vm={name}")]);
        assert!(
            error.starts_with(&format!("Error: No matching VMs found: {name} is {is}")),
            "{error}"
        );
    }
    assert_eq!(
        world.fails(&["vm-shutdown", "name-label=Other install media"]),
        "Error: No matching VMs found\n"
    );
    assert_eq!(
        world.fails(&["vm-shutdown"]),
        "Error: Multiple matches VMs found. --multiple required to complete the operation\n"
    );
    let typo = world.fails(&["vm-shutdown", "vm=web", "forse=true"]);
    assert!(typo.contains("'forse' is neither a parameter of this command nor"), "{typo}");
}

#[test]
fn several_at_once_are_begun_before_any_is_waited_for() {
    let world = World::new();
    world.prints(&["vm-shutdown", "--force", "--multiple"]);
    let calls = world.server.calls();
    assert_eq!(
        calls[1..3],
        ["Async.VM.hard_shutdown OpaqueRef:db", "Async.VM.hard_shutdown OpaqueRef:web",]
    );
    let error = codes::bad_power_state("OpaqueRef:db", "running", "halted");
    world.server.state.lock().unwrap().failures.insert("VM.pause", error);
    let output = world.run(&["vm-pause", "--multiple"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(output.stdout, b"");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.starts_with("operation failed on uuid-db: The machine is in a state"),
        "{stderr}"
    );
    assert!(stderr.contains("operation failed on uuid-web: "), "{stderr}");
}

#[test]
fn very_many_are_not_begun_before_the_first_have_ended() {
    let world = World::new();
    world.server.state.lock().unwrap().add_machines(240);
    world.prints(&["vm-shutdown", "--force", "--multiple"]);
    let calls = world.server.calls();
    let (mut under_way, mut most) = (0, 0);
    for call in &calls {
        match call.split(' ').next() {
            Some("Async.VM.hard_shutdown") => under_way += 1,
            Some("task.destroy") => under_way -= 1,
            _ => {}
        }
        most = under_way.max(most);
    }
    assert_eq!((under_way, most), (0, 100));
}

#[test]
fn errors_say_what_they_are_about() {
    let world = World::new();
    let error = codes::bad_power_state("OpaqueRef:web", "halted", "running");
    world.server.state.lock().unwrap().failures.insert("VM.start", error);
    assert_eq!(
        world.fails(&["vm-start", "vm=web"]),
        "The machine is in a state in which this cannot be done.\nvm: uuid-web (web)\n\
         expected: halted\nactual: running\n"
    );
    assert_eq!(
        world.fails(&["vbd-plug", "uuid=none"]),
        "No object of this class has this UUID.\nclass: VBD\nuuid: none\n"
    );
    assert_eq!(
        world.fails(&["vm-strat"]),
        "Unknown command: vm-strat; did you mean vm-start?\nFor usage run: 'xe help'\n"
    );
    assert_eq!(world.fails(&["vm-list", "params=uuid,nane"]), "Error: Unknown field 'nane'\n");
    let output = world
        .command(&["vm-list"])
        .arg(std::ffi::OsStr::from_bytes(b"name-label=\xff"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("name-label=") && error.contains("is not UTF-8"), "{error}");
    // Some errors have several references in one parameter.
    let error = codes::network_contains_vif("OpaqueRef:web,OpaqueRef:db");
    world.server.state.lock().unwrap().failures.insert("VM.start", error);
    let error = world.fails(&["vm-start", "vm=web"]);
    assert!(error.contains("vifs: uuid-web (web),uuid-db (db, of web)\n"), "{error}");
    assert_eq!(
        world.fails(&["vbd-plug"]),
        "Required parameter not found: uuid\nFor usage run: 'xe help'\n"
    );
    assert_eq!(
        world.fails(&["-u", "mallory", "-pw", "x", "vm-list"]),
        "Authentication failed\n\
         The login failed. If name or password is wrong, check both: they are in the server's \
         password file, or with PAM those of its host.\n\
         user: x\nreason: y\nFor usage run: 'xe help'\n"
    );
    let error = world.fails(&["-s", "/nonexistent/s", "vm-list"]);
    assert!(error.starts_with("Error: cannot reach the server at /nonexistent/s"), "{error}");
}

#[test]
fn help_needs_no_server_and_is_no_failure() {
    let world = World::new();
    for words in [&["help"][..], &["help", "--all"], &["help", "vm-start"]] {
        let output = world.command(words).arg("-s").arg("/nonexistent/s").output().unwrap();
        assert!(output.status.success() && !output.stdout.is_empty(), "{words:?}");
    }
    for words in [&[][..], &["--help"], &["vm-start", "--help"]] {
        let output = world.run(words);
        assert_eq!(output.status.code(), Some(0), "{words:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.starts_with("Usage:\n  xe <command>"), "{text}");
    }
    let names = world.prints(&["help", "--minimal", "--all"]);
    for name in names.trim_end().split(',') {
        let text = world.prints(&["help", name]);
        assert!(text.contains(&format!(": {name}\n")), "{text}");
    }
}

#[test]
fn completion_asks_once() {
    let world = World::new();
    for _ in 0..2 {
        let output = Command::new(env!("CARGO_BIN_EXE_xe"))
            .args(["complete", "xe", "vm-start", "vm=d"])
            .env("HOME", world.dir.path())
            .env("XDG_CACHE_HOME", world.dir.path().join("cache"))
            .env("XE_EXTRA_ARGS", format!("server={}", world.server.socket.display()))
            .output()
            .unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "vm=db, of web\n");
    }
    assert_eq!(world.server.calls(), ["VM.get_all_records"]);
}

/// Functions of a shell: `xe` prints its words, except for the completion.
const SHELL: &str = r#"
PS1='READY$ '
xe() {
    if [[ $1 == complete ]]; then command xe "$@"; return; fi
    printf 'GOT'; printf '<%s>' "$@"; printf '\n'
}
"#;

/// A user types into bash on a terminal, with the tab key.
#[test]
fn bash_completes_what_is_typed() {
    let world = World::new();
    let script = world.dir.path().join("completion");
    std::fs::write(&script, world.prints(&["completion", "bash"]) + SHELL).unwrap();
    let bin = std::path::Path::new(env!("CARGO_BIN_EXE_xe")).parent().unwrap();
    let bash = format!("exec bash --noprofile --rcfile {} -i", script.display());
    let mut terminal = Command::new("script")
        .args(["-qec", &bash, "/dev/null"])
        .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
        .env("HOME", world.dir.path())
        .env("XDG_CACHE_HOME", world.dir.path().join("cache"))
        .env("XE_EXTRA_ARGS", format!("server={}", world.server.socket.display()))
        .env("INPUTRC", "/dev/null")
        .env("TERM", "dumb")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut input, mut output) = (terminal.stdin.take().unwrap(), terminal.stdout.take().unwrap());
    let mut until = |text: &str| {
        let (mut seen, mut byte) = (Vec::new(), [0]);
        while !String::from_utf8_lossy(&seen).contains(text) {
            output.read_exact(&mut byte).unwrap();
            seen.extend(byte);
        }
        String::from_utf8_lossy(&seen).into_owned()
    };
    until("READY$ ");
    for (keys, words) in [
        ("vm-sta\tvm=we\t", "<vm-start><vm=web>"),
        ("vm-start vm=d\t", "<vm-start><vm=db, of web>"),
        ("vm-start vm=db\\,\\ o\t", "<vm-start><vm=db, of web>"),
        ("vm-start vm=\"db, o\t", "<vm-start><vm=db, of web>"),
        ("vm-list name-label=Con\t", "<vm-list><name-label=Control domain on host: one>"),
        ("vm-param-set uuid=u other-config:zo\tc", "<vm-param-set><uuid=u><other-config:zone=c>"),
        ("vm-list other-config:z\tb", "<vm-list><other-config:zone=b>"),
        ("-s h -u root vm-sta\t", "<-s><h><-u><root><vm-start>"),
        ("vm-list params=uuid,name-l\t", "<vm-list><params=uuid,name-label>"),
        ("vdi-create vir\t1", "<vdi-create><virtual-size=1>"),
    ] {
        input.write_all(format!("xe {keys}\n").as_bytes()).unwrap();
        until("\nGOT");
        let is = until("READY$ ");
        let (is, _) = is.split_once(['\r', '\n']).unwrap();
        assert_eq!(is, words, "{keys}");
    }
    input.write_all(b"exit\n").unwrap();
    assert!(terminal.wait().unwrap().success());
}

#[test]
fn what_waits_for_something_sees_that_it_is_so() {
    let world = World::new();
    world.prints(&["event-wait", "class=vm", "uuid=uuid-web", "power-state=running"]);
    world.prints(&["event-wait", "class=vm", "name-label=web", "power-state=/=halted"]);
    let error = world.fails(&["event-wait", "class=nonsense"]);
    assert!(error.contains("no events of the class 'nonsense'"), "{error}");
}

#[test]
fn a_closed_output_is_no_failure() {
    let world = World::new();
    let mut child =
        world.command(&["vm-param-list", "uuid=uuid-web"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn nothing_is_destroyed_without_a_yes() {
    let world = World::new();
    let output = world.run(&["vm-uninstall", "vm=web"]);
    assert_eq!(output.status.code(), Some(1));
    let asked = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        asked,
        "This will be destroyed:\nVM : uuid-web (web)\nVDI: uuid-v (root)\nType 'yes' to continue\n"
    );
    assert!(!world.server.calls().iter().any(|call| call.contains("destroy")));
    world.prints(&["vm-uninstall", "vm=web", "--force"]);
    let calls = world.server.calls();
    let made: Vec<_> = calls.iter().filter_map(|call| call.strip_prefix("Async.")).collect();
    assert_eq!(
        made,
        ["VM.hard_shutdown OpaqueRef:web", "VM.destroy OpaqueRef:web", "VDI.destroy OpaqueRef:v"]
    );
}

#[test]
fn the_document_of_differences_names_every_command() {
    let document = include_str!("../../../../../docs/xe-differences.md");
    let world = World::new();
    let names = world.prints(&["help", "--minimal", "--all"]);
    let mut generic = 0;
    for name in names.trim_end().split(',') {
        if document.contains(&format!("`{name}`")) {
            continue;
        }
        let verb = name.find("-param-").or_else(|| name.rfind("-list")).unwrap_or(name.len());
        let (kind, verb) = name.split_at(verb);
        let is_documented =
            document.contains(&format!("`{kind}`")) && document.contains(&format!("`X{verb}`"));
        assert!(is_documented, "{name}");
        generic += 1;
    }
    assert!(generic > 100, "{generic}");
}
