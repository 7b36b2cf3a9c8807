//! Forwarding rules and NAT of a network's bridge, by nftables: one table for each network.
//!
//! Other tools may turn the host's forwarding on, so every network has a table.

use super::super::NetError;
use super::spec::Spec;
use super::tool::Tool;

/// Returns the input of `nft` that replaces the table in one transaction.
fn script(spec: &Spec) -> String {
    let (table, chains) = (spec.name.table(), chains(spec));
    format!(
        "table ip {table} {{\n}}\n\
         delete table ip {table}\n\
         table ip {table} {{\n\
         {chains}\
         }}\n"
    )
}

fn chains(spec: &Spec) -> String {
    if spec.nat { routed(spec) } else { closed(spec) }
}

/// Returns the number of rules in input or output of `nft`.
fn rules(text: &str) -> usize {
    let is_rule = |line: &&str| {
        let first = line.split_whitespace().next();
        first.is_some_and(|word| !["table", "chain", "type", "}"].contains(&word))
    };
    text.lines().filter(is_rule).count()
}

/// Rules with NAT: guests send from addresses of their network, and receive replies. Traffic within
/// the bridge may pass here too (br_netfilter), and is accepted.
fn routed(spec: &Spec) -> String {
    let (bridge, subnet) = (spec.name.bridge(), spec.subnet);
    format!(
        "\tchain postrouting {{\n\
         \t\ttype nat hook postrouting priority srcnat; policy accept;\n\
         \t\tip saddr {subnet} ip daddr != {subnet} oifname != \"{bridge}\" masquerade\n\
         \t}}\n\
         \tchain forward {{\n\
         \t\ttype filter hook forward priority filter; policy accept;\n\
         \t\tiifname \"{bridge}\" oifname != \"{bridge}\" ip saddr != {subnet} drop\n\
         \t\tiifname != \"{bridge}\" oifname \"{bridge}\" ct state established,related accept\n\
         \t\tiifname != \"{bridge}\" oifname \"{bridge}\" drop\n\
         \t}}\n"
    )
}

/// Rules without NAT: no traffic enters or leaves. Traffic within the bridge is accepted, as with
/// NAT.
fn closed(spec: &Spec) -> String {
    let bridge = spec.name.bridge();
    format!(
        "\tchain forward {{\n\
         \t\ttype filter hook forward priority filter; policy accept;\n\
         \t\tiifname \"{bridge}\" oifname != \"{bridge}\" drop\n\
         \t\tiifname != \"{bridge}\" oifname \"{bridge}\" drop\n\
         \t}}\n"
    )
}

/// Creates or replaces the table.
pub(super) async fn set(nft: &Tool, spec: &Spec) -> Result<(), NetError> {
    let outcome = nft.run(&["-f", "-"], &script(spec)).await;
    outcome.map(drop).map_err(|error| match error {
        NetError::Refused { what, why } => NetError::Refused {
            what: format!("{what} (rules of network {})", spec.name),
            why: format!("{why} (the kernel needs nf_tables, for NAT with masquerading)"),
        },
        late => late,
    })
}

/// Returns what is wrong with a network's table; `None` if it has all its rules.
pub(super) async fn problem(nft: &Tool, spec: &Spec) -> Option<String> {
    let table = spec.name.table();
    match nft.run(&["list", "table", "ip", &table], "").await {
        Err(error) => error.to_string().lines().next().map(str::to_owned),
        Ok(output) => {
            let (there, all) = (rules(&output), rules(&chains(spec)));
            (there != all)
                .then(|| format!("table ip {table} of nftables has {there} rules of {all}"))
        }
    }
}

/// Removes the table, if it exists.
pub(super) async fn remove(nft: &Tool, table: &str) -> Result<(), NetError> {
    // Create the table first, so that the deletion succeeds in any case.
    let script = format!("table ip {table} {{\n}}\ndelete table ip {table}\n");
    nft.run(&["-f", "-"], &script).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(nat: bool) -> Spec {
        let (name, subnet) = ("lan".parse().unwrap(), "10.5.0.0/24".parse().unwrap());
        Spec { name, subnet, nat, dhcp: false }
    }

    #[test]
    fn rules_are_counted_without_what_is_around_them() {
        assert_eq!([true, false].map(|nat| rules(&chains(&spec(nat)))), [4, 2]);
        assert_eq!(rules("table ip ringway_lan {\n\tchain forward {\n\t}\n\n}\n"), 0);
    }

    #[test]
    fn a_script_names_one_table_and_one_bridge() {
        for nat in [true, false] {
            let script = script(&spec(nat));
            let tables: Vec<_> = script.lines().filter(|line| line.contains("table")).collect();
            let ours = tables.iter().all(|line| line.contains("ip ringway_lan"));
            assert!(tables.len() == 3 && ours && !script.contains("flush"), "{script}");
            let masked = "ip daddr != 10.5.0.0/24 oifname != \"rw-lan\" masquerade\n";
            assert_eq!(script.contains(masked), nat, "{script}");
            assert_eq!(script.contains("iifname \"rw-lan\" oifname != \"rw-lan\" drop\n"), !nat);
            assert!(script.contains("iifname != \"rw-lan\" oifname \"rw-lan\" drop\n"), "{script}");
        }
    }
}
