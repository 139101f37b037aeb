// Two users of one `dma_read` and one `dma_write`: commands of both in turn, and each command's data and report for its own user.
//
// User 0 may decide in a cycle in which a port is free, and offer its command in the next one (`direct`): a port that it has seen free stays free
// for it. A command of user 1 waits until user 0 has seen the port free for Turn cycles, and then goes before user 0's next.
// The data of a command holds up those behind it. User 1 must take its data, and have it ready, without waiting (`dma_whole`).
module dma_share #(
  parameter int unsigned Turn = 4
) (
  input  logic          clk_i,
  input  logic          rst_ni,

  // The users' side; bit 0 and the low words are user 0's. A read's data goes past this block, only its handshake is here.
  input  logic [1:0]    read_valid_i,
  output logic [1:0]    read_ready_o,
  input  logic [127:0]  read_va_i,
  input  logic [63:0]   read_len_i,
  output logic [1:0]    data_valid_o,
  input  logic [1:0]    data_ready_i,
  input  logic [1:0]    write_valid_i,
  output logic [1:0]    write_ready_o,
  input  logic [127:0]  write_va_i,
  input  logic [63:0]   write_len_i,
  input  logic [1:0]    wdata_valid_i,
  output logic [1:0]    wdata_ready_o,
  input  logic [1023:0] wdata_i,
  input  logic [1:0]    wdata_cut_i,
  output logic [1:0]    report_valid_o,
  input  logic [1:0]    report_ready_i,

  // `dma_read` and `dma_write`.
  output logic          rcmd_valid_o,
  input  logic          rcmd_ready_i,
  output logic [63:0]   rcmd_va_o,
  output logic [31:0]   rcmd_len_o,
  input  logic          rdata_valid_i,
  output logic          rdata_ready_o,
  input  logic          rdata_last_i,
  output logic          wcmd_valid_o,
  input  logic          wcmd_ready_i,
  output logic [63:0]   wcmd_va_o,
  output logic [31:0]   wcmd_len_o,
  output logic          wbeat_valid_o,
  input  logic          wbeat_ready_i,
  output logic [511:0]  wbeat_o,
  output logic          wbeat_cut_o,
  input  logic          done_valid_i,
  output logic          done_ready_o
);
  // ---------------------------------------------------------------- Whose turn it is; 0 reads, 1 writes
  localparam int unsigned TurnW = $clog2(Turn + 1);
  logic [1:0]       second_q;  // user 1's
  logic [TurnW-1:0] shown_q [2];
  logic             reads_room, beats_room, dones_room;
  wire  [1:0]       first  = {write_valid_i[0], read_valid_i[0]};
  wire  [1:0]       second = {write_valid_i[1], read_valid_i[1]};
  wire  [1:0]       room   = {beats_room && dones_room, reads_room};
  wire  [1:0]       free   = room & {wcmd_ready_i, rcmd_ready_i};
  wire  [1:0]       ready0 = free & (first | ~second_q);
  wire  [1:0]       ready1 = free & ~first & second_q;
  wire  [1:0]       takes1 = ready1 & second;
  wire  [1:0]       takes  = takes1 | (free & first);
  wire  [1:0]       valid  = room & (first | (second & second_q));

  assign read_ready_o  = {ready1[0], ready0[0]};
  assign write_ready_o = {ready1[1], ready0[1]};
  assign rcmd_valid_o  = valid[0];
  assign rcmd_va_o     = first[0] ? read_va_i[63:0] : read_va_i[127:64];
  assign rcmd_len_o    = first[0] ? read_len_i[31:0] : read_len_i[63:32];
  assign wcmd_valid_o  = valid[1];
  assign wcmd_va_o     = first[1] ? write_va_i[63:0] : write_va_i[127:64];
  assign wcmd_len_o    = first[1] ? write_len_i[31:0] : write_len_i[63:32];

  always_ff @(posedge clk_i) begin
    for (int unsigned e = 0; e < 2; e++) begin
      if (takes1[e] || !second[e] || !rst_ni) begin
        second_q[e] <= 1'b0;
        shown_q[e]  <= '0;
      end else if (free[e] && !second_q[e]) begin
        shown_q[e]  <= shown_q[e] + 1'b1;
        second_q[e] <= shown_q[e] == TurnW'(Turn - 1);
      end
    end
  end

  // ---------------------------------------------------------------- Reads: whose the data is
  logic reads_valid, reads_second;
  fifo #(.Width(1), .Depth(64)) i_reads (
    .clk_i, .rst_ni, .in_valid_i(takes[0]), .in_ready_o(reads_room), .in_i(takes1[0]),
    .out_valid_o(reads_valid), .out_ready_i(rdata_valid_i && rdata_ready_o && rdata_last_i), .out_o(reads_second));
  wire mine_valid = reads_valid && rdata_valid_i;
  assign data_valid_o  = {mine_valid && reads_second, mine_valid && !reads_second};
  assign rdata_ready_o = reads_valid && (reads_second ? data_ready_i[1] : data_ready_i[0]);

  // ---------------------------------------------------------------- Writes: whose beats come, and how many; whose the report is
  wire  [32:0] bytes = 33'(wcmd_len_o) + 33'd63;
  wire         unused = ^bytes[5:0];
  logic        beats_valid, beats_second, dones_valid, dones_second;
  logic [26:0] beats, beat_q;
  wire         leaves = wbeat_valid_o && wbeat_ready_i;
  wire         ends   = leaves && (wbeat_cut_o || beat_q + 27'd1 == beats);
  fifo #(.Width(28), .Depth(16)) i_beats (
    .clk_i, .rst_ni, .in_valid_i(takes[1]), .in_ready_o(beats_room), .in_i({takes1[1], bytes[32:6]}),
    .out_valid_o(beats_valid), .out_ready_i(ends), .out_o({beats_second, beats}));
  fifo #(.Width(1), .Depth(16)) i_dones (
    .clk_i, .rst_ni, .in_valid_i(takes[1]), .in_ready_o(dones_room), .in_i(takes1[1]),
    .out_valid_o(dones_valid), .out_ready_i(done_valid_i && done_ready_o), .out_o(dones_second));

  assign wbeat_valid_o  = beats_valid && (beats_second ? wdata_valid_i[1] : wdata_valid_i[0]);
  assign wbeat_o        = beats_second ? wdata_i[1023:512] : wdata_i[511:0];
  assign wbeat_cut_o    = beats_second ? wdata_cut_i[1] : wdata_cut_i[0];
  assign wdata_ready_o  = {beats_valid && beats_second && wbeat_ready_i, beats_valid && !beats_second && wbeat_ready_i};
  assign report_valid_o = {dones_valid && dones_second && done_valid_i, dones_valid && !dones_second && done_valid_i};
  assign done_ready_o   = dones_valid && (dones_second ? report_ready_i[1] : report_ready_i[0]);

  always_ff @(posedge clk_i) begin
    if (leaves) beat_q <= ends ? '0 : beat_q + 27'd1;
    if (!rst_ni) beat_q <= '0;
  end

`ifdef FORMAL
  `include "dma_share_props.svh"
`endif
endmodule
