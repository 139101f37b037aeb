// Ring collectives of the NIC: `sequencer` and `reduce`, with the GPU behind `dma_whole`, one connection to each neighbour, and on-card memory.
//
// A collective ends with its report, after its last write to the GPU has been done. One that has ended early leaves its streams broken. To clear
// makes the block ready again after what is under way at the GPU and in memory has come back; the transport then has new connections.
// All of it stands still without a collective: one clock that is gated.
module ring (
  input  logic          clk_i,
  input  logic          rst_ni,

  // As in `sequencer`.
  input  logic          step_we_i,
  input  logic [5:0]    step_index_i,
  input  logic          step_net_in_i,
  input  logic          step_gpu_in_i,
  input  logic          step_net_out_i,
  input  logic          step_gpu_out_i,
  input  logic [63:0]   step_read_va_i,
  input  logic [63:0]   step_write_va_i,
  input  logic [25:0]   step_slot_i,
  input  logic [31:0]   step_len_i,
  input  logic          start_valid_i,
  output logic          start_ready_o,
  input  logic [6:0]    start_steps_i,
  input  logic [7:0]    start_dtype_i,
  input  logic [7:0]    start_redop_i,
  output logic          report_valid_o,
  input  logic          report_ready_i,
  output logic [2:0]    report_status_o,
  // The address that has faulted.
  output logic [63:0]   report_va_o,
  output logic [27:0]   at_step_o,
  output logic [103:0]  at_beat_o,
  // Taken when it has been done.
  input  logic          clear_valid_i,
  output logic          clear_ready_o,

  // DMA, as in `dma_whole`.
  output logic          rcmd_valid_o,
  input  logic          rcmd_ready_i,
  output logic [63:0]   rcmd_va_o,
  output logic [31:0]   rcmd_len_o,
  input  logic          rdata_valid_i,
  input  logic [511:0]  rdata_i,
  input  logic          rdata_last_i,
  input  logic          rdata_cut_i,
  output logic          wcmd_valid_o,
  input  logic          wcmd_ready_i,
  output logic [63:0]   wcmd_va_o,
  output logic [31:0]   wcmd_len_o,
  output logic          wdata_valid_o,
  input  logic          wdata_ready_i,
  output logic [511:0]  wdata_o,
  input  logic          dma_report_valid_i,
  input  logic          dma_report_fault_i,
  input  logic [63:0]   dma_report_va_i,

  // Neighbours: messages from one, and to the other.
  input  logic          rx_meta_valid_i,
  output logic          rx_meta_ready_o,
  input  logic [31:0]   rx_meta_len_i,
  input  logic          rx_valid_i,
  output logic          rx_ready_o,
  input  logic [511:0]  rx_data_i,
  input  logic          rx_last_i,
  output logic          tx_meta_valid_o,
  input  logic          tx_meta_ready_i,
  output logic [31:0]   tx_meta_len_o,
  output logic          tx_valid_o,
  input  logic          tx_ready_i,
  output logic [511:0]  tx_data_o,
  output logic [63:0]   tx_keep_o,
  output logic          tx_last_o,

  // On-card memory.
  output logic [1:0]    store_valid_o,
  input  logic [1:0]    store_ready_i,
  output logic [51:0]   store_line_o,
  output logic [1023:0] store_o,
  input  logic [1:0]    store_ack_i,
  output logic [1:0]    load_valid_o,
  input  logic [1:0]    load_ready_i,
  output logic [51:0]   load_line_o,
  input  logic [1:0]    load_valid_i,
  input  logic [1023:0] load_i
);
  // ---------------------------------------------------------------- The clock, and clearing
  logic clk, rests, idle;
  logic [1:0] clear_q;  // being cleared: from the first cycle, from the second
  logic [15:0] memory_q [4];  // of each port of memory: what has not been answered
  wire  [3:0] asked    = {load_valid_o & load_ready_i, store_valid_o & store_ready_i};
  wire  [3:0] answered = {load_valid_i, store_ack_i};
  wire        calm     = {memory_q[3], memory_q[2], memory_q[1], memory_q[0]} == '0;
  wire        cleared  = clear_q == 2'b11 && idle && calm;
  wire        run_n    = rst_ni && !clear_q[0];
  clock_gate i_clk (.clk_i, .en_i(!rst_ni || step_we_i || start_valid_i || clear_valid_i || !rests), .clk_o(clk));
  assign clear_ready_o = cleared;

  always_ff @(posedge clk) begin
    clear_q <= cleared || !rst_ni ? 2'b00 : {clear_q[0], clear_q[0] || clear_valid_i};
    for (int unsigned i = 0; i < 4; i++) begin
      memory_q[i] <= memory_q[i] + 16'(asked[i]) - 16'(answered[i]);
      if (!rst_ni) memory_q[i] <= '0;
    end
  end

  // ---------------------------------------------------------------- The GPU
  logic         fault, written;
  logic         read_cmd_valid, read_cmd_ready, read_valid, read_ready;
  logic [63:0]  read_cmd_va, write_cmd_va;
  logic [31:0]  read_cmd_len, write_cmd_len;
  logic [511:0] read_beat, write_beat;
  logic         write_cmd_valid, write_cmd_ready, write_valid, write_ready, write_last;
  logic [63:0]  write_keep;
  dma_whole i_whole (
    .clk_i(clk), .rst_ni(rst_ni && !cleared), .stop_i(clear_q[0]), .idle_o(idle), .fault_o(fault), .fault_va_o(report_va_o),
    .written_o(written),
    .read_cmd_valid_i(read_cmd_valid), .read_cmd_ready_o(read_cmd_ready), .read_cmd_va_i(read_cmd_va),
    .read_cmd_len_i(read_cmd_len), .read_valid_o(read_valid), .read_ready_i(read_ready), .read_o(read_beat),
    .write_cmd_valid_i(write_cmd_valid), .write_cmd_ready_o(write_cmd_ready), .write_cmd_va_i(write_cmd_va),
    .write_cmd_len_i(write_cmd_len), .write_valid_i(write_valid), .write_ready_o(write_ready), .write_i(write_beat),
    .rcmd_valid_o, .rcmd_ready_i, .rcmd_va_o, .rcmd_len_o, .rdata_valid_i, .rdata_i, .rdata_last_i, .rdata_cut_i,
    .wcmd_valid_o, .wcmd_ready_i, .wcmd_va_o, .wcmd_len_o, .wdata_valid_o, .wdata_ready_i, .wdata_o,
    .report_valid_i(dma_report_valid_i), .report_fault_i(dma_report_fault_i), .report_va_i(dma_report_va_i));

  // ---------------------------------------------------------------- Steps
  logic         seq_ready, op_valid, op_ready, op_copy, op_last, reduced_valid, reduced_ready, reduced_last, reduced_error;
  logic [7:0]   op_dtype, op_redop;
  logic [511:0] op_a, op_b, reduced;
  sequencer i_sequencer (
    .clk_i(clk), .rst_ni(run_n), .step_we_i, .step_index_i, .step_net_in_i, .step_gpu_in_i, .step_net_out_i, .step_gpu_out_i,
    .step_read_va_i, .step_write_va_i, .step_slot_i, .step_len_i,
    .start_valid_i(start_valid_i && start_ready_o), .start_ready_o(seq_ready), .start_steps_i, .start_dtype_i, .start_redop_i,
    .report_valid_o, .report_ready_i, .report_status_o, .at_step_o, .at_beat_o, .fault_i(fault), .written_i(written),
    .read_cmd_valid_o(read_cmd_valid), .read_cmd_ready_i(read_cmd_ready), .read_cmd_va_o(read_cmd_va),
    .read_cmd_len_o(read_cmd_len), .read_valid_i(read_valid), .read_ready_o(read_ready), .read_i(read_beat),
    .write_cmd_valid_o(write_cmd_valid), .write_cmd_ready_i(write_cmd_ready), .write_cmd_va_o(write_cmd_va),
    .write_cmd_len_o(write_cmd_len), .write_valid_o(write_valid), .write_ready_i(write_ready), .write_o(write_beat),
    .write_keep_o(write_keep), .write_last_o(write_last),
    .rx_meta_valid_i, .rx_meta_ready_o, .rx_meta_len_i, .rx_valid_i, .rx_ready_o, .rx_i(rx_data_i), .rx_last_i,
    .tx_meta_valid_o, .tx_meta_ready_i, .tx_meta_len_o, .tx_valid_o, .tx_ready_i, .tx_o(tx_data_o), .tx_keep_o, .tx_last_o,
    .reduce_valid_o(op_valid), .reduce_ready_i(op_ready), .reduce_dtype_o(op_dtype), .reduce_redop_o(op_redop),
    .reduce_copy_o(op_copy), .reduce_a_o(op_a), .reduce_b_o(op_b), .reduce_last_o(op_last),
    .reduced_valid_i(reduced_valid), .reduced_ready_o(reduced_ready), .reduced_i(reduced), .reduced_last_i(reduced_last),
    .reduced_error_i(reduced_error),
    .store_valid_o, .store_ready_i, .store_line_o, .store_o, .store_ack_i, .load_valid_o, .load_ready_i, .load_line_o,
    .load_valid_i, .load_i);
  assign rests         = seq_ready && clear_q == 2'b00;
  assign start_ready_o = rests && !clear_valid_i;

  // Operands are kept for a cycle: the adders see no change of the network's or the GPU's data while they stand.
  logic         a_valid_q, a_copy_q, a_last_q, reduce_ready;
  logic [511:0] a_q, b_q;
  assign op_ready = !a_valid_q || reduce_ready;
  always_ff @(posedge clk) begin
    if (op_ready) a_valid_q <= op_valid;
    if (op_ready && op_valid) begin
      a_copy_q <= op_copy;
      a_last_q <= op_last;
      a_q      <= op_a;
      b_q      <= op_b;
    end
    if (!run_n) a_valid_q <= 1'b0;
  end
  logic [63:0] reduced_keep;
  reduce i_reduce (
    .clk_i(clk), .rst_ni(run_n), .in_valid_i(a_valid_q), .in_ready_o(reduce_ready), .dtype_i(op_dtype), .redop_i(op_redop),
    .copy_i(a_copy_q), .a_i(a_q), .b_i(b_q), .keep_i('1), .last_i(a_last_q),
    .out_valid_o(reduced_valid), .out_ready_i(reduced_ready), .out_o(reduced), .out_keep_o(reduced_keep), .out_last_o(reduced_last),
    .out_error_o(reduced_error));
  wire unused = ^{write_keep, write_last, reduced_keep};
endmodule
