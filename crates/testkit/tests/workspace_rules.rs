//! Rules of the workspace: layers, unsafe code, licences, dependencies, lengths.
#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};

/// Crates of the workspace that each crate may use (docs/architecture.md). All others are
/// forbidden.
const LAYERS: [(&str, &[&str]); 28] = [
    ("error-causes", &[]),
    ("logging", &[]),
    ("memory", &[]),
    ("virtq", &["memory"]),
    ("reactor", &["memory"]),
    ("share", &[]),
    ("disk", &["memory", "reactor", "share"]),
    ("blk", &["error-causes", "memory", "virtq", "disk", "reactor"]),
    ("net", &[]),
    ("tap", &["memory", "net", "reactor"]),
    ("nic", &["error-causes", "memory", "virtq", "net", "reactor"]),
    ("nbd", &["memory", "disk", "reactor"]),
    ("image", &["error-causes", "memory"]),
    ("mapped", &["memory", "reactor", "disk", "image"]),
    ("overlay", &["memory", "reactor", "disk", "image"]),
    ("calibrate", &["memory", "reactor", "disk", "model", "share"]),
    ("golden", &["memory", "reactor", "disk", "model", "nbd"]),
    ("vhost-user", &["error-causes", "memory", "virtq"]),
    ("model", &[]),
    ("sched", &[]),
    ("service-manager", &[]),
    (
        "iod",
        &[
            "error-causes",
            "memory",
            "virtq",
            "vhost-user",
            "reactor",
            "disk",
            "blk",
            "net",
            "tap",
            "nic",
            "nbd",
            "image",
            "mapped",
            "calibrate",
            "golden",
            "overlay",
            "share",
            "model",
            "service-manager",
            "logging",
        ],
    ),
    ("xenapi", &["model"]),
    ("toolstack", &["error-causes", "logging", "model", "sched"]),
    ("daemon", &["error-causes", "logging", "model", "service-manager", "toolstack", "xenapi"]),
    ("cli", &["error-causes", "logging", "model", "toolstack", "xenapi"]),
    ("testkit", &["model", "xenapi"]),
    ("lab", &["calibrate", "image", "memory", "model", "testkit", "xenapi", "net", "tap"]),
];

/// Crates that may contain unsafe code. All others forbid it.
const UNSAFE: [&str; 4] = ["memory", "virtq", "reactor", "sched"];

/// Crates of the data plane, which must not use an async runtime or a server.
const DATA_PLANE: [&str; 17] = [
    "share",
    "memory",
    "virtq",
    "reactor",
    "disk",
    "blk",
    "net",
    "tap",
    "nic",
    "nbd",
    "image",
    "mapped",
    "overlay",
    "calibrate",
    "golden",
    "vhost-user",
    "iod",
];

/// Licences that a dependency may have.
const LICENCES: [&str; 10] = [
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "Unlicense",
    "Unicode-3.0",
    "CC0-1.0",
];

/// Most lines of a source file; the aim is 200.
const FILE_LINES_MAX: usize = 800;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().parent().unwrap().into()
}

fn metadata() -> Metadata {
    MetadataCommand::new().manifest_path(root().join("Cargo.toml")).exec().unwrap()
}

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            out.push(path);
        }
    }
}

