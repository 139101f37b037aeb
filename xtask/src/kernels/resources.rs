//! Resources of each kernel by `ptxas -v`: registers, shared memory, stack, spills.
//!
//! A stack or a spill is local memory: memory of the GPU, hundreds of cycles away, in place of a
//! register. Kernels that wait beside others or move every byte must have none; a table shows the
//! rest.

use std::collections::{BTreeMap, BTreeSet};

/// Kernels on the path of every byte, or of every measured operation: no stack, no spills.
const HOT: [&str; 18] = [
    "rb_nop",
    "rb_send_all",
    "rb_recv_all",
    "rb_recv_some",
    "rb_stream_send",
    "rb_stream_recv",
    "rb_slots_send",
    "rb_slots_recv",
    "rb_perf_slots_send",
    "rb_perf_slots_recv",
    "rb_perf_nop",
    "rb_perf_pingpong",
    "rb_perf_bw_send",
    "rb_collective",
    "rb_perf_collective",
    "rb_local_reduce_f16",
    "rb_hll_count",
    "rb_hll_receive",
];

/// Resources of one kernel on one architecture, with the functions that it calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Use {
    registers: u32,
    shared_bytes: u32,
    stack_bytes: u32,
    spill_bytes: u32,
}

/// By kernel, then by architecture.
#[derive(Debug, Default)]
pub(super) struct Resources(BTreeMap<String, BTreeMap<String, Use>>);

/// The number in front of `unit`.
fn number(line: &str, unit: &str) -> u32 {
    let at = line.find(unit).map_or("", |at| &line[..at]);
    let digits = at.trim_end().rsplit([' ', ',']).next().unwrap_or("");
    digits.parse().unwrap_or(0)
}

/// The text between the first pair of quotes, and between the second.
fn quoted(line: &str) -> Option<(&str, &str)> {
    let mut parts = line.split('\'');
    Some((parts.nth(1)?, parts.nth(1)?))
}

impl Resources {
    /// Reads ptxas's output for one file.
    pub(super) fn read(&mut self, text: &str) {
        let mut current: Option<(&str, &str)> = None;
        for line in text.lines() {
            if line.contains("Compiling entry function") {
                current = quoted(line);
                continue;
            }
            let Some((kernel, arch)) = current else {
                continue;
            };
            let kernel = self.0.entry(kernel.into()).or_default();
            let used = kernel.entry(arch.into()).or_default();
            if line.contains("bytes stack frame") {
                // Of the kernel or of a function that it calls.
                used.stack_bytes = used.stack_bytes.max(number(line, "bytes stack frame"));
                used.spill_bytes +=
                    number(line, "bytes spill stores") + number(line, "bytes spill loads");
            } else if line.contains("Used ") && line.contains("registers") {
                used.registers = number(line, "registers");
                used.shared_bytes = number(line, "bytes smem");
                used.stack_bytes = used.stack_bytes.max(number(line, "bytes cumulative stack"));
            }
        }
    }

    pub(super) fn absorb(&mut self, other: Resources) {
        self.0.extend(other.0);
    }

    fn architectures(&self) -> Vec<&str> {
        let all: BTreeSet<&str> = self
            .0
            .values()
            .flat_map(BTreeMap::keys)
            .map(|a| &**a)
            .collect();
        let mut all: Vec<&str> = all.into_iter().collect();
        // sm_100 after sm_90.
        all.sort_by_key(|a| (a.len(), *a));
        all
    }

