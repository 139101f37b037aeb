// Proof of dma_share, included at its end: a port that user 0 has seen free stays free for it, which the proof of `direct` assumes; each command that leaves is
// one user's, unchanged; user 1 waits for at most Turn + 1 cycles in which the port is free. That data and reports come to the user of their
// command is left to the simulation.
//
// It assumes that a DMA that is ready stays so until it takes a command, and that user 0 offers one only after a cycle in which it has seen
// the port free, and then until it is taken.
logic f_started = 1'b0;
always_ff @(posedge clk_i) f_started <= 1'b1;
always_comb if (!f_started) assume (!rst_ni);

logic f_ran = 1'b0;  // the cycle before was none of a reset
always_ff @(posedge clk_i) f_ran <= f_started && rst_ni;
wire f_runs = f_ran && rst_ni;
always_ff @(posedge clk_i) if (f_runs) begin
  if ($past(rcmd_ready_i && !rcmd_valid_o)) assume (rcmd_ready_i);
  if ($past(wcmd_ready_i && !wcmd_valid_o)) assume (wcmd_ready_i);
end

for (genvar e = 0; e < 2; e++) begin : gen_f
  // Free cycles in which user 1 has waited with its command.
  logic [TurnW:0] m_waits;
  always_ff @(posedge clk_i) begin
    if (free[e]) m_waits <= m_waits + 1'b1;
    if (takes1[e] || !second[e] || !rst_ni) m_waits <= '0;
  end
  always_comb if (f_started) begin
    if (second_q[e]) assert (m_waits == (TurnW+1)'(Turn) || m_waits == (TurnW+1)'(Turn + 1));
    if (rst_ni && m_waits == (TurnW+1)'(Turn + 1)) assert (!first[e]);
    if (!second_q[e]) assert (m_waits == (TurnW+1)'(shown_q[e]) && 32'(shown_q[e]) < Turn);
  end
  always_ff @(posedge clk_i) begin
    if (f_started && !$past(rst_ni)) assume (!first[e]);
    if (f_runs) begin
      if ($past(first[e] && !ready0[e])) assume (first[e]);
      else if (!$past(ready0[e] && !first[e])) assume (!first[e]);
      if ($past(ready0[e] && !first[e]) && first[e]) assert (ready0[e]);
    end
  end
  always_comb if (f_started) begin
    assert (!(ready0[e] && first[e] && ready1[e] && second[e]));
    assert (takes[e] == ((ready0[e] && first[e]) || (ready1[e] && second[e])));
  end
end
always_comb if (f_started) begin
  assert (takes[0] == (rcmd_valid_o && rcmd_ready_i) && takes[1] == (wcmd_valid_o && wcmd_ready_i));
  if (takes[0]) assert ({rcmd_va_o, rcmd_len_o} == (takes1[0] ? {read_va_i[127:64], read_len_i[63:32]} : {read_va_i[63:0], read_len_i[31:0]}));
  if (takes[1]) assert ({wcmd_va_o, wcmd_len_o} == (takes1[1] ? {write_va_i[127:64], write_len_i[63:32]} : {write_va_i[63:0], write_len_i[31:0]}));
end