fn all_sources() -> Vec<(PathBuf, String)> {
    let mut paths = Vec::new();
    sources(&root().join("crates"), &mut paths);
    assert!(paths.len() > 50, "the sources are where they are looked for");
    paths.into_iter().map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn crates_use_only_what_lies_below_them() {
    let metadata = metadata();
    let house: BTreeMap<_, _> = LAYERS.into_iter().collect();
    let members: Vec<_> = metadata.workspace_packages();
    for package in &members {
        let name = package.name.as_str();
        let allowed = house.get(name).unwrap_or_else(|| panic!("{name} is in no layer"));
        for dependency in &package.dependencies {
            let ours = house.contains_key(dependency.name.as_str());
            if ours && dependency.kind == DependencyKind::Normal {
                let fine = allowed.contains(&dependency.name.as_str());
                assert!(fine, "{name} must not use {}", dependency.name);
            }
        }
        let folder = package.manifest_path.parent().unwrap().file_name().unwrap();
        assert_eq!(folder, name, "the folder has the crate's name");
        assert!(package.description.is_some(), "{name} says what it is for");
    }
    assert_eq!(members.len(), house.len(), "a layer without a crate");
}

#[test]
fn the_data_plane_has_no_async_runtime() {
    let metadata = metadata();
    for package in metadata.workspace_packages() {
        if !DATA_PLANE.contains(&package.name.as_str()) {
            continue;
        }
        for dependency in &package.dependencies {
            let normal = dependency.kind == DependencyKind::Normal;
            let runtime = ["tokio", "axum", "hyper", "async-std"];
            let bad = normal && runtime.contains(&dependency.name.as_str());
            assert!(!bad, "{} uses {}", package.name, dependency.name);
        }
    }
}

#[test]
fn unsafe_code_is_where_it_may_be() {
    let word = ["un", "safe"].concat();
    for (path, text) in all_sources() {
        let text_path = path.display().to_string();
        let home = UNSAFE.iter().any(|name| text_path.contains(&format!("/crates/{name}/src/")));
        let root_file = path.file_name().is_some_and(|name| name == "lib.rs" || name == "main.rs");
        let in_src = path.parent().unwrap().file_name().is_some_and(|name| name == "src");
        if root_file && in_src && !home {
            assert!(text.contains("#![forbid(unsafe_code)]"), "{text_path} does not forbid it");
        }
        if home {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let found = code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|w| w == word);
            let lint = code.contains("unsafe_code");
            assert!(!found || lint, "{text_path}:{}: {line}", number + 1);
        }
    }
}

#[test]
fn what_ships_starts_no_thread_that_must_not_fail() {
    let lint = "#![cfg_attr(not(test), deny(clippy::disallowed_methods))]";
    for (name, _) in LAYERS.iter().filter(|(name, _)| !["testkit", "lab"].contains(name)) {
        let src = root().join("crates").join(name).join("src");
        let roots = ["lib.rs", "main.rs"].map(|file| src.join(file));
        let texts: Vec<_> =
            roots.iter().filter_map(|file| std::fs::read_to_string(file).ok()).collect();
        assert!(!texts.is_empty(), "{name} has a root");
        assert!(texts.iter().all(|text| text.contains(lint)), "{name} does not deny it");
    }
    let text = std::fs::read_to_string(root().join("clippy.toml")).unwrap();
    for method in ["std::thread::spawn", "std::thread::Scope::spawn"] {
        assert!(text.contains(&format!("{{ path = {method:?}")), "{method} is allowed");
    }
}

/// Checks a licence expression: `AND`s of `OR`s, as registries write them.
fn permitted(expression: &str) -> bool {
    let expression = expression.replace('/', " OR ").replace(['(', ')'], " ");
    let flat = expression.split_whitespace().collect::<Vec<_>>().join(" ");
    // Without parentheses `(A OR B) AND C` becomes `A OR B AND C`: each `AND` part must contain a
    // permitted licence.
    flat.split(" AND ").all(|part| part.split(" OR ").any(|one| LICENCES.contains(&one.trim())))
}

