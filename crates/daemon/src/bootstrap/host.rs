//! Records of the host, its CPUs and its control domain.

use model::sizing::{self, sizing};
use toolstack::machines::HostBytes;
use xenapi::table::{host, host_cpu, host_metrics, vm, vm_metrics};
use xenapi::{ApiError, Date, Value};

use super::{BootstrapInput, CpuFacts, count, number, pairs};
use crate::db::{Object, Ref, Tx, View};
use crate::dispatch::text;

/// Version of the XenAPI.
const API_VERSION: (i64, i64) = (2, 5);
/// Version of the toolstack as XenServer 7.0 reports it. SDKs require it at login. Clients compare it
/// to learn which calls exist, so it must not be that of a later release.
const XAPI: &str = "1.3";
/// The same for clients that expect three numbers.
const XAPI_BUILD: &str = "1.3.0";
/// Vendor of the API.
const VENDOR: &str = "Ringway";

pub(super) fn make(tx: &mut Tx<'_>, setup: &BootstrapInput<'_>) -> Result<Ref, ApiError> {
    let metrics = tx.create(&host_metrics::CLASS, Vec::new())?;
    let fields = vec![
        (host::Field::name_label.into(), Value::text(setup.host.hostname.as_str())),
        (host::Field::hostname.into(), Value::text(setup.host.hostname.as_str())),
        (host::Field::metrics.into(), metrics.value()),
        (host::Field::edition.into(), Value::text("free")),
    ];
    let host = tx.create(&host::CLASS, fields)?;
    let domain = control_domain(tx, setup, &host)?;
    tx.set(&host, host::Field::control_domain, domain.value())?;
    Ok(host)
}

/// Creates the control domain: a VM record that stands for the processes of the host itself.
fn control_domain(
    tx: &mut Tx<'_>,
    setup: &BootstrapInput<'_>,
    host: &Ref,
) -> Result<Ref, ApiError> {
    let metrics = tx.create(&vm_metrics::CLASS, Vec::new())?;
    let name = format!("Control domain on host: {}", setup.host.hostname);
    let what = "What runs on the host itself: the toolstack, and what serves disks";
    let fields = vec![
        (vm::Field::name_label.into(), Value::text(name)),
        (vm::Field::name_description.into(), Value::text(what)),
        (vm::Field::is_control_domain.into(), Value::Bool(true)),
        (vm::Field::power_state.into(), Value::text("Running")),
        (vm::Field::domid.into(), Value::Int(0)),
        (vm::Field::resident_on.into(), host.value()),
        (vm::Field::affinity.into(), host.value()),
        (vm::Field::metrics.into(), metrics.value()),
        (vm::Field::domain_type.into(), Value::text("pv")),
    ];
    tx.create(&vm::CLASS, fields)
}

/// Updates the records of the host and its control domain to the current facts.
pub(super) fn refresh(tx: &mut Tx<'_>, setup: &BootstrapInput<'_>) -> Result<(), ApiError> {
    let Some(host) = tx.view().all(&host::CLASS).next().map(|host| host.reference().clone()) else {
        return Ok(());
    };
    let facts = setup.host;
    let (major, minor) = API_VERSION;
    let share = sizing(sizing::Host {
        cpus: u16::try_from(facts.cpus.len()).unwrap_or(u16::MAX),
        memory_bytes: facts.memory_total,
    });
    let share = share.share_bytes.value;
    let bootloaders = ["kernel", "bios"].map(Value::text).to_vec();
    for (field, value) in [
        // XenServer enables a host when its toolstack or the host itself starts.
        (host::Field::enabled, Value::Bool(true)),
        (host::Field::API_version_major, Value::Int(major)),
        (host::Field::API_version_minor, Value::Int(minor)),
        (host::Field::API_version_vendor, Value::text(VENDOR)),
        (host::Field::address, Value::text(setup.address)),
        (host::Field::software_version, software(setup)),
        (host::Field::capabilities, Value::Set(vec![Value::text("hvm-3.0-x86_64")])),
        (host::Field::supported_bootloaders, Value::Set(bootloaders)),
        (host::Field::memory_overhead, number(share)),
        (host::Field::cpu_info, cpus_in_sum(setup)),
    ] {
        tx.set(&host, field, value)?;
    }
    let metrics = named(&tx.view(), &host, host::Field::metrics)?;
    for (field, value) in [
        (host_metrics::Field::memory_total, number(facts.memory_total)),
        (host_metrics::Field::memory_free, number(facts.memory_free)),
        (host_metrics::Field::live, Value::Bool(true)),
        (host_metrics::Field::last_updated, Value::Date(setup.now)),
    ] {
        tx.set(&metrics, field, value)?;
    }
    cpus(tx, &host, &facts.cpus)?;
    refresh_domain(tx, &host, facts.cpus.len(), share, setup)
}

