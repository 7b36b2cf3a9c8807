//! NAT by nftables: one table for each network, which nobody else uses.

use super::super::NetError;
use super::spec::Spec;
use super::tool::Tool;

/// What `nft` is told: the table as it should be, in one step, whatever it was. What stays in the bridge
/// may pass here too (br_netfilter), and is left alone.
fn script(spec: &Spec) -> String {
    let (table, bridge, subnet) = (spec.name.table(), spec.name.bridge(), spec.subnet);
    format!(
        "table ip {table} {{\n}}\n\
         delete table ip {table}\n\
         table ip {table} {{\n\
         \tchain postrouting {{\n\
         \t\ttype nat hook postrouting priority srcnat; policy accept;\n\
         \t\tip saddr {subnet} ip daddr != {subnet} oifname != \"{bridge}\" masquerade\n\
         \t}}\n\
         \tchain forward {{\n\
         \t\ttype filter hook forward priority filter; policy accept;\n\
         \t\tiifname \"{bridge}\" oifname != \"{bridge}\" ip saddr != {subnet} drop\n\
         \t\tiifname != \"{bridge}\" oifname \"{bridge}\" ct state established,related accept\n\
         \t\tiifname != \"{bridge}\" oifname \"{bridge}\" drop\n\
         \t}}\n\
         }}\n"
    )
}

/// Makes the table, or makes it anew.
pub(super) async fn set(nft: &Tool, spec: &Spec) -> Result<(), NetError> {
    let outcome = nft.run(&["-f", "-"], &script(spec)).await;
    outcome.map(drop).map_err(|error| match error {
        NetError::Refused { what, why } => NetError::Refused {
            what: format!("{what} (NAT of network {})", spec.name),
            why: format!("{why} (the kernel needs nf_tables with NAT and masquerading)"),
        },
        late => late,
    })
}

/// Why the table cannot be seen; nothing if it is there.
pub(super) async fn problem(nft: &Tool, table: &str) -> Option<String> {
    let said = nft.run(&["list", "table", "ip", table], "").await.err()?.to_string();
    said.lines().next().map(str::to_owned)
}

/// Removes the table if it is there.
pub(super) async fn remove(nft: &Tool, table: &str) -> Result<(), NetError> {
    // Made first, so that it can be deleted whether it was there or not.
    let script = format!("table ip {table} {{\n}}\ndelete table ip {table}\n");
    nft.run(&["-f", "-"], &script).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_names_one_table_and_one_bridge() {
        let spec = Spec {
            name: "lan".parse().unwrap(),
            subnet: "10.5.0.0/24".parse().unwrap(),
            nat: true,
            dhcp: false,
        };
        let script = script(&spec);
        let tables = script.lines().filter(|line| line.contains("table"));
        assert!(
            tables.clone().count() == 3 && tables.clone().all(|l| l.contains("ip ringway_lan"))
        );
        assert!(!script.contains("flush"), "{script}");
        assert!(script.contains("ip daddr != 10.5.0.0/24 oifname != \"rw-lan\" masquerade"));
    }
}
