// The engines of the NIC on the path of received payloads: one slot `onpath` with `hll` or `crc32c` for the segments of one connection;
// those of others pass by. Between slot and engine, `pack` makes whole beats of the segments, which end anywhere.
//
// Commands are those of register ENGINE_COMMAND. One is under way at a time, and waits for the end of a segment. To attach clears the
// engine. A read-out gives the result, then clears the engine again; bytes that come meanwhile wait, and count for the next result. Of an
// item that has not come whole, up to three bytes wait for the rest (rest_o, with the result).
module engines #(
  // As in `onpath`.
  parameter int unsigned Deadline = 32768
) (
  input  logic         clk_i,
  input  logic         rst_ni,

  input  logic         cmd_valid_i,
  // Refused: there is no such command, no engine to read out, or one is under way. Answered at once.
  output logic         cmd_refuse_o,
  input  logic [31:0]  cmd_i,
  input  logic [15:0]  cmd_conn_i,

  // Segments, as `direct` takes them. Those that came before are not shown to the engine once more.
  input  logic         meta_taken_i,
  input  logic [15:0]  meta_conn_i,
  input  logic [31:0]  meta_len_i,
  input  logic         meta_again_i,
  input  logic         in_valid_i,
  output logic         in_ready_o,
  input  logic [511:0] in_i,
  input  logic         in_last_i,
  output logic         out_valid_o,
  input  logic         out_ready_i,
  output logic [511:0] out_o,
  output logic         out_last_o,

  output logic         result_valid_o,
  input  logic         result_ready_i,
  output logic [511:0] result_o,
  output logic [63:0]  result_keep_o,
  output logic         result_last_o,
  output logic         result_error_o,
  output logic [1:0]   rest_len_o,
  output logic [23:0]  rest_o,

  // Since the reset: beats that have passed an engine, and cycles in which an engine alone has held the stream up.
  output logic [31:0]  beats_o,
  output logic [31:0]  stalls_o
);
  // ---------------------------------------------------------------- Which engine, for which connection
  logic [1:0]  what_q, next_q;  // 1, 2: hll of 2^14 and 2^16 registers; 3: crc32c
  logic [15:0] conn_q, next_conn_q;
  logic        pending_q, reads_q;  // a command; it is a read-out
  logic        attach_q, clear_q;   // the engine is in reset, and with attach what is left of the stream before goes
  logic        open_q, mine_q;      // a segment has begun and not ended; the engine sees it
  logic        reading_q;           // a result is under way
  logic        slot_free, slot_empty;

  wire legal = cmd_i <= ringbell_abi_pkg::ENGINE_RESULT;
  wire read  = cmd_i == ringbell_abi_pkg::ENGINE_RESULT;
  assign cmd_refuse_o = !legal || pending_q || (read && (what_q == 2'd0 || reading_q));
  wire calm   = !open_q && !reading_q && slot_empty && !attach_q && !clear_q;
  wire starts = pending_q && calm && !reads_q;
  // The end of the engine's stream is a beat without bytes.
  wire ends       = pending_q && calm && reads_q;
  wire read_done  = result_valid_o && result_ready_i && result_last_o;

  always_ff @(posedge clk_i) begin
    attach_q <= starts;
    clear_q  <= read_done;
    if (cmd_valid_i && !cmd_refuse_o) begin
      pending_q   <= 1'b1;
      reads_q     <= read;
      next_q      <= cmd_i[1:0];
      next_conn_q <= cmd_conn_i;
    end
    if (starts) begin
      pending_q <= 1'b0;
      what_q    <= next_q;
      conn_q    <= next_conn_q;
    end
    if (ends && slot_free) begin
      pending_q <= 1'b0;
      reading_q <= 1'b1;
    end
    if (read_done) reading_q <= 1'b0;
    if (!rst_ni) begin
      what_q    <= '0;
      pending_q <= 1'b0;
      reading_q <= 1'b0;
      attach_q  <= 1'b1;
    end
  end

  // ---------------------------------------------------------------- Segments, through the slot or past it
  logic [31:0] left_q;  // bytes of the segment
  logic        last_q, end_q;  // of the beat in the slot: the last of its segment; the end of the engine's stream
  wire [63:0]  keep  = left_q >= 32'd64 ? '1 : (64'd1 << left_q[5:0]) - 64'd1;
  wire         in    = open_q && in_valid_i;
  wire         taken = in && in_ready_o;
  logic        through_valid;

  // Past the slot when the beat in it is not on its way out.
  assign in_ready_o  = open_q && (mine_q ? slot_free : out_ready_i && !through_valid);
  assign out_valid_o = through_valid ? !end_q : in && !mine_q;
  assign out_last_o  = through_valid ? last_q : in_last_i;

  always_ff @(posedge clk_i) begin
    if (taken) begin
      left_q <= left_q >= 32'd64 ? left_q - 32'd64 : '0;
      if (in_last_i) open_q <= 1'b0;
      if (mine_q) beats_o <= beats_o + 32'd1;
    end
    if (slot_free && (ends || (taken && mine_q))) begin
      last_q <= in_last_i;
      end_q  <= ends;
    end
    if (meta_taken_i) begin
      open_q <= 1'b1;
      left_q <= meta_len_i;
      mine_q <= what_q != '0 && conn_q == meta_conn_i && !meta_again_i;
    end
    if (!rst_ni) begin
      open_q  <= 1'b0;
      beats_o <= '0;
    end
  end

  // ---------------------------------------------------------------- The slot
  logic         slot_rst_n, op_valid, op_ready, res_valid, res_ready, res_last;
  logic         return_valid;
  logic [511:0] slot_beat, res;
  logic [63:0]  slot_keep, res_keep;
  logic         slot_last;
  onpath #(.Deadline(Deadline)) i_onpath (
    .clk_i, .rst_ni,
    .in_valid_i(ends || (in && mine_q)), .in_ready_o(slot_free), .in_i, .in_keep_i(ends ? '0 : keep), .in_last_i(ends),
    .return_i(1'b0),
    .out_valid_o(through_valid), .out_ready_i(end_q || out_ready_i), .out_o(slot_beat), .out_keep_o(slot_keep),
    .out_last_o(slot_last),
    .op_rst_no(slot_rst_n), .op_in_valid_o(op_valid), .op_in_ready_i(op_ready),
    .op_res_valid_i(res_valid), .op_res_ready_o(res_ready), .op_res_i(res), .op_res_keep_i(res_keep), .op_res_last_i(res_last),
    .op_out_valid_o(result_valid_o), .op_out_ready_i(result_ready_i),
    .op_return_valid_o(return_valid), .op_return_ready_i(1'b0),
    .result_o, .result_keep_o, .result_last_o, .result_error_o, .stalls_o);
  assign out_o      = through_valid ? slot_beat : in_i;
  assign slot_empty = slot_free && !through_valid && !op_valid;

  // ---------------------------------------------------------------- The engines
  wire          run_n = slot_rst_n && !attach_q;          // of the stream
  wire          eng_n = run_n && !clear_q;                // of what is counted
  wire          is_hll = what_q == 2'd1 || what_q == 2'd2;
  wire          is_crc = what_q == 2'd3;
  logic         pack_valid, pack_ready, pack_last, pack_in_ready, hll_ready, crc_ready;
  logic [511:0] pack_beat;
  logic [63:0]  pack_keep;
  logic [5:0]   rest_len;
  pack i_pack (
    .clk_i, .rst_ni(run_n), .items_i(is_hll),
    .in_valid_i(op_valid), .in_ready_o(pack_in_ready), .in_i(slot_beat), .in_keep_i(slot_keep), .in_flush_i(slot_last),
    .out_valid_o(pack_valid), .out_ready_i(pack_ready), .out_o(pack_beat), .out_keep_o(pack_keep), .out_last_o(pack_last),
    .rest_len_o(rest_len), .rest_o);
  assign op_ready   = pack_in_ready;
  assign pack_ready = eng_n && (is_hll ? hll_ready : is_crc && crc_ready);
  // A read-out leaves less than an item.
  assign rest_len_o = rest_len[1:0];

  // An engine that is not chosen stands still.
  logic         hll_clk, crc_clk, hll_res_valid, crc_res_valid, hll_last, crc_last, clear_ready;
  logic [511:0] hll_res, crc_res;
  logic [63:0]  hll_keep, crc_keep;
  clock_gate i_hll_clk (.clk_i, .en_i(is_hll), .clk_o(hll_clk));
  clock_gate i_crc_clk (.clk_i, .en_i(is_crc), .clk_o(crc_clk));
  hll i_hll (
    .clk_i(hll_clk), .rst_ni(eng_n), .clear_valid_i(1'b0), .clear_ready_o(clear_ready), .p16_i(what_q[1]), .merge_i(1'b0),
    .op_in_valid_i(pack_valid && is_hll && eng_n), .op_in_ready_o(hll_ready), .op_in_i(pack_beat), .op_in_keep_i(pack_keep),
    .op_in_last_i(pack_last),
    .op_res_valid_o(hll_res_valid), .op_res_ready_i(res_ready && is_hll), .op_res_o(hll_res), .op_res_keep_o(hll_keep),
    .op_res_last_o(hll_last));
  crc32c i_crc32c (
    .clk_i(crc_clk), .rst_ni(eng_n),
    .op_in_valid_i(pack_valid && is_crc && eng_n), .op_in_ready_o(crc_ready), .op_in_i(pack_beat), .op_in_keep_i(pack_keep),
    .op_in_last_i(pack_last),
    .op_res_valid_o(crc_res_valid), .op_res_ready_i(res_ready && is_crc), .op_res_o(crc_res), .op_res_keep_o(crc_keep),
    .op_res_last_o(crc_last));
  assign res_valid = is_hll ? hll_res_valid : is_crc && crc_res_valid;
  assign res       = is_hll ? hll_res : crc_res;
  assign res_keep  = is_hll ? hll_keep : crc_keep;
  assign res_last  = is_hll ? hll_last : crc_last;
  wire unused = ^{clear_ready, return_valid, rest_len[5:2]};
endmodule
