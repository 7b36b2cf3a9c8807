use model::sizing::{Host, sizing};

use super::written::WrittenLimits;
use super::*;

fn of(text: &str) -> Result<DaemonConfig, String> {
    resolve(Options::default(), text)
}

#[test]
fn what_is_usual() {
    let settings = of("").unwrap();
    assert_eq!(settings.state, Path::new("/var/lib/ringway"));
    assert_eq!(settings.socket, Path::new("/run/ringway/ringwayd.sock"));
    assert_eq!(settings.known.as_deref(), Some(Path::new("/var/lib/xcp/xapi")));
    let listen: Vec<_> = settings.listen.iter().map(ToString::to_string).collect();
    assert_eq!(listen, ["0.0.0.0:443", "127.0.0.1:80,plain"]);
    assert_eq!(settings.limits.host, sizes().steps.value, "as `ringway doctor` tells it");
    assert_eq!(settings.hypervisor, HypervisorKind::Qemu);
    assert_eq!(settings.product.version, "7.0.0");
}

#[test]
fn pages_of_other_servers_are_named_by_their_origin() {
    let of_web = |text: &str| of(&format!("[web]\n{text}")).map(|settings| settings.web);
    let web = of_web("directory = \"/w\"\norigins = [\"https://a.lan:8\"]").unwrap();
    assert_eq!(web.directory.as_deref(), Some(Path::new("/w")));
    assert_eq!(web.origins, ["https://a.lan:8"]);
    assert_eq!(of_web(""), Ok(WebSettings::default()));
    for bad in ["*", "a.lan", "https://", "https://a.lan/", "https://u@a.lan", "ftp://a.lan"] {
        let error = of_web(&format!("origins = [\"{bad}\"]")).unwrap_err();
        assert!(error.contains("web.origins") && error.contains(bad), "{error}");
    }
}

#[test]
fn a_small_host_does_less_at_once() {
    let of = |mib: u64, written: WrittenLimits| {
        let host = Host { cpus: 2, memory_bytes: mib << 20 };
        limits(&written, &sizing(host)).unwrap()
    };
    let large = of(16 << 10, WrittenLimits::default());
    // The usual number of boots is that of the CPUs here.
    assert_eq!(StepLimits { boots: StepLimits::default().boots, ..large }, StepLimits::default());
    let small = of(512, WrittenLimits::default());
    assert!(small.host < large.host, "{small:?}");
    assert_eq!(StepLimits { host: large.host, ..small }, large);
    let written = WrittenLimits { worker_pool_size: Some(40), ..WrittenLimits::default() };
    assert_eq!(of(512, written).host, 40);
}

#[test]
fn options_go_before_the_file() {
    let text = "state = \"/a\"\nrun = \"/b\"\nhypervisor = \"simulator\"\n\
                listen = [\"127.0.0.1:1,plain\"]\n[limits]\nworker-pool-size = 8\n\
                queue-deadline-s = 5\n[identity]\nproduct-brand = \"Other\"\n";
    let settings = of(text).unwrap();
    assert_eq!(settings.socket, Path::new("/b/ringwayd.sock"));
    assert_eq!(settings.hypervisor, HypervisorKind::Simulator);
    assert_eq!((settings.limits.host, settings.queue), (8, Duration::from_secs(5)));
    assert_eq!(settings.product.brand, "Other");
    let options = Options {
        state: Some("/c".into()),
        listen: vec!["127.0.0.1:2".parse().unwrap()],
        ..Options::default()
    };
    let settings = resolve(options, text).unwrap();
    assert_eq!(settings.state, Path::new("/c"));
    assert_eq!(settings.run, Path::new("/b"), "the file names it");
    assert_eq!(settings.listen.len(), 1);
    assert!(!settings.listen[0].plain);
}

#[test]
fn storage_is_measured_unless_file_or_option_say_no() {
    let calibrate = |option, text| {
        let options = Options { calibrate: option, ..Options::default() };
        resolve(options, text).map(|config| config.calibrate)
    };
    let off = "[storage]\ncalibrate = \"off\"\n";
    assert_eq!(calibrate(None, ""), Ok(CalibrateMode::Auto));
    assert_eq!(calibrate(None, off), Ok(CalibrateMode::Off));
    assert_eq!(calibrate(Some(CalibrateMode::Auto), off), Ok(CalibrateMode::Auto));
    assert!(calibrate(None, "[storage]\ncalibrate = \"later\"\n").is_err());
}

#[test]
fn another_state_has_its_own_sockets() {
    let options = Options { state: Some("/c".into()), ..Options::default() };
    let settings = resolve(options, "").unwrap();
    assert_eq!(settings.socket, Path::new("/c/run/ringwayd.sock"));
    assert_eq!(settings.known, None);
}

#[test]
fn directories_are_where_the_daemon_is_started() {
    let options = Options { state: Some("c".into()), ..Options::default() };
    let here = std::env::current_dir().unwrap();
    let settings = resolve(options, "").unwrap();
    assert_eq!((settings.state, settings.run), (here.join("c"), here.join("c/run")));
    assert_eq!(of("run = \"r\"").unwrap().run, here.join("r"));
}

#[test]
fn what_is_wrong_is_named() {
    for (text, named) in [
        ("stat = \"/a\"", "stat"),
        ("[limits]\nworker-pool-size = 0", "limits.host"),
        ("[limits]\nqueue-deadline-s = 0", "limits.queue-deadline-s"),
        ("[identity]\nproduct-version = \"7.x\"", "identity.product-version"),
        ("listen = [\"nowhere\"]", "nowhere"),
        ("[slices]\nmode = \"on\"", "mode"),
        ("[slices]\nname = \"a/b\"", "slices.name"),
        ("[slices]\nguests-weight = 0", "slices: the guests slice cannot have weight 0"),
        ("[slices]\nguest-weight = 1", "guest-weight"),
        ("state =", "state"),
    ] {
        let error = of(text).unwrap_err();
        assert!(error.contains(named), "{text}: {error}");
    }
}

#[test]
fn a_file_that_is_named_must_be_there() {
    let config = Some(PathBuf::from("/nowhere/ringwayd.toml"));
    let error = settings(Options { config, ..Options::default() }).unwrap_err();
    assert!(error.to_string().contains("/nowhere/ringwayd.toml"), "{error}");
}

#[test]
fn slices_are_those_of_the_host_unless_the_state_is_elsewhere() {
    let usual = of("").unwrap().slices;
    assert_eq!((usual.mode, &*usual.name), (SlicesMode::Auto, "ringway"));
    assert_eq!(usual.weights, Weights::default());
    let names = ["/c", "/d"].map(|state| {
        let options = Options { state: Some(state.into()), ..Options::default() };
        resolve(options, "").unwrap().slices.name
    });
    assert!(names[0] != names[1] && names.iter().all(|name| name.starts_with("ringway")));
    let text = "[slices]\nmode = \"required\"\nname = \"other\"\ncontrol-weight = 500\n";
    let slices = of(text).unwrap().slices;
    assert_eq!((slices.mode, &*slices.name), (SlicesMode::Required, "other"));
    assert_eq!(slices.weights, Weights { control: 500, ..Weights::default() });
    let options = Options { slices: Some(SlicesMode::Off), ..Options::default() };
    assert_eq!(resolve(options, text).unwrap().slices.mode, SlicesMode::Off);
}
