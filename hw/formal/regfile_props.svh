// Proof of regfile, included at its end: each write that is answered with OKAY has left exactly one event before, with its own
// address and value; a refused one none, or the one that its taker refused. Whatever the bus and the takers do, at any time.
//
// The model is written from the bus side alone. One control register, one doorbell and one status register are chosen freely
// (anyconst): what is read from them is the last value that was kept.
logic f_started = 1'b0;
always_ff @(posedge clk_i) f_started <= 1'b1;
always_comb if (!f_started) assume (!rst_ni);

// ---------------------------------------------------------------- Events and answers of writes
logic        m_addr, m_data, m_event, m_refused;
logic [15:0] m_to;
logic [31:0] m_value;
logic [3:0]  m_strobe;
logic [2:0]  m_idle;  // cycles in which nothing but the block held a write up
wire m_legal_bell = m_strobe == 4'b1111 && m_to >= 16'h1000 && m_to < 16'h9000 && m_to % 64 == 0;
wire m_legal_reg  = m_strobe == 4'b1111 && m_to < 16'h1000 && m_to % 4 == 0 &&
                    ringbell_abi_pkg::REG_WRITABLE[m_to / 4];
wire f_rung = bell_valid_o && bell_ready_i;
wire f_set  = reg_valid_o && reg_ready_i;

always_ff @(posedge clk_i) begin
  if (awvalid_i && awready_o) begin m_addr <= 1'b1; m_to <= awaddr_i; end
  if (wvalid_i && wready_o) begin m_data <= 1'b1; m_value <= wdata_i; m_strobe <= wstrb_i; end
  if (f_rung || f_set) m_event <= 1'b1;
  if (f_set && reg_refuse_i) m_refused <= 1'b1;
  m_idle <= '0;
  if (m_addr && m_data && !bvalid_o && !(bell_valid_o && !bell_ready_i) && !(reg_valid_o && !reg_ready_i))
    m_idle <= m_idle + 3'd1;
  if (!rst_ni) m_idle <= '0;
  if (!rst_ni || (bvalid_o && bready_i)) begin
    m_addr    <= 1'b0;
    m_data    <= 1'b0;
    m_event   <= 1'b0;
    m_refused <= 1'b0;
  end
