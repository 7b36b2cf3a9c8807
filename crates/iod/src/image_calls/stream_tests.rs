//! Tests of exports and imports, with `qemu-img` as the other side.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use model::image::{ImageFormat, ImageSnapshotCall};
use model::image_stream::{ExportBase, ImageExport, ImageImport, ImageImported};
use model::spec::{Backend, GoldenImage};

use super::*;

/// Size of the disks: two blocks of a VHD, and a part of a third.
const SIZE: u64 = (4 << 20) + (68 << 10);

/// A folder with images, and a socket.
struct Folder {
    dir: tempfile::TempDir,
    stop: Arc<AtomicBool>,
}

impl Folder {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), stop: Arc::default() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Creates a raw image with these bytes at these offsets.
    fn raw(&self, name: &str, parts: &[(u64, &[u8])]) -> Backend {
        let path = self.path(name);
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(SIZE).unwrap();
        for (at, bytes) in parts {
            std::os::unix::fs::FileExt::write_all_at(&file, bytes, *at).unwrap();
        }
        Backend::File(path.into())
    }

    /// Puts a qcow2 image over a tree, and writes these bytes to it.
    fn over(&self, name: &str, below: &Backend, writes: &[(u64, u8, u64)]) -> Backend {
        let base = below.files().next().unwrap().path().unwrap().to_owned();
        let base_format =
            if matches!(below, Backend::File(_)) { ImageFormat::Raw } else { ImageFormat::Qcow2 };
        let (path, format) = (self.path(name), ImageFormat::Qcow2);
        let call = ImageSnapshotCall { base, base_format, path: path.clone(), format };
        create::snapshot(&call, &self.stop).unwrap();
        for (at, byte, len) in writes {
            let write = match byte {
                0 => format!("write -z {at} {len}"),
                _ => format!("write -P {byte} {at} {len}"),
            };
            run(Command::new("qemu-io").args(["-f", "qcow2", "-c", &write]).arg(&path));
        }
        Backend::Qcow2 { file: path.into(), backing: Some(Box::new(below.clone())) }
    }

    /// Returns the content of a tree.
    fn content(&self, tree: &Backend) -> Vec<u8> {
        let mut source = source::Source::open(tree, &self.stop, false).unwrap();
        let mut bytes = vec![0; source.size() as usize];
        source.read(0, &mut bytes).unwrap();
        bytes
    }

    fn export(&self, source: &Backend, format: ImageFormat, base: Option<&Backend>) -> Vec<u8> {
        let base =
            base.map(|base| ExportBase { source: base.clone(), id: [1; 16], name: "b.vhd".into() });
        let (stream, id) = (self.path("s"), [if base.is_some() { 2 } else { 1 }; 16]);
        let source = source.clone();
        let call = ImageExport { source, format, id, base, stream: stream.clone(), deadline_s: 1 };
        let listener = UnixListener::bind(&stream).unwrap();
        let stop = Arc::clone(&self.stop);
        let call = std::thread::spawn(move || export::export(&call, &stop));
        let mut bytes = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut bytes).unwrap();
        call.join().unwrap().unwrap();
        std::fs::remove_file(stream).unwrap();
        let image = bytes.split_off(8);
        assert_eq!(u64::from_be_bytes(bytes.try_into().unwrap()), image.len() as u64);
        image
    }

    /// Returns the call that imports to a disk.
    fn import_call(&self, present: &Backend, format: ImageFormat) -> ImageImport {
        let (stream, path, present) = (self.path("s"), self.path("new"), present.clone());
        let (open_end, length) = (false, None);
        ImageImport { present, path, format, open_end, length, stream, deadline_s: 1 }
    }

    /// Sends bytes to an import, then the end unless the stream is cut.
    fn send(
        &self,
        present: &Backend,
        format: ImageFormat,
        bytes: &[u8],
        (open_end, is_cut): (bool, bool),
    ) -> Result<ImageImported, ImageCallError> {
        let call = ImageImport { open_end, ..self.import_call(present, format) };
        self.send_to(call, bytes, is_cut)
    }

    fn send_to(
        &self,
        call: ImageImport,
        bytes: &[u8],
        is_cut: bool,
    ) -> Result<ImageImported, ImageCallError> {
        let stream_path = call.stream.clone();
        let listener = UnixListener::bind(&stream_path).unwrap();
        let stop = Arc::clone(&self.stop);
        let call = std::thread::spawn(move || import::import(&call, &stop));
        let mut to = listener.accept().unwrap().0;
        // The other side may have ended already.
        let mut send = |bytes: &[u8]| {
            let head = (bytes.len() as u32).to_be_bytes();
            let _gone = to.write_all(&[&head[..], bytes].concat());
        };
        bytes.chunks(700_001).for_each(&mut send);
        if !is_cut {
            send(&[]);
        }
        drop(to);
        std::fs::remove_file(stream_path).unwrap();
        call.join().unwrap()
    }

    fn import(&self, present: &Backend, format: ImageFormat, bytes: &[u8]) -> ImageImported {
        let imported = self.send(present, format, bytes, (false, false)).unwrap();
        if let ImageImported::Refused(_) = imported {
            assert!(!self.path("new").exists());
        }
        imported
    }

    fn refusal(&self, present: &Backend, format: ImageFormat, bytes: &[u8]) -> String {
        match self.import(present, format, bytes) {
            ImageImported::Refused(why) => why,
            other => panic!("{other:?}"),
        }
    }

    /// Converts an image with `qemu-img`.
    fn convert(&self, from: &Path, words: &[&str], to: &str) -> Vec<u8> {
        let to = self.path(to);
        let mut command = Command::new("qemu-img");
        run(command.arg("convert").args(words).arg(from).arg(&to));
        std::fs::read(to).unwrap()
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{command:?}: {text}");
}

