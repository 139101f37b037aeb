//! `RINGBELL_DEBUG`, as far as the emulated GPU reads it: words between commas, in any case.

use std::sync::OnceLock;

use ringbell_gpu::Debuggers;

/// What the environment asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Asked {
    /// `kernel`: says where the threads of kernels stand that only wait.
    pub(super) waits: bool,
    /// `gdb` and `perf`.
    pub(super) tools: Debuggers,
}

/// Read once.
pub(super) fn asked() -> Asked {
    static ASKED: OnceLock<Asked> = OnceLock::new();
    *ASKED.get_or_init(|| read(&std::env::var("RINGBELL_DEBUG").unwrap_or_default()))
}

fn read(text: &str) -> Asked {
    let has = |word: &str| text.split(',').any(|p| p.trim().eq_ignore_ascii_case(word));
    Asked {
        waits: has("kernel"),
        tools: Debuggers {
            gdb: has("gdb"),
            perf: has("perf"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_beside_levels() {
        let asked = read("INFO, Gdb,kernel");
        assert!(asked.waits && asked.tools.gdb && !asked.tools.perf);
        assert_eq!(read("").tools, Debuggers::default());
        assert!(!read("kernels,gdbserver").tools.gdb);
    }
}
