// Proof of desc, included at its end: entries of a queue are consumed in the order of tickets, each once, only as a whole and into a
// free slot; each consumed entry retires at most once, by its own completion line with its own number. One slot of one queue is
// chosen freely. The environment answers each fetch once, and keeps what it offers until it is taken.
logic f_started = 1'b0;
always_ff @(posedge clk_i) f_started <= 1'b1;
always_comb if (!f_started) assume (!rst_ni);

(* anyconst *) queue_t               f_queue;
(* anyconst *) logic [DepthLog2-1:0] f_slot;
logic         m_set, m_fetching, m_held, m_asked;
logic [63:0]  m_sq, m_cq, m_wr_id;
logic [3:0]   m_depth;
logic [31:0]  m_next, m_ticket;
logic [7:0]   m_opcode;
logic [511:0] m_entry;
wire f_setup = setup_valid_i && setup_ready_o && setup_queue_i == 9'(f_queue) && 32'(setup_depth_i) <= DepthLog2;
wire [DepthLog2-1:0] m_mask = DepthLog2'((32'd1 << m_depth) - 32'd1);
wire f_mine   = op_queue_o == 9'(f_queue);
wire f_takes  = op_valid_o && op_ready_i && f_mine;
wire f_issues = f_takes && (op_ticket_o[DepthLog2-1:0] & m_mask) == f_slot;
// The completion that is being written.
logic         m_done, m_own;
logic [8:0]   m_done_queue;
logic [31:0]  m_done_ticket;
logic [7:0]   m_status;
logic [63:0]  m_bytes, m_detail;
wire f_done_mine = m_done_queue == 9'(f_queue) && (m_done_ticket[DepthLog2-1:0] & m_mask) == f_slot;
wire f_retires   = line_valid_o && line_ready_i && f_done_mine;

always_comb if (entry_valid_i) assume (m_asked);
always_ff @(posedge clk_i) begin
  if (f_setup) begin
    m_set   <= 1'b1;
    m_sq    <= setup_sq_i;
    m_cq    <= setup_cq_i;
    m_depth <= setup_depth_i;
    m_next  <= setup_ticket_i;
    m_held  <= 1'b0;
  end
  if (fetch_valid_o && fetch_ready_i) m_asked <= 1'b1;
  if (entry_valid_i) begin
    m_asked <= 1'b0;
    m_entry <= entry_i;
  end
  if (f_takes) m_next <= m_next + 32'd1;
  if (f_issues) begin
    m_held   <= 1'b1;
    m_ticket <= op_ticket_o;
    m_wr_id  <= op_entry_o[447:384];
    m_opcode <= op_entry_o[7:0];
  end
  if (f_retires) m_held <= 1'b0;
  if (done_valid_i && done_ready_o) begin
    m_done        <= 1'b1;
    // Whether it was that of a descriptor that had not retired.
    m_own         <= m_held && done_ticket_i == m_ticket;
    m_done_queue  <= done_queue_i;
    m_done_ticket <= done_ticket_i;
    m_status      <= done_status_i;
    m_bytes       <= done_bytes_i;
    m_detail      <= done_detail_i;
  end
  if (stray_o || (line_valid_o && line_ready_i)) m_done <= 1'b0;
  if (!rst_ni) begin
    m_set   <= 1'b0;
    m_asked <= 1'b0;
    m_held  <= 1'b0;
    m_done  <= 1'b0;
  end
end

