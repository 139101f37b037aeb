// Proof of router_link, included at its end, with the sending and the receiving side of two ends joined by a wire: what one takes the other gives, each
// packet once, unchanged and in order, whatever the wire loses; no channel has more packets than slots; neither end finds the other one broken. One
// number is chosen freely.
//
// The two directions of a wire share nothing but the state, so the end is joined to itself: its packets pass one line, and what it tells of its receiving side
// another one. Each line holds up to two words for as long as it likes, and loses any of them. Of the environment it assumes that slots are released
// only when filled, that packets are offered only for channels with a free slot, and that nothing is left on the wire when an end leaves Down, which Quiet
// is for (`router_link_life`).
logic f_started = 1'b0;
always_ff @(posedge clk_i) f_started <= 1'b1;
always_comb if (!f_started) assume (!rst_ni);

// ---------------------------------------------------------------- The wire
(* anyseq *) logic [1:0] f_move, f_lose;
logic             f_packet_q [2];
logic [15:0]      f_number_q [2];   // channel and number
logic [Bits+7:0]  f_data_q [2];
logic             f_tells_q [2];
logic [1:0]       f_said_q [2];
logic [28:0]      f_told_q [2];     // miss, channel of the limit, ack, limit
wire f_puts = wire_ready_i;
// A word in the second place leaves in this cycle; one in the first moves up, or is overrun.
wire [1:0] f_free = {!f_tells_q[1] || f_move[1], !f_packet_q[1] || f_move[0]};
always_ff @(posedge clk_i) begin
  if (f_free[0]) begin
    {f_packet_q[1], f_number_q[1], f_data_q[1]} <= {f_packet_q[0], f_number_q[0], f_data_q[0]};
    f_packet_q[0] <= 1'b0;
  end
  if (f_puts && packet && !f_lose[0] && (f_free[0] || !f_packet_q[0])) begin
    f_packet_q[0] <= 1'b1;
    f_number_q[0] <= {channel, number};
    f_data_q[0]   <= data;
  end
  if (f_free[1]) begin
    {f_tells_q[1], f_said_q[1], f_told_q[1]} <= {f_tells_q[0], f_said_q[0], f_told_q[0]};
    f_tells_q[0] <= 1'b0;
  end
  if (f_puts && !f_lose[1] && (f_free[1] || !f_tells_q[0])) begin
    f_tells_q[0] <= 1'b1;
    f_said_q[0]  <= said_q;
    f_told_q[0]  <= {miss_q, limit_channel_q, ack_q, limit_q};
  end
  if (!f_started || !rst_ni) {f_packet_q[0], f_packet_q[1], f_tells_q[0], f_tells_q[1]} <= '0;
