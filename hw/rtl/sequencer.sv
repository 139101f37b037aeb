// Executes the steps of a collective between neighbours of a ring (FpgaNIC §A.2, Table 8) without the GPU: the programs of
// onc-engines::program whose messages come from one rank and go to one rank.
//
// A step makes a value of its inputs: the next message from the previous NIC (E), bytes of the GPU (G), or the reduction of both by
// `reduce`. The value is kept in a slot of on-card memory, and leaves from there to the next NIC, to the GPU, or to both, while the
// steps behind it are under way: beat by beat, as soon as memory has acknowledged a beat.
//
// Steps with a message take their inputs in order, so a ring of these never waits for itself; steps with a message to send give their
// outputs in order. Those without, the first and the last columns of Table 8, run beside them, by ports of their own to memory: the
// network is used in them too, for another part of the data. For that GPU reads are asked for up to 16 steps ahead: a program must
// not read what it wrote in the 16 steps before.
//
// A collective ends with one report, after the GPU has all of its writes. A message of another length than its step, a type that `reduce`
// refuses, an address of the GPU that faults, and Deadline cycles without any progress end it early; streams are broken then, and the next
// start waits for a reset.
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
  // 0 done, 1 deadline, 2 message of another length, 3 type or operation, 4 address of the GPU.
  output logic [2:0]   report_status_o,
  // The state table: inputs with and without a message and outputs likewise, in this order: those of steps before these are done, and of
  // each of these so many beats.
  output logic [27:0]  at_step_o,
  output logic [103:0] at_beat_o,

  // GPU memory, by the streams of FpgaNIC Table 3. An address has faulted; all beats that it was given are written.
  input  logic         fault_i,
  input  logic         written_i,
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
  output logic [511:0] write_o,
  output logic [63:0]  write_keep_o,
  output logic         write_last_o,

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
  output logic [511:0] tx_o,
  output logic [63:0]  tx_keep_o,
  output logic         tx_last_o,

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

  // On-card memory in lines of 64 bytes, two ports for writes and two for reads (bit 0: steps with a message). Of each port, writes are
  // acknowledged in order, and reads are answered in order and never held up.
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
  localparam int unsigned BufferW = 6;  // log2 of the lines that may be under way from memory, of each port
  localparam int unsigned WaitW   = $clog2(Deadline + 1);
  localparam logic [6:0]  Ahead   = 7'd16;

  localparam logic [2:0] Done    = 3'd0;
  localparam logic [2:0] Late    = 3'd1;
  localparam logic [2:0] Length  = 3'd2;
  localparam logic [2:0] Type    = 3'd3;
  localparam logic [2:0] Address = 3'd4;

  // Last beat of so many bytes; a value without bytes is a beat of none.
  function automatic logic [25:0] last_of(input logic [31:0] len);
    last_of = len == '0 ? '0 : 26'((len - 32'd1) >> 6);
  endfunction
  function automatic logic [63:0] keep_of(input logic last, input logic [31:0] len);
    keep_of = last && (len[5:0] != '0 || len == '0) ? (64'd1 << len[5:0]) - 64'd1 : '1;
  endfunction

  // ---------------------------------------------------------------- Steps
  localparam int unsigned NetIn = 3, GpuIn = 2, NetOut = 1, GpuOut = 0;
  logic [3:0]  kinds_q     [64];
  logic [63:0] read_vas_q  [64];
  logic [63:0] write_vas_q [64];
  logic [25:0] slots_q     [64];
  logic [31:0] lens_q      [64];
  // Which steps have a message, for the engines that pass over those of the other kind.
  logic [63:0] net_in_q, net_out_q;
  always_ff @(posedge clk_i) if (step_we_i) begin
    kinds_q[step_index_i]     <= {step_net_in_i, step_gpu_in_i, step_net_out_i, step_gpu_out_i};
    read_vas_q[step_index_i]  <= step_read_va_i;
    write_vas_q[step_index_i] <= step_write_va_i;
    slots_q[step_index_i]     <= step_slot_i;
    lens_q[step_index_i]      <= step_len_i;
    net_in_q[step_index_i]    <= step_net_in_i;
    net_out_q[step_index_i]   <= step_net_out_i;
  end

  logic             run_q, broken_q, report_q;
  logic [2:0]       status_q;
  logic [6:0]       steps_q;
  logic [7:0]       dtype_q, redop_q;
  logic [WaitW-1:0] wait_q;

  // ---------------------------------------------------------------- Reads of the GPU, ahead of their use; who uses them
  logic [6:0]  ask_step_q, read_step_q;
  logic [6:0]  in_step_q [2];
  wire  [5:0]  ask      = ask_step_q[5:0];
  wire         ask_here = run_q && ask_step_q != steps_q && ask_step_q < in_step_q[0] + Ahead;
  wire         ask_none = !kinds_q[ask][GpuIn] || lens_q[ask] == '0;
  wire  [5:0]  read     = read_step_q[5:0];
  wire         read_none = read_step_q < ask_step_q && (!kinds_q[read][GpuIn] || lens_q[read] == '0);
  assign read_cmd_valid_o = ask_here && !ask_none;
  assign read_cmd_va_o    = read_vas_q[ask];
  assign read_cmd_len_o   = lens_q[ask];

  // ---------------------------------------------------------------- Inputs: 0 with a message, into `reduce`; 1 without, into memory
  logic [25:0] in_beat_q [2];
  logic        meta_q;  // the message has begun
  wire  [1:0]  in_here, in_skip, from_gpu, gpu_has, in_last, taken;
  for (genvar e = 0; e < 2; e++) begin : gen_in
    wire [5:0]  at   = in_step_q[e][5:0];
    wire [31:0] len  = lens_q[at];
    wire        open = run_q && in_step_q[e] != steps_q;
    assign in_here[e]  = open && net_in_q[at] == (e == 0);
    assign in_skip[e]  = open && net_in_q[at] != (e == 0);
    assign from_gpu[e] = kinds_q[at][GpuIn] && len != '0;
    assign gpu_has[e]  = !from_gpu[e] || (read_valid_i && read_step_q == in_step_q[e]);
    assign in_last[e]  = in_beat_q[e] == last_of(len);
  end
  wire net_has = meta_q && rx_valid_i;
  assign taken = {store_valid_o[1] && store_ready_i[1], reduce_valid_o && reduce_ready_i};

  assign rx_meta_ready_o = in_here[0] && !meta_q;
  assign reduce_valid_o  = in_here[0] && net_has && gpu_has[0];
  assign rx_ready_o      = in_here[0] && meta_q && gpu_has[0] && reduce_ready_i;
  assign read_ready_o    = (in_here[0] && from_gpu[0] && read_step_q == in_step_q[0] && net_has && reduce_ready_i) ||
                           (in_here[1] && from_gpu[1] && read_step_q == in_step_q[1] && store_ready_i[1]);
  assign reduce_dtype_o  = dtype_q;
  assign reduce_redop_o  = redop_q;
  assign reduce_copy_o   = !from_gpu[0];
  assign reduce_a_o      = rx_i;
  assign reduce_b_o      = read_i;
  assign reduce_last_o   = in_last[0];

  // ---------------------------------------------------------------- Values into memory
  logic [6:0]  store_step_q;  // with a message
  logic [25:0] store_beat_q;
  wire         stored = store_valid_o[0] && store_ready_i[0];
  assign store_valid_o   = {in_here[1] && gpu_has[1], run_q && reduced_valid_i && net_in_q[store_step_q[5:0]]};
  assign reduced_ready_o = run_q && store_ready_i[0] && net_in_q[store_step_q[5:0]];
  assign store_line_o    = {slots_q[in_step_q[1][5:0]] + in_beat_q[1], slots_q[store_step_q[5:0]] + store_beat_q};
  assign store_o         = {read_i, reduced_i};

  // ---------------------------------------------------------------- What memory has acknowledged, of both kinds of input
  logic [6:0]  ack_step_q [2];
  logic [25:0] ack_beat_q [2];
  logic [31:0] ack_due_q [2];  // acknowledgements that are not counted to a step yet
  wire  [1:0]  ack_open, ack_own;
  for (genvar e = 0; e < 2; e++) begin : gen_ack
    assign ack_open[e] = run_q && ack_step_q[e] != steps_q;
    assign ack_own[e]  = ack_open[e] && net_in_q[ack_step_q[e][5:0]] == (e == 0);
  end

  // ---------------------------------------------------------------- Outputs: 0 with a message, 1 without
  logic [6:0]       load_step_q [2];
  logic [25:0]      load_beat_q [2];
  logic [BufferW:0] under_way_q [2], head_q [2], tail_q [2];
  logic [6:0]       out_step_q [2];
  logic [25:0]      out_beat_q [2];
  logic             tx_meta_q, sent_tx_q, sent_gpu_q;
  // The GPU's write stream belongs to one of them from its command to its last beat.
  logic [1:0]       cmd_q;
  wire  [1:0]       load_skip, asks, out_here, out_skip, to_gpu, cmd_due, out_has, leaves, out_last;
  wire  [511:0]     out [2];
  wire  [63:0]      keep [2];
  for (genvar e = 0; e < 2; e++) begin : gen_out
    wire [5:0] load   = load_step_q[e][5:0];
    wire       loads  = run_q && load_step_q[e] != steps_q && net_out_q[load] == (e == 0);
    wire       kind   = !net_in_q[load];
    wire       acked  = ack_step_q[kind] > load_step_q[e] ||
                        (ack_step_q[kind] == load_step_q[e] && ack_beat_q[kind] > load_beat_q[e]);
    assign load_skip[e]    = run_q && load_step_q[e] != steps_q && net_out_q[load] != (e == 0);
    assign load_valid_o[e] = loads && acked && !under_way_q[e][BufferW];
    assign load_line_o[26*e +: 26] = slots_q[load] + load_beat_q[e];
    assign asks[e] = load_valid_o[e] && load_ready_i[e];

    logic [511:0] buffer_q [1 << BufferW];
    always_ff @(posedge clk_i) if (load_valid_i[e]) buffer_q[head_q[e][BufferW-1:0]] <= load_i[512*e +: 512];

    wire [5:0]  at   = out_step_q[e][5:0];
    wire [31:0] len  = lens_q[at];
    wire        open = run_q && out_step_q[e] != steps_q;
    assign out_here[e] = open && net_out_q[at] == (e == 0);
    assign out_skip[e] = open && net_out_q[at] != (e == 0);
    assign to_gpu[e]   = kinds_q[at][GpuOut] && len != '0;
    // One without a message begins when its value is whole, so that it never holds the stream up for the network.
    assign cmd_due[e]  = out_here[e] && to_gpu[e] && cmd_q == 2'b00 && (e == 0 || ack_step_q[!net_in_q[at]] > out_step_q[e]);
    assign out_has[e]  = out_here[e] && (!to_gpu[e] || cmd_q[e]) && (e == 1 || tx_meta_q) && head_q[e] != tail_q[e];
    assign out[e]      = buffer_q[tail_q[e][BufferW-1:0]];
    assign out_last[e] = out_beat_q[e] == last_of(len);
    assign keep[e]     = keep_of(out_last[e], len);
  end
  assign leaves = {out_has[1] && (!to_gpu[1] || write_ready_i),
                   out_has[0] && (sent_tx_q || tx_ready_i) && (!to_gpu[0] || sent_gpu_q || write_ready_i)};

  assign tx_meta_valid_o   = out_here[0] && !tx_meta_q;
  assign tx_meta_len_o     = lens_q[out_step_q[0][5:0]];
  assign tx_valid_o        = out_has[0] && !sent_tx_q;
  assign tx_o              = out[0];
  assign tx_keep_o         = keep[0];
  assign tx_last_o         = out_last[0];
  // The one with the message first: the next NIC waits for it. But an offer stays.
  logic  offered_q;
  wire   cmd_of            = offered_q || !cmd_due[0];
  assign write_cmd_valid_o = cmd_due != 2'b00;
  assign write_cmd_va_o    = write_vas_q[out_step_q[cmd_of][5:0]];
  assign write_cmd_len_o   = lens_q[out_step_q[cmd_of][5:0]];
  assign write_valid_o     = cmd_q[1] ? out_has[1] : cmd_q[0] && out_has[0] && !sent_gpu_q;
  assign write_o           = out[cmd_q[1]];
  assign write_keep_o      = keep[cmd_q[1]];
  assign write_last_o      = out_last[cmd_q[1]];

  always_ff @(posedge clk_i) begin
    if (ask_here && (ask_none || read_cmd_ready_i)) ask_step_q <= ask_step_q + 7'd1;
    if (read_none || (taken[0] && from_gpu[0] && in_last[0]) || (taken[1] && from_gpu[1] && in_last[1]))
      read_step_q <= read_step_q + 7'd1;

    if (rx_meta_valid_i && rx_meta_ready_o) meta_q <= 1'b1;
    if (taken[0] && in_last[0]) meta_q <= 1'b0;
    for (int unsigned e = 0; e < 2; e++) begin
      if (taken[e]) in_beat_q[e] <= in_last[e] ? '0 : in_beat_q[e] + 26'd1;
      if (in_skip[e] || (taken[e] && in_last[e])) in_step_q[e] <= in_step_q[e] + 7'd1;
    end

    if (stored) begin
      store_beat_q <= store_beat_q + 26'd1;
      if (reduced_last_i) begin
        store_beat_q <= '0;
        store_step_q <= store_step_q + 7'd1;
      end
    end else if (run_q && store_step_q != steps_q && !net_in_q[store_step_q[5:0]]) store_step_q <= store_step_q + 7'd1;

    for (int unsigned e = 0; e < 2; e++) begin
      ack_due_q[e] <= ack_due_q[e] + 32'(store_ack_i[e]) - 32'(ack_own[e] && ack_due_q[e] != '0);
      if (ack_own[e] && ack_due_q[e] != '0) begin
        ack_beat_q[e] <= ack_beat_q[e] + 26'd1;
        if (ack_beat_q[e] == last_of(lens_q[ack_step_q[e][5:0]])) begin
          ack_beat_q[e] <= '0;
          ack_step_q[e] <= ack_step_q[e] + 7'd1;
        end
      end
      if (ack_open[e] && !ack_own[e]) ack_step_q[e] <= ack_step_q[e] + 7'd1;

      if (asks[e]) begin
        load_beat_q[e] <= load_beat_q[e] + 26'd1;
        if (load_beat_q[e] == last_of(lens_q[load_step_q[e][5:0]])) begin
          load_beat_q[e] <= '0;
          load_step_q[e] <= load_step_q[e] + 7'd1;
        end
      end
      if (load_skip[e]) load_step_q[e] <= load_step_q[e] + 7'd1;
      under_way_q[e] <= under_way_q[e] + (BufferW+1)'(asks[e]) - (BufferW+1)'(leaves[e]);
      if (load_valid_i[e]) head_q[e] <= head_q[e] + 1'b1;

      if (leaves[e]) begin
        tail_q[e]     <= tail_q[e] + 1'b1;
        out_beat_q[e] <= out_last[e] ? '0 : out_beat_q[e] + 26'd1;
        if (out_last[e]) cmd_q[e] <= 1'b0;
      end
      if (out_skip[e] || (leaves[e] && out_last[e])) out_step_q[e] <= out_step_q[e] + 7'd1;
      if (write_cmd_valid_o && write_cmd_ready_i && cmd_of == (e == 1)) cmd_q[e] <= 1'b1;
    end
    offered_q <= write_cmd_valid_o && !write_cmd_ready_i && cmd_of;

    if (tx_meta_valid_o && tx_meta_ready_i) tx_meta_q <= 1'b1;
    if (tx_valid_o && tx_ready_i) sent_tx_q <= 1'b1;
    if (write_valid_o && write_ready_i && cmd_q[0]) sent_gpu_q <= 1'b1;
    if (leaves[0]) begin
      sent_tx_q  <= 1'b0;
      sent_gpu_q <= 1'b0;
      if (out_last[0]) tx_meta_q <= 1'b0;
    end

    wait_q <= taken != '0 || stored || asks != '0 || leaves != '0 || !run_q ? '0 : wait_q + 1'b1;
    if (run_q) begin
      if (out_step_q[0] == steps_q && out_step_q[1] == steps_q && written_i) begin
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
      if ((rx_meta_valid_i && rx_meta_ready_o && rx_meta_len_i != lens_q[in_step_q[0][5:0]]) ||
          (taken[0] && rx_last_i != in_last[0])) begin
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
      if (fault_i) begin
        run_q    <= 1'b0;
        broken_q <= 1'b1;
        report_q <= 1'b1;
        status_q <= Address;
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
      {ask_step_q, read_step_q, store_step_q, store_beat_q} <= '0;
      {meta_q, tx_meta_q, cmd_q, sent_tx_q, sent_gpu_q, offered_q} <= '0;
      for (int unsigned e = 0; e < 2; e++) begin
        {in_step_q[e], in_beat_q[e], ack_step_q[e], ack_beat_q[e], ack_due_q[e]} <= '0;
        {load_step_q[e], load_beat_q[e], out_step_q[e], out_beat_q[e]} <= '0;
        {under_way_q[e], head_q[e], tail_q[e]} <= '0;
      end
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
  assign at_step_o       = {out_step_q[1], out_step_q[0], in_step_q[1], in_step_q[0]};
  assign at_beat_o       = {out_beat_q[1], out_beat_q[0], in_beat_q[1], in_beat_q[0]};
endmodule
