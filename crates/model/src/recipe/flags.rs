//! Command-line arguments of QEMU and Cloud Hypervisor for disks that Ringway serves.

use super::{RECONNECT_SECONDS, RecipeDisk, RecipeDisks};

/// Number of entries of each ring in Cloud Hypervisor; its own default.
const CLOUD_HYPERVISOR_RING: u32 = 128;

/// Returns arguments of QEMU, alternately option and value: the guest's memory and each disk.
pub fn qemu(recipe_disks: &RecipeDisks, memory_bytes: u64) -> Vec<String> {
    let mebibytes = memory_bytes >> 20;
    let mut words = vec![
        "-m".into(),
        format!("{mebibytes}M"),
        "-object".into(),
        format!("memory-backend-memfd,id=ringway-memory,size={mebibytes}M,share=on"),
        "-machine".into(),
        "memory-backend=ringway-memory".into(),
    ];
    for recipe_disk in recipe_disks.all() {
        let RecipeDisk { target, queues, boot, .. } = recipe_disk;
        // A comma ends a value; a doubled comma stands for one comma.
        let path = recipe_disk.socket.replace(',', ",,");
        let boot = boot.map(|place| format!(",bootindex={place}")).unwrap_or_default();
        words.push("-chardev".into());
        words.push(format!("socket,id=ringway-{target},path={path},reconnect={RECONNECT_SECONDS}"));
        words.push("-device".into());
        words.push(format!(
            "vhost-user-blk-pci,id={target},chardev=ringway-{target},num-queues={queues}{boot}"
        ));
    }
    words
}

/// Returns arguments of Cloud Hypervisor, alternately option and value. It has no boot order.
pub fn cloud_hypervisor(recipe_disks: &RecipeDisks, memory_bytes: u64) -> Vec<String> {
    let mebibytes = memory_bytes >> 20;
    let mut words =
        vec!["--memory".into(), format!("size={mebibytes}M,shared=on"), "--disk".into()];
    words.extend(recipe_disks.all().iter().map(|recipe_disk| {
        let RecipeDisk { target, queues, .. } = recipe_disk;
        // Quotes protect commas and brackets.
        let path = match recipe_disk.socket.contains([',', '[', ']', '"']) {
            true => format!("\"{}\"", recipe_disk.socket),
            false => recipe_disk.socket.clone(),
        };
        format!(
            "vhost_user=on,socket={path},id={target},num_queues={queues},\
             queue_size={CLOUD_HYPERVISOR_RING}"
        )
    }));
    words
}

/// Quotes the words for a shell, one option with its values a line, joined by backslashes.
pub fn for_shell(words: &[String]) -> String {
    let mut text = String::new();
    for word in words {
        if !text.is_empty() {
            text.push_str(if word.starts_with('-') { " \\\n" } else { " " });
        }
        text.push_str(&quoted(word));
    }
    text.push('\n');
    text
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./,=:+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.into();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::super::RecipeDiskRequest;
    use super::super::tests::wanted;
    use super::*;

    fn fronts() -> RecipeDisks {
        let second = RecipeDiskRequest { queues: 4, boot: Some(1), ..wanted("/run/b,c d's.sock") };
        RecipeDisks::new(&[wanted("/run/a.sock"), second]).unwrap()
    }

    #[test]
    fn qemu_gets_shared_memory_and_reconnects() {
        let text = for_shell(&qemu(&fronts(), 1 << 30));
        let expected = r"-m 1024M \
-object memory-backend-memfd,id=ringway-memory,size=1024M,share=on \
-machine memory-backend=ringway-memory \
-chardev socket,id=ringway-vda,path=/run/a.sock,reconnect=1 \
-device vhost-user-blk-pci,id=vda,chardev=ringway-vda,num-queues=1 \
-chardev 'socket,id=ringway-vdb,path=/run/b,,c d'\''s.sock,reconnect=1' \
-device vhost-user-blk-pci,id=vdb,chardev=ringway-vdb,num-queues=4,bootindex=1
";
        assert_eq!(text, expected);
    }

    #[test]
    fn cloud_hypervisor_takes_all_disks_after_one_option() {
        let words = cloud_hypervisor(&fronts(), 1 << 30);
        assert_eq!(words[..3], ["--memory", "size=1024M,shared=on", "--disk"]);
        let first = "vhost_user=on,socket=/run/a.sock,id=vda,num_queues=1,queue_size=128";
        assert_eq!(words[3], first);
        assert!(words[4].contains("socket=\"/run/b,c d's.sock\",id=vdb"), "{}", words[4]);
    }
}
