// Proof of dma_align, included at its end: the bytes out are the bytes in, each once and in order, in the lanes that the transfer
// names, and no other lane is kept. One byte is chosen freely and followed. The environment sends no transfer of 0 bytes.
logic f_started = 1'b0;
always_ff @(posedge clk_i) f_started <= 1'b1;
always_comb if (!f_started) assume (!rst_ni);
always_comb assume (cmd_len_i != '0);
// With narrow beats lengths are short as well, for the solver's sake.
localparam bit Short = Bytes < 64;
always_comb if (Short) assume (cmd_len_i < 32'd1024);

(* anyconst *) logic [31:0]      f_byte;  // its number in the transfer
(* anyconst *) logic [LaneW-1:0] f_lane;  // a lane out
logic             m_busy;  // a transfer of which beats are to come out
logic [LaneW-1:0] m_from, m_to;
logic [31:0]      m_len;
logic [BeatW-1:0] m_in, m_out;  // its beats so far
logic             m_seen;       // the byte was in a beat in
logic [7:0]       m_value;

wire f_in   = in_valid_i && in_ready_o;
wire f_out  = out_valid_o && out_ready_i;
wire f_new  = cmd_valid_i && cmd_ready_o;
// Where the byte lies.
wire [32:0] f_at_in  = 33'(m_from) + 33'(f_byte);
wire [32:0] f_at_out = 33'(m_to) + 33'(f_byte);
wire [32:0] f_ends   = 33'(m_to) + 33'(m_len);
wire [32:0] f_at     = {m_out, f_lane};
wire [32:0] f_past   = {m_out, LaneW'(0)} + 33'(Bytes);
wire        f_inside = f_byte < m_len;

// A transfer is taken before the last beat of the one before it has left: that one is kept aside.
logic       m_old;       // the beat out belongs to the transfer before

always_ff @(posedge clk_i) begin
  if (f_in && !in_cut_i) begin
    m_in <= m_in + 1'b1;
    if (f_inside && m_in == f_at_in[32:LaneW]) begin
      m_seen  <= 1'b1;
      m_value <= in_data_i[8*f_at_in[LaneW-1:0] +: 8];
    end
  end
  if (f_out) begin
    m_old <= 1'b0;
    if (!m_old) begin
      m_out <= m_out + 1'b1;
      if (out_last_o) m_busy <= 1'b0;
    end
  end
  if (f_new) begin
    m_old  <= busy_q || (out_valid_o && !out_ready_i);
    m_busy <= 1'b1;
    m_from <= cmd_from_i;
    m_to   <= cmd_to_i;
    m_len  <= cmd_len_i;
    m_in   <= '0;
    m_out  <= '0;
    m_seen <= 1'b0;
  end
  if (!rst_ni) begin
    m_busy <= 1'b0;
    m_old  <= 1'b0;
  end
end

// A beat that is formed, before it is stored: the properties are of it, so that they hold for the beat out, which is the stored one.
wire [BeatW-1:0] f_formed = m_out + BeatW'(out_valid_o && !m_old);
wire [32:0] f_lane_at = {f_formed, f_lane};
wire [32:0] f_now_end = {f_formed, LaneW'(0)} + 33'(Bytes);
always_comb if (f_started && form) begin
  assert (m_busy);
  assert (keep[f_lane] == (f_lane_at >= 33'(m_to) && f_lane_at < f_ends));
  assert (last == (f_now_end >= f_ends));
  if (f_inside && f_formed == f_at_out[32:LaneW]) begin
    assert (m_seen ? data[8*f_at_out[LaneW-1:0] +: 8] == m_value
                   : f_in && m_in == f_at_in[32:LaneW] &&
                     data[8*f_at_out[LaneW-1:0] +: 8] == in_data_i[8*f_at_in[LaneW-1:0] +: 8]);
  end
end
always_comb if (f_started && cut) assert (m_busy && f_in && in_cut_i);

// The beat out is the one formed before, and stays until it is taken.
always_ff @(posedge clk_i) if (f_started && $past(rst_ni) && rst_ni) begin
  if ($past(form))
    assert (out_valid_o && out_data_o == $past(data) && out_keep_o == $past(keep) && out_last_o == $past(last) && !out_cut_o);
  if ($past(cut))
    assert (out_valid_o && out_cut_o && out_last_o && out_keep_o == '0 && out_data_o[63:0] == $past(in_data_i[63:0]));
  if ($past(out_valid_o && !out_ready_i))
    assert (out_valid_o && $stable(out_data_o) && $stable(out_keep_o) && $stable(out_last_o) && $stable(out_cut_o));
  if ($past(out_ready_i && !form && !cut)) assert (!out_valid_o);
  // One beat out a cycle once the first is there, or was not needed.
  if ($past(busy_q && !prime_q && out_ready_i && in_valid_i)) assert (out_valid_o);
end

// Invariants.
wire [32:0]      f_in_end    = 33'(m_from) + 33'(m_len) - 33'd1;
wire [32:0]      f_out_end   = f_ends - 33'd1;
wire [BeatW-1:0] f_in_beats  = f_in_end[32:LaneW] + 1'b1;
wire [BeatW-1:0] f_out_beats = f_out_end[32:LaneW] + 1'b1;
wire             f_late      = m_to < m_from;
wire [BeatW-1:0] f_ahead     = f_formed + BeatW'(f_late);
always_comb if (f_started) begin
  if (m_old) assert (out_valid_o && out_last_o);
  if (Short) assert (!m_busy || m_len < 32'd1024);
  if (busy_q) begin
    assert (m_busy && m_len != '0);
    assert (shift_q == m_to - m_from && to_q == m_to && end_q == f_out_end[LaneW-1:0]);
    assert (first_q == (f_formed == '0));
    assert (f_formed < f_out_beats && out_left_q == f_out_beats - f_formed);
    assert (m_in <= f_in_beats && in_left_q == f_in_beats - m_in);
    if (prime_q) assert (f_late && m_in == '0 && f_formed == '0);
    else assert (m_in == (f_ahead < f_in_beats ? f_ahead : f_in_beats));
    if (out_valid_o && !m_old) assert (!out_last_o);
    assert (m_seen == (f_inside && f_at_in[32:LaneW] < m_in));
    // The byte waits in the beat before.
    if (m_seen && f_at_out[32:LaneW] >= f_formed)
      assert (f_at_in[32:LaneW] == m_in - 1'b1 && f_at_out[32:LaneW] == f_formed &&
              prev_q[8*f_at_out[LaneW-1:0] +: 8] == m_value);
  end else begin
    assert (m_busy == (out_valid_o && !m_old));
    if (m_busy) assert (out_last_o);
    assert (!m_old);
  end
end
