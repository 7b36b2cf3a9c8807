//! A disk on a command line: `PATH[,ro][,serial=S][,queues=N]...`.
//!
//! `PATH` may also be `null:SIZE` or `memory:SIZE`. Double a comma in a path, as for QEMU. Write a
//! file named `null:1G` as `./null:1G`. A file is a raw image, unless `format=` follows.

use std::path::PathBuf;
use std::str::FromStr;

use crate::image_arg::ImageArg;
use crate::spec::{Backend, CacheMode, DiskSpec, OnFull, PollMode, SpecError, parse_size};

/// A parsed and checked `--disk`: a [`DiskSpec`] without name and socket. The program that starts
/// the machine adds both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskArg {
    spec: DiskSpec,
}

/// Options of a `--disk`, for messages.
const OPTIONS: &str = "format=raw|qcow2|vhd, backing=PATH, backing-format=raw|qcow2|vhd, ro, serial=S, queues=N, cache=none|writeback, block-size=BYTES|storage, \
                       poll=auto|off|always, poll-max-us=N, poll-idle-threshold=PERCENT, \
                       on-full=wait|error, iops=N, bps=SIZE";

impl DiskArg {
    /// Creates a disk with default options.
    ///
    /// # Errors
    /// Field `backend`: the size is out of range.
    pub fn new(backend: Backend) -> Result<Self, SpecError> {
        let spec = DiskSpec::without_socket("disk", backend);
        spec.validate()?;
        Ok(Self { spec })
    }

    /// Returns the full spec of a disk named `id` that listens on `socket`.
    ///
    /// # Errors
    /// The id is invalid, or the socket path is too long.
    pub fn place(
        &self,
        id: impl Into<String>,
        socket: impl Into<PathBuf>,
    ) -> Result<DiskSpec, SpecError> {
        let spec = DiskSpec { id: id.into(), socket: Some(socket.into()), ..self.spec.clone() };
        spec.validate()?;
        Ok(spec)
    }

    /// Returns the backend.
    pub fn backend(&self) -> &Backend {
        &self.spec.backend
    }

    /// Returns the serial number that the guest sees, if there is one.
    pub fn serial(&self) -> Option<&str> {
        self.spec.serial.as_deref()
    }