end
always_comb if (f_started) begin
  // An event belongs to a write that is here whole, has left none yet, and is allowed.
  if (bell_valid_o) assert (m_addr && m_data && !m_event && m_legal_bell && !reg_valid_o);
  if (bell_valid_o) assert (bell_queue_o == 9'((m_to - 16'h1000) / 64) && value_o == m_value);
  if (reg_valid_o) assert (m_addr && m_data && !m_event && m_legal_reg);
  if (reg_valid_o) assert (reg_index_o == 9'(m_to / 4) && value_o == m_value);
  // An answer comes for a whole write, and says what became of it.
  if (bvalid_o) begin
    assert (m_addr && m_data);
    assert (bresp_o == (m_event && !m_refused ? 2'b00 : 2'b10));
    assert (m_event == (m_legal_bell || m_legal_reg));
  end
  // Nothing but its taker holds a write up.
  assert (m_idle <= 3'd1);
  // A second address or value waits for the answer.
  if (awready_o) assert (!m_addr);
  if (wready_o) assert (!m_data);
end

// What was offered stays until it is taken.
always_ff @(posedge clk_i) if (f_started && $past(rst_ni) && rst_ni) begin
  if ($past(bvalid_o && !bready_i)) assert (bvalid_o && $stable(bresp_o));
  if ($past(rvalid_o && !rready_i)) assert (rvalid_o && $stable(rresp_o) && $stable(rdata_o));
  if ($past(bell_valid_o && !bell_ready_i)) assert (bell_valid_o && $stable(bell_queue_o) && $stable(value_o));
  if ($past(reg_valid_o && !reg_ready_i)) assert (reg_valid_o && $stable(reg_index_o) && $stable(value_o));
end

// ---------------------------------------------------------------- Values read
(* anyconst *) logic [8:0] f_reg;
(* anyconst *) logic [8:0] f_bell;
(* anyconst *) logic [8:0] f_status;
(* anyconst *) logic [3:0] f_header, f_word;
wire [15:0] f_header_at = 16'hc00 + {6'b0, f_header, 6'b0} + {10'b0, f_word, 2'b0};
// What a header says is constant: its place, its kind and the chain, by the contract's layout.
wire        f_there     = f_header < ringbell_abi_pkg::BLOCK_KINDS && f_word < 12;
logic [31:0] m_reg, m_bell, m_status, m_seen;
logic        m_read;
logic [15:0] m_from;
always_ff @(posedge clk_i) begin
  if (f_set && !reg_refuse_i && reg_index_o == f_reg) m_reg <= m_value;
  if (f_rung && bell_queue_o == f_bell) m_bell <= m_value;
  if (status_valid_i && !clear_q && status_index_i == f_status) m_status <= status_i;
  if (arvalid_i && arready_o) begin
    m_read <= 1'b1;
    m_from <= araddr_i;
    m_seen <= araddr_i < 16'h800 ? m_reg : araddr_i < 16'h1000 ? m_status : m_bell;
  end
  if (rvalid_o && rready_i) m_read <= 1'b0;
  if (!rst_ni) begin
    m_reg    <= '0;
    m_bell   <= '0;
    m_status <= '0;
    m_read   <= 1'b0;
  end
end
wire m_header  = m_from >= 16'hc00 && m_from < 16'h1000 && m_from % 4 == 0 && (m_from - 16'hc00) / 64 < ringbell_abi_pkg::BLOCK_KINDS && m_from % 64 < 48;
wire m_present = m_header || m_from < 16'h1000 ? m_header || (m_from % 4 == 0 && ringbell_abi_pkg::REG_PRESENT[m_from / 4])
                                   : m_from < 16'h9000 && m_from % 64 == 0;
always_comb if (f_started && rvalid_o) begin
  assert (m_read);
  assert (rresp_o == (m_present ? 2'b00 : 2'b10));
  if (!m_present) assert (rdata_o == '0);
  else if (m_from == 16'(4 * ringbell_abi_pkg::REG_MAGIC)) assert (rdata_o == ringbell_abi_pkg::MAGIC);
  else if (m_from == 16'(4 * ringbell_abi_pkg::REG_ABI_VERSION)) assert (rdata_o == ringbell_abi_pkg::ABI_VERSION);
  else if (m_from == 16'(4 * ringbell_abi_pkg::REG_BLOCKS)) assert (rdata_o == 32'hc00);
  else if (m_header) begin
    if (f_there && m_from == f_header_at) begin
      if (f_word == 0) assert (rdata_o == f_header + 1);                             // kind
      if (f_word == 2) assert (rdata_o == 48);                                       // bytes
      if (f_word == 3) assert (rdata_o == (f_header + 1 == ringbell_abi_pkg::BLOCK_KINDS ? 0 : f_header_at - 12 + 64)); // next
      if (f_word == 9) assert (rdata_o == (f_header == 1 ? Queues : f_header == 5 ? Conns : 1));
    end
  end
  else if (m_from == {5'b0, f_reg, 2'b00}) assert (rdata_o == m_seen);
  else if (m_from == {4'b0, 1'b1, f_status, 2'b00}) assert (rdata_o == m_seen);
  else if (m_from == 16'h1000 + {1'b0, f_bell, 6'b0}) assert (rdata_o == m_seen);
end

// ---------------------------------------------------------------- Invariants
always_comb if (f_started) begin
  assert (m_addr == addr_full_q && m_data == data_full_q);
  if (m_addr) assert (m_to == addr_q);
  if (m_data) assert (m_value == data_q && m_strobe == strb_q);
  if (m_event) assert (bvalid_o);
  if (m_refused) assert (m_event);
  assert (m_read == (read_q || rvalid_q));
  assert (!(read_q && rvalid_q));
  if (m_read) assert (m_from == raddr_q);
  if (clear_q) begin
    assert (!m_addr && !m_data && !m_read);
    assert (m_reg == '0 && m_bell == '0 && m_status == '0);
    if (f_reg < clear_at_q) assert (control_q[f_reg] == '0);
    if (f_bell < clear_at_q) assert (bell_q[f_bell] == '0);
    if (f_status < clear_at_q) assert (status_q[f_status] == '0);
  end else begin
    assert (control_q[f_reg] == m_reg);
    assert (bell_q[f_bell] == m_bell);
    assert (status_q[f_status] == m_status);
  end
end