fn disk(folder: &Folder, name: &str) -> Backend {
    let long = vec![9; 70_000];
    folder.raw(name, &[(0, &[1; 512]), ((2 << 20) + 4096, &long), (SIZE - 512, &[7; 512])])
}

#[test]
fn every_format_comes_back_and_qemu_reads_it() {
    let folder = Folder::new();
    let source = disk(&folder, "a");
    let content = folder.content(&source);
    for (format, name) in
        [(ImageFormat::Raw, "raw"), (ImageFormat::Vhd, "vpc"), (ImageFormat::Qcow2, "qcow2")]
    {
        let image = folder.export(&source, format, None);
        let path = folder.path("image");
        std::fs::write(&path, &image).unwrap();
        assert!(folder.convert(&path, &["-f", name, "-O", "raw"], "back") == content, "{name}");
        if format == ImageFormat::Qcow2 {
            run(Command::new("qemu-img").args(["check", "-f", name]).arg(&path));
        }
        let to = folder.raw("to", &[(8192, &[3; 4096])]);
        assert_eq!(folder.import(&to, format, &image), ImageImported::Replacement, "{name}");
        assert!(std::fs::read(folder.path("new")).unwrap() == content, "{name}");
        let stored = raw::info(&folder.path("new")).unwrap().stored_bytes;
        assert!(stored < 1 << 20, "zeroes take space: {stored}");
        std::fs::remove_file(folder.path("new")).unwrap();
    }
}

#[test]
fn a_golden_image_is_sent_without_the_holes_of_its_file() {
    let folder = Folder::new();
    let source = disk(&folder, "a");
    let file = folder.path("a");
    let image = serde_json::json!({"source": {"file": file}, "cache": folder.path("cache")});
    let mut image: GoldenImage = serde_json::from_value(image).unwrap();
    // It keeps the blocks.
    let opened = golden::open(&image, 512).unwrap();
    let golden = Backend::Golden(Box::new(image.clone()));
    for format in [ImageFormat::Raw, ImageFormat::Vhd, ImageFormat::Qcow2] {
        let sent = folder.export(&golden, format, None);
        assert!(sent == folder.export(&source, format, None), "{format:?}");
    }
    // A file with another image tells nothing about this one.
    image.identity = Some(opened.identity().to_owned());
    std::fs::remove_file(&file).unwrap();
    folder.raw("a", &[]);
    let golden = Backend::Golden(Box::new(image));
    let mut source = source::Source::open(&golden, &folder.stop, false).unwrap();
    assert_eq!(source.next_data(1 << 20, SIZE).unwrap(), 1 << 20);
    let content = folder.content(&golden);
    assert_eq!([content[0], content[SIZE as usize - 1]], [1, 7]);
}

#[test]
fn images_of_qemu_are_imported() {
    let folder = Folder::new();
    let Backend::File(file) = disk(&folder, "a") else { panic!() };
    let content = std::fs::read(file.path().unwrap()).unwrap();
    let to = folder.raw("to", &[]);
    for (format, words) in [
        (ImageFormat::Vhd, "vpc -o force_size=on"),
        (ImageFormat::Vhd, "vpc -o force_size=on,subformat=fixed"),
        (ImageFormat::Qcow2, "qcow2"),
        (ImageFormat::Qcow2, "qcow2 -c -o cluster_size=4096"),
        (ImageFormat::Qcow2, "qcow2 -o compat=0.10"),
    ] {
        let words: Vec<_> = ["-f", "raw", "-O"].into_iter().chain(words.split(' ')).collect();
        let image = folder.convert(file.path().unwrap(), &words, "image");
        assert_eq!(folder.import(&to, format, &image), ImageImported::Replacement, "{words:?}");
        assert!(std::fs::read(folder.path("new")).unwrap() == content, "{words:?}");
        std::fs::remove_file(folder.path("new")).unwrap();
        // What the sender cuts is no image, and leaves nothing.
        let half = &image[..image.len() / 2];
        folder.refusal(&to, format, half);
        if format == ImageFormat::Vhd {
            folder.refusal(&to, format, &image[..image.len() - 1]);
        }
        let cut = folder.send(&to, format, &image, (false, true)).unwrap_err();
        assert!(cut.to_string().contains("left before the end"), "{cut}");
        assert!(!folder.path("new").exists());
    }
}

