// What the proof of router_link reads of router_link_tx, included at its end. It asserts that packets which nothing confirms are sent again, from the oldest on,
// within Again cycles.
logic f_started = 1'b0;
always_ff @(posedge clk_i) f_started <= 1'b1;
always_comb begin
  {f_next_o, f_base_o, f_send_o} = {next_q, base_q, send_q};
  f_held_o = mem_q[f_which_i[AtW-1:0]];
end
for (genvar c = 0; c < Channels; c++) begin : gen_f
  logic [11:0] coming;  // packets that the other end does not have
  always_comb begin
    coming = '0;
    for (int k = 0; k < Window; k++)
      if (12'(k) < next_q - f_expected_i && mem_q[AtW'(f_expected_i + 12'(k))][Width+3:Width] == 4'(c)) coming = coming + 12'd1;
  end
  assign {f_limits_o[12*c +: 12], f_credits_o[12*c +: 12], f_coming_o[12*c +: 12]} = {limit_q[c], 12'(credit_q[c]), coming};
end
// Another end may confirm what was not sent, for a cycle.
always_comb for (int k = 0; k < Window; k++)
  if (Alone && f_started && 12'(k) < held) assert (32'(mem_q[AtW'(base_q + 12'(k))][Width+3:Width]) < Channels);
for (genvar k = 0; k < Window; k++) begin : gen_f_channels
  assign f_channels_o[4*k +: 4] = mem_q[k][Width+3:Width];
end
logic [11:0] m_still;  // cycles in which packets wait, none is confirmed, and none is sent again
always_ff @(posedge clk_i) begin
  m_still <= held == '0 || confirmed != '0 || again_o || !up_i || !rst_ni ? '0 : m_still + 12'd1;
  if (f_started && $past(again_o && rst_ni)) begin
    if ($past(told_i)) assert (!up_i || send_q == $past(ack_i));
    assert (!up_i || send_q == base_q);
  end
end
always_comb if (f_started) assert (32'(m_still) <= Again && 32'(timer_q) == 32'(m_still));
