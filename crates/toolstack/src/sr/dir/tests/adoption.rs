//! Files of users in the folder of an SR.

use super::*;
use crate::sr::Names;
use crate::sr::dir::record::ImageName;
use crate::sr::foreign::{ForeignImage, ForeignVolume};

fn file(dir: &TempDir, name: &str, content: &str) {
    std::fs::write(dir.path().join(name), content).unwrap();
}

fn image(from: &str, to: String) -> ForeignImage {
    ForeignImage { from: from.into(), to }
}

fn volume(n: u8, label: &str, images: Vec<ForeignImage>) -> ForeignVolume {
    let names = Names { label: label.into(), description: String::new() };
    ForeignVolume { vdi: vdi(n), names, bytes: 4096, images }
}

fn qcow2(n: u8) -> String {
    ImageName::qcow2(vdi(n).0).to_string()
}

/// Two disks over one image, and a raw one.
fn three() -> Vec<ForeignVolume> {
    let base = || image("base.raw", name(vdi(3)));
    vec![
        volume(1, "a", vec![image("a.qcow2", qcow2(1)), base()]),
        volume(2, "b", vec![image("b.qcow2", qcow2(2)), base()]),
        volume(4, "c", vec![image("c.raw", name(vdi(4)))]),
    ]
}

#[test]
fn names_state_what_files_are() {
    let (dir, _) = made();
    open(&dir).create_volume(vdi(1), 4096).unwrap();
    for name in ["a.qcow2", "b.VHD", "notes", "c.raw", ".hidden.raw", &qcow2(2), &qcow2(1)] {
        file(&dir, name, "");
    }
    for (name, head) in [("g.raw", "conectix"), ("h.raw", "KDMV"), ("i.raw", "LUKS\u{ba}")] {
        file(&dir, name, head);
    }
    std::fs::hard_link(dir.path().join("c.raw"), dir.path().join("d.raw")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", dir.path().join("e.raw")).unwrap();
    std::fs::create_dir(dir.path().join("f.raw")).unwrap();
    let found = open(&dir).foreign_files().unwrap();
    let found: Vec<_> = found
        .iter()
        .map(|one| {
            let word = |why: &String| {
                let word =
                    ["hard link", "end with", "a link", "exists", "a vhd image", "a VMDK image"];
                word.into_iter().find(|word| why.contains(word)).unwrap()
            };
            (one.name.as_str(), one.format.as_ref().map(|format| format.name()).map_err(word))
        })
        .collect();
    let mut expected = [
        (qcow2(1), Err("exists")),
        (qcow2(2), Ok("qcow2")),
        ("a.qcow2".to_owned(), Ok("qcow2")),
        ("b.VHD".into(), Err("end with")),
        ("c.raw".into(), Err("hard link")),
        ("d.raw".into(), Err("hard link")),
        ("e.raw".into(), Err("a link")),
        ("g.raw".into(), Err("a vhd image")),
        ("h.raw".into(), Err("a VMDK image")),
        ("i.raw".into(), Ok("raw")),
        ("notes".into(), Err("end with")),
    ];
    expected.sort();
    assert_eq!(found, expected.iter().map(|(a, b)| (a.as_str(), *b)).collect::<Vec<_>>());
}

#[test]
fn wherever_an_adoption_ends_the_next_one_goes_on() {
    for changes in 0.. {
        let (dir, _) = made();
        for name in ["a.qcow2", "b.qcow2", "base.raw", "c.raw"] {
            file(&dir, name, name);
        }
        crash::after(changes);
        let adopted = open(&dir).adopt(three());
        let has_crashed = crash::restart();
        if open(&dir).foreign_files().unwrap().len() == 4 {
            assert!(adopted.is_err());
            open(&dir).adopt(three()).unwrap();
        }
        assert_eq!(open(&dir).foreign_files().unwrap(), []);
        let labels = open(&dir).volumes().unwrap().into_iter();
        let labels: Vec<_> = labels.map(|one| (one.vdi, one.names.unwrap().label)).collect();
        assert_eq!(labels, [(1, "a"), (2, "b"), (4, "c")].map(|(n, l)| (vdi(n), l.to_owned())));
        assert_eq!(open(&dir).images(vdi(2)).unwrap(), [qcow2(2), name(vdi(3))]);
        for (n, content) in
            [(qcow2(1), "a.qcow2"), (qcow2(2), "b.qcow2"), (name(vdi(3)), "base.raw")]
        {
            assert_eq!(std::fs::read_to_string(dir.path().join(n)).unwrap(), content);
        }
        // The image below stays as long as a disk has it.
        open(&dir).destroy_volume(vdi(1)).unwrap();
        assert!(dir.path().join(name(vdi(3))).exists());
        open(&dir).destroy_volume(vdi(2)).unwrap();
        assert!(!dir.path().join(name(vdi(3))).exists());
        if !has_crashed {
            assert!(changes > 5);
            return;
        }
    }
}

#[test]
fn a_request_that_names_other_files_is_refused() {
    let (dir, _) = made();
    open(&dir).create_volume(vdi(7), 4096).unwrap();
    file(&dir, "a.raw", "");
    let to = name(vdi(1));
    for from in ["../a.raw", ".ringway-sr", "none.raw", &name(vdi(7))] {
        let one = volume(1, "a", vec![image(from, to.clone())]);
        assert!(open(&dir).adopt(vec![one]).is_err(), "{from}");
    }
    for (n, to) in [(1, "x.raw".to_owned()), (1, name(vdi(7))), (7, to)] {
        let one = volume(n, "a", vec![image("a.raw", to.clone())]);
        assert!(open(&dir).adopt(vec![one]).is_err(), "{n} {to}");
    }
    file(&dir, ".ringway-adopt", "{");
    let error = open(&dir).foreign_files().unwrap_err();
    assert!(refuses(&error, LOCATION, ".ringway-adopt"), "{error}");
}
