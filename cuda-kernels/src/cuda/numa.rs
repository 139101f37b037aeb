//! NUMA placement of pinned memory: on the node of the GPU's PCI slot.
//!
//! Rings, completion lines and the BAR are moved to the node before they are pinned (`mbind`). The driver's own
//! allocations follow the calling thread's policy (`set_mempolicy`), which is set for that call alone. The node is
//! preferred, not bound: memory on a far node is slow, but a failed allocation is worse.
#![allow(unsafe_code)] // System calls that no crate here wraps.

use std::ffi::{c_char, c_int, c_long, c_ulong};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use cudarc::driver::sys::{self, CUdevice};

use super::driver;

/// The folder of PCI devices and NUMA nodes; the variable names another one, for tests.
const SYSFS: &str = "/sys";
const SYSFS_VARIABLE: &str = "RINGBELL_SYSFS";

/// uapi/linux/mempolicy.h.
const MPOL_DEFAULT: c_int = 0;
const MPOL_PREFERRED: c_int = 1;
const MPOL_MF_MOVE: c_int = 2;
/// Number of nodes in a mask, and the number of bits that the kernel is told: it ignores the last.
const NODES: u32 = 1024;
const WORDS: usize = NODES as usize / c_ulong::BITS as usize;

/// The NUMA node of pinned memory, or why none is preferred.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NumaPlacement {
    node: Result<u32, String>,
}

impl NumaPlacement {
    /// Looks for the node of a GPU.
    pub(super) fn of(device: CUdevice) -> NumaPlacement {
        let root = std::env::var_os(SYSFS_VARIABLE).map_or_else(|| SYSFS.into(), PathBuf::from);
        let node = bus_id(device).and_then(|id| node_of(&root, &id));
        // One trial, so that what is reported is what happens.
        let node = node.and_then(|n| prefer(n).map(|before| restore(&before)).map(|()| n));
        NumaPlacement { node }
    }

    /// A description for logs.
    pub(super) fn describe(&self) -> String {
        match &self.node {
            Ok(node) => format!("on NUMA node {node}, the GPU's"),
            Err(why) => format!("wherever Linux puts it, because {why}"),
        }
    }

    /// Runs `allocate`, whose memory comes from the node.
    pub(super) fn around<R>(&self, allocate: impl FnOnce() -> R) -> R {
        let Ok(node) = self.node else {
            return allocate();
        };
        let before = prefer(node);
        let made = allocate();
        if let Ok(before) = before {
            restore(&before);
        }
        made
    }

    /// Moves mapped memory to the node, and prefers it for pages to come. On failure the memory stays in place.
    pub(super) fn bring(&self, base: NonNull<u8>, len: usize) {
        let Ok(node) = self.node else {
            return;
        };
        let page = rustix::param::page_size();
        let first = base.as_ptr() as usize / page * page;
        let bytes = (base.as_ptr() as usize + len - first).next_multiple_of(page);
        let mask = mask(node);
        // SAFETY: whole pages of a mapping that the caller has; the policy changes where its pages lie, not
        // what they hold. The mask is as long as the call is told.
        let _ = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                first,
                bytes,
                MPOL_PREFERRED,
                mask.as_ptr(),
                c_long::from(NODES as i32 + 1),
                MPOL_MF_MOVE,
            )
        };
    }
}

fn mask(node: u32) -> [c_ulong; WORDS] {
    let mut mask = [0; WORDS];
    mask[(node / c_ulong::BITS) as usize] = 1 << (node % c_ulong::BITS);
    mask
}

/// The policy of a thread.
struct Policy {
    mode: c_int,
    mask: [c_ulong; WORDS],
}

