//! The blocks of hw/rtl, and faults that their proofs and simulations must notice.

/// A block: `hw/rtl/NAME.sv`, proved by `hw/formal/NAME_props.svh`.
pub(super) struct Block {
    pub(super) name: &'static str,
    /// Its simulation: the module TEST of `hw/sim/tests`.
    pub(super) test: &'static str,
    /// What that runs, as `hw/sim/build.rs` names it.
    pub(super) runs: &'static [&'static str],
    /// Steps of its k-induction; none without a proof.
    pub(super) depth: Option<u32>,
    /// A parameter and its value in the proof of every run; at full size it is proved by `exhaust`.
    pub(super) narrow: Option<(&'static str, u32)>,
    /// The module whose resources are estimated: the block, or the part of which it has many; none where others contain it, or it is
    /// their sum.
    pub(super) estimated: Option<&'static str>,
    /// Its parameters there.
    pub(super) parameters: &'static [(&'static str, &'static str)],
}

impl Block {
    /// Files below hw/rtl, the package first and the block last: `NAME.f` lists those of a block with parts.
    pub(super) fn files(&self) -> Vec<String> {
        let list = std::fs::read_to_string(super::rtl().join(format!("{}.f", self.name)));
        let list = list.unwrap_or_else(|_| format!("ringbell_abi_pkg.sv\n{}.sv\n", self.name));
        list.lines().map(str::to_owned).collect()
    }
}

