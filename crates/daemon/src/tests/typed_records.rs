//! Records as the SDKs of typed languages send them: every field is there, and what the program has
//! not set has the zero of its language.

use xenapi::envelope::{self, Encoding};
use xenapi::table::{Class, Type, class, network, vdi, vif, vm};

use super::simulated_host::*;
use crate::dispatch::dispatch;
use crate::tests::app::peer;

/// SDK, by the form of its calls.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sdk {
    /// `net.java.dev.vcc.thirdparty:xen-api` 6.2: XML-RPC.
    Java,
    /// `terra-farm/go-xen-api-client`: XML-RPC.
    TerraFarmGo,
    /// The SDK for Go of XenServer: JSON-RPC 2.0.
    Go,
}

const SDKS: [Sdk; 3] = [Sdk::Java, Sdk::TerraFarmGo, Sdk::Go];

impl Sdk {
    /// Returns the text of a field that the program has not set.
    fn unset(self, ty: &Type) -> String {
        match (self, ty) {
            (Self::Go, Type::Int | Type::Float) => "0".into(),
            (Self::Go, Type::Bool) => "false".into(),
            (Self::Go, Type::Date) => "\"0001-01-01T00:00:00Z\"".into(),
            (Self::Go, Type::Set(_)) => "[]".into(),
            (Self::Go, Type::Map(..) | Type::Record(_)) => "{}".into(),
            (Self::Go, _) => "\"\"".into(),
            (_, Type::Int) => "<value><string>0</string></value>".into(),
            (_, Type::Float) => "<value><double>0.0</double></value>".into(),
            (_, Type::Bool) => "<value><boolean>0</boolean></value>".into(),
            (_, Type::Set(_)) => "<value><array><data></data></array></value>".into(),
            (_, Type::Map(..) | Type::Record(_)) => "<value><struct></struct></value>".into(),
            (Self::Java, Type::Date) => date("19700101T00:00:00"),
            (Self::Java, Type::Enum(_)) => "<value><string>UNRECOGNIZED</string></value>".into(),
            (Self::Java, Type::Ref(_)) => self.text(NULL_REF),
            (_, Type::Date) => date("111T0:0:0"),
            _ => self.text(""),
        }
    }

    fn text(self, text: &str) -> String {
        match self {
            Self::Go => format!("\"{text}\""),
            _ => format!("<value><string>{text}</string></value>"),
        }
    }

    /// Returns the text of a field that the program has set. All scalars are text.
    fn set(self, ty: &Type, text: &str) -> String {
        match (self, ty) {
            (Self::Go, Type::Int) => text.into(),
            _ => self.text(text),
        }
    }

    /// Returns the body of `create` with a whole record, of which the program has set `given`.
    fn create(self, session: &Ref, of: &'static Class, given: &[(&str, &str)]) -> String {
        let fields = of.fields.iter().map(|field| {
            let set = given.iter().find(|(name, _)| *name == field.name);
            let value =
                set.map_or_else(|| self.unset(&field.ty), |(_, value)| self.set(&field.ty, value));
            (field.name, value)
        });
        let name = format!("{}.create", of.name);
        if self == Self::Go {
            let members: Vec<_> =
                fields.map(|(name, value)| format!("\"{name}\":{value}")).collect();
            let members = members.join(",");
            return format!(
                "{{\"jsonrpc\":\"2.0\",\"method\":\"{name}\",\
                 \"params\":[\"{session}\",{{{members}}}],\"id\":\"1\"}}"
            );
        }
        let members: String = fields
            .map(|(name, value)| format!("<member><name>{name}</name>{value}</member>"))
            .collect();
        format!(
            "<?xml version=\"1.0\"?><methodCall><methodName>{name}</methodName><params>\
             <param><value><string>{session}</string></value></param>\
             <param><value><struct>{members}</struct></value></param></params></methodCall>"
        )
    }

    fn encoding(self) -> Encoding {
        if self == Self::Go { Encoding::Json } else { Encoding::Xml }
    }
}

fn date(text: &str) -> String {
    format!("<value><dateTime.iso8601>{text}</dateTime.iso8601></value>")
}

impl SimulatedHost {
    /// Creates a record as an SDK does.
    async fn typed(
        &self,
        sdk: Sdk,
        of: &'static Class,
        given: &[(&str, &str)],
    ) -> crate::dispatch::CallResult {
        let body = sdk.create(&self.test_app.session, of, given);
        let call = envelope::parse(sdk.encoding(), body.as_bytes()).unwrap();
        dispatch(&self.test_app.app, call, &peer()).await
    }