    /// A row for each kernel: registers on each architecture, and the most of the rest.
    pub(super) fn table(&self) -> String {
        let archs = self.architectures();
        let mut text = String::from("| kernel | registers:");
        for (i, arch) in archs.iter().enumerate() {
            text += if i == 0 { " " } else { " | " };
            text += arch;
        }
        text += " | shared bytes | stack | spills |\n|---|";
        text += &"---|".repeat(archs.len() + 3);
        text.push('\n');
        for (kernel, uses) in &self.0 {
            let hot = if HOT.contains(&&**kernel) { " *" } else { "" };
            text += &format!("| {kernel}{hot} |");
            for arch in &archs {
                let shown = uses.get(*arch).map(|u| u.registers.to_string());
                text += &format!(" {} |", shown.unwrap_or_else(|| "-".into()));
            }
            let most = |f: fn(&Use) -> u32| uses.values().map(f).max().unwrap_or(0);
            text += &format!(
                " {} | {} | {} |\n",
                most(|u| u.shared_bytes),
                most(|u| u.stack_bytes),
                most(|u| u.spill_bytes)
            );
        }
        text
    }

    /// Faults of the hot kernels; empty when there are none.
    pub(super) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for name in HOT {
            let Some(uses) = self.0.get(name) else {
                faults.push(format!(
                    "`{name}` is called hot in xtask/src/kernels/resources.rs, but no source has it"
                ));
                continue;
            };
            for (arch, u) in uses {
                if u.registers == 0 {
                    faults.push(format!(
                        "`{name}`: ptxas said nothing of its registers on {arch}"
                    ));
                }
                if u.stack_bytes > 0 || u.spill_bytes > 0 {
                    faults.push(format!(
                        "`{name}` uses local memory on {arch}: {} bytes of stack, {} of spills; keep arrays in \
                         shared memory or index them by constants, and give blocks fewer lanes (__launch_bounds__)",
                        u.stack_bytes, u.spill_bytes
                    ));
                }
            }
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(kernel: &str, arch: &str, stack: u32, spills: u32) -> String {
        format!(
            "ptxas info    : 0 bytes gmem\n\
             ptxas info    : Compiling entry function '{kernel}' for '{arch}'\n\
             ptxas info    : Function properties for {kernel}\n    \
             0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
             ptxas info    : Function properties for _Z6calleev\n    \
             {stack} bytes stack frame, {spills} bytes spill stores, 0 bytes spill loads\n\
             ptxas info    : Used 104 registers, used 1 barriers, 64 bytes smem, 464 bytes cmem[0]\n"
        )
    }

    #[test]
    fn the_output_of_ptxas_is_read() {
        let mut r = Resources::default();
        r.read(
            &(said("a", "sm_90", 0, 0) + &said("a", "sm_100", 8, 0) + &said("b", "sm_90", 0, 12)),
        );
        let (a, b) = (&r.0["a"], &r.0["b"]);
        let clean = Use {
            registers: 104,
            shared_bytes: 64,
            ..Use::default()
        };
        assert_eq!(a["sm_90"], clean);
        assert_eq!(a["sm_100"].stack_bytes, 8, "of a function that it calls");
        assert_eq!(b["sm_90"].spill_bytes, 12);
        assert_eq!(r.architectures(), ["sm_90", "sm_100"]);
        assert!(
            r.table().contains("| a | 104 | 104 | 64 | 8 | 0 |"),
            "{}",
            r.table()
        );
    }

    #[test]
    fn a_hot_kernel_with_local_memory_or_without_a_source_is_a_fault() {
        let mut good = Resources::default();
        for name in HOT {
            good.read(&said(name, "sm_80", 0, 0));
        }
        assert_eq!(good.faults(), Vec::<String>::new());
        let mut bad = Resources::default();
        for name in HOT {
            match name {
                "rb_local_reduce_f16" => bad.read(&said(name, "sm_80", 0, 4)),
                "rb_nop" => bad.read(&said(name, "sm_80", 16, 0)),
                "rb_hll_count" => {}
                _ => bad.read(&said(name, "sm_80", 0, 0)),
            }
        }
        // A kernel that is not hot may have a stack.
        bad.read(&said("rb_echo_server", "sm_80", 64, 0));
        let faults = bad.faults();
        assert_eq!(faults.len(), 3, "{faults:?}");
        for name in ["rb_local_reduce_f16", "rb_nop", "rb_hll_count"] {
            assert!(faults.iter().any(|f| f.contains(name)), "{faults:?}");
        }
    }
}
