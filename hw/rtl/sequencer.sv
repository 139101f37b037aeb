// Executes the steps of a collective between neighbours of a ring (FpgaNIC §A.2, Table 8) without the GPU: the programs of
// onc-engines::program whose messages come from one rank and go to one rank.
//
// A step makes a value of its inputs: the next message from the previous NIC (E), bytes of the GPU (G), or the reduction of both by
// `reduce`. The value is kept in a slot of on-card memory, and leaves from there to the next NIC, to the GPU, or to both, while the
// steps behind it are under way: beat by beat, as soon as memory has acknowledged a beat. Inputs are taken in the order of
// the steps, so a ring of these never waits for itself. GPU reads are asked for one step ahead: a program must not read
// what it wrote in the step before.
//
// A collective ends with one report. A message of another length than its step, a type that `reduce` refuses, and Deadline cycles
// without any progress end it early; streams are broken then, and the next start waits for a reset.
module sequencer #(
  parameter int unsigned Deadline = 1 << 24
) (
  input  logic         clk_i,
  input  logic         rst_ni,

  // The steps, written between collectives: inputs, outputs, GPU addresses, first line of the slot, bytes.
  input  logic         step_we_i,
  input  logic [5:0]   step_index_i,
  input  logic         step_net_in_i,
  input  logic         step_gpu_in_i,
  input  logic         step_net_out_i,
  input  logic         step_gpu_out_i,
  input  logic [63:0]  step_read_va_i,
  input  logic [63:0]  step_write_va_i,
  input  logic [25:0]  step_slot_i,
  input  logic [31:0]  step_len_i,

  // Runs the first steps_i steps, 1 to 64.
  input  logic         start_valid_i,
  output logic         start_ready_o,
  input  logic [6:0]   start_steps_i,
  input  logic [7:0]   start_dtype_i,
  input  logic [7:0]   start_redop_i,
  output logic         report_valid_o,
  input  logic         report_ready_i,
  // 0 done, 1 deadline, 2 message of another length, 3 type or operation.
  output logic [1:0]   report_status_o,
  // The state table: inputs before in_step_o and outputs before out_step_o are done; of these two, so many beats.
  output logic [6:0]   in_step_o,
  output logic [25:0]  in_beat_o,
  output logic [6:0]   out_step_o,
  output logic [25:0]  out_beat_o,

  // GPU memory, by the streams of FpgaNIC Table 3.
  output logic         read_cmd_valid_o,
  input  logic         read_cmd_ready_i,
  output logic [63:0]  read_cmd_va_o,
  output logic [31:0]  read_cmd_len_o,
  input  logic         read_valid_i,
  output logic         read_ready_o,
  input  logic [511:0] read_i,
  output logic         write_cmd_valid_o,
  input  logic         write_cmd_ready_i,
  output logic [63:0]  write_cmd_va_o,
  output logic [31:0]  write_cmd_len_o,
  output logic         write_valid_o,
  input  logic         write_ready_i,

  // Network, by those of Table 4; one connection each way.
  input  logic         rx_meta_valid_i,
  output logic         rx_meta_ready_o,
  input  logic [31:0]  rx_meta_len_i,
  input  logic         rx_valid_i,
  output logic         rx_ready_o,
  input  logic [511:0] rx_i,
  input  logic         rx_last_i,
  output logic         tx_meta_valid_o,
  input  logic         tx_meta_ready_i,
  output logic [31:0]  tx_meta_len_o,
  output logic         tx_valid_o,
  input  logic         tx_ready_i,
  // The beat, to network and GPU.
  output logic [511:0] out_o,
  output logic [63:0]  out_keep_o,
  output logic         out_last_o,

  // `reduce`; with copy the result is the first operand.
  output logic         reduce_valid_o,
  input  logic         reduce_ready_i,
  output logic [7:0]   reduce_dtype_o,
  output logic [7:0]   reduce_redop_o,
  output logic         reduce_copy_o,
  output logic [511:0] reduce_a_o,
  output logic [511:0] reduce_b_o,
  output logic         reduce_last_o,
  input  logic         reduced_valid_i,
  output logic         reduced_ready_o,
  input  logic [511:0] reduced_i,
  input  logic         reduced_last_i,
  input  logic         reduced_error_i,

  // On-card memory in lines of 64 bytes: writes are acknowledged in order, reads answered in order and never held up.
  output logic         store_valid_o,
  input  logic         store_ready_i,
  output logic [25:0]  store_line_o,
  output logic [511:0] store_o,
  input  logic         store_ack_i,
  output logic         load_valid_o,
  input  logic         load_ready_i,
  output logic [25:0]  load_line_o,
  input  logic         load_valid_i,
  input  logic [511:0] load_i
);
  localparam int unsigned BufferW = 6;  // log2 of the lines that may be under way from memory
  localparam int unsigned WaitW   = $clog2(Deadline + 1);

  localparam logic [1:0] Done   = 2'd0;
  localparam logic [1:0] Late   = 2'd1;
  localparam logic [1:0] Length = 2'd2;
  localparam logic [1:0] Type   = 2'd3;

  // Last beat of so many bytes; a value without bytes is a beat of none.
  function automatic logic [25:0] last_of(input logic [31:0] len);
    last_of = len == '0 ? '0 : 26'((len - 32'd1) >> 6);
  endfunction

  // ---------------------------------------------------------------- Steps
  logic [3:0]  kinds_q     [64];
  logic [63:0] read_vas_q  [64];
  logic [63:0] write_vas_q [64];
  logic [25:0] slots_q     [64];
  logic [31:0] lens_q      [64];
  always_ff @(posedge clk_i) if (step_we_i) begin
    kinds_q[step_index_i]     <= {step_net_in_i, step_gpu_in_i, step_net_out_i, step_gpu_out_i};
    read_vas_q[step_index_i]  <= step_read_va_i;
    write_vas_q[step_index_i] <= step_write_va_i;
    slots_q[step_index_i]     <= step_slot_i;
    lens_q[step_index_i]      <= step_len_i;
  end

  logic             run_q, broken_q, report_q;
  logic [1:0]       status_q;
  logic [6:0]       steps_q;
  logic [7:0]       dtype_q, redop_q;
  logic [WaitW-1:0] wait_q;

  // ---------------------------------------------------------------- Reads of the GPU, a step ahead of their use
  logic [6:0]  ask_step_q, in_step_q;
  wire  [5:0]  ask      = ask_step_q[5:0];
  wire         ask_here = run_q && ask_step_q != steps_q && ask_step_q <= in_step_q + 7'd1;
  wire         ask_none = !kinds_q[ask][2] || lens_q[ask] == '0;
  assign read_cmd_valid_o = ask_here && !ask_none;
  assign read_cmd_va_o    = read_vas_q[ask];
  assign read_cmd_len_o   = lens_q[ask];

  // ---------------------------------------------------------------- Inputs, into `reduce`
  logic [25:0] in_beat_q;
  logic        meta_q;  // the message has begun
  wire  [5:0]  in       = in_step_q[5:0];
  wire         in_here  = run_q && in_step_q != steps_q;
  wire  [31:0] in_len   = lens_q[in];
  wire         from_net = kinds_q[in][3];
  wire         from_gpu = kinds_q[in][2] && in_len != '0;
  wire         net_has  = !from_net || (meta_q && rx_valid_i);
  wire         gpu_has  = !from_gpu || read_valid_i;
  wire         in_last  = in_beat_q == last_of(in_len);
  wire         taken    = reduce_valid_o && reduce_ready_i;

  assign rx_meta_ready_o = in_here && from_net && !meta_q;
  assign reduce_valid_o  = in_here && net_has && gpu_has;
  assign rx_ready_o      = in_here && from_net && meta_q && gpu_has && reduce_ready_i;
  assign read_ready_o    = in_here && from_gpu && net_has && reduce_ready_i;
  assign reduce_dtype_o  = dtype_q;
  assign reduce_redop_o  = redop_q;
  assign reduce_copy_o   = !(from_net && from_gpu);
  assign reduce_a_o      = from_net ? rx_i : read_i;
  assign reduce_b_o      = read_i;
  assign reduce_last_o   = in_last;

  // ---------------------------------------------------------------- Values into memory
  logic [6:0]  store_step_q;
  logic [25:0] store_beat_q;
  logic [31:0] acked_q, asked_q;  // lines of all steps: in memory, read again
  wire         stored = store_valid_o && store_ready_i;
  assign store_valid_o   = run_q && reduced_valid_i;
  assign reduced_ready_o = run_q && store_ready_i;
  assign store_line_o    = slots_q[store_step_q[5:0]] + store_beat_q;
  assign store_o         = reduced_i;

  // ---------------------------------------------------------------- And out of it, as far as it has acknowledged
  logic [6:0]       load_step_q;
  logic [25:0]      load_beat_q;
  logic [BufferW:0] under_way_q;
  wire              asks = load_valid_o && load_ready_i;
  assign load_valid_o = run_q && load_step_q != steps_q && asked_q != acked_q && !under_way_q[BufferW];
  assign load_line_o  = slots_q[load_step_q[5:0]] + load_beat_q;

  // ---------------------------------------------------------------- Outputs
  logic [511:0]       buffer_q [1 << BufferW];
  logic [BufferW:0]   head_q, tail_q;
  logic [6:0]         out_step_q;
  logic [25:0]        out_beat_q;
  logic               tx_meta_q, cmd_q, sent_tx_q, sent_gpu_q;
  wire  [5:0]         out      = out_step_q[5:0];
  wire                out_here = run_q && out_step_q != steps_q;
  wire  [31:0]        out_len  = lens_q[out];
  wire                to_net   = kinds_q[out][1];
  wire                to_gpu   = kinds_q[out][0] && out_len != '0;
  wire                begun    = (!to_net || tx_meta_q) && (!to_gpu || cmd_q);
  wire                out_has  = out_here && begun && head_q != tail_q;
  wire                leaves   = out_has && (!to_net || sent_tx_q || tx_ready_i) && (!to_gpu || sent_gpu_q || write_ready_i);

  assign tx_meta_valid_o   = out_here && to_net && !tx_meta_q;
  assign tx_meta_len_o     = out_len;
  assign write_cmd_valid_o = out_here && to_gpu && !cmd_q;
  assign write_cmd_va_o    = write_vas_q[out];
  assign write_cmd_len_o   = out_len;
  assign tx_valid_o        = out_has && to_net && !sent_tx_q;
  assign write_valid_o     = out_has && to_gpu && !sent_gpu_q;
  assign out_o             = buffer_q[tail_q[BufferW-1:0]];
  assign out_last_o        = out_beat_q == last_of(out_len);
  always_comb begin
    out_keep_o = '1;
    if (out_last_o && (out_len[5:0] != '0 || out_len == '0)) out_keep_o = (64'd1 << out_len[5:0]) - 64'd1;
  end

  always_ff @(posedge clk_i) begin
    if (ask_here && (ask_none || read_cmd_ready_i)) ask_step_q <= ask_step_q + 7'd1;

    if (rx_meta_valid_i && rx_meta_ready_o) meta_q <= 1'b1;
    if (taken) begin
      in_beat_q <= in_beat_q + 26'd1;
      if (in_last) begin
        in_beat_q <= '0;
        in_step_q <= in_step_q + 7'd1;
        meta_q    <= 1'b0;
      end
    end

    if (stored) begin
      store_beat_q <= store_beat_q + 26'd1;
      if (reduced_last_i) begin
        store_beat_q <= '0;
        store_step_q <= store_step_q + 7'd1;
      end
    end
    if (store_ack_i) acked_q <= acked_q + 32'd1;

    if (asks) begin
      asked_q     <= asked_q + 32'd1;
      load_beat_q <= load_beat_q + 26'd1;
      if (load_beat_q == last_of(lens_q[load_step_q[5:0]])) begin
        load_beat_q <= '0;
        load_step_q <= load_step_q + 7'd1;
      end
    end
    under_way_q <= under_way_q + (BufferW+1)'(asks) - (BufferW+1)'(leaves);
    if (load_valid_i) begin
      buffer_q[head_q[BufferW-1:0]] <= load_i;
      head_q <= head_q + 1'b1;
    end

    if (tx_meta_valid_o && tx_meta_ready_i) tx_meta_q <= 1'b1;
    if (write_cmd_valid_o && write_cmd_ready_i) cmd_q <= 1'b1;
    if (tx_valid_o && tx_ready_i) sent_tx_q <= 1'b1;
    if (write_valid_o && write_ready_i) sent_gpu_q <= 1'b1;
    if (leaves) begin
      sent_tx_q  <= 1'b0;
      sent_gpu_q <= 1'b0;
      tail_q     <= tail_q + 1'b1;
      out_beat_q <= out_beat_q + 26'd1;
      if (out_last_o) begin
        out_beat_q <= '0;
        out_step_q <= out_step_q + 7'd1;
        tx_meta_q  <= 1'b0;
        cmd_q      <= 1'b0;
      end
    end

    wait_q <= taken || stored || asks || leaves || !run_q ? '0 : wait_q + 1'b1;
    if (run_q) begin
      if (out_step_q == steps_q) begin
        run_q    <= 1'b0;
        report_q <= 1'b1;
        status_q <= Done;
      end
      if (wait_q == WaitW'(Deadline - 1)) begin
        run_q    <= 1'b0;
        broken_q <= 1'b1;
        report_q <= 1'b1;
        status_q <= Late;
      end
      if ((rx_meta_valid_i && rx_meta_ready_o && rx_meta_len_i != in_len) ||
          (taken && from_net && rx_last_i != in_last)) begin
        run_q    <= 1'b0;
        broken_q <= 1'b1;
        report_q <= 1'b1;
        status_q <= Length;
      end
      if (reduced_valid_i && reduced_error_i) begin
        run_q    <= 1'b0;
        broken_q <= 1'b1;
        report_q <= 1'b1;
        status_q <= Type;
      end
    end
    if (report_q && report_ready_i) report_q <= 1'b0;
    if (start_valid_i && start_ready_o) begin
      run_q   <= 1'b1;
      steps_q <= start_steps_i;
      dtype_q <= start_dtype_i;
      redop_q <= start_redop_i;
    end
    if (!rst_ni || (start_valid_i && start_ready_o)) begin
      {ask_step_q, in_step_q, store_step_q, load_step_q, out_step_q} <= '0;
      {in_beat_q, store_beat_q, load_beat_q, out_beat_q} <= '0;
      {acked_q, asked_q} <= '0;
      {meta_q, tx_meta_q, cmd_q, sent_tx_q, sent_gpu_q} <= '0;
      {under_way_q, head_q, tail_q} <= '0;
    end
    if (!rst_ni) begin
      run_q    <= 1'b0;
      broken_q <= 1'b0;
      report_q <= 1'b0;
    end
  end

  assign start_ready_o   = !run_q && !report_q && !broken_q;
  assign report_valid_o  = report_q;
  assign report_status_o = status_q;
  assign in_step_o       = in_step_q;
  assign in_beat_o       = in_beat_q;
  assign out_step_o      = out_step_q;
  assign out_beat_o      = out_beat_q;
endmodule
