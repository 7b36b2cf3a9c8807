use super::*;

pub(super) fn wanted(socket: &str) -> RecipeDiskRequest {
    RecipeDiskRequest { socket: socket.into(), queues: 1, target: None, boot: None }
}

pub(super) fn guest() -> Guest {
    Guest { name: "web1".into(), memory_bytes: 2 << 30, vcpus: 2, accel: Accel::Kvm, kernel: None }
}

#[test]
fn names_are_given_in_order_and_around_those_taken() {
    let mut disks: Vec<_> = (0..30).map(|n| wanted(&format!("/s{n}"))).collect();
    disks[3].target = Some("vda".into());
    let recipe_disks = RecipeDisks::new(&disks).unwrap();
    let targets: Vec<_> =
        recipe_disks.all().iter().map(|recipe_disk| recipe_disk.target.as_str()).collect();
    assert_eq!(targets[..5], ["vdb", "vdc", "vdd", "vda", "vde"]);
    assert_eq!(targets[26..], ["vdaa", "vdab", "vdac", "vdad"]);
    assert_eq!(names().count(), MAX_FRONTS);
}

#[test]
fn each_bad_disk_is_refused_with_its_field() {
    type Break = fn(&mut Vec<RecipeDiskRequest>);
    let cases: [(&str, Break); 13] = [
        ("disk", Vec::clear),
        ("disk", |d| *d = (0..=MAX_FRONTS).map(|n| wanted(&format!("/{n}"))).collect()),
        ("socket", |d| d[0].socket = "relative".into()),
        ("socket", |d| d[0].socket = format!("/{}", "x".repeat(107)).into()),
        ("socket", |d| d[0].socket = "/a\nb".into()),
        ("socket", |d| d[0].socket = "/b".into()),
        ("queues", |d| d[0].queues = 0),
        ("queues", |d| d[0].queues = MAX_QUEUES + 1),
        ("target", |d| d[0].target = Some("sda".into())),
        ("target", |d| d[0].target = Some("vd'".into())),
        ("target", |d| d.iter_mut().for_each(|d| d.target = Some("vdb".into()))),
        ("boot", |d| d[0].boot = Some(0)),
        ("boot", |d| d.iter_mut().for_each(|d| d.boot = Some(2))),
    ];
    for (field, break_it) in cases {
        let mut disks = vec![wanted("/a"), wanted("/b")];
        assert!(RecipeDisks::new(&disks).is_ok());
        break_it(&mut disks);
        assert_eq!(RecipeDisks::new(&disks).unwrap_err().field, field);
    }
}

#[test]
fn a_path_that_is_not_text_is_refused() {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::OsStr::from_bytes(b"/a\xff");
    let disk = RecipeDiskRequest { socket: path.into(), ..wanted("/a") };
    let error = RecipeDisks::new(&[disk]).unwrap_err();
    assert!(error.problem.contains("not UTF-8"), "{error}");
}

#[test]
fn each_bad_machine_is_refused_with_its_field() {
    type Break = fn(&mut Guest);
    let kernel =
        |append: &str| Some(Kernel { image: "/k".into(), initrd: None, append: append.to_owned() });
    assert_eq!(Guest { kernel: kernel("quiet"), ..guest() }.validate(), Ok(()));
    assert_eq!(Guest { kernel: kernel("a\0"), ..guest() }.validate().unwrap_err().field, "kernel");
    let cases: [(&str, Break); 8] = [
        ("domain", |g| g.name.clear()),
        ("domain", |g| g.name = "a/b".into()),
        ("domain", |g| g.name = "-x".into()),
        ("domain", |g| g.name = "a\nb".into()),
        ("memory", |g| g.memory_bytes = 1 << 20),
        ("memory", |g| g.memory_bytes += 1),
        ("vcpus", |g| g.vcpus = 0),
        ("vcpus", |g| g.vcpus = 256),
    ];
    for (field, break_it) in cases {
        let mut broken = guest();
        break_it(&mut broken);
        assert_eq!(broken.validate().unwrap_err().field, field);
    }
}
