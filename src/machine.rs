//! The machine of this process, as ranks compare it.

use std::sync::OnceLock;

/// Number of this machine, made of the kernel's boot id; 0 where it cannot be read.
///
/// It is read once, when the first NIC is opened, so that it stays available when the process has
/// run out of descriptors.
pub(crate) fn host() -> u64 {
    static HOST: OnceLock<u64> = OnceLock::new();
    if let Some(known) = HOST.get() {
        return *known;
    }
    match std::fs::read_to_string("/proc/sys/kernel/random/boot_id") {
        Ok(boot) => *HOST.get_or_init(|| {
            boot.bytes()
                .filter_map(|b| char::from(b).to_digit(16))
                .fold(0_u64, |h, d| h.rotate_left(4) ^ u64::from(d))
        }),
        Err(_) => 0,
    }
}