#[test]
fn what_cannot_fit_is_refused_before_its_bytes() {
    let folder = Folder::new();
    let Backend::File(file) = disk(&folder, "a") else { panic!() };
    let small = Backend::File(folder.path("small").into());
    std::fs::write(folder.path("small"), vec![0; SIZE as usize / 2]).unwrap();
    for (format, words) in [
        (ImageFormat::Vhd, "vpc -o force_size=on"),
        (ImageFormat::Vhd, "vpc -o force_size=on,subformat=fixed"),
        (ImageFormat::Qcow2, "qcow2"),
    ] {
        let words: Vec<_> = ["-f", "raw", "-O"].into_iter().chain(words.split(' ')).collect();
        let image = folder.convert(file.path().unwrap(), &words, "image");
        let length = Some(image.len() as u64);
        let call = ImageImport { length, ..folder.import_call(&small, format) };
        // The import would fail if it read on: the stream is cut after its beginning.
        let imported = folder.send_to(call, &image[..1 << 17], true);
        let Ok(ImageImported::Refused(why)) = imported else { panic!("{words:?}: {imported:?}") };
        assert!(why.contains(&(SIZE / 2).to_string()), "{why}");
        assert!(!folder.path("new").exists());
    }
    // No storage has room for this image.
    let whole = Backend::File(folder.path("a").into());
    let call = folder.import_call(&whole, ImageFormat::Qcow2);
    let call = ImageImport { length: Some(1 << 60), ..call };
    let error = folder.send_to(call, b"QFI\xfb", true).unwrap_err();
    assert!(error_causes::error_chain(&error).contains("No space left"), "{error}");
}

#[test]
fn a_delta_changes_what_differs() {
    let folder = Folder::new();
    let base = disk(&folder, "a");
    let changes = [(4096, 5, 8192), (2 << 20, 0, 65_536), (SIZE - 4096, 0, 4096)];
    let changed = folder.over("b", &base, &changes);
    let content = folder.content(&changed);
    let delta = folder.export(&changed, ImageFormat::Vhd, Some(&base));
    // The same content without a common image has the same difference.
    let other = folder.raw("other", &[(0, &content)]);
    assert_eq!(folder.export(&other, ImageFormat::Vhd, Some(&base)).len(), delta.len());
    assert!(folder.export(&base, ImageFormat::Vhd, Some(&base)).len() < 16 << 10);
    // Over a raw disk it becomes a layer.
    assert_eq!(folder.import(&base, ImageFormat::Vhd, &delta), ImageImported::Layer);
    let new = folder.path("new");
    run(Command::new("qemu-img").args(["check", "-f", "qcow2"]).arg(&new));
    let layered =
        Backend::Qcow2 { file: new.clone().into(), backing: Some(Box::new(base.clone())) };
    assert!(folder.content(&layered) == content);
    std::fs::remove_file(&new).unwrap();
    // A layer is replaced by one that has its changes, too.
    let own = folder.over("own", &base, &[(1 << 20, 8, 4096), (8192, 6, 8192)]);
    let mut expected = folder.content(&own);
    expected[..2 << 20].copy_from_slice(&content[..2 << 20]);
    expected[2 << 20..].copy_from_slice(&content[2 << 20..]);
    assert_eq!(folder.import(&own, ImageFormat::Vhd, &delta), ImageImported::Replacement);
    let merged = Backend::Qcow2 { file: new.clone().into(), backing: Some(Box::new(base.clone())) };
    assert!(folder.content(&merged) == expected);
    std::fs::remove_file(&new).unwrap();
    // A whole image over a layer hides all that is below.
    let empty = folder.raw("empty", &[(1 << 20, &[4; 512])]);
    let image = folder.export(&empty, ImageFormat::Vhd, None);
    assert_eq!(folder.import(&own, ImageFormat::Vhd, &image), ImageImported::Replacement);
    assert!(folder.content(&merged) == folder.content(&empty));
}

