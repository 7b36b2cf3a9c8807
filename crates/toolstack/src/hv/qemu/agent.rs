//! Client of the agent in a guest. The agent is as hostile as its guest, so time and size are
//! bounded.

use std::time::Duration;

use model::domain::pci;
use serde_json::{Value, json};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use super::device_ids::Device;
use super::domain::{Domain, connect};
use crate::hv::{GuestInfo, HvError};
use crate::json_lines::{JsonLines, write_json};
use crate::net::named;
use crate::qemu::QemuError;

/// Longest session. A healthy agent answers within milliseconds.
const TALK_DEADLINE: Duration = Duration::from_secs(5);
/// Longest answer in bytes: all interfaces with their addresses, on one line.
const ANSWER_BYTES: usize = 1 << 20;
/// Most answers to earlier sessions that are skipped.
const STALE_MAX: usize = 64;
/// Longest text from a guest that is reported, in characters.
const TEXT_CHARS: usize = 256;
/// Most addresses of an interface that are reported, for each address family.
const ADDRESSES_MAX: usize = 16;

/// Session with the agent.
#[derive(Debug)]
pub(super) struct AgentSession {
    lines: JsonLines<OwnedReadHalf>,
    writer: OwnedWriteHalf,
}

impl AgentSession {
    /// Begins a session over the connection that the last one left, or a new one.
    async fn begin(domain: &Domain, left: Option<Self>) -> Result<Self, HvError> {
        // Each domain has its own id, so that no earlier answer matches.
        let id = u64::from(domain.process.id()) << 32 | u64::from(domain.record.domid().0);
        if let Some(mut left) = left
            && left.sync(id).await.is_ok()
        {
            return Ok(left);
        }
        Self::over(connect(domain.dir.agent()).await?, id).await
    }

    /// Begins a session with this id.
    pub(super) async fn over(stream: UnixStream, id: u64) -> Result<Self, HvError> {
        let (reader, writer) = stream.into_split();
        let mut agent_session = Self { lines: JsonLines::new(reader, ANSWER_BYTES), writer };
        agent_session.sync(id).await?;
        Ok(agent_session)
    }

    /// Skips the agent's answers to earlier sessions.
    async fn sync(&mut self, id: u64) -> Result<(), HvError> {
        self.say("guest-sync-delimited", json!({ "id": id })).await?;
        for _ in 0..STALE_MAX {
            let line = self.lines.next_text().await.map_err(QemuError::from)?;
            // A byte that is invalid in text precedes the answer.
            let (_, answer) = line.rsplit_once('\u{fffd}').unwrap_or(("", &line));
            let answer: Value = serde_json::from_str(answer).unwrap_or_default();
            if answer.get("return").and_then(Value::as_u64) == Some(id) {
                return Ok(());
            }
        }
        Err(refused("guest-sync-delimited", "it sent another answer"))
    }

    async fn say(&mut self, command: &str, arguments: Value) -> Result<(), HvError> {
        let message = json!({ "execute": command, "arguments": arguments });
        let outcome = write_json(&mut self.writer, &message).await;
        outcome.map_err(|error| refused(command, &error.to_string()))
    }

    pub(super) async fn ask(&mut self, command: &str) -> Result<Value, HvError> {
        self.say(command, json!({})).await?;
        let answer = self.lines.next_json().await.map_err(QemuError::from)?;
        match answer.get("return") {
            Some(value) => Ok(value.clone()),
            None => Err(refused(command, &text(answer.pointer("/error/desc")).unwrap_or_default())),
        }
    }
}

fn refused(command: &str, why: &str) -> HvError {
    HvError::Refused { what: format!("the guest's agent: {command}"), why: why.to_owned() }
}

/// Runs a session within its usual deadline.
pub(super) async fn talking<T>(
    domain: &Domain,
    talk: impl AsyncFnOnce(&mut AgentSession) -> Result<T, HvError>,
) -> Result<T, HvError> {
    talking_for(domain, TALK_DEADLINE, talk).await
}

/// Runs a session within this deadline. It must begin within the usual one. Only one session runs at
/// a time.
///
/// The connection stays open after a session that succeeded: while no host is connected, an agent looks
/// for one ten times a second, which costs an idle guest more CPU time than all else.
pub(super) async fn talking_for<T>(
    domain: &Domain,
    after: Duration,
    talk: impl AsyncFnOnce(&mut AgentSession) -> Result<T, HvError>,
) -> Result<T, HvError> {
    let mut open = domain.agent.lock().await;
    let late = |after| move |_| HvError::Late { what: "the guest's agent".into(), after };
    let left = open.take();
    let talk = async {
        let begun = timeout(TALK_DEADLINE, AgentSession::begin(domain, left)).await;
        let mut agent_session = begun.map_err(late(TALK_DEADLINE))??;
        let outcome = talk(&mut agent_session).await?;
        Ok::<_, HvError>((outcome, agent_session))
    };
    let (outcome, agent_session) = timeout(after, talk).await.map_err(late(after))??;
    *open = Some(agent_session);
    Ok(outcome)
}

/// Requests a shutdown in the agent's `mode`. On success the agent does not answer.
pub(super) async fn shutdown(domain: &Domain, mode: &str) -> Result<(), HvError> {
    talking(domain, async |agent_session| {
        agent_session.say("guest-shutdown", json!({ "mode": mode })).await
    })
    .await
}

