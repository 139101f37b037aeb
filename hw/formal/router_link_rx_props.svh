// Proof of router_link_rx, included at its end: whatever the other end sends, packets come in the order of their numbers, each number once, and into a free
// slot; the free slots and the packets that stand here are Depth together, also while the wire is down. One channel is chosen freely.
//
// Alone, it assumes that a slot is released only while a packet stands in it; in a router that is proved.
logic f_started = 1'b0;
always_ff @(posedge clk_i) f_started <= 1'b1;
always_comb if (!f_started) assume (!rst_ni);

logic [11:0] m_next;               // packets since the wire came up
logic [11:0] m_stand [Channels];   // packets that stand here
always_ff @(posedge clk_i) begin
  m_next <= m_next + 12'(out_valid_o != '0);
  if (!up_i || !rst_ni) m_next <= '0;
end
for (genvar c = 0; c < Channels; c++) begin : gen_f
  always_ff @(posedge clk_i) begin
    m_stand[c] <= m_stand[c] + 12'(out_valid_o[c]) - 12'(release_i[c]);
    if (!rst_ni) m_stand[c] <= '0;
  end
  assign {f_received_o[12*c +: 12], f_limits_o[12*c +: 12], f_stand_o[12*c +: 12]} = {received_q[c], limit_q[c], m_stand[c]};
  if (Alone) begin : gen_alone
    always_comb if (f_started) assume (!release_i[c] || m_stand[c] != '0);
  end else begin : gen_whole
    always_comb if (f_started && rst_ni) assert (!release_i[c] || m_stand[c] != '0);
  end
  always_comb if (f_started && rst_ni) begin
    assert (m_stand[c] <= 12'(Depth) && m_stand[c] + (limit_q[c] - received_q[c]) == 12'(Depth));
    if (out_valid_o[c]) assert (m_stand[c] < 12'(Depth) && channel_i == 4'(c));
    // What is told is no more than the slots that are free.
    if (limit_channel_o == 4'(c)) assert (limit_o - received_q[c] == 12'(Depth) - m_stand[c]);
    // The next packet is taken where a slot is free.
    if (up_i && packet_i && channel_i == 4'(c) && number_i == m_next && m_stand[c] < 12'(Depth)) assert (out_valid_o[c]);
  end
end
always_comb if (f_started && rst_ni) begin
  if (out_valid_o != '0) assert (up_i && packet_i && number_i == m_next && !broken_o && out_o == in_i);
  assert ((out_valid_o & (out_valid_o - Channels'(1))) == '0);
  assert (ack_o == m_next && 32'(limit_channel_o) < Channels);
end
