//! [`Reducer`]: the verilated block `reduce` beside `nic_top`, which reduces operands beat by beat.

use std::fmt;

use ringbell_nic_abi::{DataType, ReduceOp};

use crate::card::LINE;
use crate::reduce::Block;

/// Cycles of the pipeline, after which the first beat leaves.
const DEPTH: u64 = 6;

/// See the module text.
pub(crate) struct Reducer {
    rtl: Block,
    /// Beats that have left it.
    pub(crate) beats: u64,
    /// Cycles in which it was at work.
    pub(crate) cycles: u64,
}

impl fmt::Debug for Reducer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reducer")
            .field("beats", &self.beats)
            .finish_non_exhaustive()
    }
}

impl Reducer {
    /// After its reset.
    pub(crate) fn new() -> Reducer {
        let mut rtl = Block::new();
        rtl.rst_ni(0);
        rtl.tick();
        rtl.rst_ni(1);
        rtl.copy_i(0);
        rtl.out_ready_i(1);
        Reducer {
            rtl,
            beats: 0,
            cycles: 0,
        }
    }

    /// `a op b`, element by element, a beat a cycle. `None`: the block does not have that type or
    /// operation.
    ///
    /// # Panics
    /// When the operands differ in length, or a beat does not leave.
    pub(crate) fn run(
        &mut self,
        dtype: DataType,
        op: ReduceOp,
        a: &[u8],
        b: &[u8],
    ) -> Option<Vec<u8>> {
        assert_eq!(a.len(), b.len(), "operands of one length");
        let (rtl, beats) = (&mut self.rtl, a.len().div_ceil(LINE) as u64);
        rtl.dtype_i(dtype as u64);
        rtl.redop_i(op as u64);
        let mut out = Vec::with_capacity(a.len().next_multiple_of(LINE));
        let (mut given, mut is_known) = (0, true);
        let mut cycles = 0;
        while out.len() < a.len() {
            assert!(cycles <= beats + DEPTH, "a beat of `reduce` is missing");
            let at = given as usize * LINE;
            let more = at < a.len();
            rtl.in_valid_i(more.into());
            if more {
                let (beat_a, n) = beat(&a[at..]);
                rtl.a_i(&beat_a);
                rtl.b_i(&beat(&b[at..]).0);
                rtl.keep_i(u64::MAX >> (LINE - n));
                rtl.last_i(u64::from(at + n == a.len()));
            }
            rtl.eval();
            given += u64::from(more && rtl.in_ready_o() == 1);
            if rtl.out_valid_o() == 1 {
                is_known &= rtl.out_error_o() == 0;
                out.extend(rtl.out_o().iter().flat_map(|word| word.to_le_bytes()));
            }
            rtl.tick();
            cycles += 1;
        }
        self.beats += beats;
        self.cycles += cycles;
        out.truncate(a.len());
        is_known.then_some(out)
    }
}

/// The next beat, and its bytes.
fn beat(bytes: &[u8]) -> ([u32; LINE / 4], usize) {
    let n = bytes.len().min(LINE);
    let mut line = [0; LINE];
    line[..n].copy_from_slice(&bytes[..n]);
    let word = |i: usize| {
        u32::from_le_bytes([
            line[4 * i],
            line[4 * i + 1],
            line[4 * i + 2],
            line[4 * i + 3],
        ])
    };
    (std::array::from_fn(word), n)
}
