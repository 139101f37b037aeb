// Proof of router_link_life, included at its end, with another end at the other end of a wire: all words that an end counts while it is Up come from one
// session of the other end, and what that session counts comes from this one. So numbers and credits of another session are never taken for this one's,
// whenever the ends are reset, break off or fall silent.
//
// A session ends when its end leaves Up. A wire passes each word within Line cycles, in order, or loses it; Quiet is more than a round trip.
if (Paired) begin : gen_f
  localparam int unsigned Line = 2;
  logic f_started = 1'b0;
  always_ff @(posedge clk_i) f_started <= 1'b1;

  // ---------------------------------------------------------------- The other end
  (* anyseq *) logic f_rst_n, f_hears, f_agrees, f_broken;
  logic [1:0] f_other, f_state;
  logic       f_up, f_down, f_refused;
  router_link_life #(.Quiet(Quiet), .Silence(Silence), .Paired(1'b0)) f_end (
    .clk_i, .rst_ni(f_rst_n), .hears_i(f_hears), .other_i(f_other), .agrees_i(f_agrees), .broken_i(f_broken), .state_o(f_state), .up_o(f_up),
    .refused_o(f_refused), .down_o(f_down));
  always_comb if (!f_started) assume (!rst_ni && !f_rst_n);

  // ---------------------------------------------------------------- Sessions, and the wire: states and sessions of the cycles before
  logic [3:0] m_mine, m_theirs;          // sessions that have ended
  logic [3:0] m_heard, m_heard_there;    // the other end's session, when this one came Up
  logic [5:0] f_to_q [Line+1], f_from_q [Line+1];
  (* anyseq *) logic [1:0] f_to, f_from; // which of them comes now
  logic [1:0] f_to_before, f_from_before;
  wire  [5:0] f_word = f_from_q[f_from], f_word_there = f_to_q[f_to];
  always_comb begin
    assume (32'(f_to) <= Line && 32'(f_from) <= Line);
    // In order: the one that comes is not older than the one before it.
    if (f_started) assume (f_to <= f_to_before + 2'd1 && f_from <= f_from_before + 2'd1);
    assume (other_i == f_word[1:0] && f_other == f_word_there[1:0]);
  end
  always_ff @(posedge clk_i) begin
    f_to_before   <= f_to;
    f_from_before <= f_from;
    f_to_q[0]     <= {m_mine, state_o};
    f_from_q[0]   <= {m_theirs, f_state};
    for (int k = 0; k < Line; k++) begin
      f_to_q[k+1]   <= f_to_q[k];
      f_from_q[k+1] <= f_from_q[k];
    end
    if (down_o || !rst_ni) m_mine <= m_mine + 4'd1;
    if (f_down || !f_rst_n) m_theirs <= m_theirs + 4'd1;
    if (!up_o) m_heard <= f_word[5:2];
    if (!f_up) m_heard_there <= f_word_there[5:2];
    if (!f_started) begin
      {m_mine, m_theirs, m_heard, m_heard_there} <= '0;
      for (int k = 0; k <= Line; k++) {f_to_q[k], f_from_q[k]} <= '0;
      {f_to_before, f_from_before} <= '0;
    end
  end

  always_comb if (f_started) begin
    if (up_o && hears_i && other_i == Up) assert (f_word[5:2] == m_heard);
    if (f_up && f_hears && f_other == Up) assert (f_word_there[5:2] == m_heard_there);
    if (up_o && f_up) assert (m_heard == m_theirs && m_heard_there == m_mine);
    // An end whose other end has ended the session since stays Down.
    if (up_o && m_heard != m_theirs) assert (f_state == Down);
    if (f_up && m_heard_there != m_mine) assert (state_o == Down);
    // Invariants.
    assert (state_o != 2'd3 && f_state != 2'd3);
  end
end