/// Returns the information that the agent reports. A command that it does not support leaves its
/// part empty.
pub(super) async fn seen(domain: &Domain) -> Result<GuestInfo, HvError> {
    let nics = addresses(domain).await?;
    talking(domain, async |agent_session| {
        let info = agent_session.ask("guest-info").await?;
        let system = agent_session.ask("guest-get-osinfo").await.unwrap_or_default();
        let networks = agent_session.ask("guest-network-get-interfaces").await.unwrap_or_default();
        let agent = text(info.get("version")).unwrap_or_default();
        Ok(GuestInfo { os: os(&system), networks: network_addresses(&networks, &nics), agent })
    })
    .await
}

/// Returns the MAC address of every interface, with its number.
async fn addresses(domain: &Domain) -> Result<Vec<(u8, String)>, HvError> {
    let mut found = Vec::new();
    for device in domain.devices().await? {
        let Device::Nic(_) = device else { continue };
        let path = format!("/machine/peripheral/{}", device.id());
        let get = |property: &str| {
            domain.execute("qom-get", json!({ "path": path, "property": property }))
        };
        // The value is the PCI slot and function in one number.
        let slot = get("addr").await?.as_u64().map(|place| place >> 3);
        let number = (0..pci::MAX_VIFS)
            .find(|number| pci::vif(*number).map(|pci_slot| u64::from(pci_slot.slot)) == slot);
        let mac = get("mac").await?;
        let mac = mac.as_str().unwrap_or_default().to_lowercase();
        found.extend(number.map(|number| (number, mac)));
    }
    Ok(found)
}

/// Translates the guest's operating system information to the names that clients know.
fn os(system: &Value) -> Vec<(String, String)> {
    let of = |name: &str| text(system.get(name));
    let version = of("version-id").unwrap_or_default();
    let (major, minor) = version.split_once('.').unwrap_or((&version, ""));
    let number = |part: &str| (!part.is_empty()).then(|| part.to_owned());
    let all = [
        ("name", of("pretty-name").or_else(|| of("name"))),
        ("uname", of("kernel-release")),
        ("distro", of("id")),
        ("major", number(major)),
        ("minor", number(minor)),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// Returns the addresses of Ringway's interfaces, matched by MAC address.
fn network_addresses(interfaces: &Value, nics: &[(u8, String)]) -> Vec<(String, String)> {
    let mut networks = Vec::new();
    for interface in interfaces.as_array().into_iter().flatten() {
        let mac = text(interface.get("hardware-address")).unwrap_or_default().to_lowercase();
        let Some((number, _)) = nics.iter().find(|(_, known)| *known == mac) else { continue };
        let list = interface.get("ip-addresses").and_then(Value::as_array).into_iter().flatten();
        let of_kind = |kind: &str| -> Vec<String> {
            let of = list.clone().filter(|one| one.get("ip-address-type") == Some(&kind.into()));
            of.filter_map(|one| text(one.get("ip-address"))).take(ADDRESSES_MAX).collect()
        };
        let (v4, v6) = (of_kind("ipv4"), of_kind("ipv6"));
        networks.extend(named(*number, v4, v6));
    }
    networks
}

/// Returns a text of the guest, shortened and without control characters.
pub(super) fn text(value: Option<&Value>) -> Option<String> {
    let text = value?.as_str()?;
    Some(text.chars().filter(|c| !c.is_control()).take(TEXT_CHARS).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_is_told_under_known_names() {
        let debian = json!({ "id": "debian", "pretty-name": "Debian GNU/Linux 12 (bookworm)",
            "version-id": "12.1", "kernel-release": "6.1.0-9-amd64", "machine": "x86_64" });
        let pairs = |text: &str| -> Vec<(String, String)> {
            let lines = text.lines().filter_map(|line| line.split_once('='));
            lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
        };
        let expected = "name=Debian GNU/Linux 12 (bookworm)\nuname=6.1.0-9-amd64\n\
                        distro=debian\nmajor=12\nminor=1";
        assert_eq!(os(&debian), pairs(expected));
        assert_eq!(os(&json!({ "id": 7, "name": "x\ny" })), pairs("name=xy"));
        assert_eq!(os(&Value::Null), []);
        let long = json!({ "id": "x".repeat(1000) });
        assert_eq!(os(&long).first().unwrap().1.len(), TEXT_CHARS);
    }

    #[test]
    fn addresses_are_those_of_our_interfaces() {
        let address = |kind: &str, one: &str| json!({ "ip-address-type": kind, "ip-address": one });
        let interfaces = json!([
            { "name": "lo", "ip-addresses": [address("ipv4", "127.0.0.1")] },
            { "name": "eth0", "hardware-address": "00:16:3E:00:00:01",
              "ip-addresses": [address("ipv6", "fe80::1"), address("ipv4", "10.0.0.2"),
                               address("ipv4", "10.0.0.3")] },
            { "name": "docker0", "hardware-address": "02:42:00:00:00:01",
              "ip-addresses": [address("ipv4", "172.17.0.1")] },
        ]);
        let nics = [(3, "00:16:3e:00:00:01".to_owned())];
        let reported = network_addresses(&interfaces, &nics);
        let shown: Vec<_> = reported.iter().map(|(key, value)| format!("{key} {value}")).collect();
        let expected =
            ["3/ip 10.0.0.2", "3/ipv4/0 10.0.0.2", "3/ipv4/1 10.0.0.3", "3/ipv6/0 fe80::1"];
        assert_eq!(shown, expected);
        assert_eq!(network_addresses(&json!({ "a": 1 }), &nics), []);
    }
}
