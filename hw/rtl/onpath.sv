// The slot of an engine on the path of a stream (FpgaNIC §2.5.2, §A.3): the stream goes from the network to the GPU as it came, and
// beat by beat to the engine too (op_in). At the stream's end the engine gives a result of some beats, which goes to the GPU (op_out) or
// back to the network (op_return). The next stream begins when the result has left.
//
// Every stream is followed by exactly one result, for every behaviour of the engine. An engine that is awaited for Deadline cycles in a row, or
// gives a result of more than ResultBeats beats, has failed: it is in reset until the result of its stream has left, which
// then ends with a beat marked as an error, without bytes. The stream goes on without it.
module onpath #(
  // hll clears its registers in 16,384.
  parameter int unsigned Deadline    = 32768,
  // At least 1; hll has 1,025.
  parameter int unsigned ResultBeats = 2048
) (
  input  logic         clk_i,
  input  logic         rst_ni,

  input  logic         in_valid_i,
  output logic         in_ready_o,
  input  logic [511:0] in_i,
  input  logic [63:0]  in_keep_i,
  input  logic         in_last_i,
  // The result goes back to the network; counts with the last beat.
  input  logic         return_i,

  output logic         out_valid_o,
  input  logic         out_ready_i,
  // The beat, here and at op_in.
  output logic [511:0] out_o,
  output logic [63:0]  out_keep_o,
  output logic         out_last_o,

  output logic         op_rst_no,
  output logic         op_in_valid_o,
  input  logic         op_in_ready_i,
  input  logic         op_res_valid_i,
  output logic         op_res_ready_o,
  input  logic [511:0] op_res_i,
  input  logic [63:0]  op_res_keep_i,
  input  logic         op_res_last_i,

  output logic         op_out_valid_o,
  input  logic         op_out_ready_i,
  output logic         op_return_valid_o,
  input  logic         op_return_ready_i,
  // The result's beat, at the one or the other.
  output logic [511:0] result_o,
  output logic [63:0]  result_keep_o,
  output logic         result_last_o,
  output logic         result_error_o,

  // Cycles in which the engine alone has held the stream up, since the reset.
  output logic [31:0]  stalls_o
);
  localparam int unsigned WaitW = $clog2(Deadline + 1);
  localparam int unsigned BeatW = $clog2(ResultBeats + 1);

  // ---------------------------------------------------------------- The stream
  logic         full_q, sent_out_q, sent_op_q, last_q, return_q, failed_q;
  logic [511:0] beat_q;
  logic [63:0]  keep_q;
  logic         result_q;  // the stream has ended, and its result has not left

  wire out_done = sent_out_q || out_ready_i;
  wire op_done  = sent_op_q || failed_q || op_in_ready_i;
  wire leaves   = full_q && out_done && op_done;

  // After a last beat comes the result.
  assign in_ready_o    = !result_q && (!full_q || (leaves && !last_q));
  assign out_valid_o   = full_q && !sent_out_q;
  assign op_in_valid_o = full_q && !sent_op_q && !failed_q;
  assign out_o         = beat_q;
  assign out_keep_o    = keep_q;
  assign out_last_o    = last_q;
  assign op_rst_no     = rst_ni && !failed_q;

  // ---------------------------------------------------------------- The result
  logic             res_full_q, res_last_q, res_error_q;
  logic [511:0]     res_q;
  logic [63:0]      res_keep_q;
  logic [WaitW-1:0] wait_q;
  logic [BeatW-1:0] beats_q;

  wire res_leaves = res_full_q && (return_q ? op_return_ready_i : op_out_ready_i);
  // A beat of the result can be taken: its last one ends it.
  wire res_wanted = result_q && (!res_full_q || (res_leaves && !res_last_q));
  wire awaited    = !failed_q && ((op_in_valid_o && !op_in_ready_i) || (res_wanted && !op_res_valid_i));
  wire endless    = res_wanted && op_res_valid_i && !op_res_last_i && beats_q == BeatW'(ResultBeats - 1);

  assign op_res_ready_o    = res_wanted && !failed_q;
  assign op_out_valid_o    = res_full_q && !return_q;
  assign op_return_valid_o = res_full_q && return_q;
  assign result_o          = res_q;
  assign result_keep_o     = res_keep_q;
  assign result_last_o     = res_last_q;
  assign result_error_o    = res_error_q;

  always_ff @(posedge clk_i) begin
    if (full_q) begin
      sent_out_q <= sent_out_q || out_ready_i;
      sent_op_q  <= sent_op_q || op_in_ready_i;
    end
    if (leaves) begin
      full_q   <= 1'b0;
      result_q <= last_q;
      beats_q  <= '0;
    end
    if (in_valid_i && in_ready_o) begin
      full_q     <= 1'b1;
      sent_out_q <= 1'b0;
      sent_op_q  <= 1'b0;
      beat_q     <= in_i;
      keep_q     <= in_keep_i;
      last_q     <= in_last_i;
      return_q   <= return_i;
    end

    if (res_leaves) begin
      res_full_q <= 1'b0;
      if (res_last_q) begin
        result_q <= 1'b0;
        failed_q <= 1'b0;
      end
    end
    if (res_wanted && (failed_q || op_res_valid_i)) begin
      res_full_q  <= 1'b1;
      res_q       <= op_res_i;
      res_keep_q  <= failed_q ? '0 : op_res_keep_i;
      res_last_q  <= failed_q || op_res_last_i;
      res_error_q <= failed_q;
      beats_q     <= beats_q + 1'b1;
    end

    wait_q <= awaited ? wait_q + 1'b1 : '0;
    if ((awaited && wait_q == WaitW'(Deadline - 1)) || (endless && !failed_q)) failed_q <= 1'b1;
    if (full_q && out_done && !op_done) stalls_o <= stalls_o + 32'd1;
    if (!rst_ni) begin
      full_q     <= 1'b0;
      result_q   <= 1'b0;
      res_full_q <= 1'b0;
      failed_q   <= 1'b0;
      wait_q     <= '0;
      stalls_o   <= '0;
    end
  end

`ifdef FORMAL
  `include "onpath_props.svh"
`endif
endmodule
