// HyperLogLog of a stream of 32-bit items, 16 a cycle, as an engine for `onpath` (FpgaNIC §3.5, §A.3): the registers are those of
// onc-engines::stream::hll, bit for bit.
//
// Each of 16 lanes has registers of its own, so items never wait for each other; the result is the highest of each. A stream counts
// into what the streams before it have left, until a clear or reset. A merge stream is the registers of another sketch instead, 64 in
// a beat, and takes four cycles a beat. The end of each stream gives a result: a beat with the number of items (8 bytes), precision,
// hash (0 Mix, 1 Murmur3) and fault, each one byte; then the registers, 64 a beat, one beat in 16 cycles.
//
// Faults, which leave the valid part counted: bit 0, the stream ended inside an item; bit 1, a merge had not exactly the
// registers of this precision; bit 2, it had a value that no hash gives.
module hll #(
  parameter bit Murmur3 = 1'b0
) (
  input  logic         clk_i,
  input  logic         rst_ni,

  // Clears all registers between two streams, in 4,096 or 16,384 cycles. Precision 16 or 14 is chosen here and in a reset.
  input  logic         clear_valid_i,
  output logic         clear_ready_o,
  input  logic         p16_i,
  // The stream is a merge; counts with its first beat.
  input  logic         merge_i,

  input  logic         op_in_valid_i,
  output logic         op_in_ready_o,
  input  logic [511:0] op_in_i,
  input  logic [63:0]  op_in_keep_i,
  input  logic         op_in_last_i,

  output logic         op_res_valid_o,
  input  logic         op_res_ready_i,
  output logic [511:0] op_res_o,
  output logic [63:0]  op_res_keep_o,
  output logic         op_res_last_o
);
  localparam int unsigned Lanes = 16;
  localparam logic [7:0] MaxRank = Murmur3 ? 8'd44 : 8'd33;

  localparam logic [2:0] Clear = 3'd0;
  localparam logic [2:0] Run   = 3'd1;
  localparam logic [2:0] Drain = 3'd2;  // items are under way
  localparam logic [2:0] Head  = 3'd3;
  localparam logic [2:0] Sweep = 3'd4;

  logic [2:0]  state_q;
  logic        p16_q, open_q, merge_q;
  logic [13:0] row_q;
  logic [5:0]  drain_q;
  wire         last_row = row_q == (p16_q ? 14'h3fff : 14'h0fff);

  // ---------------------------------------------------------------- Beats of the stream
  logic         hold_valid_q;  // beat of a merge, from which each lane takes four values
  logic [1:0]   sub_q;
  wire          merging = open_q ? merge_q : merge_i;
  wire          taken   = op_in_valid_i && op_in_ready_o;

  assign clear_ready_o = state_q == Run && !open_q;
  assign op_in_ready_o = state_q == Run && !(clear_valid_i && !open_q) && (!hold_valid_q || sub_q == 2'd3);

  logic [Lanes-1:0] whole, part, item_valid_q;
  logic [511:0]     item_q, hold_q;
  logic [63:0]      hold_keep_q, items_q;
  logic [9:0]       index_q, next_q;   // beat of a merge: held, next
  logic             past_q, past_hold_q;  // it is behind the last register
  logic [2:0]       fault_q;
  logic [4:0]       count_q, count;
  always_comb begin
    count = '0;
    for (int unsigned i = 0; i < Lanes; i++) begin
      whole[i] = op_in_keep_i[4*i +: 4] == 4'b1111;
      part[i]  = op_in_keep_i[4*i +: 4] != 4'b1111 && op_in_keep_i[4*i +: 4] != 4'b0000;
      count    = count + 5'(item_valid_q[i]);
    end
  end
  wire last_index = next_q == (p16_q ? 10'h3ff : 10'h0ff);

  logic [Lanes-1:0] high;  // a value of a merge is out of range
  always_ff @(posedge clk_i) begin
    item_valid_q <= taken && !merging ? whole : '0;
    item_q       <= op_in_i;
    count_q      <= count;
    items_q      <= items_q + 64'(count_q);

    sub_q       <= sub_q + 2'd1;
    hold_q      <= {128'b0, hold_q[511:128]};
    hold_keep_q <= {16'b0, hold_keep_q[63:16]};
    if (sub_q == 2'd3) hold_valid_q <= 1'b0;
    if (high != '0) fault_q[2] <= 1'b1;
    if (taken) begin
      open_q  <= !op_in_last_i;
      merge_q <= merging;
      if (!open_q) fault_q <= '0;
      if (merging) begin
        hold_valid_q <= 1'b1;
        sub_q        <= '0;
        hold_q       <= op_in_i;
        hold_keep_q  <= op_in_keep_i;
        index_q      <= next_q;
        past_hold_q  <= past_q;
        next_q       <= op_in_last_i ? '0 : next_q + 10'd1;
        past_q       <= !op_in_last_i && (past_q || last_index);
        if (past_q || (op_in_last_i && !(last_index && &op_in_keep_i))) fault_q[1] <= 1'b1;
      end else if (part != '0) fault_q[0] <= 1'b1;
    end
    if (!rst_ni || state_q == Clear) items_q <= '0;
    if (!rst_ni) begin
      item_valid_q <= '0;
      hold_valid_q <= 1'b0;
      open_q       <= 1'b0;
      next_q       <= '0;
      past_q       <= 1'b0;
    end
  end

  // ---------------------------------------------------------------- Lanes
  // In a sweep everything behind the row's number stands while a beat of the result waits.
  wire         en = !op_res_valid_o || op_res_ready_i;
  wire [23:0]  row [Lanes];
  for (genvar i = 0; i < Lanes; i++) begin : gen_lane
    wire        hash_valid;
    wire [15:0] hash_slot;
    wire [5:0]  hash_rank;
    hll_hash #(.Murmur3(Murmur3)) u_hash (
      .clk_i, .rst_ni, .valid_i(item_valid_q[i]), .item_i(item_q[32*i +: 32]),
      .valid_o(hash_valid), .slot_o(hash_slot), .rank_o(hash_rank)
    );
    wire        held = hold_valid_q && hold_keep_q[i] && !past_hold_q;
    wire [7:0]  value = hold_q[8*i +: 8];
    wire [15:0] slot = held ? {index_q, sub_q, 4'(i)} : hash_slot;
    assign high[i] = held && value > MaxRank;
    hll_registers u_registers (
      .clk_i, .rst_ni,
      .valid_i(hash_valid || (held && !high[i])),
      .slot_i({p16_q ? slot[15:14] : 2'b00, slot[13:0]}),
      .rank_i(held ? value[5:0] : hash_rank),
      .clear_i(state_q == Clear && rst_ni), .row_i(row_q), .en_i(en), .row_o(row[i])
    );
  end

  // ---------------------------------------------------------------- The result
  // Highest of 16 lanes in two steps, for the four registers of a row.
  function automatic logic [5:0] most(input logic [5:0] a, input logic [5:0] b);
    most = a > b ? a : b;
  endfunction
  logic        issue_q;  // rows are left to read
  logic [2:0]  under_way_q;
  logic [95:0] fours, fours_q;
  logic [23:0] all, all_q;
  logic [9:0]  beat_q;
  logic [3:0]  rows_q;  // of the beat that is being put together
  always_comb begin
    for (int unsigned r = 0; r < 4; r++) begin
      for (int unsigned g = 0; g < 4; g++)
        fours[24*g + 6*r +: 6] = most(most(row[4*g][6*r +: 6], row[4*g+1][6*r +: 6]),
                                      most(row[4*g+2][6*r +: 6], row[4*g+3][6*r +: 6]));
      all[6*r +: 6] = most(most(fours_q[6*r +: 6], fours_q[24 + 6*r +: 6]),
                           most(fours_q[48 + 6*r +: 6], fours_q[72 + 6*r +: 6]));
    end
  end

  always_ff @(posedge clk_i) begin
    if (en) begin
      op_res_valid_o <= 1'b0;
      under_way_q    <= {under_way_q[1:0], issue_q};
      fours_q        <= fours;
      all_q          <= all;
      if (issue_q) begin
        row_q <= row_q + 14'd1;
        if (last_row) issue_q <= 1'b0;
      end
      if (under_way_q[2]) begin
        op_res_o <= {2'b0, all_q[18 +: 6], 2'b0, all_q[12 +: 6], 2'b0, all_q[6 +: 6], 2'b0, all_q[0 +: 6], op_res_o[511:32]};
        rows_q   <= rows_q + 4'd1;
        if (rows_q == 4'd15) begin
          op_res_valid_o <= 1'b1;
          op_res_last_o  <= beat_q == (p16_q ? 10'h3ff : 10'h0ff);
          beat_q         <= beat_q + 10'd1;
        end
      end
    end
    drain_q <= drain_q + 6'd1;
    case (state_q)
      Clear: begin
        row_q <= row_q + 14'd1;
        if (last_row) state_q <= Run;
      end
      Run: begin
        drain_q <= '0;
        row_q   <= '0;
        if (clear_valid_i && clear_ready_o) begin
          state_q <= Clear;
          p16_q   <= p16_i;
        end
        if (taken && op_in_last_i) state_q <= Drain;
      end
      Drain: if (&drain_q) state_q <= Head;
      Head: begin
        op_res_o       <= {424'b0, 5'b0, fault_q, 7'b0, Murmur3, p16_q ? 8'd16 : 8'd14, items_q};
        op_res_valid_o <= 1'b1;
        op_res_last_o  <= 1'b0;
        issue_q        <= 1'b1;
        rows_q         <= '0;
        beat_q         <= '0;
        state_q        <= Sweep;
      end
      default: if (op_res_valid_o && op_res_ready_i && op_res_last_o) state_q <= Run;
    endcase
    if (!rst_ni) begin
      state_q        <= Clear;
      p16_q          <= p16_i;
      row_q          <= '0;
      issue_q        <= 1'b0;
      under_way_q    <= '0;
      op_res_valid_o <= 1'b0;
    end
  end
  assign op_res_keep_o = '1;
endmodule
