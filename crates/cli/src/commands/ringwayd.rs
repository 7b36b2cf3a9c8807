//! Look-ups at `ringwayd`.

use anyhow::Context as _;
use toolstack::ringway_io::HostSockets;
use xenapi::Value;
use xenapi::client::{Client, ClientError, Record};

/// Originator of the session, for the log of `ringwayd`.
const ORIGINATOR: &str = "ringway";
/// Error code of an unknown UUID.
const UUID_INVALID: &str = "UUID_INVALID";

/// Runs `work` with a client of `ringwayd`, on a thread of its own because the client blocks. `what`
/// is what it looks up, for the error.
///
/// # Errors
/// `ringwayd` does not answer, or the work failed.
pub(super) async fn blocking<T: Send + 'static>(
    host: HostSockets,
    what: &'static str,
    work: impl FnOnce(&mut Client) -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let task = tokio::task::spawn_blocking(move || {
        let client = Client::unix(host.ringwayd().to_owned());
        let mut client = client.with_context(|| format!("{what} are looked up at ringwayd"))?;
        client.use_connection_session(ORIGINATOR);
        work(&mut client)
    });
    task.await.context("the look-up failed")?
}

/// Returns the objects of a class with this name, or the one with this UUID if none has.
///
/// # Errors
/// `ringwayd` refuses the call.
pub(super) fn by_name_or_uuid(
    client: &mut Client,
    class: &str,
    name: &str,
) -> Result<Vec<(String, Record)>, ClientError> {
    let named = client.call(&format!("{class}.get_by_name_label"), &[Value::text(name)])?;
    let mut found = Vec::new();
    for reference in references(named) {
        let record = client.record(class, &reference)?;
        found.push((reference, record));
    }
    if found.is_empty() {
        found.extend(by_uuid(client, class, name)?);
    }
    Ok(found)
}

/// Returns an object and its record, or `None` if there is none.
///
/// # Errors
/// `ringwayd` refuses the call.
pub(super) fn by_uuid(
    client: &mut Client,
    class: &str,
    uuid: &str,
) -> Result<Option<(String, Record)>, ClientError> {
    match client.call(&format!("{class}.get_by_uuid"), &[Value::text(uuid)]) {
        Ok(reference) => match reference.plain() {
            Value::Str(reference) => {
                client.record(class, reference).map(|record| Some((reference.clone(), record)))
            }
            _ => Ok(None),
        },
        Err(error) if error.code() == Some(UUID_INVALID) => Ok(None),
        Err(error) => Err(error),
    }
}

fn references(value: Value) -> Vec<String> {
    let Value::Set(all) = value else { return Vec::new() };
    let text = |value: Value| match value.plain() {
        Value::Str(text) => Some(text.clone()),
        _ => None,
    };
    all.into_iter().filter_map(text).collect()
}
