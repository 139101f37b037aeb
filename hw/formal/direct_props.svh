// Proof of direct, included at its end: the bytes that are moved for an operation are its own, each once and in order; a send asks for
// no more bytes than the transport has given credit for; an operation ends once, with its tag, and not before its bytes have moved
// unless it is flushed. One slot of one side of one connection is chosen freely. Of the environment it assumes that the
// DMA, once ready, is ready for a command in the next cycle, and that the credit of a connection stays below 4 GiB.
logic f_started = 1'b0;
always_ff @(posedge clk_i) f_started <= 1'b1;
always_comb if (!f_started) assume (!rst_ni);
always_ff @(posedge clk_i) if (f_started && $past(rst_ni)) begin
  if ($past(read_ready_i && !read_valid_o) && read_valid_o) assume (read_ready_i);
  if ($past(write_ready_i && !write_valid_o) && write_valid_o) assume (write_ready_i);
  // The events' sources keep what they offer.
  if ($past(ctl_valid_i && !ctl_ready_o)) assume (ctl_valid_i && $stable(ctl_conn_i) && $stable(ctl_what_i));
  if ($past(op_valid_i && !op_ready_o))
    assume (op_valid_i && $stable(op_send_i) && $stable(op_conn_i) && $stable(op_va_i) && $stable(op_len_i) &&
            $stable(op_some_i) && $stable(op_tag_i));
  if ($past(credit_valid_i && !credit_ready_o)) assume (credit_valid_i && $stable(credit_conn_i) && $stable(credit_i));
  if ($past(rx_meta_valid_i && !rx_meta_ready_o))
    assume (rx_meta_valid_i && $stable(rx_meta_conn_i) && $stable(rx_meta_len_i));
end

(* anyconst *) logic             f_send;
(* anyconst *) conn_t            f_conn;
(* anyconst *) logic [SlotW-1:0] f_slot;
wire [ConnW:0] f_side = {f_send, f_conn};
wire [ConnW+SlotW:0] f_at = {f_side, f_slot};
logic        m_live, m_ended;
logic [63:0] m_va;
logic [31:0] m_len, m_moved, m_credit;
logic [15:0] m_tag;

wire f_op    = op_valid_i && op_ready_o && op_send_i == f_send && op_conn_i == 16'(f_conn);
wire f_adds  = f_op && adds && tail[SlotW-1:0] == f_slot;
wire f_moves = (read_valid_o && read_ready_i && f_send || write_valid_o && write_ready_i && !f_send) && at_q == f_conn &&
               next[SlotW-1:0] == f_slot;
wire f_done  = done_valid_o && done_ready_i && !done_refused_o && side == f_side && head[SlotW-1:0] == f_slot;
wire [63:0] f_va    = f_send ? read_va_o : write_va_o;
wire [31:0] f_bytes = f_send ? read_len_o : write_len_o;
wire        f_pays  = credit_valid_i && credit_ready_o && credit_conn_i == 16'(f_conn);
wire        f_spends = read_valid_o && read_ready_i && at_q == f_conn;

