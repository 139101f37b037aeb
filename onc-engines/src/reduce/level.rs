//! Instruction set levels of CPUs.

use std::sync::atomic::{AtomicU8, Ordering};

/// Instructions that a kernel uses. All levels give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Level {
    /// The base instruction set of the target (SSE2 on x86-64, NEON on aarch64).
    Baseline,
    /// AVX2 and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
}

impl Level {
    /// The best that this CPU has. Asked once.
    pub fn detect() -> Level {
        // 0: not asked yet. Relaxed: every thread that asks finds the same.
        static LEVEL: AtomicU8 = AtomicU8::new(0);
        match LEVEL.load(Ordering::Relaxed) {
            0 => {
                let level = Level::ask();
                LEVEL.store(level as u8 + 1, Ordering::Relaxed);
                level
            }
            n if n == Level::Avx512 as u8 + 1 => Level::Avx512,
            n if n == Level::Avx2 as u8 + 1 => Level::Avx2,
            _ => Level::Baseline,
        }
    }

    /// All that this CPU has, the best last.
    pub fn available() -> impl Iterator<Item = Level> {
        let best = Level::detect();
        [Level::Baseline, Level::Avx2, Level::Avx512]
            .into_iter()
            .filter(move |l| *l <= best)
    }

    #[cfg(target_arch = "x86_64")]
    fn ask() -> Level {
        use std::arch::is_x86_feature_detected as has;
        let avx2 = has!("avx2") && has!("f16c");
        let avx512 = has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
        match (avx2, avx512) {
            (true, true) => Level::Avx512,
            (true, false) => Level::Avx2,
            _ => Level::Baseline,
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn ask() -> Level {
        Level::Baseline
    }
}
