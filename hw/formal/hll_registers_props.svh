// Proof of hll_registers, included at its end: a register is the highest rank of the items that came for it since it was cleared.
// The environment keeps the distance between items and sweeps that the module's head asks for. One register is chosen freely.
logic f_started = 1'b0;
always_ff @(posedge clk_i) f_started <= 1'b1;
always_comb if (!f_started) assume (!rst_ni);

(* anyconst *) logic [15:0] f_slot;
logic [5:0] m_value;
logic       m_cleared;  // since the reset
logic [1:0] m_quiet;    // cycles since the last item, up to three
wire f_item = valid_i && slot_i == f_slot;

always_comb begin
  if (clear_i) assume (m_quiet == 2'd3 && !valid_i && rst_ni);
  if (valid_i) assume (en_i);
end
always_ff @(posedge clk_i) begin
  if (f_item && rank_i > m_value) m_value <= rank_i;
  if (clear_i && row_i == f_slot[15:2]) begin
    m_value   <= '0;
    m_cleared <= 1'b1;
  end
  m_quiet <= valid_i ? 2'd0 : m_quiet == 2'd3 ? 2'd3 : m_quiet + 2'd1;
  if (!rst_ni) begin
    m_cleared <= 1'b0;
    m_quiet   <= 2'd0;
  end
end

// A row that is read while no item is under way.
wire f_read = f_started && rst_ni && m_cleared && m_quiet == 2'd3 && en_i && !valid_i && !clear_i && row_i == f_slot[15:2];
always_ff @(posedge clk_i)
  if (f_started && $past(f_read)) assert (row_o[6*f_slot[1:0] +: 6] == $past(m_value));

// Invariants: the register in memory, and those of its items that it misses yet.
wire [5:0] f_bank [4];
for (genvar b = 0; b < 4; b++) begin : gen_f
  assign f_bank[b] = gen_bank[b].bank_q[f_slot[15:2]];
end
wire f_one   = valid1_q && slot1_q == f_slot;
wire f_two   = valid2_q && slot2_q == f_slot;
wire f_three = valid3_q && slot3_q == f_slot;
wire [5:0] f_known = f_two ? value2_q : f_bank[f_slot[1:0]];
always_comb if (f_started && rst_ni && m_cleared) begin
  assert (m_value == (f_one && rank1_q > f_known ? rank1_q : f_known));
  if (f_three && !f_two) assert (value3_q == f_bank[f_slot[1:0]]);
  // What was read is what the memory had before the write of stage 3.
  if (f_one && !f_two && !f_three) assert (row_o[6*f_slot[1:0] +: 6] == f_bank[f_slot[1:0]]);
end
always_comb if (f_started && rst_ni) begin
  if (valid1_q) assert (m_quiet == 2'd0);
  if (valid2_q) assert (m_quiet <= 2'd1);
  if (valid3_q) assert (m_quiet <= 2'd2);
end