end
wire f_comes = f_packet_q[1] && f_move[0];
always_comb begin
  assume (wire_valid_i == (f_tells_q[1] && f_move[1]));
  assume (wire_i[1:0] == f_said_q[1] && wire_i[63:56] == 8'd0);
  assume ({wire_i[3], wire_i[11:8], wire_i[43:32], wire_i[55:44]} == f_told_q[1]);
  assume (wire_i[2] == f_comes && {wire_i[7:4], wire_i[31:20]} == f_number_q[1]);
  if (f_comes) assume ({wire_i[19:12], wire_i[Bits+63:64]} == f_data_q[1]);
  else assume (wire_i[127:64] == rules);
end
wire f_old = f_packet_q[0] || f_packet_q[1] || packet || said_q == Up || (f_tells_q[0] && f_said_q[0] == Up) || (f_tells_q[1] && f_said_q[1] == Up);
always_ff @(posedge clk_i) if (f_started && $past(state_q) == Down && state_q != Down) assume (!f_old);
always_comb assume (32'(tx_channel_i) < Channels);
always_comb if (tx_valid_i) assume (free_o[tx_channel_i]);

// ---------------------------------------------------------------- The chosen packet
logic [Bits+11:0] m_value;
wire f_takes = tx_valid_i && tx_ready_o && f_next == f_which;
wire f_gives = rx_valid_o != '0 && ack == f_which;
always_ff @(posedge clk_i) if (f_takes) m_value <= {tx_channel_i, tx_i};
always_comb if (f_started) begin
  if (f_gives) assert (rx_o == m_value[Bits+7:0] && rx_valid_o[m_value[Bits+11:Bits+8]]);
  // What is given has been taken.
  assert (ack - f_base <= f_next - f_base && f_next - f_base <= 12'(Window));
  assert (!tx_broken && !rx_broken);
end

// ---------------------------------------------------------------- Invariants
logic m_up = 1'b0;  // the cycle before was Up: what it has left is cleared now
always_ff @(posedge clk_i) m_up <= up_o;
wire [11:0] f_in   = f_next - f_base;
wire [11:0] f_at   = f_which - f_base;
wire [11:0] f_floor = ack - 12'(Window);
// Places of numbers that are on the wire, from the oldest that may be.
wire [11:0] f_e0 = f_number_q[0][11:0] - f_floor, f_e1 = f_number_q[1][11:0] - f_floor, f_ew = number - f_floor;
wire [$clog2(Window)-1:0] f_slotw = number[$clog2(Window)-1:0], f_slot0 = f_number_q[0][$clog2(Window)-1:0], f_slot1 = f_number_q[1][$clog2(Window)-1:0];
wire [11:0] f_top = f_next - f_floor;
wire [11:0] f_a0 = f_told_q[0][23:12] - f_base, f_a1 = f_told_q[1][23:12] - f_base, f_aw = ack_q - f_base, f_a = ack - f_base;
wire f_t0 = f_tells_q[0] && f_said_q[0] == Up, f_t1 = f_tells_q[1] && f_said_q[1] == Up, f_tw = said_q == Up;
always_comb if (f_started) begin
  assert (state_q != 2'd3);
  if (state_q == 2'd1) assert (!f_old);
  if (up_o) begin
    assert (f_send - f_base <= f_in);
    if (f_packet_q[0]) assert (f_e0 < f_top && f_e0 < 12'(2 * Window));
    if (f_packet_q[1]) assert (f_e1 < f_top && f_e1 < 12'(2 * Window));
    if (packet) assert (f_ew < f_top && f_ew < 12'(2 * Window));
    if (f_packet_q[1] && f_packet_q[0]) assert (f_e1 < f_e0 + 12'(Window));
    if (f_packet_q[1] && packet) assert (f_e1 < f_ew + 12'(Window));
    if (f_packet_q[0] && packet) assert (f_e0 < f_ew + 12'(Window));
    // A number that was not given yet has the channel with which it was taken.
    if (packet && f_ew >= 12'(Window)) assert (channel == f_channels[4*f_slotw +: 4]);
    if (f_packet_q[0] && f_e0 >= 12'(Window)) assert (f_number_q[0][15:12] == f_channels[4*f_slot0 +: 4]);
    if (f_packet_q[1] && f_e1 >= 12'(Window)) assert (f_number_q[1][15:12] == f_channels[4*f_slot1 +: 4]);
    // Confirmations grow along the wire.
    if (f_tw) assert (f_aw <= f_a);
    if (f_t0) assert (f_a0 <= f_a && (!f_tw || f_a0 <= f_aw));
    if (f_t1) assert (f_a1 <= f_a && (!f_tw || f_a1 <= f_aw) && (!f_t0 || f_a1 <= f_a0));
    // The chosen packet is the same wherever it is.
    if (f_at < f_in) assert (f_held == m_value);
    if (f_packet_q[0] && f_number_q[0][11:0] == f_which) assert ({f_number_q[0][15:12], f_data_q[0]} == m_value);
    if (f_packet_q[1] && f_number_q[1][11:0] == f_which) assert ({f_number_q[1][15:12], f_data_q[1]} == m_value);
    if (packet && number == f_which) assert ({channel, data} == m_value);
  end else if (!m_up) begin
    assert (f_next == '0 && f_base == '0 && f_send == '0 && ack == '0);
  end
  if (said_q != Up) assert (!packet);
  if (packet) assert (32'(channel) < Channels);
  if (f_packet_q[0]) assert (32'(f_number_q[0][15:12]) < Channels);
  if (f_packet_q[1]) assert (32'(f_number_q[1][15:12]) < Channels);
  if (f_tw) assert (32'(limit_channel_q) < Channels);
  if (f_t0) assert (32'(f_told_q[0][27:24]) < Channels);
  if (f_t1) assert (32'(f_told_q[1][27:24]) < Channels);
end
for (genvar c = 0; c < Channels; c++) begin : gen_f
  // Limits, from the packets received on.
  wire [11:0] got    = f_received[12*c +: 12], credit = f_credits[12*c +: 12], coming = f_coming[12*c +: 12];
  wire [11:0] sender = f_tx_limits[12*c +: 12] - got, receiver = f_rx_limits[12*c +: 12] - got;
  wire [11:0] l0 = f_told_q[0][11:0] - got, l1 = f_told_q[1][11:0] - got, lw = limit_q - got;
  wire c0 = f_t0 && f_told_q[0][27:24] == 4'(c), c1 = f_t1 && f_told_q[1][27:24] == 4'(c), cw = f_tw && limit_channel_q == 4'(c);
  always_comb if (f_started) begin
    if (up_o) begin
      // What the channel has used is what was received and what comes.
      assert (sender == coming + credit && sender <= receiver && receiver <= 12'(Depth));
      if (cw) assert (sender <= lw && lw <= receiver);
      if (c0) assert (sender <= l0 && l0 <= receiver && (!cw || l0 <= lw));
      if (c1) assert (sender <= l1 && l1 <= receiver && (!cw || l1 <= lw) && (!c0 || l1 <= l0));
    end else if (!m_up) begin
      assert (got == '0 && f_tx_limits[12*c +: 12] == '0 && credit == '0);
    end
  end
end
