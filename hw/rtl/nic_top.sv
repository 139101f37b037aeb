// The NIC's data path: registers, GTLB, descriptors, DMA, the direct model, engines on the path of what is received, and ring collectives, between
// PCIe and a network transport.
//
// PCIe: an AXI4-Lite slave for the BAR; reads of bursts, answered in order by aligned lines (`entry` tells the two users apart);
// writes of aligned lines with strobes, taken in order. A completion line (`line_done`) follows the lines of its data.
// Network: the streams of FpgaNIC Table 4, as in `direct`. Command layer: descriptors leave decoded (`op`), and come back as operations
// on connections (`io`) and completions (`done`). It is software: sessions, keys and deadlines are its work, as are the
// registers that are not the GTLB's, and the status registers' values. Collectives (`ring`) have their own streams to two neighbours, and lines of
// on-card memory outside; the command layer writes their steps.
module nic_top #(
  parameter int unsigned Conns     = 64,
  parameter int unsigned Queues    = 16,
  // log2 of the most slots of a queue.
  parameter int unsigned DepthLog2 = 8
) (
  input  logic         clk_i,
  input  logic         rst_ni,

  // ---------------------------------------------------------------- PCIe: BAR
  input  logic         awvalid_i,
  output logic         awready_o,
  input  logic [15:0]  awaddr_i,
  input  logic         wvalid_i,
  output logic         wready_o,
  input  logic [31:0]  wdata_i,
  input  logic [3:0]   wstrb_i,
  output logic         bvalid_o,
  input  logic         bready_i,
  output logic [1:0]   bresp_o,
  input  logic         arvalid_i,
  output logic         arready_o,
  input  logic [15:0]  araddr_i,
  output logic         rvalid_o,
  input  logic         rready_i,
  output logic [31:0]  rdata_o,
  output logic [1:0]   rresp_o,

  // ---------------------------------------------------------------- PCIe: DMA
  output logic         read_valid_o,
  input  logic         read_ready_i,
  output logic [63:0]  read_addr_o,
  output logic [31:0]  read_len_o,
  output logic         read_entry_o,
  input  logic         data_valid_i,
  input  logic         data_entry_i,
  input  logic [511:0] data_i,
  output logic         line_valid_o,
  input  logic         line_ready_i,
  output logic [63:0]  line_addr_o,
  output logic [511:0] line_o,
  output logic [63:0]  line_strobe_o,
  output logic         line_done_o,

  // ---------------------------------------------------------------- Command layer
  output logic         reg_valid_o,
  input  logic         reg_ready_i,
  input  logic         reg_refuse_i,
  output logic [8:0]   reg_index_o,
  output logic [31:0]  reg_value_o,
  input  logic         status_valid_i,
  input  logic [8:0]   status_index_i,
  input  logic [31:0]  status_i,

  input  logic         setup_valid_i,
  output logic         setup_ready_o,
  input  logic [8:0]   setup_queue_i,
  input  logic [63:0]  setup_sq_i,
  input  logic [63:0]  setup_cq_i,
  input  logic [3:0]   setup_depth_i,
  input  logic [31:0]  setup_ticket_i,
  output logic         op_valid_o,
  input  logic         op_ready_i,
  output logic [8:0]   op_queue_o,
  output logic [31:0]  op_ticket_o,
  output logic [511:0] op_entry_o,
  output logic         op_bad_o,
  output logic [2:0]   op_word_o,
  input  logic         done_valid_i,
  output logic         done_ready_o,
  input  logic [8:0]   done_queue_i,
  input  logic [31:0]  done_ticket_i,
  input  logic [7:0]   done_status_i,
  input  logic [63:0]  done_bytes_i,
  input  logic [63:0]  done_detail_i,
  output logic         stray_o,

  input  logic         ctl_valid_i,
  output logic         ctl_ready_o,
  input  logic [15:0]  ctl_conn_i,
  input  logic [1:0]   ctl_what_i,
  input  logic         io_valid_i,
  output logic         io_ready_o,
  input  logic         io_send_i,
  input  logic [15:0]  io_conn_i,
  input  logic [63:0]  io_va_i,
  input  logic [31:0]  io_len_i,
  input  logic         io_some_i,
  input  logic [15:0]  io_tag_i,
  output logic         end_valid_o,
  input  logic         end_ready_i,
  output logic         end_send_o,
  output logic [15:0]  end_tag_o,
  output logic [31:0]  end_bytes_o,
  output logic         end_refused_o,
  output logic         end_flushed_o,
  output logic         fault_valid_o,
  input  logic         fault_ready_i,
  output logic         fault_send_o,
  output logic [15:0]  fault_conn_o,
  output logic [63:0]  fault_va_o,

  // ---------------------------------------------------------------- Network transport
  input  logic         credit_valid_i,
  output logic         credit_ready_o,
  input  logic [15:0]  credit_conn_i,
  input  logic [31:0]  credit_i,
  output logic         tx_meta_valid_o,
  input  logic         tx_meta_ready_i,
  output logic [15:0]  tx_meta_conn_o,
  output logic [31:0]  tx_meta_len_o,
  output logic         tx_valid_o,
  input  logic         tx_ready_i,
  output logic [511:0] tx_data_o,
  output logic [63:0]  tx_keep_o,
  output logic         tx_last_o,
  output logic         tx_cut_o,
  output logic         want_valid_o,
  input  logic         want_ready_i,
  output logic [15:0]  want_conn_o,
  output logic [31:0]  want_len_o,
  output logic         want_some_o,
  input  logic         rx_meta_valid_i,
  output logic         rx_meta_ready_o,
  input  logic [15:0]  rx_meta_conn_i,
  input  logic [31:0]  rx_meta_len_i,
  // A segment that came before, whose receive has faulted: the engine has seen it.
  input  logic         rx_meta_again_i,
  input  logic         rx_valid_i,
  output logic         rx_ready_o,
  input  logic [511:0] rx_data_i,
  input  logic         rx_last_i,
  output logic         rx_dropped_o,

  // ---------------------------------------------------------------- Results of engines, for the command layer
  output logic         result_valid_o,
  input  logic         result_ready_i,
  output logic [511:0] result_o,
  output logic [63:0]  result_keep_o,
  output logic         result_last_o,
  output logic         result_error_o,
  output logic [1:0]   result_rest_len_o,
  output logic [23:0]  result_rest_o,
  output logic [31:0]  engine_beats_o,
  output logic [31:0]  engine_stalls_o,

  // ---------------------------------------------------------------- Ring collectives: command layer, neighbours, on-card memory
  input  logic         ring_step_we_i,
  input  logic [5:0]   ring_step_index_i,
  input  logic         ring_step_net_in_i,
  input  logic         ring_step_gpu_in_i,
  input  logic         ring_step_net_out_i,
  input  logic         ring_step_gpu_out_i,
  input  logic [63:0]  ring_step_read_va_i,
  input  logic [63:0]  ring_step_write_va_i,
  input  logic [25:0]  ring_step_slot_i,
  input  logic [31:0]  ring_step_len_i,
  input  logic         ring_start_valid_i,
  output logic         ring_start_ready_o,
  input  logic [6:0]   ring_start_steps_i,
  input  logic [7:0]   ring_start_dtype_i,
  input  logic [7:0]   ring_start_redop_i,
  output logic         ring_report_valid_o,
  input  logic         ring_report_ready_i,
  output logic [2:0]   ring_report_status_o,
  output logic [63:0]  ring_report_va_o,
  output logic [27:0]  ring_at_step_o,
  output logic [103:0] ring_at_beat_o,
  input  logic         ring_clear_valid_i,
  output logic         ring_clear_ready_o,

  input  logic         ring_rx_meta_valid_i,
  output logic         ring_rx_meta_ready_o,
  input  logic [31:0]  ring_rx_meta_len_i,
  input  logic         ring_rx_valid_i,
  output logic         ring_rx_ready_o,
  input  logic [511:0] ring_rx_data_i,
  input  logic         ring_rx_last_i,
  output logic         ring_tx_meta_valid_o,
  input  logic         ring_tx_meta_ready_i,
  output logic [31:0]  ring_tx_meta_len_o,
  output logic         ring_tx_valid_o,
  input  logic         ring_tx_ready_i,
  output logic [511:0] ring_tx_data_o,
  output logic [63:0]  ring_tx_keep_o,
  output logic         ring_tx_last_o,

  output logic [1:0]    ring_store_valid_o,
  input  logic [1:0]    ring_store_ready_i,
  output logic [51:0]   ring_store_line_o,
  output logic [1023:0] ring_store_o,
  input  logic [1:0]    ring_store_ack_i,
  output logic [1:0]    ring_load_valid_o,
  input  logic [1:0]    ring_load_ready_i,
  output logic [51:0]   ring_load_line_o,
  input  logic [1:0]    ring_load_valid_i,
  input  logic [1023:0] ring_load_i
);
  // ---------------------------------------------------------------- Registers
  logic        bell_valid, bell_ready, reg_valid, reg_ready, reg_refuse;
  logic [8:0]  bell_queue, reg_index;
  logic [31:0] value;
  localparam int unsigned Operations  = 4;
  localparam int unsigned MainEntries = 16384;
  localparam int unsigned CompEntries = 2048;
  regfile #(
    .Queues(Queues), .Slots(32'd1 << DepthLog2), .Conns(Conns), .Operations(Operations), .MainEntries(MainEntries), .CompEntries(CompEntries)
  ) i_regfile (
    .clk_i, .rst_ni, .awvalid_i, .awready_o, .awaddr_i, .wvalid_i, .wready_o, .wdata_i, .wstrb_i, .bvalid_o, .bready_i, .bresp_o,
    .arvalid_i, .arready_o, .araddr_i, .rvalid_o, .rready_i, .rdata_o, .rresp_o,
    .bell_valid_o(bell_valid), .bell_ready_i(bell_ready), .bell_queue_o(bell_queue),
    .reg_valid_o(reg_valid), .reg_ready_i(reg_ready), .reg_refuse_i(reg_refuse), .reg_index_o(reg_index), .value_o(value),
    .status_valid_i, .status_index_i, .status_i);

  // The GTLB's registers; a command and a base are answered when they have been done.
  logic [63:0] va_q, pa_q;
  logic [31:0] index_q, base_q;
  logic        asked_q;  // the GTLB is at it
  wire [31:0]  at         = 32'(reg_index);
  wire         is_command = at == ringbell_abi_pkg::REG_GTLB_COMMAND;
  wire         is_base    = at == ringbell_abi_pkg::REG_GTLB_BASE_HI;
  wire         is_staged  = at >= ringbell_abi_pkg::REG_GTLB_VA_LO && at <= ringbell_abi_pkg::REG_GTLB_BASE_LO && !is_command;
  // The engines' are answered at once.
  wire         is_conn    = at == ringbell_abi_pkg::REG_ENGINE_CONN;
  wire         is_engine  = at == ringbell_abi_pkg::REG_ENGINE_COMMAND;
  wire         is_others  = !(is_command || is_base || is_staged || is_conn || is_engine);
  logic        cmd_ready, base_ready, done, error, engine_refuse;
  logic [15:0] engine_conn_q;

  assign reg_valid_o = reg_valid && is_others;
  assign reg_index_o = reg_index;
  assign reg_value_o = value;
  assign reg_ready   = is_others ? reg_ready_i : is_staged || is_conn || is_engine || done;
  assign reg_refuse  = is_others ? reg_refuse_i : is_engine ? engine_refuse : !is_staged && !is_conn && error;

  always_ff @(posedge clk_i) begin
    if (reg_valid && is_conn) engine_conn_q <= value[15:0];
    if (reg_valid && is_staged) begin
      case (at)
        ringbell_abi_pkg::REG_GTLB_VA_LO: va_q[31:0]  <= value;
        ringbell_abi_pkg::REG_GTLB_VA_HI: va_q[63:32] <= value;
        ringbell_abi_pkg::REG_GTLB_PA_LO: pa_q[31:0]  <= value;
        ringbell_abi_pkg::REG_GTLB_PA_HI: pa_q[63:32] <= value;
        ringbell_abi_pkg::REG_GTLB_INDEX: index_q     <= value;
        default:                          base_q      <= value;
      endcase
    end
    if (reg_valid && ((is_command && cmd_ready) || (is_base && base_ready))) asked_q <= 1'b1;
    if (done || !rst_ni) asked_q <= 1'b0;
  end

  // ---------------------------------------------------------------- GTLB, for reads and writes
  logic        want_read, want_write, held_q, held_write_q;
  logic [63:0] read_va, write_va, held_va_q;
  logic        found, fault;
  logic [63:0] bus;
  logic [2:0]  who_q;  // 1: the look-up is the writes'
  logic [31:0] left;
  // Of two in one cycle, and while one is held, the later waits; each side asks for one at a time.
  wire         lookup       = held_q || want_read || want_write;
  wire         lookup_write = held_q ? held_write_q : !want_read;
  wire [63:0]  lookup_va    = held_q ? held_va_q : want_read ? read_va : write_va;
  gtlb #(.MainEntries(MainEntries), .CompEntries(CompEntries)) i_gtlb (
    .clk_i, .rst_ni, .lookup_valid_i(lookup), .lookup_va_i(lookup_va),
    .lookup_valid_o(found), .lookup_fault_o(fault), .lookup_bus_o(bus), .lookup_left_o(left),
    .cmd_valid_i(reg_valid && is_command && !asked_q), .cmd_ready_o(cmd_ready), .cmd_i(value), .cmd_index_i(index_q),
    .cmd_va_i(va_q), .cmd_pa_i(pa_q),
    .base_valid_i(reg_valid && is_base && !asked_q), .base_ready_o(base_ready), .base_i({value, base_q}),
    .done_o(done), .error_o(error));
  wire unused = ^left;

  always_ff @(posedge clk_i) begin
    who_q  <= {who_q[1:0], lookup_write};
    held_q <= held_q ? want_read || want_write : want_read && want_write;
    if (held_q ? want_read || want_write : want_read && want_write) begin
      held_write_q <= held_q ? want_write : 1'b1;
      held_va_q    <= held_q && want_read ? read_va : write_va;
    end
    if (!rst_ni) held_q <= 1'b0;
  end

  // ---------------------------------------------------------------- Descriptors
  logic         fetch_valid, fetch_ready, cpl_valid, cpl_ready;
  logic [63:0]  fetch_addr, cpl_addr;
  logic [255:0] cpl;
  desc #(.Queues(Queues), .DepthLog2(DepthLog2)) i_desc (
    .clk_i, .rst_ni, .setup_valid_i, .setup_ready_o, .setup_queue_i, .setup_sq_i, .setup_cq_i, .setup_depth_i, .setup_ticket_i,
    .bell_valid_i(bell_valid), .bell_ready_o(bell_ready), .bell_queue_i(bell_queue), .bell_value_i(value),
    .fetch_valid_o(fetch_valid), .fetch_ready_i(fetch_ready), .fetch_addr_o(fetch_addr),
    .entry_valid_i(data_valid_i && data_entry_i), .entry_i(data_i),
    .op_valid_o, .op_ready_i, .op_queue_o, .op_ticket_o, .op_entry_o, .op_bad_o, .op_word_o,
    .done_valid_i, .done_ready_o, .done_queue_i, .done_ticket_i, .done_status_i, .done_bytes_i, .done_detail_i, .stray_o,
    .line_valid_o(cpl_valid), .line_ready_i(cpl_ready), .line_addr_o(cpl_addr), .line_o(cpl));

  // ---------------------------------------------------------------- Engines on the path of received segments
  logic         seg_valid, seg_ready, seg_last;
  logic [511:0] seg;
  engines i_engines (
    .clk_i, .rst_ni, .cmd_valid_i(reg_valid && is_engine), .cmd_refuse_o(engine_refuse), .cmd_i(value), .cmd_conn_i(engine_conn_q),
    .meta_taken_i(rx_meta_valid_i && rx_meta_ready_o), .meta_conn_i(rx_meta_conn_i), .meta_len_i(rx_meta_len_i),
    .meta_again_i(rx_meta_again_i),
    .in_valid_i(rx_valid_i), .in_ready_o(rx_ready_o), .in_i(rx_data_i), .in_last_i(rx_last_i),
    .out_valid_o(seg_valid), .out_ready_i(seg_ready), .out_o(seg), .out_last_o(seg_last),
    .result_valid_o, .result_ready_i, .result_o, .result_keep_o, .result_last_o, .result_error_o,
    .rest_len_o(result_rest_len_o), .rest_o(result_rest_o), .beats_o(engine_beats_o), .stalls_o(engine_stalls_o));

  // ---------------------------------------------------------------- Direct model and ring collectives, beside each other at the DMA
  // Bit 0 and the low words: the direct model's.
  logic [1:0]    use_read, use_read_ready, use_data, use_data_ready, use_write, use_write_ready, use_wdata, use_wdata_ready, use_report;
  logic [127:0]  use_read_va, use_write_va;
  logic [63:0]   use_read_len, use_write_len;
  logic [1023:0] use_beats;
  logic          direct_cut, direct_reports;
  logic          rcmd_valid, rcmd_ready, rdata_valid, rdata_ready, rdata_last, rdata_cut;
  logic [63:0]   rcmd_va, rdata_keep;
  logic [31:0]   rcmd_len;
  logic [511:0]  rdata;
  logic          wcmd_valid, wcmd_ready, wdata_valid, wdata_ready, wdata_cut, report_valid, report_ready, report_fault, report_cut;
  logic [63:0]   wcmd_va, report_va;
  logic [31:0]   wcmd_len;
  logic [511:0]  wdata;
  direct #(.Conns(Conns), .Slots(Operations)) i_direct (
    .clk_i, .rst_ni, .ctl_valid_i, .ctl_ready_o, .ctl_conn_i, .ctl_what_i,
    .op_valid_i(io_valid_i), .op_ready_o(io_ready_o), .op_send_i(io_send_i), .op_conn_i(io_conn_i), .op_va_i(io_va_i),
    .op_len_i(io_len_i), .op_some_i(io_some_i), .op_tag_i(io_tag_i),
    .done_valid_o(end_valid_o), .done_ready_i(end_ready_i), .done_send_o(end_send_o), .done_tag_o(end_tag_o),
    .done_bytes_o(end_bytes_o), .done_refused_o(end_refused_o), .done_flushed_o(end_flushed_o),
    .fault_valid_o, .fault_ready_i, .fault_send_o, .fault_conn_o, .fault_va_o,
    .credit_valid_i, .credit_ready_o, .credit_conn_i, .credit_i, .tx_meta_valid_o, .tx_meta_ready_i, .tx_meta_conn_o,
    .tx_meta_len_o, .tx_valid_o, .tx_ready_i, .tx_data_o, .tx_keep_o, .tx_last_o, .tx_cut_o,
    .want_valid_o, .want_ready_i, .want_conn_o, .want_len_o, .want_some_o, .rx_meta_valid_i, .rx_meta_ready_o, .rx_meta_conn_i,
    .rx_meta_len_i, .rx_valid_i(seg_valid), .rx_ready_o(seg_ready), .rx_data_i(seg), .rx_last_i(seg_last), .rx_dropped_o,
    .read_valid_o(use_read[0]), .read_ready_i(use_read_ready[0]), .read_va_o(use_read_va[63:0]), .read_len_o(use_read_len[31:0]),
    .data_valid_i(use_data[0]), .data_ready_o(use_data_ready[0]), .data_i(rdata), .keep_i(rdata_keep), .last_i(rdata_last),
    .cut_i(rdata_cut),
    .write_valid_o(use_write[0]), .write_ready_i(use_write_ready[0]), .write_va_o(use_write_va[63:0]),
    .write_len_o(use_write_len[31:0]),
    .wdata_valid_o(use_wdata[0]), .wdata_ready_i(use_wdata_ready[0]), .wdata_o(use_beats[511:0]), .wdata_cut_o(direct_cut),
    .report_valid_i(use_report[0]), .report_ready_o(direct_reports), .report_fault_i(report_fault), .report_cut_i(report_cut),
    .report_va_i(report_va));

  ring i_ring (
    .clk_i, .rst_ni, .step_we_i(ring_step_we_i), .step_index_i(ring_step_index_i), .step_net_in_i(ring_step_net_in_i),
    .step_gpu_in_i(ring_step_gpu_in_i), .step_net_out_i(ring_step_net_out_i), .step_gpu_out_i(ring_step_gpu_out_i),
    .step_read_va_i(ring_step_read_va_i), .step_write_va_i(ring_step_write_va_i), .step_slot_i(ring_step_slot_i),
    .step_len_i(ring_step_len_i), .start_valid_i(ring_start_valid_i), .start_ready_o(ring_start_ready_o),
    .start_steps_i(ring_start_steps_i), .start_dtype_i(ring_start_dtype_i), .start_redop_i(ring_start_redop_i),
    .report_valid_o(ring_report_valid_o), .report_ready_i(ring_report_ready_i), .report_status_o(ring_report_status_o),
    .report_va_o(ring_report_va_o), .at_step_o(ring_at_step_o), .at_beat_o(ring_at_beat_o),
    .clear_valid_i(ring_clear_valid_i), .clear_ready_o(ring_clear_ready_o),
    .rcmd_valid_o(use_read[1]), .rcmd_ready_i(use_read_ready[1]), .rcmd_va_o(use_read_va[127:64]), .rcmd_len_o(use_read_len[63:32]),
    .rdata_valid_i(use_data[1]), .rdata_i(rdata), .rdata_last_i(rdata_last), .rdata_cut_i(rdata_cut),
    .wcmd_valid_o(use_write[1]), .wcmd_ready_i(use_write_ready[1]), .wcmd_va_o(use_write_va[127:64]),
    .wcmd_len_o(use_write_len[63:32]),
    .wdata_valid_o(use_wdata[1]), .wdata_ready_i(use_wdata_ready[1]), .wdata_o(use_beats[1023:512]),
    .dma_report_valid_i(use_report[1]), .dma_report_fault_i(report_fault), .dma_report_va_i(report_va),
    .rx_meta_valid_i(ring_rx_meta_valid_i), .rx_meta_ready_o(ring_rx_meta_ready_o), .rx_meta_len_i(ring_rx_meta_len_i),
    .rx_valid_i(ring_rx_valid_i), .rx_ready_o(ring_rx_ready_o), .rx_data_i(ring_rx_data_i), .rx_last_i(ring_rx_last_i),
    .tx_meta_valid_o(ring_tx_meta_valid_o), .tx_meta_ready_i(ring_tx_meta_ready_i), .tx_meta_len_o(ring_tx_meta_len_o),
    .tx_valid_o(ring_tx_valid_o), .tx_ready_i(ring_tx_ready_i), .tx_data_o(ring_tx_data_o), .tx_keep_o(ring_tx_keep_o),
    .tx_last_o(ring_tx_last_o), .store_valid_o(ring_store_valid_o), .store_ready_i(ring_store_ready_i),
    .store_line_o(ring_store_line_o), .store_o(ring_store_o), .store_ack_i(ring_store_ack_i), .load_valid_o(ring_load_valid_o),
    .load_ready_i(ring_load_ready_i), .load_line_o(ring_load_line_o), .load_valid_i(ring_load_valid_i), .load_i(ring_load_i));
  assign use_data_ready[1] = 1'b1;

  dma_share i_share (
    .clk_i, .rst_ni, .read_valid_i(use_read), .read_ready_o(use_read_ready), .read_va_i(use_read_va), .read_len_i(use_read_len),
    .data_valid_o(use_data), .data_ready_i(use_data_ready),
    .write_valid_i(use_write), .write_ready_o(use_write_ready), .write_va_i(use_write_va), .write_len_i(use_write_len),
    .wdata_valid_i(use_wdata), .wdata_ready_o(use_wdata_ready), .wdata_i(use_beats), .wdata_cut_i({1'b0, direct_cut}),
    .report_valid_o(use_report), .report_ready_i({1'b1, direct_reports}),
    .rcmd_valid_o(rcmd_valid), .rcmd_ready_i(rcmd_ready), .rcmd_va_o(rcmd_va), .rcmd_len_o(rcmd_len),
    .rdata_valid_i(rdata_valid), .rdata_ready_o(rdata_ready), .rdata_last_i(rdata_last),
    .wcmd_valid_o(wcmd_valid), .wcmd_ready_i(wcmd_ready), .wcmd_va_o(wcmd_va), .wcmd_len_o(wcmd_len),
    .wbeat_valid_o(wdata_valid), .wbeat_ready_i(wdata_ready), .wbeat_o(wdata), .wbeat_cut_o(wdata_cut),
    .done_valid_i(report_valid), .done_ready_o(report_ready));

  logic        burst_valid, burst_ready;
  logic [63:0] burst_bus;
  logic [31:0] burst_len;
  dma_read i_read (
    .clk_i, .rst_ni, .cmd_valid_i(rcmd_valid), .cmd_ready_o(rcmd_ready), .cmd_va_i(rcmd_va), .cmd_len_i(rcmd_len),
    .lookup_valid_o(want_read), .lookup_va_o(read_va), .lookup_valid_i(found && !who_q[2]), .lookup_fault_i(fault),
    .lookup_bus_i(bus), .burst_valid_o(burst_valid), .burst_ready_i(burst_ready), .burst_bus_o(burst_bus), .burst_len_o(burst_len),
    .line_valid_i(data_valid_i && !data_entry_i), .line_i(data_i),
    .out_valid_o(rdata_valid), .out_ready_i(rdata_ready), .out_data_o(rdata), .out_keep_o(rdata_keep), .out_last_o(rdata_last),
    .out_cut_o(rdata_cut));

  logic         wline_valid, wline_ready;
  logic [63:0]  wline_addr, wline_strobe;
  logic [511:0] wline;
  dma_write i_write (
    .clk_i, .rst_ni, .cmd_valid_i(wcmd_valid), .cmd_ready_o(wcmd_ready), .cmd_va_i(wcmd_va), .cmd_len_i(wcmd_len),
    .lookup_valid_o(want_write), .lookup_va_o(write_va), .lookup_valid_i(found && who_q[2]), .lookup_fault_i(fault),
    .lookup_bus_i(bus), .in_valid_i(wdata_valid), .in_ready_o(wdata_ready), .in_data_i(wdata), .in_cut_i(wdata_cut),
    .line_valid_o(wline_valid), .line_ready_i(wline_ready), .line_addr_o(wline_addr), .line_o(wline),
    .line_strobe_o(wline_strobe), .report_valid_o(report_valid), .report_ready_i(report_ready), .report_fault_o(report_fault),
    .report_cut_o(report_cut), .report_va_o(report_va));

  // ---------------------------------------------------------------- PCIe: an entry goes before data, a completion before the lines
  // of others. What has been offered stays.
  logic reads_data_q, writes_data_q;
  assign read_entry_o = fetch_valid && !reads_data_q;
  assign read_valid_o = fetch_valid || burst_valid;
  assign read_addr_o  = read_entry_o ? fetch_addr : burst_bus;
  assign read_len_o   = read_entry_o ? 32'd64 : burst_len;
  assign fetch_ready  = read_ready_i && read_entry_o;
  assign burst_ready  = read_ready_i && !read_entry_o;

  assign line_done_o   = cpl_valid && !writes_data_q;
  assign line_valid_o  = cpl_valid || wline_valid;
  assign line_addr_o   = line_done_o ? cpl_addr : wline_addr;
  assign line_o        = line_done_o ? {256'b0, cpl} : wline;
  assign line_strobe_o = line_done_o ? 64'hffff_ffff : wline_strobe;
  assign cpl_ready     = line_ready_i && line_done_o;
  assign wline_ready   = line_ready_i && !line_done_o;

  always_ff @(posedge clk_i) begin
    reads_data_q  <= burst_valid && !burst_ready && !read_entry_o && rst_ni;
    writes_data_q <= wline_valid && !wline_ready && !line_done_o && rst_ni;
  end
endmodule
