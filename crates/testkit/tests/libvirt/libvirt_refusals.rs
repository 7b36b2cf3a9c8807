//! Tables of docs/why-not-qemu-block.md, row by row against libvirt. Each XML is defined, each
//! command runs, and libvirt's reply is compared with the document's. Prints libvirt's replies.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use testkit::libvirt::Libvirt;
use testkit::process::Backend;

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/why-not-qemu-block.md");
/// Word of the document for XML that libvirt accepts.
const TAKEN: &str = "taken";

/// A row: XML or command, and libvirt's reply.
struct Row {
    tried: String,
    reply: String,
}

/// Returns the rows of the table below `heading`.
fn rows(heading: &str) -> Vec<Row> {
    let text = std::fs::read_to_string(DOCUMENT).unwrap();
    let section = text.split("\n## ").find(|section| section.starts_with(heading)).unwrap();
    let lines = section.lines().filter(|line| line.starts_with('|')).skip(2);
    let rows: Vec<_> = lines
        .map(|line| {
            let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
            let plain = |cell: &str| cell.replace('`', "");
            assert_eq!(cells.len(), 3, "{line}");
            Row { tried: plain(cells[0]), reply: plain(cells[1]) }
        })
        .collect();
    assert!(rows.len() > 10, "the table of {heading:?} is where it is looked for");
    rows
}

/// All differences, so that one run reports them together.
#[derive(Default)]
struct Verdict(Vec<String>);

impl Verdict {
    fn compare(&mut self, row: &Row, result: Result<(), String>) {
        let got = result.err().unwrap_or_else(|| TAKEN.to_owned());
        println!("{} -> {got}", row.tried);
        // libvirt begins with the kind of the error.
        if got != row.reply && !got.ends_with(&format!(": {}", row.reply)) {
            self.0.push(format!("{}\n  document: {}\n  libvirt:  {got}", row.tried, row.reply));
        }
    }

    fn assert_none(self, libvirt: &Libvirt) {
        let version = libvirt.virsh(&["version"]).unwrap();
        assert!(self.0.is_empty(), "{version}\n{}", self.0.join("\n"));
    }
}

fn domain(name: &str, memory: &str, disk: &str) -> String {
    format!(
        "<domain type='qemu'><name>{name}</name><memory unit='MiB'>64</memory>{memory}\
         <vcpu>1</vcpu><iothreads>1</iothreads>\
         <os><type arch='x86_64' machine='q35'>hvm</type></os>\
         <devices>{disk}<controller type='usb' model='none'/></devices></domain>"
    )
}

const MEMORY: &str = "<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>";

/// Returns a domain with the row's XML in its place.
fn with(xml: &str, socket: &str) -> String {
    let mut memory = MEMORY;
    let mut disk = "<disk type='vhostuser' device='disk'>".to_owned();
    let mut driver = "<driver name='qemu' type='raw'/>".to_owned();
    let mut target = "<target dev='vda' bus='virtio'/>".to_owned();
    let mut more = String::new();
    match xml {
        "no <memoryBacking>" => memory = "",
        _ if xml.starts_with("<disk") => disk = xml.to_owned(),
        _ if xml.starts_with("<driver") => driver = xml.to_owned(),
        _ if xml.starts_with("<target") => target = xml.to_owned(),
        _ => more = xml.to_owned(),
    }
    let source = format!("<source type='unix' path='{socket}'/>");
    domain("vm1", memory, &format!("{disk}{driver}{source}{target}{more}</disk>"))
}

/// Returns the reason without its context.
fn reason(error: testkit::Error) -> String {
    match error {
        testkit::Error::Reply { what, .. } => what,
        other => panic!("{other}"),
    }
}

#[test]
fn xml_is_refused_in_these_words() {
    let libvirt = Libvirt::start().unwrap();
    let mut verdict = Verdict::default();
    for row in rows("In the disk's XML") {
        let file = libvirt.file("row.xml", with(&row.tried, "/run/d1.sock")).unwrap();
        let defined = libvirt.virsh(&["define", &file]).map(drop).map_err(reason);
        verdict.compare(&row, defined);
        let _undefined = libvirt.virsh(&["undefine", "vm1"]);
    }
    verdict.assert_none(&libvirt);
}

#[test]
fn commands_are_refused_in_these_words() {
    let libvirt = Libvirt::start().unwrap();
    let access = ["--socket-group", "kvm", "--socket-mode", "660"];
    let mut options = vec!["--null", "1M"];
    options.extend(access);
    let backend = Backend::ringway_blk(&options).unwrap();
    // The backend's folder is private, so let libvirt's QEMU traverse it.
    std::fs::set_permissions(backend.dir(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    let xml = with("<boot order='1'/>", backend.socket().to_str().unwrap());
    libvirt.define(&xml).unwrap();
    // A refusal needs no guest.
    libvirt.virsh(&["start", "vm1", "--paused"]).unwrap();
    let mut verdict = Verdict::default();
    for row in rows("Commands") {
        let words: Vec<_> = row.tried.split(' ').skip(1).collect();
        let result = libvirt.virsh(&words).map(drop).map_err(reason);
        verdict.compare(&row, result);
    }
    verdict.assert_none(&libvirt);
}
