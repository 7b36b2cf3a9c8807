use std::path::Path;

use toolstack::sim::{self, Sim};
use toolstack::sr::{Config, SrError};
use xenapi::Value;
use xenapi::table::{host, host_cpu, host_metrics, pool, role, sm, sr, vm};

use crate::db::{Db, Ref, View};
use crate::dispatch::text;
use crate::random;
use crate::tests::app::{facts, make_first};

fn db() -> Db {
    Db::new(0, random::bytes, |_| Ok(()))
}

fn field(view: &View<'_>, of: &Ref, field: impl Into<xenapi::table::FieldIx>) -> Value {
    view.get(of, field).unwrap().clone()
}

fn only(view: &View<'_>, class: &'static xenapi::table::Class) -> Ref {
    assert_eq!(view.count(class), 1, "{}", class.name);
    view.all(class).next().unwrap().reference().clone()
}

#[test]
fn the_first_start_makes_what_clients_look_for() {
    let db = db();
    make_first(&db, &facts());
    db.read(|view| {
        let (pool, host) = (only(view, &pool::CLASS), only(view, &host::CLASS));
        let place = only(view, &sr::CLASS);
        assert_eq!(field(view, &pool, pool::Field::master), host.value());
        assert_eq!(field(view, &pool, pool::Field::default_SR), place.value());
        let Value::Set(connections) = field(view, &place, sr::Field::PBDs) else { panic!() };
        assert_eq!(connections.len(), 1);
        let domain = Ref::from(text(&field(view, &host, host::Field::control_domain)));
        let name = field(view, &domain, vm::Field::name_label);
        assert_eq!(name, Value::text("Control domain on host: trial"));
        assert_eq!(field(view, &domain, vm::Field::power_state), Value::text("Running"));
        assert_eq!(field(view, &domain, vm::Field::domid), Value::Int(0));
        let residents = field(view, &host, host::Field::resident_VMs);
        assert_eq!(residents, Value::Set(vec![domain.value()]));
        for template in ["Other install media", "Ringway test guest"] {
            let found: Vec<&Ref> = view.by_name(&vm::CLASS, template).collect();
            assert_eq!(found.len(), 1, "{template}");
            assert_eq!(field(view, found[0], vm::Field::is_a_template), Value::Bool(true));
            assert_eq!(field(view, found[0], vm::Field::domid), Value::Int(-1));
        }
        assert_eq!((view.count(&role::CLASS), view.count(&host_cpu::CLASS)), (6, 2));
    });
}

/// Clients compare the numbers of versions.
#[test]
fn the_host_says_what_it_is() {
    let db = db();
    make_first(&db, &facts());
    db.read(|view| {
        let host = only(view, &host::CLASS);
        let Value::Map(software) = field(view, &host, host::Field::software_version) else {
            panic!("no map")
        };
        for version in ["product_version", "platform_version", "xapi", "xapi_build"] {
            let version = text(software.get(version).unwrap());
            assert!(version.split('.').all(|part| part.parse::<u32>().is_ok()), "{version}");
        }
        // Xen Orchestra offers XenServer's and XCP-ng's updates to hosts of these brands.
        assert_eq!(software.get("product_brand"), Some(&Value::text("Ringway")));
        let version = [host::Field::API_version_major, host::Field::API_version_minor];
        let version = version.map(|part| field(view, &host, part));
        assert_eq!(version, [Value::Int(2), Value::Int(5)]);
        let metrics = Ref::from(text(&field(view, &host, host::Field::metrics)));
        let total = field(view, &metrics, host_metrics::Field::memory_total);
        assert_eq!(total, Value::Int(8 << 30));
    });
}

#[test]
fn a_later_start_tells_what_is_another_and_makes_nothing_twice() {
    let db = db();
    make_first(&db, &facts());
    let before = db.read(|view| (only(view, &pool::CLASS), view.count(&vm::CLASS)));
    let mut smaller = facts();
    smaller.cpus.pop();
    smaller.memory_total = 2 << 30;
    make_first(&db, &smaller);
    db.read(|view| {
        assert_eq!((only(view, &pool::CLASS), view.count(&vm::CLASS)), before);
        assert_eq!((view.count(&role::CLASS), view.count(&sm::CLASS)), (6, 1));
        assert_eq!(view.count(&host_cpu::CLASS), 1);
        let host = only(view, &host::CLASS);
        let Value::Map(cpus) = field(view, &host, host::Field::cpu_info) else { panic!("no map") };
        assert_eq!(cpus.get("cpu_count"), Some(&Value::text("1")));
    });
    let unchanged = db.read(|view| view.generation());
    make_first(&db, &smaller);
    assert_eq!(db.read(|view| view.generation()), unchanged, "the same start changes nothing");
}

/// Terraform and XO read back keys of a template that they could have set.
#[test]
fn templates_have_the_keys_that_clients_read_back() {
    let db = db();
    make_first(&db, &facts());
    let without = |field: vm::Field, key: &str| {
        db.change(|tx| {
            let template = tx.view().by_name(&vm::CLASS, "Other install media").next().cloned();
            tx.set_key(&template.unwrap(), field, key, None)
        })
        .unwrap();
    };
    // A template of an earlier version gets them at the next start, and keeps what it has.
    without(vm::Field::platform, "secureboot");
    without(vm::Field::HVM_boot_params, "firmware");
    make_first(&db, &facts());
    db.read(|view| {
        for template in ["Other install media", "Ringway test guest"] {
            let template = view.by_name(&vm::CLASS, template).next().unwrap();
            for (of, key, value) in [
                (vm::Field::HVM_boot_params, "firmware", "bios"),
                (vm::Field::platform, "secureboot", "false"),
                (vm::Field::platform, "device-model", "qemu-upstream-compat"),
            ] {
                let Value::Map(pairs) = field(view, template, of) else { panic!("no map") };
                assert_eq!(pairs.get(key), Some(&Value::text(value)), "{key}");
            }
        }
    });
}

/// The storage exists before its record, under a unique name.
#[tokio::test]
async fn the_storage_of_the_first_start_is_made() {
    let drivers = sim::drivers(&Sim::new());
    let made = super::make_sr(&drivers, "dir", Path::new("/state")).await.unwrap();
    assert_eq!(made.location, Path::new("/state/sr").join(made.id.to_string()));
    let location = made.location.to_str().unwrap().to_owned();
    let config = Config::from([("location".to_owned(), location)]);
    drivers.sr("dir").unwrap().attach(made.id, &config).await.unwrap();
    let other = super::make_sr(&drivers, "dir", Path::new("/state")).await.unwrap();
    assert_ne!(other, made);
    let error = super::make_sr(&drivers, "nfs", Path::new("/state")).await.unwrap_err();
    assert!(matches!(error, SrError::Config { .. }), "{error}");
}
