// The bytes of a transfer from one alignment of beats to another: its first byte lies in lane `from` of the first beat in, and goes to
// lane `to` of the first beat out. One beat in and one out a cycle.
//
// Memory is read and written in aligned lines, a stream begins at lane 0; so reads go from the address's lane to 0, and
// writes from 0 to the address's lane. A cut in place of a beat says that the missing bytes do not come: the transfer then ends with
// a beat that keeps no byte, is marked as a cut too and has the low 64 bits of the one in; bytes that do not fill a beat are dropped.
module dma_align #(
  // Power of two from 8.
  parameter int unsigned Bytes = 64
) (
  input  logic                     clk_i,
  input  logic                     rst_ni,

  input  logic                     cmd_valid_i,
  output logic                     cmd_ready_o,
  input  logic [$clog2(Bytes)-1:0] cmd_from_i,
  input  logic [$clog2(Bytes)-1:0] cmd_to_i,
  // Not 0.
  input  logic [31:0]              cmd_len_i,

  input  logic                     in_valid_i,
  output logic                     in_ready_o,
  input  logic [8*Bytes-1:0]       in_data_i,
  input  logic                     in_cut_i,

  output logic                     out_valid_o,
  input  logic                     out_ready_i,
  output logic [8*Bytes-1:0]       out_data_o,
  output logic [Bytes-1:0]         out_keep_o,
  output logic                     out_last_o,
  output logic                     out_cut_o
);
  localparam int unsigned LaneW = $clog2(Bytes);
  localparam int unsigned BeatW = 33 - LaneW;
  localparam int unsigned DataW = 8 * Bytes;

  logic               busy_q, prime_q, first_q;
  logic [LaneW-1:0]   shift_q, to_q, end_q;
  logic [BeatW-1:0]   in_left_q, out_left_q;
  logic [DataW-1:0]   prev_q;

  wire [32:0] from_end = 33'(cmd_from_i) + 33'(cmd_len_i) - 33'd1;
  wire [32:0] to_end   = 33'(cmd_to_i) + 33'(cmd_len_i) - 33'd1;

  wire        unused   = ^from_end[LaneW-1:0];

  // The beat in, turned by `shift` lanes, stage by stage.
  wire [(LaneW+1)*DataW-1:0] turn;
  assign turn[DataW-1:0] = in_data_i;
  for (genvar i = 0; i < LaneW; i++) begin : gen_turn
    localparam int unsigned N = 8 << i;
    wire [DataW-1:0] earlier = turn[i*DataW +: DataW];
    assign turn[(i+1)*DataW +: DataW] = shift_q[i] ? {earlier[DataW-N-1:0], earlier[DataW-1 -: N]} : earlier;
  end
  wire [DataW-1:0] turned = turn[LaneW*DataW +: DataW];

  wire more  = in_left_q != '0;
  wire room  = !out_valid_o || out_ready_i;
  wire cut   = busy_q && more && in_valid_i && in_cut_i && room;
  wire prime = busy_q && prime_q && in_valid_i && !in_cut_i;
  // A beat out: of the beat in and the one before it, or of that alone at the end.
  wire form  = busy_q && !prime_q && room && (!more || (in_valid_i && !in_cut_i));
  wire last  = out_left_q == BeatW'(1);
  wire ends  = cut || (form && last);

  assign in_ready_o  = busy_q && more && (room || (prime_q && !in_cut_i));
  assign cmd_ready_o = !busy_q || ends;

  logic [DataW-1:0] data;
  logic [Bytes-1:0] keep;
  always_comb begin
    for (int unsigned i = 0; i < Bytes; i++) begin
      data[8*i +: 8] = LaneW'(i) < shift_q ? prev_q[8*i +: 8] : turned[8*i +: 8];
      keep[i] = (!first_q || LaneW'(i) >= to_q) && (!last || LaneW'(i) <= end_q);
    end
  end

  always_ff @(posedge clk_i) begin
    if (out_ready_i) out_valid_o <= 1'b0;
    if (prime || form) prev_q <= turned;
    if (prime) prime_q <= 1'b0;
    if ((prime || form) && more) in_left_q <= in_left_q - 1'b1;
    if (form || cut) begin
      out_valid_o <= 1'b1;
      out_data_o  <= cut ? DataW'(in_data_i[63:0]) : data;
      out_keep_o  <= cut ? '0 : keep;
      out_last_o  <= cut || last;
      out_cut_o   <= cut;
      first_q     <= 1'b0;
      out_left_q  <= out_left_q - 1'b1;
    end
    if (ends) busy_q <= 1'b0;
    if (cmd_valid_i && cmd_ready_o) begin
      busy_q     <= 1'b1;
      first_q    <= 1'b1;
      // Lanes before `to` come of the second beat in, so the first one is only kept.
      prime_q    <= cmd_to_i < cmd_from_i;
      shift_q    <= cmd_to_i - cmd_from_i;
      to_q       <= cmd_to_i;
      end_q      <= to_end[LaneW-1:0];
      in_left_q  <= from_end[32:LaneW] + 1'b1;
      out_left_q <= to_end[32:LaneW] + 1'b1;
    end
    if (!rst_ni) begin
      busy_q      <= 1'b0;
      out_valid_o <= 1'b0;
    end
  end

`ifdef FORMAL
  `include "dma_align_props.svh"
`endif
endmodule
