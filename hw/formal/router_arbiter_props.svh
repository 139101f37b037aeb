// Proof of router_arbiter, included at its end: it picks at most one queue, and one that asks; a turn has at most R packets. Of the queues, one chosen freely is
// followed: while it asks, at most N - 1 turns are those of others, the one under way included, so at most (N - 1) * R packets leave before its own.
// With skip_i an output that is ready takes a packet in each cycle that has one; without it, each cycle gives a packet or ends a turn.
//
// It assumes that R and skip_i stay as they are.
logic f_started = 1'b0;
always_ff @(posedge clk_i) f_started <= 1'b1;
always_comb if (!f_started) assume (!rst_ni);

(* anyconst *) logic [7:0]     f_poll;
(* anyconst *) logic           f_skip;
(* anyconst *) logic [AtW-1:0] f_which;
always_comb assume (poll_i == f_poll && skip_i == f_skip && 32'(f_which) < N);

wire f_asks   = request_i[f_which];
wire f_leaves = pick_o[f_which] && ready_i;
wire f_begins = skip_i ? !stay && ready_i && request_i != '0 : !(stay && taken_q + 8'd1 < most) && (ready_i || !stay);
logic [7:0] m_turns;  // turns that have begun while the chosen queue asks
always_ff @(posedge clk_i) begin
  if (f_begins) m_turns <= m_turns + 8'd1;
  if (f_leaves || !f_asks || !rst_ni) m_turns <= '0;
end
// Turns until its own: none while it has the turn, all of the others when it has used its own up.
wire [7:0] f_ahead = f_which >= turn_q ? 8'(f_which) - 8'(turn_q) : 8'(f_which) + 8'(N) - 8'(turn_q);
wire [7:0] f_left  = f_ahead != '0 ? f_ahead : taken_q < most ? 8'd0 : 8'(N);

always_comb if (f_started) begin
  assert (32'(turn_q) < N && taken_q <= most && (skip_i || taken_q < most));
  assert (m_turns <= 8'(N) && m_turns + f_left <= 8'(N));
  if (rst_ni) begin
    assert ((pick_o & (pick_o - N'(1))) == '0 && (pick_o & ~request_i) == '0);
    if (skip_i && request_i != '0) assert (pick_o != '0);
    // The turns of others: the last of N is its own.
    if (f_asks && ready_i && !f_leaves) assert (m_turns < 8'(N));
    if (ready_i && !f_begins) assert (pick_o != '0 || (skip_i && request_i == '0));
  end
end
always_ff @(posedge clk_i) if (f_started && $past(rst_ni) && rst_ni) begin
  // A turn goes on for one packet at a time.
  if (!$past(f_begins)) assert ($stable(turn_q) && taken_q == $past(taken_q) + 8'($past(ready_i && pick_o != '0)));
  else assert (taken_q == 8'(skip_i));
end
