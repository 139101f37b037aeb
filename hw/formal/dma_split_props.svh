// Proof of dma_split, included at its end: the bursts of a command are its bytes, each once and in order, at the addresses that
// the GTLB gave for them; and no more beats are under way than there is room for. The environment answers each look-up once, at
// any time, and returns a credit only for a beat that it has taken.
localparam int unsigned PageShift = ringbell_abi_pkg::PAGE_SHIFT;
logic f_started = 1'b0;
always_ff @(posedge clk_i) f_started <= 1'b1;
always_comb if (!f_started) assume (!rst_ni);

logic        m_busy, m_asked, m_fault;
logic [63:0] m_first, m_bus;
logic [31:0] m_len, m_sent, m_under_way;
wire [63:0] m_at    = m_first + 64'(m_sent);
wire        f_burst = burst_valid_o && burst_ready_i;
wire [63:0] f_end   = m_at + 64'(burst_len_o) - 64'd1;
// Aligned lines of 64 bytes between first and last byte.
wire [31:0] f_beats = 32'((f_end >> 6) - (m_at >> 6)) + 32'd1;
wire        f_past  = m_len != 0 && m_first + 64'(m_len) - 64'd1 < m_first;

always_comb begin
  if (lookup_valid_i) assume (m_asked);
  if (m_under_way == 0) assume (!credit_i);
end
always_ff @(posedge clk_i) begin
  if (cmd_valid_i && cmd_ready_o) begin
    m_busy  <= 1'b1;
    m_first <= cmd_va_i;
    m_len   <= cmd_len_i;
    m_sent  <= '0;
    m_fault <= 1'b0;
  end
  if (lookup_valid_o) m_asked <= 1'b1;
  if (lookup_valid_i) begin
    m_asked <= 1'b0;
    m_fault <= lookup_fault_i;
    m_bus   <= lookup_bus_i;
  end
  if (f_burst) m_sent <= m_sent + burst_len_o;
  m_under_way <= m_under_way + (f_burst ? f_beats : 0) - 32'(credit_i);
  if (report_valid_o && report_ready_i) m_busy <= 1'b0;
  if (!rst_ni) begin
    m_busy      <= 1'b0;
    m_asked     <= 1'b0;
    m_under_way <= '0;
  end
end

always_comb if (f_started) begin
  assert (cmd_ready_o == !m_busy);
  // A look-up is for the next byte, and one at a time.
  if (lookup_valid_o) assert (m_busy && !m_asked && lookup_va_o == m_at && m_sent < m_len && !f_past);
  if (burst_valid_o) begin
    assert (m_busy && !m_asked && !m_fault && burst_bus_o == m_bus);
    // Some bytes, none behind the end, and the last burst is marked as such.
    assert (burst_len_o != 0 && burst_len_o <= m_len - m_sent && m_sent < m_len);
    assert (burst_last_o == (m_sent + burst_len_o == m_len));
    // Neither a multiple of MaxBurst nor a page is crossed.
    assert (m_at / MaxBurst == f_end / MaxBurst && m_at >> PageShift == f_end >> PageShift);
  end
  if (report_valid_o) begin
    assert (m_busy && !m_asked);
    assert (report_fault_o == (m_fault || f_past));
    // Without a fault everything was sent; with one, everything before its address.
    if (!report_fault_o) assert (m_sent == m_len);
    else assert (report_va_o == m_at && (f_past ? m_sent == 0 : m_sent < m_len));
  end
  assert (m_under_way <= CreditBeats);
end

always_ff @(posedge clk_i) if (f_started && $past(rst_ni) && rst_ni) begin
  if ($past(burst_valid_o && !burst_ready_i))
    assert (burst_valid_o && $stable(burst_bus_o) && $stable(burst_len_o) && $stable(burst_last_o));
  if ($past(report_valid_o && !report_ready_i))
    assert (report_valid_o && $stable(report_fault_o) && $stable(report_va_o));
  // Nothing but its taker and the credits hold a command up.
  if ($past(state_q == Ask)) assert (state_q == Wait);
  if ($past(state_q == Offer && burst_ready_i && credits_q == CreditBeats)) assert (state_q != Offer);
end

// Invariants.
always_comb if (f_started) begin
  assert (state_q <= Report);
  assert (m_under_way + 32'(credits_q) == CreditBeats);
  assert (m_asked == (state_q == Wait));
  if (m_busy) begin
    assert (va_q == m_at && left_q == m_len - m_sent && m_sent <= m_len);
    if (state_q == Ask || state_q == Wait || state_q == Offer) assert (m_sent < m_len && !f_past && !m_fault);
    if (state_q == Offer) assert (bus_q == m_bus && !fault_q);
    if (state_q == Report) assert (fault_q == (m_fault || f_past));
  end
end