const fn proved(name: &'static str, runs: &'static [&'static str], depth: u32) -> Block {
    Block {
        depth: Some(depth),
        ..simulated(name, runs)
    }
}

const fn simulated(name: &'static str, runs: &'static [&'static str]) -> Block {
    Block {
        name,
        test: name,
        runs,
        depth: None,
        narrow: None,
        estimated: Some(name),
        parameters: &[],
    }
}

/// A block that is simulated as part of `nic_top`.
const fn part(name: &'static str) -> Block {
    Block {
        test: "nic_top",
        ..simulated(name, &["nic_top"])
    }
}

const HLL: &[&str] = &["hll", "hll_murmur3"];
pub(super) const BLOCKS: [Block; 22] = [
    proved("gtlb", &["gtlb"], 7),
    proved("regfile", &["regfile"], 6),
    proved("dma_split", &["dma_split"], 5),
    proved("onpath", &["onpath", "crc32c"], 4),
    simulated("crc32c", &["crc32c"]),
    Block {
        test: "hll",
        ..proved("hll_registers", HLL, 5)
    },
    // Each of its 16 lanes is such a hash, of the two the larger, and an instance of hll_registers.
    Block {
        estimated: Some("hll_hash"),
        parameters: &[("Murmur3", "1")],
        ..simulated("hll", HLL)
    },
    // Estimated with `reduce`.
    Block {
        estimated: None,
        ..simulated("float_add", &["float_add_f16"])
    },
    // Its 80 adders would take yosys minutes: one of f32 is estimated.
    Block {
        estimated: Some("float_add"),
        ..simulated("reduce", &["reduce"])
    },
    simulated("sequencer", &["sequencer", "reduce"]),
    Block {
        depth: Some(3),
        estimated: None,
        ..part("fifo")
    },
    // Of 64 bytes, and any length, it takes four minutes.
    Block {
        depth: Some(3),
        narrow: Some(("Bytes", 8)),
        estimated: None,
        ..part("dma_align")
    },
    part("dma_read"),
    part("dma_write"),
    Block {
        depth: Some(3),
        ..part("desc")
    },
    Block {
        depth: Some(3),
        ..part("direct")
    },
    Block {
        estimated: None,
        ..part("pack")
    },
    // The sum of its parts.
    Block {
        estimated: None,
        ..part("engines")
    },
    Block {
        depth: Some(3),
        ..part("dma_share")
    },
    part("dma_whole"),
    // The sum of its parts.
    Block {
        estimated: None,
        ..part("ring")
    },
    Block {
        estimated: None,
        ..part("nic_top")
    },
];

/// Which check must notice a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum By {
    Proof,
    Simulation,
}

/// A fault: text that occurs once in a block's files, and what replaces it.
pub(super) struct Fault {
    pub(super) block: &'static str,
    pub(super) what: &'static str,
    pub(super) from: &'static str,
    pub(super) to: &'static str,
    pub(super) by: By,
}

const fn fault(
    block: &'static str,
    by: By,
    what: &'static str,
    from: &'static str,
    to: &'static str,
) -> Fault {
    Fault {
        block,
        what,
        from,
        to,
        by,
    }
}

/// The first that a block's proof notices is planted in every run, the others by `cargo xtask hw mutate`.
pub(super) const FAULTS: [Fault; 66] = [
    fault(
        "gtlb",
        By::Proof,
        "the pages of a replaced pointer stay",
        "sets_main && old_q[MainW-1-:2] == KindPages",
        "sets_main && is_large && old_q[MainW-1-:2] == KindPages",
    ),
    fault(
        "gtlb",
        By::Proof,
        "a group may be taken from its owner",
        "!first_ok || (owned && !own)",
        "!first_ok",
    ),
    fault(
        "gtlb",
        By::Proof,
        "one group too many in the window",
        "< (GroupW+1)'(MainEntries);",
        "<= (GroupW+1)'(MainEntries);",
    ),
    fault(
        "gtlb",
        By::Proof,
        "look-ups go on while the rows are cleared",
        "window_q && !sweep_q && in_window",
        "window_q && in_window",
    ),
    fault(
        "gtlb",
        By::Proof,
        "the last row is not cleared",
        "sweep_at_q != SlotW'(MainEntries - 1)",
        "sweep_at_q != SlotW'(MainEntries - 2)",
    ),
    fault(
        "gtlb",
        By::Simulation,
        "the bytes left of a page are those of its group",
        "(32'd1 << PageShift) - 32'(offset2_q[PageShift-1:0])",
        "(32'd1 << LargeShift) - 32'(offset2_q)",
    ),
    fault(
        "gtlb",
        By::Simulation,
        "the page is chosen by the wrong bits",
        "wire [PageW-1:0]  page1  = offset1_q[LargeShift-1:PageShift];",
        "wire [PageW-1:0]  page1  = offset1_q[LargeShift-2:PageShift-1];",
    ),
    fault(
        "gtlb",
        By::Simulation,
        "a written page is not marked",
        "pages_q[row] | one_page",
        "one_page",
    ),
    fault(
        "regfile",
        By::Proof,
        "a doorbell is rung again while its answer waits",
        "addr_full_q && data_full_q && !bvalid_q;",
        "addr_full_q && data_full_q;",
    ),
    fault(
        "regfile",
        By::Proof,
        "a write is answered before its event is taken",
        "if (pending && (taken || !(for_bell || for_reg))) begin",
        "if (pending) begin",
    ),
    fault(
        "regfile",
        By::Proof,
        "a refused value is kept",
        "wire keep     = taken && !(for_reg && reg_refuse_i);",
        "wire keep     = taken;",
    ),
    fault(
        "regfile",
        By::Simulation,
        "a part of a word rings a doorbell",
        "strb_q == 4'b1111",
        "strb_q[0]",
    ),
    fault(
        "regfile",
        By::Proof,
        "a register that is read-only can be written",
        "is_register(addr_q, ringbell_abi_pkg::REG_WRITABLE)",
        "is_register(addr_q, ringbell_abi_pkg::REG_PRESENT)",
    ),
    fault(
        "regfile",
        By::Proof,
        "the place between two headers can be read",
        " && 32'(addr[5:2]) < ringbell_abi_pkg::HEADER_WORDS;",
        ";",
    ),
    fault(
        "regfile",
        By::Simulation,
        "a header states the slots of a queue as its number",
        "ringbell_abi_pkg::BLOCK_HARDWARE, Queues, Slots, 0)",
        "ringbell_abi_pkg::BLOCK_HARDWARE, Slots, Queues, 0)",
    ),
    fault(
        "dma_split",
        By::Proof,
        "bursts cross their boundary by a byte",
        "32'(MaxBurst) - 32'(va_q[BurstW-1:0]);",
        "32'(MaxBurst) - 32'(va_q[BurstW-1:0]) + 32'd1;",
    ),
    fault(
        "dma_split",
        By::Proof,
        "an unaligned burst takes a credit too few",
        "(32'(va_q[5:0]) + len + 32'd63) >> 6",
        "(len + 32'd63) >> 6",
    ),
    fault(
        "dma_split",
        By::Proof,
        "a burst leaves without credits",
        "state_q == Offer && 32'(credits_q) >= beats",
        "state_q == Offer",
    ),
    fault(
        "dma_split",
        By::Simulation,
        "a command that ends on a boundary asks for one more burst",
        "left_q <= to_edge;",
        "left_q < to_edge;",
    ),
    fault(
        "fifo",
        By::Proof,
        "a full queue takes one more",
        "(AtW+1)'(Depth);",
        "(AtW+1)'(Depth + 1);",
    ),
    fault(
        "dma_align",
        By::Proof,
        "the bytes of the beat before are turned once more",
        "if (prime || form) prev_q <= turned;",
        "if (prime || form) prev_q <= in_data_i;",
    ),
    fault(
        "dma_align",
        By::Proof,
        "the last beat keeps a byte too many",
        "LaneW'(i) <= end_q)",
        "LaneW'(i) <= end_q + 1'b1)",
    ),
    fault(
        "dma_align",
        By::Proof,
        "the first beat of a late transfer is not kept aside",
        "prime_q    <= cmd_to_i < cmd_from_i;",
        "prime_q    <= 1'b0;",
    ),
    fault(
        "desc",
        By::Proof,
        "a slot is fetched again before it has retired",
        "state_q == Ask && !busy;",
        "state_q == Ask;",
    ),
    fault(
        "desc",
        By::Proof,
        "an entry is taken without its last word",
        "laps == {8{lap}}",
        "laps[6:0] == {7{lap}}",
    ),
    fault(
        "desc",
        By::Proof,
        "a completion needs no permit",
        "held_q && permit_rd_q[103:72] == done_ticket_q",
        "permit_rd_q[103:72] == done_ticket_q",
    ),
    fault(
        "desc",
        By::Proof,
        "doorbells are lost while a queue is set up",
        "!setup && state_q != Sweep;",
        "1'b1;",
    ),
    fault(
        "direct",
        By::Proof,
        "a chunk is longer than its credit",
        "wire [31:0] most    = credit < 32'(Chunk) ? credit : 32'(Chunk);",
        "wire [31:0] most    = 32'(Chunk);",
    ),
    fault(
        "direct",
        By::Proof,
        "an operation ends with its first chunk",
        "wire        in_full = chunk == next_left;",
        "wire        in_full = 1'b1;",
    ),
    fault(
        "direct",
        By::Proof,
        "a segment may be longer than its receive",
        "rx_meta_len_i != '0 && rx_meta_len_i <= next_left;",
        "rx_meta_len_i != '0;",
    ),
    fault(
        "dma_share",
        By::Proof,
        "a port that the first user has seen free is given to the second",
        "free & ~first & second_q;",
        "free & ~first;",
    ),
    fault(
        "nic_top",
        By::Simulation,
        "the GTLB's command goes to the command layer",
        "is_others  = !(is_command || is_base || is_staged || is_conn || is_engine);",
        "is_others  = !(is_base || is_staged || is_conn || is_engine);",
    ),
    fault(
        "nic_top",
        By::Simulation,
        "the answers of look-ups go to the wrong side",
        ".lookup_valid_i(found && who_q[2]), .lookup_fault_i(fault),",
        ".lookup_valid_i(found && who_q[1]), .lookup_fault_i(fault),",
    ),
    fault(
        "nic_top",
        By::Simulation,
        "an entry's read takes the place of a burst that waits",
        "read_entry_o = fetch_valid && !reads_data_q;",
        "read_entry_o = fetch_valid;",
    ),
    fault(
        "nic_top",
        By::Simulation,
        "undefined flags are taken",
        "(flags & ~allowed) != '0 || set_alone",
        "set_alone",
    ),
    fault(
        "nic_top",
        By::Simulation,
        "an engine sees a segment twice",
        "conn_q == meta_conn_i && !meta_again_i;",
        "conn_q == meta_conn_i;",
    ),
    fault(
        "nic_top",
        By::Simulation,
        "an engine sees other connections",
        "what_q != '0 && conn_q == meta_conn_i",
        "what_q != '0",
    ),
    fault(
        "nic_top",
        By::Simulation,
        "a read-out loses the beginning of an item",
        "fill_q  <= ends ? there - goes : total[5:0];",
        "fill_q  <= ends ? '0 : total[5:0];",
    ),
    fault(
        "nic_top",
        By::Simulation,
        "a read-out leaves the engine as it is",
        "clear_q  <= read_done;",
        "clear_q  <= 1'b0;",
    ),
    fault(
        "nic_top",
        By::Simulation,
        "a write that is cut takes the beats of the next one",
        "leaves && (wbeat_cut_o || beat_q + 27'd1 == beats)",
        "leaves && (beat_q + 27'd1 == beats)",
    ),
    fault(
        "nic_top",
        By::Simulation,
        "a collective reads ahead without room for it",
        "32'(room_q) >= rlines && !stop;",
        "!stop;",
    ),
    fault(
        "nic_top",
        By::Simulation,
        "a collective begins writes whose beats have not come",
        "32'(have_q) >= wlines && !stop;",
        "have_q != '0 && !stop;",
    ),
    fault(
        "nic_top",
        By::Simulation,
        "a collective ends before its writes",
        "out_step_q[1] == steps_q && written_i)",
        "out_step_q[1] == steps_q)",
    ),
    fault(
        "nic_top",
        By::Simulation,
        "clearing does not wait for memory",
        "clear_q == 2'b11 && idle && calm;",
        "clear_q == 2'b11 && idle;",
    ),
    fault(
        "reduce",
        By::Simulation,
        "a tie is rounded up",
        "(sig4_q[1:0] != 2'b00 || sig4_q[3])",
        "1'b1",
    ),
    fault(
        "reduce",
        By::Simulation,
        "digits shifted out are forgotten",
        "shifted[ExtW] || shifted[ExtW-1:0] != '0",
        "shifted[ExtW]",
    ),
    fault(
        "reduce",
        By::Simulation,
        "subnormal results lose their exponent's limit",
        "zeros < 32'(exp3_q) ? zeros : 32'(exp3_q) - 1",
        "zeros",
    ),
    fault(
        "reduce",
        By::Simulation,
        "two lanes of f32 are swapped",
        "sum_o(sum_f32[32*i +: 32])",
        "sum_o(sum_f32[32*(i^1) +: 32])",
    ),
    fault(
        "reduce",
        By::Simulation,
        "beats move on while their taker waits",
        "wire              en = !out_valid_o || out_ready_i;",
        "wire              en = !out_valid_o || out_ready_i || in_valid_i;",
    ),
    fault(
        "onpath",
        By::Proof,
        "the engine gets a beat twice",
        "sent_op_q  <= sent_op_q || op_in_ready_i;",
        "sent_op_q  <= op_in_ready_i;",
    ),
    fault(
        "onpath",
        By::Proof,
        "the next stream does not wait for the result",
        "(leaves && !last_q));",
        "leaves);",
    ),
    fault(
        "onpath",
        By::Proof,
        "an engine that is awaited is never cut off",
        "(awaited && wait_q == WaitW'(Deadline - 1)) || (endless",
        "(endless",
    ),
    fault(
        "onpath",
        By::Simulation,
        "a result without end is not cut off",
        "(endless && !failed_q)) failed_q",
        "1'b0) failed_q",
    ),
    fault(
        "onpath",
        By::Simulation,
        "the result of a failed engine is not marked",
        "res_error_q <= failed_q;",
        "res_error_q <= 1'b0;",
    ),
    fault(
        "crc32c",
        By::Simulation,
        "some zeros of a last beat stay",
        "if (zeros_q[0]) crc_q",
        "if (zeros_q[0] && step_q != 3'd5) crc_q",
    ),
    fault(
        "crc32c",
        By::Simulation,
        "two words of a beat are swapped",
        "data1_q[64*g +: 64]",
        "data1_q[64*(g^1) +: 64]",
    ),
    fault(
        "crc32c",
        By::Simulation,
        "bytes that are not kept count",
        "op_in_keep_i[i] ? op_in_i[8*i +: 8] : 8'd0;",
        "op_in_i[8*i +: 8];",
    ),
    fault(
        "hll_registers",
        By::Proof,
        "the item two places before is not seen",
        "valid3_q && slot3_q == slot1_q ? value3_q : row_o",
        "row_o",
    ),
    fault(
        "hll_registers",
        By::Proof,
        "a lower rank replaces a higher one",
        "rank1_q > old ? rank1_q : old",
        "rank1_q",
    ),
    fault(
        "hll",
        By::Simulation,
        "two lanes are merged into others' places",
        "{index_q, sub_q, 4'(i)}",
        "{index_q, sub_q, 4'(i ^ 1)}",
    ),
    fault(
        "hll",
        By::Simulation,
        "a lane is left out of the result",
        "row[4*g+2][6*r +: 6], row[4*g+3]",
        "row[4*g+2][6*r +: 6], row[4*g+2]",
    ),
    fault(
        "hll",
        By::Simulation,
        "a product loses its carry into the top part",
        "sum_q[63:51] + high3_q",
        "sum_q[63:51] | high3_q",
    ),
    fault(
        "sequencer",
        By::Simulation,
        "a line is read before memory has it",
        "loads && acked && ",
        "loads && ",
    ),
    fault(
        "sequencer",
        By::Simulation,
        "the last beat of a value keeps too many bytes",
        "(64'd1 << len[5:0]) - 64'd1",
        "(64'd2 << len[5:0]) - 64'd1",
    ),
    fault(
        "sequencer",
        By::Simulation,
        "a beat reaches the GPU twice",
        "if (write_valid_o && write_ready_i && cmd_q[0]) sent_gpu_q <= 1'b1;",
        "",
    ),
    fault(
        "sequencer",
        By::Simulation,
        "a message of another length is taken",
        "rx_meta_ready_o && rx_meta_len_i != lens_q[in_step_q[0][5:0]]",
        "rx_meta_ready_o && 1'b0",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_each_fault_stands_once_in_the_files_of_its_block() {
        for fault in &FAULTS {
            let block = BLOCKS.iter().find(|b| b.name == fault.block);
            let files = block.expect("a block").files();
            let read = |f: &String| std::fs::read_to_string(super::super::rtl().join(f));
            let texts = files.iter().map(|f| read(f).expect("a source"));
            let found: usize = texts.map(|t| t.matches(fault.from).count()).sum();
            assert_eq!(found, 1, "{}: {}", fault.block, fault.what);
        }
    }
}