    /// Applies an option of the image file. Returns false if it is none.
    fn apply_to_image(image: &mut ImageArg, option: &str) -> Result<bool, SpecError> {
        let format =
            |field, name: &str| name.parse().map_err(|problem| SpecError { field, problem });
        match option.split_once('=') {
            Some(("format", name)) => image.format = Some(format("format", name)?),
            Some(("backing", path)) => image.backing.push(path.into()),
            Some(("backing-format", name)) => {
                image.backing_format.push(format("backing_format", name)?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Applies one option: `ro`, or `NAME=VALUE`.
    fn apply(&mut self, option: &str) -> Result<(), SpecError> {
        let spec = &mut self.spec;
        match option.split_once('=') {
            None if option == "ro" => spec.read_only = true,
            Some(("serial", serial)) => spec.serial = Some(serial.into()),
            Some(("queues", count)) => spec.queues = number("queues", count)?,
            Some(("block-size", bytes)) => spec.block_size = Some(bytes.parse()?),
            Some(("cache", "none")) => spec.cache = CacheMode::None,
            Some(("cache", "writeback")) => spec.cache = CacheMode::Writeback,
            Some(("poll", name)) => spec.poll = Some(poll_mode(name)?),
            Some(("poll-max-us", us)) => spec.poll_max_us = Some(number("poll_max_us", us)?),
            Some(("poll-idle-threshold", percent)) => {
                spec.poll_idle_threshold = Some(number("poll_idle_threshold", percent)?);
            }
            Some(("on-full", "wait")) => spec.on_full = OnFull::Wait,
            Some(("on-full", "error")) => spec.on_full = OnFull::Error,
            Some(("iops", count)) => {
                spec.caps.get_or_insert_default().iops = Some(number("caps.iops", count)?);
            }
            Some(("bps", size)) => {
                spec.caps.get_or_insert_default().bytes_per_second = Some(parse_size(size)?);
            }
            _ => {
                return Err(SpecError {
                    field: "disk",
                    problem: format!("{option:?} is not an option; known: {OPTIONS}"),
                });
            }
        }
        Ok(())
    }
}

impl FromStr for DiskArg {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let mut parts = split_commas(text).into_iter();
        let place = parts.next().unwrap_or_default();
        if place.is_empty() {
            return Err(SpecError {
                field: "disk",
                problem: "starts with neither a path nor null:SIZE nor memory:SIZE".into(),
            });
        }
        let mut image = None;
        let backend = match place.split_once(':') {
            Some(("null", size)) => Backend::Null(parse_size(size)?),
            Some(("memory", size)) => Backend::Memory(parse_size(size)?),
            _ => {
                image = Some(ImageArg { file: place.clone().into(), ..ImageArg::default() });
                Backend::File(place.into())
            }
        };
        let mut disk = Self { spec: DiskSpec::without_socket("disk", backend) };
        for option in parts {
            let of_image = image.as_mut().map(|image| Self::apply_to_image(image, &option));
            if !of_image.transpose()?.unwrap_or(false) {
                disk.apply(&option)?;
            }
        }
        if let Some(image) = image {
            disk.spec.format = image.stated_raw();
            disk.spec.backend = image.backend()?;
        }
        disk.spec.validate()?;
        Ok(disk)
    }
}

fn poll_mode(name: &str) -> Result<PollMode, SpecError> {
    let known = PollMode::ALL.into_iter().find(|mode| mode.name() == name);
    let problem = || format!("{name:?} is not auto, off or always");
    known.ok_or_else(|| SpecError { field: "poll", problem: problem() })
}

pub(crate) fn number<T: FromStr>(field: &'static str, text: &str) -> Result<T, SpecError> {
    text.parse().map_err(|_| SpecError {
        field,
        problem: format!("{text:?} is not a whole number in range"),
    })
}

/// Splits at single commas; a doubled comma stands for one comma.
pub(crate) fn split_commas(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, parts.last_mut()) {
            (',', _) if chars.peek() != Some(&',') => parts.push(String::new()),
            (c, Some(part)) => {
                part.push(c);
                if c == ',' {
                    chars.next();
                }
            }
            (_, None) => {}
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::BlockSize;
    use crate::spec::EffectivePolling;

    fn parse(text: &str) -> Result<DiskSpec, SpecError> {
        text.parse::<DiskArg>()?.place("d0", "/run/d0.sock")
    }

    #[test]
    fn a_plain_path_has_every_default() {
        let expected = DiskSpec::new("d0", "/run/d0.sock", Backend::File("/img/a.raw".into()));
        assert_eq!(parse("/img/a.raw"), Ok(expected));
    }

    #[test]
    fn every_option_reaches_the_spec() {
        let text = "a.raw,ro,serial=A1,queues=4,cache=writeback,block-size=512,poll=always,\
                    poll-max-us=50,poll-idle-threshold=0,on-full=error";
        let spec = parse(text).unwrap();
        assert!(spec.read_only);
        assert_eq!(spec.serial.as_deref(), Some("A1"));
        assert_eq!((spec.queues, spec.block_size), (4, Some(BlockSize::Bytes(512))));
        assert_eq!(spec.cache, CacheMode::Writeback);
        assert_eq!(spec.on_full, OnFull::Error);
        let expected = EffectivePolling { mode: PollMode::Always, max_us: 50, idle_threshold: 0 };
        assert_eq!(spec.polling().resolve(), expected);
    }

    #[test]
    fn sizes_stand_for_disks_without_a_file() {
        assert_eq!(parse("null:1G").unwrap().backend, Backend::Null(1 << 30));
        assert_eq!(parse("memory:64M,ro").unwrap().backend, Backend::Memory(64 << 20));
        assert_eq!(parse("./null:1G").unwrap().backend, Backend::File("./null:1G".into()));
    }

    #[test]
    fn a_format_is_stated() {
        let text = "/a,,b.qcow2,backing=/c,,d.raw,format=qcow2,ro,backing-format=raw";
        let backing = Some(Box::new(Backend::File("/c,d.raw".into())));
        let expected = Backend::Qcow2 { file: "/a,b.qcow2".into(), backing };
        let spec = parse(text).unwrap();
        assert_eq!((spec.backend, spec.read_only), (expected, true));
        assert_eq!(parse("a,format=raw").unwrap().backend, Backend::File("a".into()));
    }

    #[test]
    fn a_doubled_comma_belongs_to_the_path() {
        let spec = parse("/img/a,,b.raw,ro").unwrap();
        assert_eq!(spec.backend, Backend::File("/img/a,b.raw".into()));
        assert!(spec.read_only);
    }

    #[test]
    fn each_refusal_names_its_field() {
        let cases = [
            ("", "disk"),
            (",ro", "disk"),
            ("a.raw,rw", "disk"),
            ("a.raw,cache=writethrough", "disk"),
            ("a.raw,", "disk"),
            ("a.raw,queues=0", "queues"),
            ("a.raw,format=vmdk", "format"),
            ("a.raw,backing=b", "backing"),
            ("a.qcow2,format=qcow2,backing=b", "backing_format"),
            ("null:1M,format=raw", "disk"),
            ("a.raw,queues=70000", "queues"),
            ("a.raw,serial=123456789012345678901", "serial"),
            ("a.raw,block-size=1000", "block_size"),
            ("a.raw,poll=maybe", "poll"),
            ("a.raw,poll-max-us=10001", "poll_max_us"),
            ("a.raw,poll-max-us=-1", "poll_max_us"),
            ("a.raw,poll-idle-threshold=101", "poll_idle_threshold"),
            ("a.raw,poll-idle-threshold=300", "poll_idle_threshold"),
            ("null:", "size"),
            ("null:0", "backend"),
            ("memory:12X", "size"),
        ];
        for (text, field) in cases {
            assert_eq!(parse(text).unwrap_err().field, field, "{text:?}");
        }
    }
}