wire f_lap = ((m_next >> m_depth) & 32'd1) == 32'd0;
always_comb if (f_started) begin
  if (fetch_valid_o && at_q == f_queue) begin
    assert (m_set && !m_asked);
    assert (fetch_addr_o == m_sq + 64 * 64'(m_next[DepthLog2-1:0] & m_mask));
    if ((m_next[DepthLog2-1:0] & m_mask) == f_slot) assert (!m_held);
  end
  if (op_valid_o && f_mine) begin
    assert (m_set && op_ticket_o == m_next);
    for (int i = 0; i < 8; i++) begin
      assert (m_entry[64*i + 63] == f_lap);
      assert (op_entry_o[64*i +: 63] == m_entry[64*i +: 63]);
      assert (op_entry_o[64*i + 63] == (i < 7 && m_entry[448 + i]));
    end
    if ((op_ticket_o[DepthLog2-1:0] & m_mask) == f_slot) assert (!m_held);
  end
  assert (m_done == (line_valid_o || stray_o));
  assert (!(line_valid_o && stray_o));
  if (line_valid_o && f_done_mine) begin
    assert (m_held && m_done_ticket == m_ticket);
    assert (line_addr_o == m_cq + 64 * 64'(f_slot));
    assert (line_o[31:0] == {15'd0, m_detail != '0, m_opcode, m_status} && line_o[63:32] == m_ticket + 32'd1);
    assert (line_o[127:64] == m_bytes && line_o[191:128] == m_wr_id && line_o[255:192] == m_detail);
  end
  // A completion of a descriptor that has not retired is no stray.
  if (stray_o && m_set && f_done_mine) assert (!m_own);
end
always_ff @(posedge clk_i) if (f_started && $past(rst_ni) && rst_ni) begin
  if ($past(fetch_valid_o && !fetch_ready_i)) assert (fetch_valid_o && $stable(fetch_addr_o));
  if ($past(op_valid_o && !op_ready_i)) assert (op_valid_o && $stable(op_entry_o) && $stable(op_ticket_o) && $stable(op_queue_o));
  if ($past(line_valid_o && !line_ready_i)) assert (line_valid_o && $stable(line_o) && $stable(line_addr_o));
  // A doorbell is not forgotten: its queue is looked at after it.
  if ($past(bell_valid_i && bell_ready_o && bell_queue_i == 9'(f_queue) && m_set)) assert (ring_q[f_queue]);
end

// Invariants.
wire [PermitW-1:0] f_permit = {f_queue, f_slot};
wire f_sweeps = state_q == Sweep && at_q == f_queue;
always_comb if (f_started) begin
  assert (state_q <= Sweep);
  assert (m_set == (set_q[f_queue] || f_sweeps));
  assert (m_asked == (state_q == Wait));
  assert (m_done == done_q);
  if (state_q == Sweep) assert (!done_q);
  if (m_set) begin
    assert (sq_q[f_queue] == m_sq && cq_q[f_queue] == m_cq && depth_q[f_queue] == m_depth && next_q[f_queue] == m_next);
    assert (32'(m_depth) <= DepthLog2);
    if (!f_sweeps) assert (m_held == (issued_q[f_permit] != retired_q[f_permit]));
    else begin
      assert (!m_held);
      if (f_slot < sweep_q) assert (!issued_q[f_permit] && !retired_q[f_permit]);
    end
    if (m_held) assert (permit_q[f_permit] == {m_ticket, m_opcode, m_wr_id} && (m_ticket[DepthLog2-1:0] & m_mask) == f_slot);
  end
  if (state_q != Pick && state_q != Sweep && at_q == f_queue) begin
    assert (m_set);
    if (state_q != Look) begin
      assert (ticket_q == m_next && depth_at_q == m_depth && sq_at_q == m_sq);
      if ((state_q == Wait || state_q == Check || state_q == Offer) && slot == f_slot) assert (!m_held);
      if (state_q == Check || state_q == Offer) assert (entry_q == m_entry);
      if (state_q == Offer) assert (is_whole);
    end
  end
  if (done_q) begin
    assert (9'(done_queue_q) == m_done_queue || !held_q);
    assert (done_ticket_q == m_done_ticket && done_status_q == m_status && done_bytes_q == m_bytes && done_detail_q == m_detail);
    if (m_set && f_done_mine) begin
      assert (done_queue_q == f_queue && done_slot_q == f_slot && cq_at_q == m_cq);
      if (held_q) assert (m_held && permit_rd_q == permit_q[f_permit]);
      if (m_own) assert (held_q);
      if (held_q) assert (m_own == (m_done_ticket == m_ticket));
    end
    if (held_q && done_queue_q == f_queue) assert (m_set && done_slot_q == (m_done_ticket[DepthLog2-1:0] & m_mask));
  end
end