impl Policy {
    /// This thread's.
    fn current() -> std::io::Result<Policy> {
        let mut p = Policy {
            mode: 0,
            mask: [0; WORDS],
        };
        let no_address = std::ptr::null::<u8>();
        // SAFETY: live places for both results, the mask as long as the call is told.
        let r = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                std::ptr::from_mut(&mut p.mode),
                p.mask.as_mut_ptr(),
                c_long::from(NODES as i32),
                no_address,
                0,
            )
        };
        match r {
            0 => Ok(p),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    /// Makes it this thread's.
    fn set(&self) -> std::io::Result<()> {
        // The default policy takes no mask.
        let (mask, bits) = match self.mode & 0xff {
            MPOL_DEFAULT => (std::ptr::null(), 0),
            _ => (self.mask.as_ptr(), c_long::from(NODES as i32 + 1)),
        };
        // SAFETY: the mask is as long as the call is told.
        match unsafe { libc::syscall(libc::SYS_set_mempolicy, self.mode, mask, bits) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }
}

/// Prefers memory of a node on this thread. Returns the thread's earlier policy.
fn prefer(node: u32) -> Result<Policy, String> {
    let refused = |e: std::io::Error| {
        format!("Linux refuses to place memory on node {node} ({e}); containers need a profile that allows set_mempolicy and mbind")
    };
    let before = Policy::current().map_err(refused)?;
    let wanted = Policy {
        mode: MPOL_PREFERRED,
        mask: mask(node),
    };
    wanted.set().map_err(refused)?;
    Ok(before)
}

fn restore(before: &Policy) {
    // It was this thread's a moment ago.
    let _ = before.set();
}

/// The GPU's PCI address, as sysfs writes it.
fn bus_id(device: CUdevice) -> Result<String, String> {
    let symbol = "cuDeviceGetPCIBusId";
    if !driver::has(symbol) {
        return Err(format!("the driver has no {symbol}"));
    }
    let mut text = [0 as c_char; 32];
    // SAFETY: the buffer has the length that is given with it.
    let r = unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr(), text.len() as i32 - 1, device) };
    driver::check(symbol, r).map_err(|e| e.to_string())?;
    let bytes = text.iter().take_while(|c| **c != 0);
    let id: String = bytes
        .map(|c| (*c as u8 as char).to_ascii_lowercase())
        .collect();
    match id
        .bytes()
        .all(|b| b.is_ascii_hexdigit() || b == b':' || b == b'.')
    {
        true => Ok(id),
        false => Err(format!("`{id}` is no PCI address")),
    }
}

/// The node of a PCI device (Linux, Documentation/ABI/testing/sysfs-bus-pci).
fn node_of(root: &Path, id: &str) -> Result<u32, String> {
    let path = root.join("bus/pci/devices").join(id).join("numa_node");
    let text = std::fs::read_to_string(&path)
        .map_err(|e| format!("{} cannot be read ({e})", path.display()))?;
    match text.trim().parse::<i32>() {
        Ok(node) if (0..NODES as i32).contains(&node) => {
            let there = root.join(format!("devices/system/node/node{node}"));
            match there.exists() {
                true => Ok(node as u32),
                false => Err(format!("the GPU's node {node} is not on this system")),
            }
        }
        Ok(-1) => Err(
            "the system has one NUMA node, or its firmware does not say which is the GPU's".into(),
        ),
        _ => Err(format!("{} holds `{}`", path.display(), text.trim())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sysfs(name: &str, numa_node: &str, nodes: &[u32]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("rb-numa-{name}-{}", std::process::id()));
        let device = root.join("bus/pci/devices/0000:65:00.0");
        std::fs::create_dir_all(&device).expect("a fresh folder");
        std::fs::write(device.join("numa_node"), numa_node).expect("written");
        for n in nodes {
            let node = root.join(format!("devices/system/node/node{n}"));
            std::fs::create_dir_all(node).expect("a fresh folder");
        }
        root
    }

    #[test]
    fn the_node_is_read_or_the_reason_given() {
        let cases = [
            ("a", "1\n", &[0, 1][..], Ok(1)),
            ("b", "-1\n", &[0], Err("one NUMA node")),
            ("c", "3\n", &[0, 1], Err("node 3 is not on this system")),
            ("d", "x\n", &[0], Err("holds `x`")),
            ("e", "70000\n", &[0], Err("holds `70000`")),
        ];
        for (name, text, nodes, want) in cases {
            let root = sysfs(name, text, nodes);
            match (node_of(&root, "0000:65:00.0"), want) {
                (Ok(got), Ok(want)) => assert_eq!(got, want),
                (Err(got), Err(want)) => assert!(got.contains(want), "{got}"),
                (got, want) => panic!("{got:?} instead of {want:?}"),
            }
            let other = node_of(&root, "0000:66:00.0").expect_err("not there");
            assert!(other.contains("0000:66:00.0"), "{other}");
            let _ = std::fs::remove_dir_all(root);
        }
    }

    #[test]
    fn a_mask_names_one_node() {
        for node in [0, 1, 63, 64, 1023] {
            let mask = mask(node);
            assert_eq!(mask.iter().map(|w| w.count_ones()).sum::<u32>(), 1);
            assert_eq!(mask[node as usize / 64] >> (node % 64), 1);
        }
    }

    #[test]
    fn memory_keeps_its_bytes_when_it_is_brought_to_a_node() {
        let here = NumaPlacement { node: Ok(0) };
        let mut bytes = here.around(|| vec![7_u8; 200_000]);
        let base = NonNull::from(&mut bytes[0]);
        here.bring(base, 200_000);
        assert!(bytes.iter().all(|b| *b == 7));
        let nowhere = NumaPlacement {
            node: Err("a reason".into()),
        };
        nowhere.bring(base, 200_000);
        assert_eq!(nowhere.around(|| 3), 3);
        assert!(nowhere.describe().contains("because a reason"));
    }
}
