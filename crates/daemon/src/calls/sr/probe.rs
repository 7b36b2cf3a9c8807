//! Search for SRs that may not be recorded.

use model::id::SrId;
use toolstack::sr::Config;
use xenapi::Value;

use crate::dispatch::{Args, CallResult, Ctx};

/// Searches for SRs and returns them as XML, in the format of XenServer's drivers.
pub(super) async fn probe(ctx: Ctx, args: Args) -> CallResult {
    let config: Config = args.pairs("device_config");
    ctx.app.storage.check_config(args.text("type"), &config)?;
    let found = ctx.app.storage.probe(args.text("type"), &config).await?;
    Ok(Value::Str(to_xml(&found)))
}

/// Formats the UUIDs, which need no XML escapes.
fn to_xml(found: &[SrId]) -> String {
    let one = |sr: &SrId| format!("\t<SR>\n\t\t<UUID>{sr}</UUID>\n\t</SR>\n");
    let all: String = found.iter().map(one).collect();
    format!("<?xml version=\"1.0\" ?>\n<SRlist>\n{all}</SRlist>\n")
}

#[cfg(test)]
mod tests {
    use model::id::Uuid;

    use super::*;

    #[test]
    fn they_are_told_as_xml() {
        let head = "<?xml version=\"1.0\" ?>\n<SRlist>\n";
        assert_eq!(to_xml(&[]), format!("{head}</SRlist>\n"));
        let sr = SrId(Uuid::from_random([1; 16]));
        let one = format!("\t<SR>\n\t\t<UUID>{sr}</UUID>\n\t</SR>\n");
        assert_eq!(to_xml(&[sr, sr]), format!("{head}{one}{one}</SRlist>\n"));
    }
}