    async fn typed_made(&self, sdk: Sdk, of: &'static Class, given: &[(&str, &str)]) -> Ref {
        match self.typed(sdk, of, given).await {
            Ok(made) => Ref::from(text(&made)),
            Err(error) => panic!("{sdk:?} {}: {error:?}", of.name),
        }
    }
}

/// A machine with a disk and a NIC, of records in which the program sets only what it must.
#[tokio::test]
async fn a_machine_is_made_of_whole_records() {
    for sdk in SDKS {
        let sim_host = SimulatedHost::new().await;
        let bytes = (256_i64 << 20).to_string();
        let place = sim_host.place().to_string();
        let machine = [
            ("name_label", "m"),
            ("memory_static_min", &*bytes),
            ("memory_static_max", &*bytes),
            ("memory_dynamic_min", &*bytes),
            ("memory_dynamic_max", &*bytes),
            ("VCPUs_max", "1"),
            ("VCPUs_at_startup", "1"),
            ("actions_after_shutdown", "destroy"),
            ("actions_after_reboot", "restart"),
            ("actions_after_crash", "destroy"),
            ("HVM_boot_policy", "BIOS order"),
        ];
        let machine = sim_host.typed_made(sdk, &vm::CLASS, &machine).await;
        let disk =
            [("SR", &*place), ("virtual_size", "1048576"), ("type", "user"), ("name_label", "d")];
        let disk = sim_host.typed_made(sdk, &vdi::CLASS, &disk).await;
        let slot = [
            ("VM", machine.as_str()),
            ("VDI", disk.as_str()),
            ("userdevice", "0"),
            ("mode", "RW"),
            ("type", "Disk"),
        ];
        sim_host.typed_made(sdk, &vbd::CLASS, &slot).await;
        let net = sim_host.typed_made(sdk, &network::CLASS, &[("name_label", "n")]).await;
        assert_eq!(sim_host.get(&net, network::Field::MTU), Value::Int(1500), "{sdk:?}");
        let card = [("VM", machine.as_str()), ("network", net.as_str()), ("device", "0")];
        let card = sim_host.typed_made(sdk, &vif::CLASS, &card).await;
        let mode = sim_host.get(&card, vif::Field::locking_mode);
        assert_eq!(mode, Value::text("network_default"), "{sdk:?}");
        assert_eq!(sim_host.get(&machine, vm::Field::power_state), Value::text("Halted"));
        sim_host.start(&machine).await;
    }
}

/// Terraform copies the template before it provisions the copy.
#[tokio::test]
async fn a_template_without_disks_is_copied_and_provisioned_once() {
    let sim_host = SimulatedHost::new().await;
    for place in [Value::text(NULL_REF), Value::text(""), sim_host.place().value()] {
        let from = sim_host.template("Other install media").await;
        let copy = [from.value(), Value::text("copy"), place];
        let copy = sim_host.test_app.made("VM.copy", copy).await;
        assert_eq!(sim_host.get(&copy, vm::Field::is_a_template), yes());
        sim_host.done("VM.provision", [copy.value()]).await;
        let refused = sim_host.refused("VM.provision", [copy.value()]).await;
        assert_eq!(refused, ["PROVISION_ONLY_ALLOWED_ON_TEMPLATE"]);
    }
}

/// No field that `create` ignores can fail it, in any class.
#[tokio::test]
async fn only_constructor_fields_are_read() {
    let sim_host = SimulatedHost::new().await;
    for (sdk, name) in SDKS.iter().flat_map(|sdk| ["PBD", "secret", "subject"].map(|of| (*sdk, of)))
    {
        let identifier = format!("{sdk:?}");
        let given = [("subject_identifier", &*identifier)];
        let made = sim_host.typed(sdk, class(name).unwrap(), &given).await;
        if let Err(error) = made {
            // The null references of the record name no host.
            assert_eq!(error.code, "HANDLE_INVALID", "{sdk:?} {name}: {error:?}");
        }
    }
    // A required enumeration that is not set is named.
    for (sdk, of, field) in SDKS
        .iter()
        .flat_map(|sdk| [(*sdk, &vdi::CLASS, "type"), (*sdk, &vm::CLASS, "actions_after_shutdown")])
    {
        let error = sim_host.typed(sdk, of, &[]).await.unwrap_err();
        assert_eq!(error.code, "FIELD_TYPE_ERROR", "{sdk:?} {}", of.name);
        assert!(error.params[0].starts_with("actions_after") || error.params[0] == field);
    }
}