#[test]
fn an_image_that_does_not_fit_is_refused_before_it_is_stored() {
    let folder = Folder::new();
    let source = disk(&folder, "a");
    let small = folder.raw("small", &[]);
    let Backend::File(file) = &small else { panic!() };
    let file = std::fs::OpenOptions::new().write(true).open(file.path().unwrap()).unwrap();
    file.set_len(1 << 20).unwrap();
    for format in [ImageFormat::Vhd, ImageFormat::Qcow2, ImageFormat::Raw] {
        let image = folder.export(&source, format, None);
        let why = folder.refusal(&small, format, &image);
        assert!(why.contains("of the disk") || why.contains("of a disk of 4263936"), "{why}");
    }
    let why = folder.refusal(&source, ImageFormat::Raw, &[1; 4096]);
    assert!(why.contains("has 4096 bytes"), "{why}");
    for format in [ImageFormat::Vhd, ImageFormat::Qcow2, ImageFormat::Raw] {
        folder.refusal(&source, format, &[]);
        let why = folder.refusal(&source, format, &[5; 100_000]);
        assert!(!why.is_empty());
    }
    let over = folder.over("over", &source, &[(0, 7, 512)]);
    let Backend::Qcow2 { file, .. } = &over else { panic!() };
    let image = std::fs::read(file.path().unwrap()).unwrap();
    let why = folder.refusal(&source, ImageFormat::Qcow2, &image);
    assert!(why.contains("needs an image below it"), "{why}");
}

#[test]
fn a_sender_that_does_not_know_its_length_is_served() {
    let folder = Folder::new();
    let source = disk(&folder, "a");
    let content = folder.content(&source);
    for format in [ImageFormat::Raw, ImageFormat::Vhd] {
        let mut image = folder.export(&source, format, None);
        image.extend([1; 5000]);
        // The connection stays open, and is cut when the image is complete.
        let imported = folder.send(&source, format, &image, (true, true)).unwrap();
        assert_eq!(imported, ImageImported::Replacement);
        assert!(std::fs::read(folder.path("new")).unwrap() == content);
        std::fs::remove_file(folder.path("new")).unwrap();
    }
}

/// Returns a sequence of numbers that is the same in each run.
fn numbers() -> impl FnMut(usize) -> usize {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below.max(1) as u64) as usize
    }
}

#[test]
fn hostile_images_do_no_harm() {
    let folder = Folder::new();
    let source = disk(&folder, "a");
    let present = folder.over("own", &source, &[(1 << 20, 8, 4096)]);
    let files = || std::fs::read_dir(folder.dir.path()).unwrap().count();
    let before = files();
    let mut number = numbers();
    let odd = [0_u64, 1, 511, 4096, u64::from(u32::MAX), 1 << 40, 1 << 63, u64::MAX];
    let delta = folder.export(&present, ImageFormat::Vhd, Some(&source));
    let vhd = folder.export(&source, ImageFormat::Vhd, None);
    let qcow2 = folder.export(&source, ImageFormat::Qcow2, None);
    let images = [(ImageFormat::Vhd, vhd), (ImageFormat::Vhd, delta), (ImageFormat::Qcow2, qcow2)];
    for (format, image) in &images {
        for round in 0..32 {
            let mut bad = image.clone();
            let at = match (format, round % 2) {
                (ImageFormat::Qcow2, 0) => number(104),
                (ImageFormat::Qcow2, _) => number(8) * 65_536 + number(16) * 8,
                (_, 0) => number(1536),
                _ => 1536 + number(2048),
            };
            let value = odd[number(odd.len())].to_be_bytes();
            let width = [4, 8][number(2)];
            bad[at..at + width].copy_from_slice(&value[8 - width..]);
            if *format == ImageFormat::Vhd {
                // With checksums that are right, so that the parser goes on.
                for (start, len, sum_at) in [(0, 512, 64), (512, 1024, 36)] {
                    let part = &mut bad[start..start + len];
                    part[sum_at..sum_at + 4].fill(0);
                    let sum = !part.iter().fold(0_u32, |sum, one| sum + u32::from(*one));
                    part[sum_at..sum_at + 4].copy_from_slice(&sum.to_be_bytes());
                }
            }
            if round % 8 == 7 {
                bad.truncate(number(bad.len()));
            }
            // The result is an image, a refusal or an error, and nothing else is left.
            let made = folder.send(&present, *format, &bad, (false, false));
            let is_made = made.is_ok_and(|made| !matches!(made, ImageImported::Refused(_)));
            assert_eq!(files(), before + usize::from(is_made));
            if is_made {
                std::fs::remove_file(folder.path("new")).unwrap();
            }
        }
    }
}
