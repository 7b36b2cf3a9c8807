//! The classes, one file each.

mod prelude;

macro_rules! classes {
    ($($module:ident)+) => {
        $(pub mod $module;)+

        /// All classes, in the order in which they are listed.
        pub fn classes() -> &'static [&'static super::Class] {
            const CLASSES: &[&super::Class] = &[$(&$module::CLASS),+];
            CLASSES
        }
    };
}

classes! {
    session auth subject role task event pool
    vm vm_metrics vm_guest_metrics host host_metrics host_cpu
    network vif vif_metrics pif pif_metrics bond vlan
    sm sr vdi vbd vbd_metrics pbd
    console blob message secret
}