always_comb begin
  if (f_pays) assume ({1'b0, m_credit} + {1'b0, credit_i} < 33'h1_0000_0000);
  // A connection that the block does not have gets none: its number is cut.
  if (credit_valid_i) assume (32'(credit_conn_i) < Conns);
end
always_ff @(posedge clk_i) begin
  if (f_adds) begin
    m_live  <= 1'b1;
    m_ended <= 1'b0;
    m_va    <= op_va_i;
    m_len   <= op_len_i;
    m_tag   <= op_tag_i;
    m_moved <= '0;
  end
  if (f_moves) begin
    m_moved <= m_moved + f_bytes;
    m_ended <= ends_it;
  end
  if (f_done) m_live <= 1'b0;
  if (f_pays) m_credit <= m_credit + credit_i;
  if (f_spends) m_credit <= m_credit - read_len_o;
  if (ctl_valid_i && ctl_ready_o && ctl_conn_i == 16'(f_conn) && ctl_what_i == CtlOpen) m_credit <= '0;
  if (!rst_ni) m_live <= 1'b0;
end

always_comb if (f_started) begin
  if (f_adds) assert (!m_live);
  if (f_moves) begin
    assert (m_live && !m_ended);
    assert (f_va == m_va + 64'(m_moved) && f_bytes != '0 && f_bytes <= m_len - m_moved);
    // All of a send, and of a receive all or one segment.
    if (f_send) assert (ends_it == (m_moved + f_bytes == m_len));
    else if (m_moved + f_bytes == m_len) assert (ends_it);
  end
  if (f_spends) assert (read_len_o <= m_credit && read_len_o <= Chunk && open_q[f_conn]);
  if (f_done) begin
    assert (m_live && done_tag_o == m_tag && done_send_o == f_send && done_bytes_o == m_moved);
    if (!done_flushed_o) assert (m_ended && (!f_send || m_moved == m_len));
  end
end
always_ff @(posedge clk_i) if (f_started && $past(rst_ni) && rst_ni) begin
  if ($past(done_valid_o && !done_ready_i))
    assert (done_valid_o && $stable(done_tag_o) && $stable(done_bytes_o) && $stable(done_send_o) && $stable(done_refused_o));
  if ($past(want_valid_o && !want_ready_i)) assert (want_valid_o && $stable(want_conn_o) && $stable(want_len_o));
  if ($past(tx_meta_valid_o && !tx_meta_ready_i)) assert (tx_meta_valid_o && $stable(tx_meta_conn_o) && $stable(tx_meta_len_o));
end

// Invariants.
wire f_flush = side == f_side && legal_q && ctl_what_i[1] && (state_q == Ctl || (state_q == Done && flushed_q));
place_t f_head, f_next, f_tail, f_index;
assign f_head = head_q[f_side];
assign f_next = next_q[f_side];
assign f_tail = tail_q[f_side];
assign f_index = place_t'({1'b0, SlotW'(f_slot - f_head[SlotW-1:0])});
always_comb if (f_started) begin
  assert (state_q <= Clear);
  if (state_q == Clear) assert (open_q == '0 && !m_live && todo_q == '0 && paid_q == '0);
  if (state_q != Clear || side > f_side) begin
    assert (place_t'(f_tail - f_head) <= place_t'(Slots));
    assert (place_t'(f_next - f_head) <= place_t'(f_tail - f_head));
    assert (m_live == (f_index < place_t'(f_tail - f_head)));
  end
  if (m_live) begin
    assert (op_q[f_at][48:1] == {m_len, m_tag});
    assert (progress_q[f_at] == {m_va + 64'(m_moved), m_len - m_moved});
    assert (m_moved <= m_len && m_len != '0 && (m_ended || m_moved != m_len));
    assert (m_ended == (f_index < place_t'(f_next - f_head)) || f_flush);
    if (m_ended && f_send) assert (m_moved == m_len);
    if (f_index > place_t'(f_next - f_head) && !f_flush) assert (m_moved == '0);
  end
  if (open_q[f_conn]) assert (credit_q[f_conn] == m_credit && paid_q[f_conn] == (m_credit != '0));
  if (f_send && todo_q[f_conn] && !f_flush) assert (f_next != f_tail);
  if (state_q == Send) assert (send_q && open_q[at_q] && todo_q[at_q] && paid_q[at_q] && tx_room && read_ready_i);
  if (state_q == Recv) assert (!send_q && rx_meta_valid_i && (write_ready_i || !write_valid_o) && rx_room);
  if (state_q == Op) assert (op_valid_i && send_q == op_send_i && at_q == conn_t'(op_conn_i) && legal_q == (32'(op_conn_i) < Conns));
  if (state_q == Credit) assert (credit_valid_i && at_q == conn_t'(credit_conn_i) && legal_q);
  if (state_q == Ctl) assert (ctl_valid_i && at_q == conn_t'(ctl_conn_i) && legal_q == (32'(ctl_conn_i) < Conns) && send_q == (ctl_what_i == CtlFlushSend));
  if (state_q == Done && !refused_q && side == f_side && head[SlotW-1:0] == f_slot)
    assert (m_live && tag_q == m_tag && bytes_q == m_moved && (flushed_q || m_ended));
  if (state_q == Done && !refused_q && side == f_side) assert (f_head != (flushed_q ? f_tail : f_next));
  if (state_q == Done && flushed_q) assert (ctl_valid_i && ctl_what_i[1] && at_q == conn_t'(ctl_conn_i) && legal_q && 32'(ctl_conn_i) < Conns && send_q == (ctl_what_i == CtlFlushSend) && !refused_q);
end