/// Updates the host's free memory in the records.
///
/// # Errors
/// Only if the class table is inconsistent, which is a bug.
pub(crate) fn measured(tx: &mut Tx<'_>, memory: HostBytes, now: Date) -> Result<(), ApiError> {
    let all: Vec<Ref> =
        tx.view().all(&host_metrics::CLASS).map(Object::reference).cloned().collect();
    for metrics in all {
        tx.set(&metrics, host_metrics::Field::memory_free, number(memory.available))?;
        tx.set(&metrics, host_metrics::Field::last_updated, Value::Date(now))?;
    }
    Ok(())
}

fn refresh_domain(
    tx: &mut Tx<'_>,
    host: &Ref,
    cpus: usize,
    share: u64,
    setup: &BootstrapInput<'_>,
) -> Result<(), ApiError> {
    let domain = named(&tx.view(), host, host::Field::control_domain)?;
    for field in [
        vm::Field::memory_static_min,
        vm::Field::memory_static_max,
        vm::Field::memory_dynamic_min,
        vm::Field::memory_dynamic_max,
        vm::Field::memory_target,
    ] {
        tx.set(&domain, field, number(share))?;
    }
    for field in [vm::Field::VCPUs_max, vm::Field::VCPUs_at_startup] {
        tx.set(&domain, field, count(cpus))?;
    }
    let metrics = named(&tx.view(), &domain, vm::Field::metrics)?;
    tx.set(&metrics, vm_metrics::Field::memory_actual, number(share))?;
    tx.set(&metrics, vm_metrics::Field::VCPUs_number, count(cpus))?;
    tx.set(&metrics, vm_metrics::Field::start_time, Value::Date(setup.now))
}

fn software(setup: &BootstrapInput<'_>) -> Value {
    let product = setup.product;
    pairs([
        ("product_brand", &product.brand),
        ("product_version", &product.version),
        ("product_version_text", &product.version),
        ("platform_name", &product.brand),
        ("platform_version", &product.platform),
        ("build_number", env!("CARGO_PKG_VERSION")),
        ("xapi", XAPI),
        ("xapi_build", XAPI_BUILD),
        ("linux", &setup.host.kernel),
        ("hostname", &setup.host.hostname),
        ("control_slice", setup.slices),
    ])
}

fn cpus_in_sum(setup: &BootstrapInput<'_>) -> Value {
    let facts = setup.host;
    let CpuFacts { vendor, model_name, family, model, stepping, mhz, flags } =
        facts.cpus.first().cloned().unwrap_or_default();
    pairs([
        ("cpu_count", &facts.cpus.len().to_string()),
        ("socket_count", &facts.sockets.to_string()),
        ("vendor", &vendor),
        ("modelname", &model_name),
        ("family", &family.to_string()),
        ("model", &model.to_string()),
        ("stepping", &stepping),
        ("speed", &mhz.to_string()),
        ("flags", &flags),
        ("features", ""),
    ])
}

/// Makes the records match the CPUs of the host, one record for each.
fn cpus(tx: &mut Tx<'_>, host: &Ref, cpus: &[CpuFacts]) -> Result<(), ApiError> {
    let view = tx.view();
    let known: Vec<Ref> = view.all(&host_cpu::CLASS).map(Object::reference).cloned().collect();
    for gone in known.iter().skip(cpus.len()) {
        tx.destroy(&host_cpu::CLASS, gone)?;
    }
    for (at, cpu) in cpus.iter().enumerate() {
        let it = match known.get(at) {
            Some(it) => it.clone(),
            None => {
                tx.create(&host_cpu::CLASS, vec![(host_cpu::Field::host.into(), host.value())])?
            }
        };
        for (field, value) in [
            (host_cpu::Field::number, count(at)),
            (host_cpu::Field::vendor, Value::text(cpu.vendor.as_str())),
            (host_cpu::Field::modelname, Value::text(cpu.model_name.as_str())),
            (host_cpu::Field::family, Value::Int(cpu.family)),
            (host_cpu::Field::model, Value::Int(cpu.model)),
            (host_cpu::Field::stepping, Value::text(cpu.stepping.as_str())),
            (host_cpu::Field::speed, Value::Int(cpu.mhz)),
            (host_cpu::Field::flags, Value::text(cpu.flags.as_str())),
        ] {
            tx.set(&it, field, value)?;
        }
    }
    Ok(())
}

fn named(
    view: &View<'_>,
    of: &Ref,
    field: impl Into<xenapi::table::FieldIx>,
) -> Result<Ref, ApiError> {
    view.get(of, field).map(|value| Ref::from(text(value)))
}