#[test]
fn every_dependency_has_a_permissive_licence() {
    let metadata = metadata();
    let mut bad = Vec::new();
    for package in &metadata.packages {
        let licence = package.license.as_deref().unwrap_or("none");
        if !permitted(licence) {
            bad.push(format!("{} {}: {licence}", package.name, package.version));
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
    for refused in ["GPL-3.0-only", "EUPL-1.2", "none", "MIT AND AGPL-3.0"] {
        assert!(!permitted(refused), "{refused}");
    }
}

#[test]
fn every_dependency_is_used() {
    let metadata = metadata();
    let mut unused = Vec::new();
    for package in metadata.workspace_packages() {
        let dir = package.manifest_path.parent().unwrap();
        let mut paths = Vec::new();
        sources(dir.as_std_path(), &mut paths);
        let text: String =
            paths.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect();
        for dependency in &package.dependencies {
            let name = dependency.rename.as_ref().unwrap_or(&dependency.name).replace('-', "_");
            let used = text.contains(&format!("{name}::")) || text.contains(&format!("use {name}"));
            if !used {
                unused.push(format!("{} does not use {name}", package.name));
            }
        }
    }
    assert!(unused.is_empty(), "{unused:#?}");
}

#[test]
fn files_are_short_and_belong_to_a_crate() {
    for (path, text) in all_sources() {
        let lines = text.lines().count();
        assert!(lines <= FILE_LINES_MAX, "{} has {lines} lines", path.display());
        let stem = path.file_stem().unwrap().to_str().unwrap();
        let parent = path.parent().unwrap();
        let folder = parent.file_name().unwrap().to_str().unwrap();
        // Roots of crates, binaries, tests and benches need no `mod` line.
        let is_root = ["lib", "main", "build"].contains(&stem) && folder == "src"
            || ["bin", "tests", "benches", "examples"].contains(&folder)
            || stem == "main";
        if is_root {
            continue;
        }
        let (name, searched) =
            if stem == "mod" { (folder, parent.parent().unwrap()) } else { (stem, parent) };
        assert!(declared(name, searched), "{} is in no crate", path.display());
    }
}

/// Returns whether a file in `dir`, or the file named like `dir` beside it, contains `mod name;`.
fn declared(name: &str, dir: &Path) -> bool {
    let needle = format!("mod {name};");
    let mut candidates: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .collect();
    candidates.push(dir.with_extension("rs"));
    // Programs beside a module that they share name its path.
    let beside = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    candidates.extend(beside.map(|path| path.join("main.rs")).filter(|path| path.is_file()));
    candidates
        .iter()
        .any(|path| std::fs::read_to_string(path).is_ok_and(|text| text.contains(&needle)))
}

#[test]
fn documents_link_to_what_exists() {
    let root = root();
    let mut checked = 0;
    let mut pages: Vec<PathBuf> = Vec::new();
    for dir in [root.clone(), root.join("docs"), root.join("guest")] {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        for piece in text.split("](").skip(1) {
            let target = piece.split(')').next().unwrap_or_default();
            let target = target.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            checked += 1;
            let there = page.parent().unwrap().join(target).exists();
            assert!(there, "{} links to {target}, which is not there", page.display());
        }
    }
    assert!(checked > 5, "the documents link to each other");
}

#[test]
fn the_layers_have_no_circle() {
    let house: BTreeMap<_, _> = LAYERS.into_iter().collect();
    let mut seen = BTreeSet::new();
    while seen.len() < house.len() {
        let before = seen.len();
        for (name, uses) in &house {
            if uses.iter().all(|one| seen.contains(one)) {
                seen.insert(*name);
            }
        }
        assert!(seen.len() > before, "circle among {:?}", house.keys().collect::<Vec<_>>());
    }
}

/// Names that docs/glossary.md and the crates have replaced by the field's words.
const RETIRED: [&str; 28] = [
    "Told",
    "Lodger",
    "Muster",
    "undead",
    "Undead",
    "Heir",
    "Unsaid",
    "Whereabouts",
    "Participle",
    "Zombie",
    "Teller",
    "Workshop",
    "Owes",
    "LeftBehind",
    "LeftWait",
    "NoRoom",
    "DomainSeen",
    "BeganHow",
    "StillNic",
    "TakenNic",
    "HeldNic",
    "WrittenNic",
    "FrontArg",
    "TakenVolume",
    "CarrierId",
    "HoldError",
    "StopEnd",
    "QuietEnd",
];

/// This file, which names them.
const RULES: &str = "workspace_rules.rs";

#[test]
fn retired_names_do_not_come_back() {
    let mut found = Vec::new();
    for (path, text) in all_sources() {
        if path.ends_with(RULES) {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let mut words = line.split(|c: char| !c.is_alphanumeric());
            if let Some(word) = words.find(|word| RETIRED.contains(word)) {
                found.push(format!("{}:{}: {word}", path.display(), number + 1));
            }
        }
    }
    assert!(found.is_empty(), "see docs/glossary.md for the field's word: {found:#?}");
}

/// First words of a doc comment that name no subject.
const NO_SUBJECT: [&str; 10] = [
    "What", "Whatever", "Who", "Whoever", "Somebody", "Nobody", "Anybody", "By which", "The same",
    "One that",
];

#[test]
fn public_items_name_their_subject() {
    let mut found = Vec::new();
    for (path, text) in all_sources() {
        let lines: Vec<_> = text.lines().map(str::trim).collect();
        let mut first = None;
        for (number, line) in lines.iter().enumerate() {
            if let Some(doc) = line.strip_prefix("///") {
                first = first.or(Some((number, doc.trim())));
            } else if !line.starts_with("#[")
                && let Some((number, doc)) = first.take()
                && line.starts_with("pub ")
                && NO_SUBJECT.iter().any(|word| {
                    doc.strip_prefix(word).is_some_and(|rest| rest.starts_with([' ', ',']))
                })
            {
                found.push(format!("{}:{}: {doc}", path.display(), number + 1));
            }
        }
    }
    assert!(found.is_empty(), "a doc comment says what the item is or does: {found:#?}");
}
